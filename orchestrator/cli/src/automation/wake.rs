//! `gantry wake`: puts a line into the caller's main session.

use clap::{Args, ValueEnum};
use protocol::{CronWakeMode, WakeRequest};
use serde_json::Value;

use crate::{
    client::{Client, rpc},
    exit::CliError,
    input::text_or_stdin,
    output::Output,
};

#[derive(Debug, Args)]
pub struct WakeArgs {
    /// When the agent looks at the line
    #[arg(long, value_enum)]
    mode: ModeArg,
    /// The line; - reads it from standard input
    #[arg(long)]
    text: String,
}

/// When the agent looks at a line in the main session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    /// At once
    Now,
    /// With the next heartbeat or your next message
    NextHeartbeat,
}

impl From<ModeArg> for CronWakeMode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Now => Self::Now,
            ModeArg::NextHeartbeat => Self::NextHeartbeat,
        }
    }
}

pub(crate) async fn run(args: WakeArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let params = WakeRequest { mode: args.mode.into(), text: text_or_stdin(args.text)? };
    let done: Value = rpc::call(client, "wake", &params).await?;
    output.either(&done, |_| match args.mode {
        ModeArg::Now => {
            "queued; a heartbeat reads it at once, unless heartbeats are off or it is a quiet hour".to_owned()
        }
        ModeArg::NextHeartbeat => "queued for the next heartbeat".to_owned(),
    })
}
