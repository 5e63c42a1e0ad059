//! Follows a stream of events across lost connections and restarts of the server: a job's until it ends, or the
//! instance's.
//!
//! Owns resuming: every event is returned once and in order. Never prints.

use std::{
    marker::PhantomData,
    pin::Pin,
    time::{Duration, Instant},
};

use futures_util::{Stream, StreamExt};
use protocol::{Event, InstanceEvent};
use serde::Deserialize;
use sse_stream::{Sse, SseStream};

use super::Client;
use crate::exit::CliError;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of failures in a row: with the delays above, a little under a minute without a server.
const MAX_FAILURES: u32 = 15;

type Events = Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>;

pub(crate) trait StreamEvent: Sized {
    /// Reads the event of this name. `None`: this version does not know it.
    fn parse(name: &str, data: &str) -> Option<Self>;
}

impl StreamEvent for Event {
    fn parse(_name: &str, data: &str) -> Option<Self> {
        serde_json::from_str(data).ok()
    }
}

impl StreamEvent for InstanceEvent {
    fn parse(_name: &str, data: &str) -> Option<Self> {
        serde_json::from_str(data).ok()
    }
}

/// An item of a followed stream of events `T`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Followed<T> {
    /// An event, parsed if this version knows its kind.
    Event {
        /// The JSON text.
        raw: String,
        event: Option<Box<T>>,
    },
    /// The requested position is not available; events continue at the oldest one that is kept.
    Resync { oldest: i64 },
    /// The connection was lost and is being reopened.
    Lost { cause: String },
    /// The stream is over and all its events have been returned.
    End,
}

#[derive(Deserialize)]
struct ResyncData {
    /// A job's events are numbered by `seq`, those of the instance by `cursor`.
    #[serde(alias = "cursor")]
    seq: i64,
}

/// A stream of events, and where it is read from.
#[derive(Debug, Clone)]
pub struct StreamRequest {
    pub(crate) path: String,
    pub(crate) query: Vec<(&'static str, String)>,
    /// Only events after this position. `None`: where the endpoint begins.
    pub(crate) after: Option<i64>,
}

/// Follows a stream of events `T`.
pub(crate) struct EventFollower<'a, T> {
    client: &'a Client,
    request: StreamRequest,
    events: PhantomData<T>,
    connection: Option<Events>,
    connected_at: Option<Instant>,
    failures: u32,
    pause_before: Option<Duration>,
}

impl<'a, T: StreamEvent> EventFollower<'a, T> {
    pub(crate) fn new(client: &'a Client, request: StreamRequest) -> Self {
        let events = PhantomData;
        Self { client, request, events, connection: None, connected_at: None, failures: 0, pause_before: None }
    }

    /// Connects, so that no later event is missed.
    pub(crate) async fn open(&mut self) -> Result<(), CliError> {
        self.connect().await.map(drop)
    }

    /// The next item. An error is final: the server refuses, or has been unreachable for too long.
    pub(crate) async fn next(&mut self) -> Result<Followed<T>, CliError> {
        loop {
            let Some(connection) = &mut self.connection else {
                if let Some(followed) = self.connect().await? {
                    return Ok(followed);
                }
                continue;
            };
            let cause = match connection.next().await {
                Some(Ok(message)) => match self.take(message) {
                    Some(followed) => return Ok(followed),
                    None => continue,
                },
                Some(Err(error)) => error.to_string(),
                None => "the server closed the stream".to_owned(),
            };
            self.connection = None;
            // A proxy may cut streams that carry only comments for minutes.
            if self.connected_at.is_some_and(|at| at.elapsed() > LONGEST_PAUSE) {
                self.reset_failures();
            }
            if self.failures >= MAX_FAILURES {
                return Err(CliError::Failed(format!("the event stream was interrupted too often: {cause}")));
            }
            self.fail();
            return Ok(Followed::Lost { cause });
        }
    }

    async fn connect(&mut self) -> Result<Option<Followed<T>>, CliError> {
        if let Some(pause) = self.pause_before.take() {
            tokio::time::sleep(pause).await;
        }
        match self.client.stream(&self.request).await {
            Ok(None) => Ok(Some(Followed::End)),
            Ok(Some(response)) => {
                self.connected_at = Some(Instant::now());
                self.connection = Some(Box::pin(SseStream::from_bytes_stream(response.bytes_stream())));
                Ok(None)
            }
            // Only a connection that has worked before is retried: an invalid address is reported at once.
            Err(error) if self.failures == 0 || self.failures >= MAX_FAILURES || !is_transient(&error) => Err(error),
            Err(error) => {
                self.fail();
                Ok(Some(Followed::Lost { cause: error.to_string() }))
            }
        }
    }

    fn fail(&mut self) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.pause_before = Some(pause);
        self.failures += 1;
    }

    /// The connection works: the next failure counts as the first one. 0 would mean that it never worked.
    fn reset_failures(&mut self) {
        self.failures = self.failures.min(1);
    }

    fn take(&mut self, message: Sse) -> Option<Followed<T>> {
        let position: Option<i64> = message.id.and_then(|id| id.parse().ok());
        let Some(data) = message.data else {
            // Only the position has changed.
            self.request.after = position.or(self.request.after);
            return None;
        };
        match message.event.as_deref() {
            Some("end") => Some(Followed::End),
            Some("resync") => {
                let resync: ResyncData = serde_json::from_str(&data).ok()?;
                self.request.after = Some(resync.seq - 1);
                Some(Followed::Resync { oldest: resync.seq })
            }
            _ => {
                let event = T::parse(message.event.as_deref().unwrap_or_default(), &data).map(Box::new);
                // An event without a position is not stored: a known one happens now, another one is not an event.
                if position.is_none() && event.is_none() || position.is_some() && position <= self.request.after {
                    return None;
                }
                self.request.after = position.or(self.request.after);
                self.reset_failures();
                Some(Followed::Event { raw: data, event })
            }
        }
    }
}

/// Whether a retry may succeed.
pub(crate) fn is_transient(error: &CliError) -> bool {
    match error {
        CliError::Unreachable { .. } | CliError::NotGantry { .. } => true,
        CliError::Refused(problem) => problem.status >= 500 || problem.status == 429,
        _ => false,
    }
}
