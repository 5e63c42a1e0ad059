//! Follows a job: prints its events as they arrive, what it is doing on the last line of a terminal, and its summary at
//! the end.

use std::time::Duration;

use protocol::{Event, EventData, Job, JobId, JobState};
use serde_json::json;

use super::{activity::Activity, wait::review_hint};
use base::clock::Clock;

use crate::{
    client::{Client, EventFollower, Followed, StreamRequest},
    exit::{CliError, Exit},
    ids::short_id,
    output::{
        Format, Output,
        progress::LiveLine,
        render::{Detail, Renderer},
    },
};

const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Redraws between two requests for the position of a queued job.
const REDRAWS_PER_POSITION: u32 = 3;

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
    let mut view = FollowView::new(output, detail);
    let is_interrupted = loop {
        let Some(item) = view.next(client, id, &mut stream).await? else { break true };
        if item == Followed::End || view.show(&item, output)? {
            break false;
        }
    };
    view.flush(output)?;
    let FollowView { renderer, live, .. } = view;
    drop(live);
    let short = short_id(&id.to_string());
    if is_interrupted {
        output.note(&format!(
            "detached; the job continues\n  follow it:  gantry job events --follow {short}\n  cancel it:  gantry job cancel {short}"
        ));
        return Ok(Exit::Interrupted);
    }
    let job: Job = client.get(&format!("/api/jobs/{id}"), &[]).await?;
    match output.format {
        // In the shape of an event, so that every line has a `kind`.
        Format::Json => output.json(&json!({"v": 1, "job_id": id, "kind": "job", "data": job}))?,
        Format::Text => output.line(&renderer.ending(&job))?,
    }
    if job.state == JobState::Submitted {
        output.note(&review_hint(id));
    }
    Ok(Exit::of_job(&job))
}

/// What is shown of a followed job.
struct FollowView {
    renderer: Renderer,
    activity: Activity,
    live: LiveLine,
    clock: Clock,
    is_loss_reported: bool,
    redraws: u32,
}

impl FollowView {
    fn new(output: &Output, detail: Detail) -> Self {
        let clock = Clock::system();
        let activity = Activity::new(clock.now());
        let renderer = Renderer::new(output.paint, detail).with_width(output.width).followed();
        Self { renderer, activity, live: LiveLine::new(output), clock, is_loss_reported: false, redraws: 0 }
    }

    /// The next item, while the last line is redrawn. `None`: the user interrupts.
    async fn next(
        &mut self,
        client: &Client,
        id: JobId,
        stream: &mut EventFollower<'_, Event>,
    ) -> Result<Option<Followed<Event>>, CliError> {
        let mut next = std::pin::pin!(stream.next());
        loop {
            self.live.set(&self.activity.line(self.clock.now()));
            tokio::select! {
                item = &mut next => return item.map(Some),
                () = self.wait(client, id) => {}
                _ = tokio::signal::ctrl_c() => return Ok(None),
            }
        }
    }

    /// Waits until the last line must be redrawn. It may be dropped at any time.
    async fn wait(&mut self, client: &Client, id: JobId) {
        if !self.live.is_visible() {
            return std::future::pending().await;
        }
        tokio::time::sleep(REDRAW_INTERVAL).await;
        self.redraws += 1;
        if self.activity.is_queued() && self.redraws.is_multiple_of(REDRAWS_PER_POSITION) {
            // The position is an addition: without one the line only says that the job is queued.
            let job = client.get::<Job>(&format!("/api/jobs/{id}"), &[]).await;
            self.activity.set_queue_position(job.ok().and_then(|job| job.queue_position));
        }
    }

    /// Prints an item. `true`: the job waits for a review.
    fn show(&mut self, item: &Followed<Event>, output: &mut Output) -> Result<bool, CliError> {
        match item {
            Followed::Event { raw, event } => {
                self.is_loss_reported = false;
                let Some(event) = event else {
                    return if output.format == Format::Json { output.line(raw).map(|()| false) } else { Ok(false) };
                };
                self.activity.apply(event, self.clock.now());
                self.live.set(&self.activity.line(self.clock.now()));
                let text = match output.format {
                    Format::Json => Some(raw.clone()),
                    Format::Text => self.renderer.event(event),
                };
                if let Some(text) = text {
                    self.live.above(|| output.line(&text))?;
                }
                return Ok(matches!(event.data, EventData::State { to: JobState::Submitted, .. }));
            }
            Followed::Resync { oldest } => {
                self.note(&format!("the requested events are not available; continuing at event {oldest}"), output);
            }
            Followed::Lost { cause } if !self.is_loss_reported => {
                self.is_loss_reported = true;
                self.note(&format!("connection lost ({cause}); retrying"), output);
            }
            Followed::Lost { .. } | Followed::End => {}
        }
        Ok(false)
    }

    /// Prints what the renderer has kept back.
    fn flush(&mut self, output: &mut Output) -> Result<(), CliError> {
        match self.renderer.flush() {
            Some(text) if output.format == Format::Text => self.live.above(|| output.line(&text)),
            _ => Ok(()),
        }
    }

    fn note(&self, text: &str, output: &Output) {
        self.live.above(|| output.note(text));
    }
}
