//! `gantry admin mcp`: the MCP servers, their tools, and the approval of changed definitions.

use clap::Subcommand;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{ApproveMcpTool, McpServerSummary, McpToolStatus, McpToolSummary, McpTransportKind, Page};

use crate::{
    client::Client,
    exit::CliError,
    output::{Column, Output, TableArgs, View, one_line, table},
};
use base::clock::Clock;

const PATH: &str = "/api/admin/mcp";

#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// List the MCP servers, their tools, and definitions that wait for approval
    List,
    /// Approve the changed definition of a tool
    Approve {
        /// Name of the server
        server: String,
        /// The server's own name of the tool
        tool: String,
        /// Digest of the definition, as listed; the definition that is withheld when not given
        #[arg(long)]
        digest: Option<String>,
    },
}

pub(crate) async fn run(command: McpCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        McpCommand::List => {
            let page: Page<McpServerSummary> = client.get(PATH, &[]).await?;
            let view = View::new(output, &TableArgs::default(), Clock::system().now(), client.user());
            output.either(&page, |_| text(&page.items, &view))
        }
        McpCommand::Approve { server, tool, digest } => {
            let digest = match digest {
                Some(digest) => digest,
                None => withheld_digest(client, &server, &tool).await?,
            };
            let path = format!("{PATH}/{}/approve", utf8_percent_encode(&server, NON_ALPHANUMERIC));
            let approved: McpToolSummary = client.post(&path, &ApproveMcpTool { tool, digest }, None).await?;
            output.either(&approved, |_| format!("{}: {}", one_line(&approved.name), approved.status.as_str()))
        }
    }
}

async fn withheld_digest(client: &Client, server: &str, tool: &str) -> Result<String, CliError> {
    let page: Page<McpServerSummary> = client.get(PATH, &[]).await?;
    let tools = page.items.into_iter().filter(|one| one.name == server).flat_map(|one| one.tools);
    let mut withheld = tools.into_iter().filter(|one| one.name == tool && one.status == McpToolStatus::Withheld);
    let digest = withheld.next().and_then(|one| one.digest);
    digest.ok_or_else(|| {
        CliError::Usage(format!("no definition of {tool} of the MCP server {server} waits for approval"))
    })
}

fn text(servers: &[McpServerSummary], view: &View) -> String {
    if servers.is_empty() {
        return "no MCP servers are configured".to_owned();
    }
    servers.iter().map(|server| server_text(server, view)).collect::<Vec<_>>().join("\n\n")
}

fn server_text(server: &McpServerSummary, view: &View) -> String {
    let kind = match server.transport {
        McpTransportKind::Http => "http",
        McpTransportKind::Stdio => "stdio",
    };
    let error = server.error.as_deref().map(|error| format!("\n  error: {}", one_line(error))).unwrap_or_default();
    let stderr = server.stderr.iter().flat_map(|stderr| stderr.lines());
    let stderr = stderr.fold(String::new(), |text, line| text + "\n    " + &one_line(line));
    let stderr = if stderr.is_empty() { stderr } else { format!("\n  its program printed:{stderr}") };
    let head = format!("{} ({kind}, {}){error}{stderr}", one_line(&server.name), one_line(&server.address));
    if server.tools.is_empty() {
        return format!("{head}\n  no tools were seen yet");
    }
    let changes = server.tools.iter().filter_map(change_text);
    std::iter::once(format!("{head}\n{}", table(TOOLS, &server.tools, view)))
        .chain(changes)
        .collect::<Vec<_>>()
        .join("\n")
}

const TOOLS: &[Column<McpToolSummary>] = &[
    Column::text("  tool", |tool, _| format!("  {}", one_line(&tool.name))),
    Column::text("status", |tool, _| tool.status.as_str().to_owned()),
    Column::text("digest", |tool, _| tool.digest.as_deref().map(short).unwrap_or_default()),
    Column::flexible("reason", |tool, _| tool.reason.as_deref().map(one_line).unwrap_or_default()),
];

/// The definition that was approved and the one that is withheld, so that an admin can compare them.
fn change_text(tool: &McpToolSummary) -> Option<String> {
    let withheld = tool.definition.as_ref()?;
    let json = |value: &serde_json::Value| one_line(&value.to_string());
    let approved = tool.approved_definition.as_ref().map_or_else(|| "none".to_owned(), json);
    let digest = tool.digest.as_deref().unwrap_or_default();
    Some(format!(
        "  {} {}\n    approved: {approved}\n    withheld: {}",
        one_line(&tool.name),
        one_line(digest),
        json(withheld)
    ))
}

fn short(digest: &str) -> String {
    one_line(&digest.chars().take(12).collect::<String>())
}
