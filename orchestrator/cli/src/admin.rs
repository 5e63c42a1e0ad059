//! `gantry admin`: what only an admin can see and change.

pub(crate) mod audit;
pub(crate) mod mcp;

use clap::Subcommand;
use protocol::AdminToolPolicy;

use self::mcp::McpCommand;
use super::{
    client::Client,
    exit::CliError,
    input,
    output::{Output, one_line},
};

const POLICY_HELP: &str = r#"Example of a policy:
  {"disabled_tools": ["shell"], "user_disabled_tools": {"ada": ["http"]}}"#;

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Show the tool policy, or replace it with a JSON file
    #[command(after_help = POLICY_HELP)]
    ToolPolicy {
        /// JSON file with the new policy; - reads standard input
        #[arg(value_hint = clap::ValueHint::AnyPath)]
        file: Option<String>,
    },
    /// List MCP servers and approve changed definitions of their tools
    #[command(subcommand)]
    Mcp(McpCommand),
}

pub(super) async fn run(command: AdminCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        AdminCommand::ToolPolicy { file } => tool_policy(file, client, output).await,
        AdminCommand::Mcp(command) => mcp::run(command, client, output).await,
    }
}

async fn tool_policy(file: Option<String>, client: &Client, output: &mut Output) -> Result<(), CliError> {
    const PATH: &str = "/api/admin/tool-policy";
    let policy: AdminToolPolicy = match file {
        // The server checks that it is a policy.
        Some(file) => client.put_if_version(PATH, &[], &input::json(&file)?, None).await?,
        None => client.get(PATH, &[]).await?,
    };
    output.either(&policy, |_| text(&policy))
}

fn text(policy: &AdminToolPolicy) -> String {
    let list = |tools: &[String]| tools.iter().map(|tool| one_line(tool)).collect::<Vec<_>>().join(", ");
    let everyone = if policy.disabled_tools.is_empty() { "none".to_owned() } else { list(&policy.disabled_tools) };
    let users = policy
        .user_disabled_tools
        .iter()
        .map(|(user, tools)| format!("\ndisabled for {}: {}", one_line(user), list(tools)));
    format!("disabled for everyone: {everyone}{}", users.collect::<String>())
}
