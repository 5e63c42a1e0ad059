//! A job's events as server-sent events: first from the store, then as they are written, until the final state.
//!
//! Owns where a stream starts and ends. It also ends when the token that opened it expires or is revoked. Never buffers for a
//! slow client: the next batch is read when the last one was sent. A client that stops reading is disconnected and can resume.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::{
    http::{HeaderValue, StatusCode, header},
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
    http::problem::ApiError,
    per_user_semaphore::Permit,
    store::{EventPage, EventSubscription, StoreError, StoredEvent, Topic, tokens},
    telemetry::metrics::EventStreamGuard,
};

/// Events read from the store at once.
const BATCH: u32 = 200;
/// Interval of comments on a silent stream (contract: api, Events).
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Delay between a token's expiry and the check for it.
const EXPIRY_CHECK_DELAY: Duration = Duration::from_millis(20);
/// Reconnection delay for clients.
const RETRY: Duration = Duration::from_secs(2);

/// Where a stream starts.
enum Start {
    /// After this `seq`.
    After(i64),
    /// The requested `seq` does not exist: at `oldest`, the oldest event that is kept.
    Resync { oldest: i64 },
    /// The client has seen all events of a finished job.
    Finished,
}

/// Opens a stream of the events after `after`, or only those of one `kind`. 204 when the job has finished and there are none:
/// an `EventSource` reconnects after any other answer.
pub(super) async fn open(
    api: &PublicApi,
    who: Identity,
    job: &JobRecord,
    after: i64,
    kind: Option<EventKind>,
) -> Result<Response, ApiError> {
    let permit = api.stream_permit(&who)?;
    let mut pending = VecDeque::from([Sse::default().retry(RETRY)]);
    let after = match start(api, job, after, kind).await? {
        Start::After(after) => after,
        Start::Resync { oldest } => {
            pending.push_back(resync(oldest));
            oldest - 1
        }
        Start::Finished => return Ok(StatusCode::NO_CONTENT.into_response()),
    };
    let reader = Reader {
        _permit: permit,
        who,
        api: api.clone(),
        subscription: api.store.event_notifier().subscribe(Topic::Job(job.id)),
        job: job.id,
        reviewed: job.brief.review,
        after,
        kind,
        pending,
        may_have_more: true,
        ended: false,
        _counted: api.metrics.event_stream_opened(),
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("");
    let mut response = SseResponse::new(events(reader)).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

async fn start(api: &PublicApi, job: &JobRecord, after: i64, kind: Option<EventKind>) -> Result<Start, StoreError> {
    let last = api.store.last_seq(job.id).await?;
    if after > last {
        let kept = api.store.events(job.id, 0, 1, None).await?.items;
        return Ok(Start::Resync { oldest: kept.first().map_or(last + 1, |event| event.seq) });
    }
    let is_resumed = after > 0;
    if is_resumed && job.state().is_finished() && api.store.events(job.id, after, 1, kind).await?.items.is_empty() {
        return Ok(Start::Finished);
    }
    Ok(Start::After(after))
}

struct Reader {
    /// The caller whose token opened the stream.
    who: Identity,
    api: PublicApi,
    subscription: EventSubscription,
    job: JobId,
    /// The job is reviewed: `completed` is followed by `submitted`, so it is not the end.
    reviewed: bool,
    after: i64,
    kind: Option<EventKind>,
    pending: VecDeque<Sse>,
    /// The store may have unread events; otherwise wait for a notification first.
    may_have_more: bool,
    ended: bool,
    _counted: EventStreamGuard,
    _permit: Permit,
}

fn events(reader: Reader) -> impl Stream<Item = Result<Sse, Infallible>> {
    stream::unfold(reader, |mut reader| async move {
        loop {
            if let Some(next) = reader.pending.pop_front() {
                return Some((Ok(next), reader));
            }
            if reader.ended {
                return None;
            }
            if !reader.may_have_more {
                let drain = reader.api.drain.clone();
                let recheck = reader.until_recheck();
                tokio::select! {
                    () = reader.subscription.changed() => {}
                    () = drain.cancelled() => return None,
                    () = tokio::time::sleep(recheck) => {
                        if !reader.is_authorized().await {
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
    /// Time until the token is checked again on a silent stream: with each comment, and just after it expires.
    fn until_recheck(&self) -> Duration {
        let left = (self.who.expires_at - self.api.clock.now()).to_std().unwrap_or_default();
        KEEP_ALIVE.min(left + EXPIRY_CHECK_DELAY)
    }

    /// Whether the token is still valid. False as well when that cannot be determined: the client has to reconnect.
    async fn is_authorized(&self) -> bool {
        let is_expired = self.who.expires_at <= self.api.clock.now();
        !is_expired && tokens::is_revoked(&self.api.store, &self.who.jti).await.is_ok_and(|revoked| !revoked)
    }

    /// Reads the next batch. A store error ends the stream; the client can resume.
    async fn read(&mut self) {
        if let Err(error) = self.try_read().await {
            tracing::warn!(job.id = %self.job, error = &error as &dyn std::error::Error, "reading events for a stream failed");
            self.ended = true;
        }
    }

    async fn try_read(&mut self) -> Result<(), StoreError> {
        if !self.is_authorized().await {
            self.ended = true;
            return Ok(());
        }
        // Not filtered by kind: a state event marks the end of every stream.
        let EventPage { items: events, more } = self.api.store.events(self.job, self.after, BATCH, None).await?;
        self.may_have_more = more;
        let Some(first) = events.first() else { return self.end_if_finished().await };
        // `seq` has no gaps: missing events before the first one have been trimmed.
        if first.seq - 1 > self.after {
            self.pending.push_back(resync(first.seq));
        }
        for event in events {
            self.after = event.seq;
            if self.kind.is_none_or(|kind| kind == event.kind) {
                self.pending.push_back(message(&event));
            }
            let last = final_state(&event)?.filter(|state| *state != JobState::Completed || !self.reviewed);
            if let Some(state) = last {
                self.end(state);
            }
        }
        Ok(())
    }

    /// Ends the stream when no event is left and the job has finished.
    async fn end_if_finished(&mut self) -> Result<(), StoreError> {
        if let Some(job) = self.api.store.job(self.job).await?
            && job.state().is_finished()
            && self.api.store.events(self.job, self.after, 1, None).await?.items.is_empty()
        {
            self.after = self.api.store.last_seq(self.job).await?;
            self.end(job.state());
        }
        Ok(())
    }

    fn end(&mut self, state: JobState) {
        self.pending.push_back(named("end", &json!({"state": state, "seq": self.after})));
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

fn message(event: &StoredEvent) -> Sse {
    let data = serde_json::to_string(event).unwrap_or_default();
    Sse::default().id(event.seq.to_string()).event(event.kind.as_str()).data(data)
}

/// The message that events are missing and that `oldest` comes next.
fn resync(oldest: i64) -> Sse {
    named("resync", &json!({"seq": oldest}))
}

fn named(name: &str, data: &serde_json::Value) -> Sse {
    Sse::default().event(name).data(data.to_string())
}
