//! `gantry chat threads`: the caller's threads.

use clap::Args;
use protocol::ChatThread;

use crate::cli::{
    client::Client,
    exit::{CliError, Exit},
    output::Output,
    pages::{List, PageArgs},
    table::Column,
    text::one_line,
};

const THREADS: List<ChatThread> = List {
    columns: &[
        Column::text("id", |thread, view| view.id(&thread.id)),
        Column::text("key", |thread, _| thread.key.as_deref().map(one_line).unwrap_or_default()),
        Column::text("state", |thread, _| thread.state.to_string()),
        Column::text("changed", |thread, view| view.time(thread.updated_at)),
        Column::flexible("title", |thread, _| one_line(&thread.title)),
    ],
    id: |thread| thread.id.to_string(),
};

/// Arguments.
#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    /// Only threads whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

pub(super) async fn list(client: &Client, args: ListArgs, output: &mut Output) -> Result<Exit, CliError> {
    let query: Vec<_> = args.id.map(|part| ("id", part)).into_iter().collect();
    THREADS.print(client, ("/api/chat/threads", &query), &args.page, output).await?;
    Ok(Exit::Success)
}
