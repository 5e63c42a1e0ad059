//! `gantry chat threads`, `stop`, `delete`, `actions` and `llm-calls`: the caller's threads and their calls.

use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{ChatThread, ThreadActionRecord};
use serde_json::{Map, Value, json};

use crate::{
    client::{Client, List, Nothing, PageArgs},
    exit::CliError,
    ids,
    job::calls::LLM_CALLS,
    output::{Column, Output, one_line, render::arguments},
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
    none: Nothing { yet: "no threads yet; `gantry chat` starts one", matches: "no thread matches" },
};

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only threads whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

pub(super) async fn list(client: &Client, args: ListArgs, output: &mut Output) -> Result<(), CliError> {
    let query: Vec<_> = args.id.map(|part| ("id", part)).into_iter().collect();
    THREADS.print(client, ("/api/chat/threads", &query), &args.page, output).await
}

#[derive(Debug, Args)]
pub(crate) struct ThreadArgs {
    /// The thread: its key, its id or a part of it, or latest
    thread: String,
}

/// The path of the thread in the API.
pub(super) fn path(thread: &str) -> String {
    format!("/api/chat/threads/{}", utf8_percent_encode(thread, NON_ALPHANUMERIC))
}

pub(super) async fn stop(client: &Client, args: ThreadArgs, output: &mut Output) -> Result<(), CliError> {
    let thread = ids::thread(client, args.thread).await?;
    let stopped: ChatThread =
        client.post(&format!("{}/stop", path(&thread)), &Map::<String, Value>::new(), None).await?;
    output.either(&stopped, |_| format!("{} stopped", one_line(&thread)))
}

pub(super) async fn delete(client: &Client, args: ThreadArgs, output: &mut Output) -> Result<(), CliError> {
    let thread = ids::thread(client, args.thread).await?;
    client.delete_if_version(&path(&thread), &[], None).await?;
    output.either(&json!({"id": thread, "deleted": true}), |_| format!("{} deleted", one_line(&thread)))
}

#[derive(Debug, Args)]
pub(crate) struct CallsArgs {
    /// The thread: its key, its id or a part of it, or latest
    thread: String,
    #[command(flatten)]
    page: PageArgs,
}

pub(super) async fn actions(client: &Client, args: CallsArgs, output: &mut Output) -> Result<(), CliError> {
    let thread = ids::thread(client, args.thread).await?;
    let path = format!("{}/actions", path(&thread));
    CALLS.print(client, (&path, &[]), &args.page, output).await
}

pub(super) async fn llm_calls(client: &Client, args: CallsArgs, output: &mut Output) -> Result<(), CliError> {
    let thread = ids::thread(client, args.thread).await?;
    let path = format!("{}/llm-calls", path(&thread));
    LLM_CALLS.print(client, (&path, &[]), &args.page, output).await
}

const CALLS: List<ThreadActionRecord> = List {
    columns: &[
        Column::number("turn", |call, _| call.turn.to_string()),
        Column::text("call", |call, _| one_line(&call.call_id.0)),
        Column::text("time", |call, view| view.time(call.at)),
        Column::text("tool", |call, _| one_line(&call.tool)),
        Column::text("outcome", |call, _| outcome(call).to_owned()),
        Column::flexible("arguments", |call, _| one_line(&arguments(&call.tool, &call.input))),
    ],
    id: |call| call.call_id.0.clone(),
    none: Nothing { yet: "no tool calls yet", matches: "no tool call matches" },
};

fn outcome(call: &ThreadActionRecord) -> &'static str {
    match (call.success, call.error) {
        (None, _) => "running",
        (Some(true), _) => "ok",
        (Some(false), Some(kind)) => kind.as_str(),
        (Some(false), None) => "failed",
    }
}
