//! A job's events as server-sent events: from the store, then as they are written, to the final state.
//!
//! Never buffers for a reader: it is asked for the next piece when it has taken the last. One that does not take it in
//! time is dropped and can resume.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::{
    http::{HeaderValue, header},
    response::{
        IntoResponse, Response,
        sse::{Event as Sse, KeepAlive, Sse as SseResponse},
    },
};
use futures_util::{Stream, stream};
use protocol::{Event, EventData, EventKind, JobId, JobState};
use serde_json::json;

use super::PublicApi;
use crate::{domain::job::JobRecord, store::Follower, telemetry::metrics::ReaderGuard};

/// Rows read at once.
const BATCH: u32 = 200;
/// A comment when nothing else is said (contract: api, Events).
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What a reader that lost the line waits.
const RETRY: Duration = Duration::from_secs(2);

pub(super) fn stream(api: &PublicApi, job: &JobRecord, after: i64, kind: Option<EventKind>) -> Response {
    let reader = Reader {
        api: api.clone(),
        follower: api.store.feed().follow(job.id),
        job: job.id,
        reviewed: job.review,
        after,
        kind,
        waiting: VecDeque::from([Sse::default().retry(RETRY)]),
        checked_oldest: false,
        ended: false,
        _counted: api.metrics.reader(),
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("");
    let mut response = SseResponse::new(events(reader)).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Reader {
    api: PublicApi,
    follower: Follower,
    job: JobId,
    /// Then completed is only the step before submitted.
    reviewed: bool,
    after: i64,
    kind: Option<EventKind>,
    waiting: VecDeque<Sse>,
    checked_oldest: bool,
    ended: bool,
    _counted: ReaderGuard,
}

fn events(reader: Reader) -> impl Stream<Item = Result<Sse, Infallible>> {
    stream::unfold(reader, |mut reader| async move {
        loop {
            if let Some(next) = reader.waiting.pop_front() {
                return Some((Ok(next), reader));
            }
            if reader.ended {
                return None;
            }
            reader.read().await;
            if reader.waiting.is_empty() && !reader.ended {
                let drain = reader.api.drain.clone();
                tokio::select! {
                    () = reader.follower.changed() => {}
                    () = drain.cancelled() => return None,
                }
            }
        }
    })
}

impl Reader {
    /// Takes what is there. A store that fails ends the stream: the reader resumes.
    async fn read(&mut self) {
        // Unfiltered, because the end is told by a state event whatever kind is asked for.
        let page = match self.api.store.events(self.job, self.after, BATCH, None).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(job.id = %self.job, error = &error as &dyn std::error::Error, "a stream could not be read");
                self.ended = true;
                return;
            }
        };
        if !self.checked_oldest {
            self.checked_oldest = true;
            if let Some(oldest) = page.oldest_seq.filter(|oldest| *oldest > self.after + 1) {
                self.waiting.push_back(named("resync", &json!({"seq": oldest})));
            }
        }
        for event in page.items {
            self.after = event.seq;
            let last = final_state(&event.data).filter(|state| *state != JobState::Completed || !self.reviewed);
            if self.kind.is_none_or(|kind| kind == event.data.kind()) {
                self.waiting.push_back(told(&event));
            }
            if let Some(state) = last {
                self.end(state);
            }
        }
        if !self.ended && self.waiting.is_empty() {
            self.end_if_over().await;
        }
    }

    /// A reader that resumes after the final state gets its `end` too.
    async fn end_if_over(&mut self) {
        if let Ok(Some(job)) = self.api.store.job(self.job).await
            && job.state.is_finished()
            && let Ok(rest) = self.api.store.events(self.job, self.after, 1, None).await
            && rest.items.is_empty()
            && let Ok(last) = self.api.store.last_seq(self.job).await
        {
            // Also for a reader that asked for what will never come.
            self.after = last;
            self.end(job.state);
        }
    }

    fn end(&mut self, state: JobState) {
        self.waiting.push_back(named("end", &json!({"state": state, "seq": self.after})));
        self.ended = true;
    }
}

fn final_state(data: &EventData) -> Option<JobState> {
    match data {
        EventData::State { to, .. } if to.is_finished() => Some(*to),
        _ => None,
    }
}

fn told(event: &Event) -> Sse {
    let whole = serde_json::to_string(event).unwrap_or_default();
    Sse::default().id(event.seq.to_string()).event(event.data.kind().as_str()).data(whole)
}

fn named(name: &str, data: &serde_json::Value) -> Sse {
    Sse::default().event(name).data(data.to_string())
}
