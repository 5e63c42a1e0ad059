//! `gantry tool`: the tools of the caller's chats and jobs, and the caller's permissions.

use std::fmt::Write as _;

use clap::{Subcommand, ValueEnum};
use comfy_table::{Table, presets};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{PermissionState, SetPermission, ToolDomain, ToolPage, ToolSummary};

use super::{
    client::Client,
    exit::{CliError, Exit},
    output::Output,
    text::{one_line, truncate},
};
use crate::config::Environment;

/// Characters of a description in the list.
const MAX_DESCRIPTION_CHARS: usize = 60;

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(super) enum ToolCommand {
    /// List tools with your permissions
    List,
    /// Set your permission for a tool
    Permission {
        /// Name of the tool
        name: String,
        /// How the tool may run
        #[arg(value_enum)]
        permission: PermissionArg,
    },
}

/// A permission, spelled as on the wire.
#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum PermissionArg {
    /// The tool's approval requirement decides
    Default,
    /// In chat, calls run without asking, except those that always require approval
    AlwaysAllow,
    /// In chat, every call asks
    AskEachTime,
    /// Every call is refused
    Disabled,
}

impl From<PermissionArg> for PermissionState {
    fn from(permission: PermissionArg) -> Self {
        match permission {
            PermissionArg::Default => Self::Default,
            PermissionArg::AlwaysAllow => Self::AlwaysAllow,
            PermissionArg::AskEachTime => Self::AskEachTime,
            PermissionArg::Disabled => Self::Disabled,
        }
    }
}

pub(super) async fn run(
    command: ToolCommand,
    environment: &Environment,
    output: &mut Output,
) -> Result<Exit, CliError> {
    let client = Client::from_environment(environment)?;
    match command {
        ToolCommand::List => {
            let page: ToolPage = client.get("/api/tools", &[]).await?;
            output.either(&page, |_| text(&page))?;
        }
        ToolCommand::Permission { name, permission } => {
            let path = format!("/api/tools/{}/permission", utf8_percent_encode(&name, NON_ALPHANUMERIC));
            let body = SetPermission { permission: permission.into() };
            let tool: ToolSummary = client.put_if_version(&path, &[], &body, None).await?;
            output.either(&tool, |_| format!("{}: {}", one_line(&tool.name), tool.permission.as_str()))?;
        }
    }
    Ok(Exit::Success)
}

fn text(page: &ToolPage) -> String {
    let mut text = table(&page.items);
    for one in &page.unavailable {
        let _infallible = write!(text, "\nwithout the tools of {}: {}", one_line(&one.server), one_line(&one.reason));
    }
    text
}

fn table(tools: &[ToolSummary]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["name", "runs in", "approval", "permission", "description"]);
    for tool in tools {
        let domain = match tool.domain {
            ToolDomain::Orchestrator => "server",
            ToolDomain::Container => "sandbox",
        };
        table.add_row([
            one_line(&tool.name),
            domain.to_owned(),
            tool.requirement.as_str().to_owned(),
            tool.permission.as_str().to_owned(),
            truncate(&one_line(&tool.description), MAX_DESCRIPTION_CHARS),
        ]);
    }
    table.trim_fmt()
}
