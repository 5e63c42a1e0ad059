//! `gantry job wait`: waits until jobs have finished.

use clap::Args;
use protocol::{Event, Job, JobId};

use crate::cli::{
    client::Client,
    exit::{CliError, Exit},
    ids::IdArg,
    output::Output,
    stream::{EventFollower, Followed, StreamRequest},
};

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub(in crate::cli) struct WaitArgs {
    /// Job ids
    #[arg(required = true, value_name = "ID")]
    ids: Vec<IdArg<JobId>>,
}

/// Prints each job's state when it has finished. The exit code is that of the first job that did not complete.
pub(super) async fn wait(client: &Client, args: WaitArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mut exit = Exit::Success;
    for id in args.ids {
        let id = id.resolve(client).await?;
        if !until_finished(client, id).await? {
            return Ok(Exit::Interrupted);
        }
        let job: Job = client.get(&format!("/api/jobs/{id}"), &[]).await?;
        output.either(&job, |_| format!("{id} {}", job.state))?;
        if exit == Exit::Success {
            exit = Exit::of_job(&job);
        }
    }
    Ok(exit)
}

/// Follows the job to its end. `false`: the user interrupted.
async fn until_finished(client: &Client, id: JobId) -> Result<bool, CliError> {
    let request = StreamRequest { path: format!("/api/jobs/{id}/events"), query: vec![], after: Some(0) };
    let mut stream = EventFollower::<Event>::new(client, request);
    loop {
        let item = tokio::select! {
            item = stream.next() => item?,
            _ = tokio::signal::ctrl_c() => return Ok(false),
        };
        if item == Followed::End {
            return Ok(true);
        }
    }
}
