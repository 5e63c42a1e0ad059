//! `gantry job wait`: waits until jobs have finished, or wait for a review.

use clap::Args;
use protocol::{Event, EventData, Job, JobId, JobState};
use tokio::time::{Instant, timeout_at};

use crate::{
    client::{Client, EventFollower, Followed, StreamRequest},
    exit::{CliError, Exit},
    ids::{IdArg, short_id},
    output::Output,
};

#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Job ids
    #[arg(required = true, value_name = "ID")]
    ids: Vec<IdArg<JobId>>,
    /// Longest time to wait for all of them, such as 10m (default: no limit)
    #[arg(long, value_name = "DURATION")]
    timeout: Option<humantime::Duration>,
}

/// Prints each job's state when it has finished or is submitted. The exit code is that of the first job that did not
/// complete.
pub(super) async fn wait(client: &Client, args: WaitArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mut exit = Exit::Success;
    let until = args.timeout.and_then(|timeout| Instant::now().checked_add(*timeout));
    for id in args.ids {
        let id = id.resolve(client).await?;
        let finished = until_finished(client, id);
        let is_finished = match until {
            Some(until) => {
                let Ok(finished) = timeout_at(until, finished).await else {
                    output.note(&format!("the time is up: {id} has not finished; it continues"));
                    return Ok(Exit::TimedOut);
                };
                finished?
            }
            None => finished.await?,
        };
        if !is_finished {
            output.note("interrupted; the job continues");
            return Ok(Exit::Interrupted);
        }
        let job: Job = client.get(&format!("/api/jobs/{id}"), &[]).await?;
        output.either(&job, |_| format!("{id} {}", job.state))?;
        if job.state == JobState::Submitted {
            output.note(&review_hint(id));
        }
        if exit == Exit::Success {
            exit = Exit::of_job(&job);
        }
    }
    Ok(exit)
}

/// How to end the review of a job.
pub(super) fn review_hint(id: JobId) -> String {
    let short = short_id(&id.to_string());
    format!("submitted for review: run `gantry job accept {short}` or `gantry job reject {short} REASON`")
}

/// Follows the job until it has finished or waits for a review. `false`: the user interrupted.
async fn until_finished(client: &Client, id: JobId) -> Result<bool, CliError> {
    let request = StreamRequest { path: format!("/api/jobs/{id}/events"), query: vec![], after: Some(0) };
    let mut stream = EventFollower::<Event>::new(client, request);
    loop {
        let item = tokio::select! {
            item = stream.next() => item?,
            _ = tokio::signal::ctrl_c() => return Ok(false),
        };
        match item {
            Followed::End => return Ok(true),
            Followed::Event { event: Some(event), .. }
                if matches!(event.data, EventData::State { to: JobState::Submitted, .. }) =>
            {
                return Ok(true);
            }
            _ => {}
        }
    }
}
