//! `gantry chat actions`: the tool calls of a thread.

use clap::Args;
use protocol::ThreadActionRecord;

use crate::{
    client::{Client, List, PageArgs},
    exit::CliError,
    ids,
    output::{Column, Output, one_line, render::arguments},
};

#[derive(Debug, Args)]
pub(crate) struct ActionsArgs {
    /// The thread: its key, its id or a part of it, or latest
    thread: String,
    #[command(flatten)]
    page: PageArgs,
}

pub(super) async fn run(client: &Client, args: ActionsArgs, output: &mut Output) -> Result<(), CliError> {
    let thread = ids::thread(client, args.thread).await?;
    let path = format!("{}/actions", super::threads::path(&thread));
    CALLS.print(client, (&path, &[]), &args.page, output).await
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
};

fn outcome(call: &ThreadActionRecord) -> &'static str {
    match (call.success, call.error) {
        (None, _) => "running",
        (Some(true), _) => "ok",
        (Some(false), Some(kind)) => kind.as_str(),
        (Some(false), None) => "failed",
    }
}
