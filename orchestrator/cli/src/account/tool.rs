//! `gantry tool`: the tools of the caller's chats and jobs, and the caller's permissions.

use std::fmt::Write as _;

use clap::{Subcommand, ValueEnum};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{PermissionState, SetPermission, ToolDomain, ToolPage, ToolSummary};

use crate::{
    client::Client,
    exit::{CliError, Exit},
    output::{
        Output,
        table::{Column, TableArgs, View, table},
        text::one_line,
    },
};
use base::{Environment, clock::Clock};

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum ToolCommand {
    /// List tools with your permissions
    #[command(visible_alias = "ls")]
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
pub enum PermissionArg {
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

pub(crate) async fn run(
    command: ToolCommand,
    environment: &Environment,
    output: &mut Output,
) -> Result<Exit, CliError> {
    let client = Client::from_environment(environment)?;
    match command {
        ToolCommand::List => {
            let page: ToolPage = client.get("/api/tools", &[]).await?;
            let view = View::new(output, &TableArgs::default(), Clock::system().now(), client.user());
            output.either(&page, |_| text(&page, &view))?;
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

fn text(page: &ToolPage, view: &View) -> String {
    let mut text = table(TOOLS, &page.items, view);
    for one in &page.unavailable {
        let _infallible = write!(text, "\nwithout the tools of {}: {}", one_line(&one.server), one_line(&one.reason));
    }
    text
}

const TOOLS: &[Column<ToolSummary>] = &[
    Column::text("name", |tool, _| one_line(&tool.name)),
    Column::text("runs in", |tool, _| {
        match tool.domain {
            ToolDomain::Orchestrator => "server",
            ToolDomain::Container => "sandbox",
        }
        .to_owned()
    }),
    Column::text("approval", |tool, _| tool.requirement.as_str().to_owned()),
    Column::text("permission", |tool, _| tool.permission.as_str().to_owned()),
    Column::flexible("description", |tool, _| one_line(&tool.description)),
];
