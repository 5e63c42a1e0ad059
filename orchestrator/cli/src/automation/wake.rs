//! `gantry wake`: puts a line into the caller's main session.

use clap::Args;
use protocol::{CronWakeMode, WakeRequest};
use serde_json::Value;

use crate::{
    client::{Client, rpc},
    exit::CliError,
    input::{one_of_explained, text_or_stdin},
    output::Output,
};

#[derive(Debug, Args)]
pub struct WakeArgs {
    /// When the agent looks at the line
    #[arg(long, value_parser = one_of_explained(MODES), default_value = "next-heartbeat")]
    mode: CronWakeMode,
    /// The line; - reads it from standard input
    #[arg(long)]
    text: String,
}

/// When the agent looks at a line in the main session.
pub(crate) const MODES: &[(CronWakeMode, &str)] =
    &[(CronWakeMode::Now, "At once"), (CronWakeMode::NextHeartbeat, "With the next heartbeat or your next message")];

pub(crate) async fn run(args: WakeArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let params = WakeRequest { mode: args.mode, text: text_or_stdin(args.text)? };
    let done: Value = rpc::call(client, "wake", &params).await?;
    output.either(&done, |_| match args.mode {
        CronWakeMode::Now => {
            "queued; a heartbeat reads it at once, unless heartbeats are off or it is a quiet hour".to_owned()
        }
        CronWakeMode::NextHeartbeat => "queued for the next heartbeat".to_owned(),
    })
}
