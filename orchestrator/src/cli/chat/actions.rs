//! `gantry chat actions`: the tool calls of a thread.

use clap::Args;
use comfy_table::{Table, presets};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{Page, ThreadActionRecord};

use crate::cli::{
    client::Client,
    exit::{CliError, Exit},
    output::Output,
    pages,
    text::{one_line, truncate},
};

/// Longest arguments in the list, in characters.
const MAX_INPUT_CHARS: usize = 60;

/// Arguments.
#[derive(Debug, Args)]
pub(in crate::cli) struct ActionsArgs {
    /// The thread: its id or key
    thread: String,
    /// Maximum number of items
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Cursor of the next page
    #[arg(long)]
    cursor: Option<String>,
}

pub(super) async fn run(client: &Client, args: ActionsArgs, output: &mut Output) -> Result<Exit, CliError> {
    let path = format!("/api/chat/threads/{}/actions", utf8_percent_encode(&args.thread, NON_ALPHANUMERIC));
    let mut query = vec![("limit", args.limit.to_string())];
    query.extend(args.cursor.map(|cursor| ("cursor", cursor)));
    let page: Page<ThreadActionRecord> = client.get(&path, &query).await?;
    output.either(&page, |paint| format!("{}{}", table(&page.items), pages::next_page(&page, paint)))?;
    Ok(Exit::Success)
}

fn table(calls: &[ThreadActionRecord]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["turn", "call", "time", "tool", "outcome", "arguments"]);
    for call in calls {
        table.add_row([
            call.turn.to_string(),
            one_line(&call.call_id.0),
            call.at.format("%F %T").to_string(),
            one_line(&call.tool),
            outcome(call).to_owned(),
            truncate(&one_line(&call.input.to_string()), MAX_INPUT_CHARS),
        ]);
    }
    table.trim_fmt()
}

fn outcome(call: &ThreadActionRecord) -> &'static str {
    match (call.success, call.error) {
        (None, _) => "running",
        (Some(true), _) => "ok",
        (Some(false), Some(kind)) => kind.as_str(),
        (Some(false), None) => "failed",
    }
}
