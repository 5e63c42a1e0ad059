//! The ends of a job's log streams that are not stored yet, because they could be the beginning of a credential.
//!
//! A secret that a job prints in two pieces is in no event. Owns what is held back: at most the beginning of one secret, a word,
//! or a private key. Never stores anything. What is held back when a container dies without a report is lost.

use agent::safety::{LeakDetector, StreamRedactor};
use protocol::{AgentEvent, LogStream};
use std::sync::Arc;

/// What is held back of the streams of one attempt.
#[derive(Debug, Clone, Default)]
pub(in crate::dispatch) struct LogTails {
    /// The number of the last event that the tails continue; none after a start of the process.
    last_client_seq: Option<u64>,
    stdout: String,
    stderr: String,
}

impl LogTails {
    /// Whether the event with this number has been stored.
    pub(in crate::dispatch) fn has_stored(&self, client_seq: u64) -> bool {
        self.last_client_seq.is_some_and(|last| client_seq <= last)
    }

    /// Every event up to this number has been stored.
    pub(in crate::dispatch) fn stored(&mut self, last_client_seq: u64) {
        self.last_client_seq = Some(last_client_seq);
    }

    /// Redacts an event. Text of a log event comes after what its stream holds back; `None`: all of it is held back now.
    pub(in crate::dispatch) fn redact(
        &mut self,
        detector: &Arc<LeakDetector>,
        mut event: AgentEvent,
    ) -> Option<AgentEvent> {
        let AgentEvent::Log { stream, text } = &mut event else {
            detector.redact_event(&mut event);
            return Some(event);
        };
        let tail = self.of(*stream);
        let mut redactor = StreamRedactor::new(Arc::clone(detector));
        let mut shown = redactor.push(tail);
        shown.push_str(&redactor.push(text));
        redactor.held().clone_into(tail);
        let is_empty = shown.is_empty() && !text.is_empty();
        *text = shown;
        (!is_empty).then_some(event)
    }

    /// Ends the streams: the events with what they held back.
    pub(in crate::dispatch) fn finish(&mut self, detector: &LeakDetector) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            let mut text = std::mem::take(self.of(stream));
            detector.redact_text(&mut text);
            if !text.is_empty() {
                events.push(AgentEvent::Log { stream, text });
            }
        }
        events
    }

    /// Whether nothing is held back.
    pub(in crate::dispatch) fn is_empty(&self) -> bool {
        self.stdout.is_empty() && self.stderr.is_empty()
    }

    const fn of(&mut self, stream: LogStream) -> &mut String {
        match stream {
            LogStream::Stdout => &mut self.stdout,
            LogStream::Stderr => &mut self.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use agent::safety::StoredSecret;
    use proptest::prelude::*;

    use super::*;

    fn detector() -> Arc<LeakDetector> {
        Arc::new(LeakDetector::new([StoredSecret { name: "TOKEN", value: "hunter2-secret" }]).unwrap())
    }

    fn log(stream: LogStream, text: &str) -> AgentEvent {
        AgentEvent::Log { stream, text: text.to_owned() }
    }

    /// The texts of one stream, in order.
    fn texts(events: &[AgentEvent], of: LogStream) -> Vec<&str> {
        let text = |event: &'_ AgentEvent| matches!(event, AgentEvent::Log { stream, .. } if *stream == of);
        let logs = events.iter().filter(|event| text(event));
        logs.filter_map(|event| if let AgentEvent::Log { text, .. } = event { Some(text.as_str()) } else { None })
            .collect()
    }

    #[test]
    fn a_secret_in_two_pieces_is_in_no_event_and_streams_are_separate() {
        let (detector, mut tails) = (detector(), LogTails::default());
        let mut events = Vec::new();
        for (stream, text) in [
            (LogStream::Stdout, "token: hunter2"),
            (LogStream::Stderr, "-secret is no secret\n"),
            (LogStream::Stdout, "-sec"),
            (LogStream::Stdout, "ret, and hun"),
        ] {
            events.extend(tails.redact(&detector, log(stream, text)));
        }
        assert!(!tails.is_empty());
        events.extend(tails.finish(&detector));
        assert!(tails.is_empty());
        assert_eq!(texts(&events, LogStream::Stdout), ["token: ", "[redacted], and ", "hun"]);
        assert_eq!(texts(&events, LogStream::Stderr), ["-secret is no secret\n"]);
    }

    proptest! {
        #[test]
        fn the_pieces_of_a_stream_are_together_the_redacted_stream(
            pieces in prop::collection::vec("(hunter2|-secret|-sec|ret|%2D|hunter2-secret|[a-z \n]{0,6}|aHVudGVyMi1zZWNyZXQ=){0,3}", 0..8),
        ) {
            let (detector, mut tails) = (detector(), LogTails::default());
            let mut events: Vec<AgentEvent> =
                pieces.iter().filter_map(|piece| tails.redact(&detector, log(LogStream::Stdout, piece))).collect();
            events.extend(tails.finish(&detector));
            let shown = texts(&events, LogStream::Stdout).concat();
            let whole = pieces.concat();
            let merged = |text: &str| text.replace("[redacted][redacted]", "[redacted]");
            prop_assert_eq!(merged(&merged(&shown)), merged(&merged(&detector.redact(&whole).0)), "{:?}", pieces);
        }
    }
}
