//! `gantry chat threads`: the caller's threads.

use clap::Args;
use protocol::{ChatThread, Page};

use crate::cli::{
    client::Client,
    exit::{CliError, Exit},
    output::Output,
    pages::{self, Columns},
    text::{one_line, truncate},
};

/// Longest title in the list, in characters.
const MAX_TITLE_CHARS: usize = 60;

const COLUMNS: Columns<ChatThread, 5> =
    Columns { names: ["id", "key", "state", "changed", "title"], cells, numbers: &[] };

/// Arguments.
#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    /// Only threads whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    /// Maximum number of items
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Cursor of the next page
    #[arg(long)]
    cursor: Option<String>,
}

pub(super) async fn list(client: &Client, args: ListArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mut query = vec![("limit", args.limit.to_string())];
    let optional = [("id", args.id), ("cursor", args.cursor)];
    query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let page: Page<ChatThread> = client.get("/api/chat/threads", &query).await?;
    output.either(&page, |paint| {
        let mut table = COLUMNS.table();
        for thread in &page.items {
            table.add_row(cells(thread));
        }
        format!("{}{}", table.trim_fmt(), pages::next_page(&page, paint))
    })?;
    Ok(Exit::Success)
}

fn cells(thread: &ChatThread) -> [String; 5] {
    [
        thread.id.to_string(),
        thread.key.as_deref().map(one_line).unwrap_or_default(),
        thread.state.to_string(),
        thread.updated_at.format("%F %R").to_string(),
        truncate(&one_line(&thread.title), MAX_TITLE_CHARS),
    ]
}
