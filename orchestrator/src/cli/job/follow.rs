//! Follows a job: prints its events as they arrive and its summary at the end.

use protocol::{Event, EventData, Job, JobId, JobState};

use crate::cli::{
    client::Client,
    exit::{CliError, Exit},
    output::{Format, Output},
    render::{self, Detail, Renderer},
    stream::{EventFollower, Followed, StreamRequest},
};

/// Prints events until the job ends or the user interrupts, which does not cancel the job.
pub(super) async fn to_the_end(
    client: &Client,
    id: JobId,
    after: i64,
    detail: Detail,
    output: &mut Output,
) -> Result<Exit, CliError> {
    let request = StreamRequest { path: format!("/api/jobs/{id}/events"), query: vec![], after: Some(after) };
    let mut stream = EventFollower::<Event>::new(client, request);
    let mut renderer = Renderer::new(output.paint, detail);
    let mut is_loss_reported = false;
    loop {
        let item = tokio::select! {
            item = stream.next() => item?,
            _ = tokio::signal::ctrl_c() => {
                output.note(&format!(
                    "\ndetached; the job continues. Follow it with `gantry job events --follow {id}`, cancel it with `gantry job cancel {id}`"
                ));
                return Ok(Exit::Interrupted);
            }
        };
        match item {
            Followed::Event { raw, event } => {
                is_loss_reported = false;
                print(&raw, event.as_deref(), &mut renderer, output)?;
                if event.is_some_and(|event| is_submitted(&event)) {
                    output.note(&format!(
                        "submitted for review: run `gantry job accept {id}` or `gantry job reject {id} REASON`"
                    ));
                    break;
                }
            }
            Followed::Resync { oldest } => {
                output.note(&format!("the requested events are not available; continuing at event {oldest}"));
            }
            Followed::Lost { cause } if !is_loss_reported => {
                is_loss_reported = true;
                output.note(&format!("connection lost ({cause}); retrying"));
            }
            Followed::Lost { .. } => {}
            Followed::End => break,
        }
    }
    let job: Job = client.get(&format!("/api/jobs/{id}"), &[]).await?;
    output.either(&job, |paint| render::summary(paint, &job))?;
    Ok(Exit::of_job(&job))
}

fn print(raw: &str, event: Option<&Event>, renderer: &mut Renderer, output: &mut Output) -> Result<(), CliError> {
    match output.format {
        Format::Json => output.line(raw),
        Format::Text => match event.and_then(|event| renderer.event(event)) {
            Some(text) => output.line(&text),
            None => Ok(()),
        },
    }
}

/// Whether the job waits for a review.
fn is_submitted(event: &Event) -> bool {
    matches!(event.data, EventData::State { to: JobState::Submitted, .. })
}
