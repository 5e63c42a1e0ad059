//! `gantry job cancel` and `gantry job remove`: commands for several jobs, one after the other.

use clap::Args;
use protocol::{CancelRequest, Job, JobId, JobState};
use serde_json::json;

use crate::{
    client::Client,
    exit::{CliError, Exit},
    ids::IdArg,
    output::Output,
};

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Job ids
    #[arg(required = true, value_name = "ID")]
    ids: Vec<IdArg<JobId>>,
}

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// Job ids
    #[arg(required = true, value_name = "ID")]
    ids: Vec<IdArg<JobId>>,
    /// Reason
    #[arg(long)]
    reason: Option<String>,
}

/// Deletes jobs.
pub(super) async fn remove(client: &Client, args: RemoveArgs, output: &mut Output) -> Result<Exit, CliError> {
    each(client, args.ids, output, async |id, output| {
        client.delete_if_version(&format!("/api/jobs/{id}"), &[], None).await?;
        output.either(&json!({"id": id, "removed": true}), |_| format!("{id} removed"))
    })
    .await
}

/// Cancels jobs.
pub(super) async fn cancel(client: &Client, args: CancelArgs, output: &mut Output) -> Result<Exit, CliError> {
    let request = CancelRequest { reason: args.reason };
    each(client, args.ids, output, async |id, output| {
        let job: Job = client.post(&format!("/api/jobs/{id}/cancel"), &request, None).await?;
        let state = if job.state == JobState::Cancelled { "cancelled" } else { "stopping" };
        output.either(&job, |_| format!("{id} {state}"))
    })
    .await
}

/// Does something to one job after the other. A job for which it is refused is reported, and the exit code is that of
/// the first one.
async fn each(
    client: &Client,
    ids: Vec<IdArg<JobId>>,
    output: &mut Output,
    act: impl AsyncFn(JobId, &mut Output) -> Result<(), CliError>,
) -> Result<Exit, CliError> {
    // All of them first: `latest` changes with what is done, and with a wrong id nothing is.
    let mut resolved = Vec::new();
    for id in ids {
        let id = id.resolve(client).await?;
        if !resolved.contains(&id) {
            resolved.push(id);
        }
    }
    let mut exit = Exit::Success;
    for id in resolved {
        match act(id, output).await {
            Ok(()) => {}
            Err(error @ CliError::Refused(_)) => {
                output.error_about(&id, &error);
                if exit == Exit::Success {
                    exit = error.exit();
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(exit)
}
