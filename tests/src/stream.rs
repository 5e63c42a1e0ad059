//! Event streams of a job and of the instance, as a reader sees them.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use protocol::{Event, InstanceEvent, JobState};
use reqwest::Response;
use serde_json::Value;
use sse_stream::{Sse, SseStream};

/// A message of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamMessage {
    /// An event and its id.
    Event(Box<Event>),
    /// Older events were removed.
    Resync(Value),
    /// The job has ended.
    End {
        /// The final state.
        state: JobState,
        /// The id of the last event.
        seq: i64,
    },
}

/// The messages of a response.
type Messages = Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>;

/// The messages of a response, which must be a stream.
#[track_caller]
fn messages(response: Response) -> Messages {
    assert_eq!(response.status().as_u16(), 200);
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert_eq!(header("content-type"), "text/event-stream");
    assert_eq!(header("cache-control"), "no-cache");
    assert_eq!(header("x-accel-buffering"), "no");
    Box::pin(SseStream::from_bytes_stream(response.bytes_stream()))
}

/// An open stream of a job's events.
pub struct EventStream(Messages);

impl EventStream {
    /// Reads the stream from a response, which must be one.
    #[track_caller]
    pub fn of(response: Response) -> Self {
        Self(messages(response))
    }

    /// The next message; `None` if the server closed the stream or the connection broke.
    pub async fn next(&mut self) -> Option<StreamMessage> {
        loop {
            let message = crate::within("the stream's next message", self.0.next()).await?.ok()?;
            let Some(data) = message.data else { continue };
            let value: Value = serde_json::from_str(&data).expect("data is JSON");
            match message.event.as_deref() {
                Some("end") => {
                    assert_eq!(message.id, None, "`end` must not have an id, which would change the resume position");
                    let state = serde_json::from_value(value["state"].clone()).expect("end has a state");
                    return Some(StreamMessage::End { state, seq: value["seq"].as_i64().expect("end has a seq") });
                }
                Some("resync") => return Some(StreamMessage::Resync(value)),
                Some("position") => assert_eq!(message.id, None, "a position must not change where a client resumes"),
                kind => {
                    let event: Event = serde_json::from_value(value).expect("an event");
                    assert_eq!(message.id, Some(event.seq.to_string()));
                    assert_eq!(kind, Some(event.data.kind().as_str()));
                    return Some(StreamMessage::Event(Box::new(event)));
                }
            }
        }
    }

    /// The next event. Panics if the stream ends first.
    pub async fn event(&mut self) -> Event {
        match self.next().await {
            Some(StreamMessage::Event(event)) => *event,
            other => panic!("expected an event, got {other:?}"),
        }
    }

    /// The next event that `wanted` accepts. Panics if the stream ends first.
    pub async fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.event().await;
            if wanted(&event) {
                return event;
            }
        }
    }

    /// All events up to the end of the stream, which must come.
    pub async fn rest(mut self) -> (Vec<Event>, JobState, i64) {
        let mut events = vec![];
        loop {
            match self.next().await {
                Some(StreamMessage::Event(event)) => events.push(*event),
                Some(StreamMessage::End { state, seq }) => {
                    assert_eq!(self.next().await, None, "the server closes after `end`");
                    return (events, state, seq);
                }
                other => panic!("expected `end`, got {other:?} after {} events", events.len()),
            }
        }
    }
}

/// A message of the instance's stream.
#[derive(Debug, Clone, PartialEq)]
pub enum InstanceMessage {
    /// An event and its id.
    Event(Box<InstanceEvent>),
    /// The position has changed without an event.
    Position(i64),
    /// Something that is not stored.
    Live {
        /// Its name.
        event: String,
        /// Its data.
        data: Value,
    },
    /// Older events were removed.
    Resync(Value),
}

/// An open stream of the instance's events.
pub struct InstanceStream(Messages);

impl InstanceStream {
    /// Reads the stream from a response, which must be one.
    #[track_caller]
    pub fn of(response: Response) -> Self {
        Self(messages(response))
    }

    /// The next message; `None` if the server closed the stream or the connection broke.
    pub async fn next(&mut self) -> Option<InstanceMessage> {
        loop {
            let message = crate::within("the stream's next message", self.0.next()).await?.ok()?;
            let position = message.id.as_ref().map(|id| id.parse().expect("the id is a cursor"));
            let Some(data) = message.data else {
                match position {
                    Some(position) => return Some(InstanceMessage::Position(position)),
                    None => continue,
                }
            };
            let value: Value = serde_json::from_str(&data).expect("data is JSON");
            if message.event.as_deref() == Some("resync") {
                assert_eq!(position, None, "`resync` must not have an id, which would change the resume position");
                return Some(InstanceMessage::Resync(value));
            }
            if position.is_none() {
                assert!(value.get("cursor").is_none() || message.event.as_deref() == Some("position"), "{value}");
                return Some(InstanceMessage::Live { event: message.event.unwrap_or_default(), data: value });
            }
            assert_eq!(message.event.as_deref(), value["kind"].as_str());
            let event: InstanceEvent = serde_json::from_value(value).expect("an event");
            assert_eq!(position, Some(event.cursor));
            return Some(InstanceMessage::Event(Box::new(event)));
        }
    }

    /// The next event. Panics if the stream ends first, or if events are missing.
    pub async fn event(&mut self) -> InstanceEvent {
        loop {
            match self.next().await {
                Some(InstanceMessage::Event(event)) => return *event,
                Some(InstanceMessage::Position(_) | InstanceMessage::Live { .. }) => {}
                other => panic!("expected an event, got {other:?}"),
            }
        }
    }
}

/// A message of the stream of chats.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatStreamMessage {
    /// Its cursor; `None` if it is not stored.
    pub id: Option<i64>,
    /// Its name; empty if only the position has changed.
    pub event: String,
    /// Its data.
    pub data: Value,
}

/// An open stream of the events of chats.
pub struct ChatStream(Messages);

impl ChatStream {
    /// Reads the stream from a response, which must be one.
    #[track_caller]
    pub fn of(response: Response) -> Self {
        Self(messages(response))
    }

    /// The next message; `None` if the server closed the stream or the connection broke.
    pub async fn next(&mut self) -> Option<ChatStreamMessage> {
        loop {
            let message = crate::within("the stream's next message", self.0.next()).await?.ok()?;
            let id = message.id.as_ref().map(|id| id.parse().expect("the id is a cursor"));
            let Some(data) = message.data.filter(|_| message.event.as_deref() != Some("position")) else { continue };
            let data = serde_json::from_str(&data).expect("data is JSON");
            return Some(ChatStreamMessage { id, event: message.event.unwrap_or_default(), data });
        }
    }
}
