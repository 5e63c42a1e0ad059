//! `gantry secret`: the caller's secrets.

mod value;

use clap::{Args, Subcommand};
use protocol::{Page, SecretSummary, SetSecret, is_secret_name};
use secrecy::ExposeSecret;

use crate::{
    client::{Client, zones},
    exit::{CliError, Exit},
    output::{Column, Output, TableArgs, View, one_line, table},
};
use base::{Environment, clock::Clock};

#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Create or replace a secret; the value is read from standard input, without its last line break
    Set(SetArgs),
    /// List the names of your secrets
    #[command(visible_alias = "list")]
    Ls,
    /// Delete a secret
    #[command(visible_alias = "delete")]
    Rm {
        /// Name of the secret
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name: 1 to 64 letters, digits and _.-
    name: String,
    /// Keep the line break at the end of the input
    #[arg(long)]
    keep_newline: bool,
    /// Store the value even if it is an everyday word or has few characters of one kind; it is then redacted in ordinary text
    #[arg(long)]
    force: bool,
    /// A host that the secret may be sent to, and then no other; may be repeated. Without it a secret keeps its hosts
    #[arg(long = "host", value_name = "HOST", conflicts_with = "any_host")]
    hosts: Vec<String>,
    /// The secret may be sent to any host
    #[arg(long)]
    any_host: bool,
}

pub async fn run(command: SecretCommand, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let client = &Client::from_environment(environment)?;
    match command {
        SecretCommand::Set(args) => set(client, args, output).await?,
        SecretCommand::Ls => list(client, output).await?,
        SecretCommand::Rm { name } => delete(client, checked_name(&name)?, output).await?,
    }
    Ok(Exit::Success)
}

async fn set(client: &Client, args: SetArgs, output: &mut Output) -> Result<(), CliError> {
    let name = checked_name(&args.name)?.to_owned();
    let value = value::from_standard_input(args.keep_newline)?.expose_secret().to_owned();
    let hosts = (args.any_host || !args.hosts.is_empty()).then_some(args.hosts);
    let body = SetSecret { name, value, force: args.force, hosts };
    let secret: SecretSummary = client.post("/api/secrets", &body, None).await?;
    output.either(&secret, |_| format!("{} set", one_line(&secret.name)))
}

async fn list(client: &Client, output: &mut Output) -> Result<(), CliError> {
    // A user has no more than a page of them.
    let page: Page<SecretSummary> = client.get("/api/secrets", &[("limit", "200".to_owned())]).await?;
    zones::shown(client, output).await;
    let view = View::new(output, &TableArgs::default(), Clock::system().now(), client.user());
    output.either(&page, |_| table(SECRETS, &page.items, &view))
}

async fn delete(client: &Client, name: &str, output: &mut Output) -> Result<(), CliError> {
    client.delete_if_version(&format!("/api/secrets/{name}"), &[], None).await?;
    output.either(&serde_json::json!({"name": name, "deleted": true}), |_| format!("{name} deleted"))
}

/// Checked here so that the name fits into a URL, and before a value is read.
fn checked_name(name: &str) -> Result<&str, CliError> {
    let invalid = || {
        CliError::Usage(
            "a secret's name must be 1 to 64 letters, digits and the characters _.-, and not . or ..".to_owned(),
        )
    };
    if is_secret_name(name) { Ok(name) } else { Err(invalid()) }
}

const SECRETS: &[Column<SecretSummary>] = &[
    Column::text("name", |secret, _| one_line(&secret.name)),
    Column::text("hosts", |secret, _| if secret.hosts.is_empty() { "any".to_owned() } else { secret.hosts.join(", ") }),
    Column::text("updated", |secret, view| view.time(secret.updated_at)),
    Column::text("created", |secret, view| view.time(secret.created_at)),
];
