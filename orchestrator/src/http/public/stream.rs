//! A job's events as server-sent events: from the store, then as they are written, to the final state.
//!
//! Ends when the token that opened it expires or is revoked. Never buffers for a reader: it is asked for the next piece when it has taken the last. One that does not take it in
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
use protocol::{EventData, EventKind, JobId, JobState};
use serde_json::json;

use super::PublicApi;
use crate::{
    auth::Identity,
    domain::job::JobRecord,
    http::{per_user_semaphore::Permit, problem::ApiError},
    store::{EventPage, Follower, StoreError, StoredEvent, tokens},
    telemetry::metrics::ReaderGuard,
};

/// Rows read at once.
const BATCH: u32 = 200;
/// A comment when nothing else is said (contract: api, Events).
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Between a token's end and the look at it.
const MOMENT: Duration = Duration::from_millis(20);
/// What a reader that lost the line waits.
const RETRY: Duration = Duration::from_secs(2);

pub(super) fn stream(
    api: &PublicApi,
    who: Identity,
    job: &JobRecord,
    after: i64,
    kind: Option<EventKind>,
) -> Result<Response, ApiError> {
    let reader = Reader {
        _place: api.stream_place(&who)?,
        who,
        api: api.clone(),
        follower: api.store.feed().follow(job.id),
        job: job.id,
        reviewed: job.review,
        after,
        kind,
        waiting: VecDeque::from([Sse::default().retry(RETRY)]),
        more: true,
        ended: false,
        _counted: api.metrics.reader(),
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("");
    let mut response = SseResponse::new(events(reader)).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

struct Reader {
    /// Whose token lets it read.
    who: Identity,
    api: PublicApi,
    follower: Follower,
    job: JobId,
    /// Then completed is only the step before submitted.
    reviewed: bool,
    after: i64,
    kind: Option<EventKind>,
    waiting: VecDeque<Sse>,
    /// There may be some that it has not read; else the bell rings first.
    more: bool,
    ended: bool,
    _counted: ReaderGuard,
    _place: Permit,
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
            if !reader.more {
                let drain = reader.api.drain.clone();
                let recheck = reader.until_recheck();
                tokio::select! {
                    () = reader.follower.changed() => {}
                    () = drain.cancelled() => return None,
                    () = tokio::time::sleep(recheck) => {
                        if !reader.may_go_on().await {
                            return None;
                        }
                        continue;
                    }
                }
            }
            reader.read().await;
        }
    })
}

impl Reader {
    /// When the token is looked at again though nothing happens: with each comment, and when it ends.
    fn until_recheck(&self) -> Duration {
        let left = (self.who.expires_at - self.api.clock.now()).to_std().unwrap_or_default();
        // A moment later than its end, and never at once again.
        KEEP_ALIVE.min(left + MOMENT)
    }

    /// Whether the token is still good. When nobody can tell, the reader has to ask anew.
    async fn may_go_on(&self) -> bool {
        let is_over = self.who.expires_at <= self.api.clock.now();
        !is_over && tokens::is_revoked(&self.api.store, &self.who.jti).await.is_ok_and(|revoked| !revoked)
    }

    /// Takes what is there. A store that fails ends the stream: the reader resumes.
    async fn read(&mut self) {
        if let Err(error) = self.try_read().await {
            tracing::warn!(job.id = %self.job, error = &error as &dyn std::error::Error, "a stream could not be read");
            self.ended = true;
        }
    }

    async fn try_read(&mut self) -> Result<(), StoreError> {
        if !self.may_go_on().await {
            self.ended = true;
            return Ok(());
        }
        // Unfiltered, because the end is told by a state event whatever kind is asked for.
        let EventPage { items: events, more } = self.api.store.events(self.job, self.after, BATCH, None).await?;
        self.more = more;
        let Some(first) = events.first() else { return self.end_if_over().await };
        // Numbers have no gaps: what is missing before the first has been trimmed.
        if first.seq - 1 > self.after {
            self.waiting.push_back(named("resync", &json!({"seq": first.seq})));
        }
        for event in events {
            self.after = event.seq;
            if self.kind.is_none_or(|kind| kind == event.kind) {
                self.waiting.push_back(told(&event));
            }
            let last = final_state(&event)?.filter(|state| *state != JobState::Completed || !self.reviewed);
            if let Some(state) = last {
                self.end(state);
            }
        }
        Ok(())
    }

    /// A reader that resumes after the final state gets its `end` too.
    async fn end_if_over(&mut self) -> Result<(), StoreError> {
        if let Some(job) = self.api.store.job(self.job).await?
            && job.state.is_finished()
            && self.api.store.events(self.job, self.after, 1, None).await?.items.is_empty()
        {
            // Also for a reader that asked for what will never come.
            self.after = self.api.store.last_seq(self.job).await?;
            self.end(job.state);
        }
        Ok(())
    }

    fn end(&mut self, state: JobState) {
        self.waiting.push_back(named("end", &json!({"state": state, "seq": self.after})));
        self.ended = true;
    }
}

fn final_state(event: &StoredEvent) -> Result<Option<JobState>, StoreError> {
    if event.kind != EventKind::State {
        return Ok(None);
    }
    Ok(match event.parse()? {
        EventData::State { to, .. } if to.is_finished() => Some(to),
        _ => None,
    })
}

fn told(event: &StoredEvent) -> Sse {
    let whole = serde_json::to_string(event).unwrap_or_default();
    Sse::default().id(event.seq.to_string()).event(event.kind.as_str()).data(whole)
}

fn named(name: &str, data: &serde_json::Value) -> Sse {
    Sse::default().event(name).data(data.to_string())
}
