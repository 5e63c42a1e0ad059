//! `gantry message` and `gantry system-event`: send what fires the caller's routines.

use clap::Args;
use protocol::{EmitSystemEvent, EventReceipt, PostMessage};
use serde::Serialize;
use serde_json::json;

use crate::{
    client::Client,
    exit::CliError,
    input::{json_argument, text_or_stdin},
    output::Output,
};

#[derive(Debug, Args)]
pub struct MessageArgs {
    /// The text, at most 64 KiB; - reads it from standard input
    content: String,
    /// Where it was written, such as support
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    /// Who wrote it
    #[arg(long, value_name = "NAME")]
    sender: Option<String>,
    /// Send it only once: a message with the same key fires nothing again
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
pub struct SystemEventArgs {
    /// Who sends it, such as github
    source: String,
    /// Its type, such as issue.opened
    event_type: String,
    /// Its content: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Send it only once: an event with the same key fires nothing again
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

pub(crate) async fn message(args: MessageArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let body = PostMessage { channel: args.channel, content: text_or_stdin(args.content)?, sender: args.sender };
    emit(client, "/api/messages", &body, args.idempotency_key.as_deref(), output).await
}

pub(crate) async fn system_event(args: SystemEventArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let payload = args.payload.map_or(Ok(json!({})), |payload| json_argument("--payload", &payload))?;
    let body = EmitSystemEvent { source: args.source, event_type: args.event_type, payload };
    emit(client, "/api/system-events", &body, args.idempotency_key.as_deref(), output).await
}

async fn emit(
    client: &Client,
    path: &str,
    body: &impl Serialize,
    idempotency_key: Option<&str>,
    output: &mut Output,
) -> Result<(), CliError> {
    let receipt: EventReceipt = client.post(path, body, idempotency_key).await?;
    output.either(&receipt, |_| match receipt.run_ids.as_slice() {
        [] => "accepted; it fires no routine".to_owned(),
        runs => runs.iter().map(|run| format!("run {run}")).collect::<Vec<_>>().join("\n"),
    })
}
