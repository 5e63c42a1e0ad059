//! `gantry tool`: the tools of the caller's chats and jobs, and the caller's permissions.

use std::fmt::Write as _;

use clap::Subcommand;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{PermissionState, SetPermission, ToolDomain, ToolPage, ToolSummary};

use crate::{
    client::Client,
    exit::CliError,
    input::one_of_explained,
    output::{Column, Output, TableArgs, View, one_line, table},
};
use base::clock::Clock;

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
        #[arg(value_parser = one_of_explained(PERMISSIONS))]
        permission: PermissionState,
    },
}

const PERMISSIONS: &[(PermissionState, &str)] = &[
    (PermissionState::Default, "The tool's approval requirement decides"),
    (PermissionState::AlwaysAllow, "In chat, calls run without asking, except those that always require approval"),
    (PermissionState::AskEachTime, "In chat, every call asks"),
    (PermissionState::Disabled, "Every call is refused"),
];

pub(crate) async fn run(command: ToolCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        ToolCommand::List => {
            let page: ToolPage = client.get("/api/tools", &[]).await?;
            let view = View::new(output, &TableArgs::default(), Clock::system().now(), client.user());
            output.either(&page, |_| text(&page, &view))
        }
        ToolCommand::Permission { name, permission } => {
            let path = format!("/api/tools/{}/permission", utf8_percent_encode(&name, NON_ALPHANUMERIC));
            let body = SetPermission { permission };
            let tool: ToolSummary = client.put_if_version(&path, &[], &body, None).await?;
            output.either(&tool, |_| format!("{}: {}", one_line(&tool.name), tool.permission.as_str()))
        }
    }
}

fn text(page: &ToolPage, view: &View) -> String {
    let mut text = table(TOOLS, &page.items, view);
    for one in &page.unavailable {
        let tools =
            one.tool.as_ref().map_or_else(|| "the tools".to_owned(), |tool| format!("the tool {}", one_line(tool)));
        let _infallible = write!(text, "\nwithout {tools} of {}: {}", one_line(&one.server), one_line(&one.reason));
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
