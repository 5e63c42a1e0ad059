//! A job's event stream, as a reader sees it.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use protocol::{Event, JobState};
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

/// An open stream.
pub struct EventStream(Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>);

impl EventStream {
    /// Reads the stream from a response, which must be one.
    #[track_caller]
    pub fn of(response: Response) -> Self {
        assert_eq!(response.status().as_u16(), 200);
        let header =
            |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        assert_eq!(header("content-type"), "text/event-stream");
        assert_eq!(header("cache-control"), "no-cache");
        assert_eq!(header("x-accel-buffering"), "no");
        Self(Box::pin(SseStream::from_bytes_stream(response.bytes_stream())))
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
