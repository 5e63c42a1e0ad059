//! `gantry login`, `logout`, `context` and `whoami`: the servers that the command line knows, and who the caller is there.
//!
//! Owns checking a token with its server before it is saved. Never prints a token.

use std::io::{IsTerminal as _, Read as _};

use clap::{Args, Subcommand};
use protocol::{ActorRole, WhoAmI};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

use crate::{
    client::{
        Client,
        claims::UnverifiedClaims,
        connection::{Connection, DEFAULT_URL, read_token},
        contexts::{Context, Contexts, parse_name},
    },
    exit::CliError,
    output::{Column, Output, TableArgs, View, local_time, one_line, table},
    unix::hidden_line,
};
use base::{Environment, clock::Clock, mask_urls};

const DEFAULT_NAME: &str = "default";
/// Longer than any token.
const MAX_INPUT_BYTES: u64 = 64 * 1024;

#[derive(Debug, Args)]
pub struct LoginArgs {
    /// Name of the context to create or replace
    #[arg(default_value = DEFAULT_NAME, value_parser = parse_name)]
    name: String,
    /// URL of the server
    #[arg(long, env = "GANTRY_URL", default_value = DEFAULT_URL, hide_env_values = true)]
    url: String,
    /// File that contains the access token (default: read standard input)
    #[arg(long, value_name = "FILE")]
    token_file: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List the contexts
    #[command(visible_alias = "ls")]
    List,
    /// Show the server and the user of a context
    Show {
        /// Name (default: the context in use)
        name: Option<String>,
    },
    /// Use a context from now on
    Use {
        /// Name
        name: String,
    },
    /// Remove a context and its token from this machine
    #[command(visible_alias = "rm")]
    Remove {
        /// Name
        name: String,
    },
}

/// Checks a token with its server and saves both.
pub(crate) async fn login(args: LoginArgs, environment: &Environment, output: &mut Output) -> Result<(), CliError> {
    let token = match &args.token_file {
        Some(file) => read_token(file)?,
        None => read_standard_input()?,
    };
    if token.expose_secret().is_empty() {
        return Err(CliError::Usage("the access token is empty; `gantry token create` prints one".to_owned()));
    }
    let client = Client::new(&args.url, Some(token.clone()))?;
    let _: WhoAmI = client.get("/api/whoami", &[]).await?;
    let mut contexts = Contexts::load(environment)?;
    contexts.insert(&args.name, Context::new(args.url.clone(), token.expose_secret().to_owned()));
    let file = contexts.save(environment)?;
    let about = describe(&args.name, &args.url, &token, true);
    output.either(&about, |_| {
        let user = about.user.as_deref().unwrap_or("an unknown user");
        format!("Logged in to {} as {user}; saved as context {} in {}", about.url, args.name, file.display())
    })?;
    for variable in ["GANTRY_URL", "GANTRY_TOKEN", "GANTRY_TOKEN_FILE"] {
        if environment.get(variable).is_some() {
            output.note(&format!("gantry: {variable} is set and takes precedence over contexts"));
        }
    }
    Ok(())
}

/// Shows who the server takes the token for.
pub(crate) async fn whoami(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let who: WhoAmI = client.get("/api/whoami", &[]).await?;
    let zone = output.zone();
    output.either(&who, |_| {
        format!(
            "{} ({}) until {}, server version {}",
            one_line(&who.user),
            one_line(&who.role),
            local_time(who.expires_at, zone),
            who.version
        )
    })
}

fn read_standard_input() -> Result<SecretString, CliError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(SecretString::from(hidden_line("Access token: ")?.trim()));
    }
    let mut text = String::new();
    let failed = |error| CliError::failed("cannot read the access token from standard input", error);
    stdin.lock().take(MAX_INPUT_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(SecretString::from(text.trim()))
}

/// Removes the context in use.
pub(crate) fn logout(environment: &Environment, output: &mut Output) -> Result<(), CliError> {
    let contexts = Contexts::load(environment)?;
    let current = contexts.current().map(str::to_owned);
    let name = current.ok_or_else(|| CliError::NotFound("no context is in use".to_owned()))?;
    remove(&name, environment, output)
}

pub(crate) fn run(command: ContextCommand, environment: &Environment, output: &mut Output) -> Result<(), CliError> {
    let mut contexts = Contexts::load(environment)?;
    match command {
        ContextCommand::List => {
            let items: Vec<About> = contexts
                .iter()
                .map(|(name, context)| {
                    describe(name, &context.url, &context.token(), contexts.current() == Some(name.as_str()))
                })
                .collect();
            let view = View::new(output, &TableArgs::default(), Clock::system().now(), None);
            output.either(&serde_json::json!({"items": items, "next_cursor": null}), |_| table(COLUMNS, &items, &view))
        }
        ContextCommand::Show { name } => {
            let environment = match &name {
                Some(name) => {
                    // The variables do not apply to a context that is named.
                    let without = environment.clone().without("GANTRY_URL").without("GANTRY_TOKEN");
                    without.without("GANTRY_TOKEN_FILE").with("GANTRY_CONTEXT", name)
                }
                None => environment.clone(),
            };
            let connection = Connection::from_environment(&environment)?;
            let token = connection.token.unwrap_or_default();
            let about = describe(&connection.source, &connection.url, &token, true);
            let zone = output.zone();
            output.either(&about, |_| {
                let expires = about.expires_at.map(|at| local_time(at, zone));
                let rows = [
                    ("from", Some(about.name.clone())),
                    ("url", Some(about.url.clone())),
                    ("user", about.user.clone()),
                    ("role", about.role.map(str::to_owned)),
                    ("expires", expires),
                ];
                let lines = rows.into_iter().map(|(name, value)| {
                    format!("{name:<8} {}", value.map_or_else(|| "—".to_owned(), |value| one_line(&value)))
                });
                lines.collect::<Vec<_>>().join("\n")
            })
        }
        ContextCommand::Use { name } => {
            contexts.select(&name)?;
            contexts.save(environment)?;
            output.either(&serde_json::json!({"name": name, "current": true}), |_| format!("using context {name}"))
        }
        ContextCommand::Remove { name } => remove(&name, environment, output),
    }
}

fn remove(name: &str, environment: &Environment, output: &mut Output) -> Result<(), CliError> {
    let mut contexts = Contexts::load(environment)?;
    contexts.remove(name)?;
    contexts.save(environment)?;
    output.either(&serde_json::json!({"name": name, "removed": true}), |_| format!("removed context {name}"))?;
    if contexts.current().is_none() && contexts.iter().next().is_some() {
        output.note("gantry: no context is in use; select one with `gantry context use NAME`");
    }
    Ok(())
}

/// A context without its token.
#[derive(Debug, Serialize)]
struct About {
    name: String,
    url: String,
    user: Option<String>,
    role: Option<&'static str>,
    expires_at: Option<chrono::DateTime<chrono::Utc>>,
    current: bool,
}

const COLUMNS: &[Column<About>] = &[
    Column::text("current", |about, _| if about.current { "*" } else { "" }.to_owned()),
    Column::text("name", |about, _| about.name.clone()),
    Column::text("user", |about, _| about.user.clone().unwrap_or_default()),
    Column::text("role", |about, _| about.role.unwrap_or_default().to_owned()),
    Column::text("expires", |about, view| match about.expires_at {
        Some(at) if at <= view.now => "expired".to_owned(),
        Some(at) => format!("in {}", crate::output::table::duration(at - view.now)),
        None => String::new(),
    }),
    Column::flexible("url", |about, _| one_line(&about.url)),
];

fn describe(name: &str, url: &str, token: &SecretString, current: bool) -> About {
    let claims = UnverifiedClaims::of(token.expose_secret());
    About {
        name: name.to_owned(),
        url: mask_urls(url),
        role: claims.as_ref().and_then(|claims| claims.role).map(ActorRole::as_str),
        expires_at: claims.as_ref().and_then(|claims| claims.expires_at),
        user: claims.map(|claims| claims.user),
        current,
    }
}
