//! Event streams: what the streams of a job and of the instance have in common.
//!
//! Owns the response, the comments on a silent stream, the positions that clients are told, and its end when the process drains or the token that opened it expires or is
//! revoked. Never buffers for a slow client: the next batch is read when the last one was sent. A client that stops reading
//! is disconnected and can resume.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use auth::Identity;
use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::{
        IntoResponse, Response,
        sse::{Event as Sse, KeepAlive, Sse as SseResponse},
    },
};
use base::per_user_semaphore::Permit;
use futures_util::{Stream, stream};
use serde_json::json;
use store::StoreError;
use telemetry::metrics::EventStreamGuard;
use tokio::time::Instant;

use crate::{
    problem::ApiError,
    public::{PublicApi, request::is_still_valid},
};

/// Events read from the store at once.
pub(in crate::public) const BATCH: u32 = 200;
/// Interval of comments on a silent stream, and of positions on every one.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Delay between a token's expiry and the check for it.
const EXPIRY_CHECK_DELAY: Duration = Duration::from_millis(20);
/// Reconnection delay for clients.
const RETRY: Duration = Duration::from_secs(2);

/// Where the messages of a stream come from.
pub(in crate::public) trait EventSource: Send + Sync + 'static {
    /// Returns once there may be something new.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Reads the next messages. Also called now and then while there is nothing new.
    fn read(&mut self) -> impl Future<Output = Result<Batch, StoreError>> + Send;

    /// The number up to which everything was read, with its name.
    fn position(&self) -> (&'static str, i64);
}

/// Messages of a stream, and what follows them.
pub(in crate::public) struct Batch {
    pub(in crate::public) messages: Vec<Sse>,
    pub(in crate::public) next: Next,
}

/// What a stream does after a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::public) enum Next {
    /// There may be more to read.
    Read,
    /// Everything was read: wait for something new.
    Wait,
    End,
}

/// The response that streams what `source` has.
pub(in crate::public) fn respond(api: &PublicApi, who: Identity, permit: Permit, source: impl EventSource) -> Response {
    let reader = Reader {
        _permit: permit,
        who,
        api: api.clone(),
        source,
        pending: VecDeque::from([Sse::default().retry(RETRY)]),
        next: Next::Read,
        position_at: Instant::now() + KEEP_ALIVE,
        _counted: api.metrics.event_stream_opened(),
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("");
    let mut response = SseResponse::new(messages(reader)).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The position in `Last-Event-ID`, if the header is there; `name` says whose number it is.
pub(in crate::public) fn last_event_id(headers: &HeaderMap, name: &str) -> Result<Option<i64>, ApiError> {
    let invalid = || ApiError::field("Last-Event-ID", format!("must be {name}: an integer of at least 0"));
    match headers.get("last-event-id").map(|value| value.to_str().map(str::trim)) {
        None | Some(Ok("")) => Ok(None),
        Some(Ok(text)) => text.parse().ok().filter(|position| *position >= 0).map(Some).ok_or_else(invalid),
        Some(Err(_)) => Err(invalid()),
    }
}

/// A message without an id, which does not change the position that a client resumes from.
pub(in crate::public) fn named(name: &str, data: &serde_json::Value) -> Sse {
    Sse::default().event(name).data(data.to_string())
}

struct Reader<S> {
    /// The caller whose token opened the stream.
    who: Identity,
    api: PublicApi,
    source: S,
    pending: VecDeque<Sse>,
    next: Next,
    /// When the client is told the position next.
    position_at: Instant,
    _counted: EventStreamGuard,
    _permit: Permit,
}

fn messages<S: EventSource>(reader: Reader<S>) -> impl Stream<Item = Result<Sse, Infallible>> {
    stream::unfold(reader, |mut reader| async move {
        loop {
            if let Some(next) = reader.pending.pop_front() {
                return Some((Ok(next), reader));
            }
            if reader.next != Next::End && reader.position_at <= Instant::now() {
                let position = reader.position();
                return Some((Ok(position), reader));
            }
            match reader.next {
                Next::End => return None,
                Next::Read => {}
                Next::Wait => {
                    let (drain, recheck) = (reader.api.drain.clone(), reader.until_recheck());
                    tokio::select! {
                        () = reader.source.changed() => {}
                        () = drain.cancelled() => return None,
                        () = tokio::time::sleep(recheck) => {}
                    }
                }
            }
            reader.read().await;
            // A source that skips what the caller may not see can read for a long time without a message.
            if reader.pending.is_empty() && reader.api.drain.is_cancelled() {
                return None;
            }
        }
    })
}

impl<S: EventSource> Reader<S> {
    /// Time until the token is checked again on a silent stream: with each position, and just after it expires.
    fn until_recheck(&self) -> Duration {
        let left = (self.who.expires_at - self.api.clock.now()).to_std().unwrap_or_default();
        self.position_at.saturating_duration_since(Instant::now()).min(left + EXPIRY_CHECK_DELAY)
    }

    /// How far the stream has got, for clients that see neither comments nor ids. It has no id: a resume is from the last event
    /// or message with one.
    fn position(&mut self) -> Sse {
        self.position_at = Instant::now() + KEEP_ALIVE;
        let (name, position) = self.source.position();
        named("position", &json!({name: position, "now": self.api.clock.now()}))
    }

    /// Whether the token or session is still valid. False as well when that cannot be determined: the client has to reconnect.
    async fn is_authorized(&self) -> bool {
        let is_expired = self.who.expires_at <= self.api.clock.now();
        !is_expired && is_still_valid(&self.api.store, &self.who).await.unwrap_or(false)
    }

    /// Reads the next batch. A store error ends the stream; the client can resume.
    async fn read(&mut self) {
        if !self.is_authorized().await {
            self.next = Next::End;
            return;
        }
        match self.source.read().await {
            Ok(Batch { messages, next }) => {
                self.pending.extend(messages);
                self.next = next;
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "reading events for a stream failed");
                self.next = Next::End;
            }
        }
    }
}
