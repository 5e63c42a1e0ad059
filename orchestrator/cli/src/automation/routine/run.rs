//! `gantry routine run`: fires a routine manually.

use std::time::Duration;

use clap::Args;
use protocol::{RoutineRun, RunReason, RunStatus, TriggerRoutine};

use super::{PATH, id_of};
use crate::{
    automation::runs,
    client::{Client, zones},
    exit::{CliError, Exit},
    input,
    output::Output,
};

/// The server's answer comes well within the client's own time limit.
const WAIT_SECONDS: u64 = 30;
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name or id
    routine: String,
    /// Wait for the end of the run; the exit code tells how it ended
    #[arg(long)]
    wait: bool,
    /// Data for the run, which it reads as untrusted: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    payload: Option<String>,
    /// Idempotency key: a repeated request returns the first run
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

pub(super) async fn run(client: &Client, args: RunArgs, output: &mut Output) -> Result<Exit, CliError> {
    let payload = args.payload.map(|payload| input::json_argument("--payload", &payload)).transpose()?;
    let id = id_of(client, &args.routine).await?;
    let body = TriggerRoutine { payload, wait_seconds: args.wait.then_some(WAIT_SECONDS) };
    let mut run: RoutineRun =
        client.post(&format!("{PATH}/{id}/trigger"), &body, args.idempotency_key.as_deref()).await?;
    if !args.wait {
        output.either(&run, |_| format!("{} {}", run.id, run.status))?;
        return Ok(Exit::Success);
    }
    let path = format!("/api/runs/{}", run.id);
    let mut is_loss_reported = false;
    while !run.status.is_finished() {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => {
                output.note(&format!(
                    "\ndetached; the run continues. Show it with `gantry runs show {id}`, cancel it with `gantry runs cancel {id}`",
                    id = run.id
                ));
                return Ok(Exit::Interrupted);
            }
        }
        match client.get(&path, &[]).await {
            Ok(now) => run = now,
            Err(error @ CliError::Unreachable { .. }) => {
                if !is_loss_reported {
                    output.note(&format!("{error}; retrying"));
                }
                is_loss_reported = true;
            }
            Err(error) => return Err(error),
        }
    }
    let zone = zones::shown(client, output).await;
    output.either(&run, |paint| runs::describe(paint, &run, zone))?;
    Ok(exit_of(&run))
}

/// The exit code for a run that was followed to its end.
pub(super) fn exit_of(run: &RoutineRun) -> Exit {
    match (run.status, run.reason) {
        (RunStatus::Failed, Some(RunReason::Timeout)) => Exit::TimedOut,
        (RunStatus::Failed, _) => Exit::Failed,
        (RunStatus::Skipped | RunStatus::Missed, _) => Exit::Conflict,
        _ => Exit::Success,
    }
}
