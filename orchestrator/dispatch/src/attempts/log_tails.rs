//! The ends of a job's log streams that are not stored yet, because they could be the beginning of a credential.
//!
//! A secret that a job prints in two pieces is in no event, whatever other calls print in between. Owns what is held
//! back of each stream: at most the beginning of one secret, a word, or a private key. Never stores anything. What is
//! held back when a container dies without a report is lost.

use agent::safety::{Held, LeakDetector, StreamRedactor};
use protocol::{AgentEvent, CallId, LogStream};
use std::sync::Arc;

/// Streams of which something is held back at a time, more than calls that a worker runs in parallel.
const MAX_STREAMS: usize = 64;

/// What is held back of the streams of one attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogTails {
    /// The number of the last event that the tails continue; none after a start of the process.
    last_client_seq: Option<u64>,
    /// Those that are not empty, the oldest first.
    tails: Vec<Tail>,
}

/// The end of one stream.
#[derive(Debug, Clone)]
struct Tail {
    /// The call that writes the stream, if it is one of a call.
    call_id: Option<CallId>,
    stream: LogStream,
    held: Held,
}

impl LogTails {
    /// Whether the event with this number has been stored.
    pub(crate) fn has_stored(&self, client_seq: u64) -> bool {
        self.last_client_seq.is_some_and(|last| client_seq <= last)
    }

    /// Every event up to this number has been stored.
    pub(crate) fn stored(&mut self, last_client_seq: u64) {
        self.last_client_seq = Some(last_client_seq);
    }

    /// Redacts an event, and returns what is stored in its place. Text of a log event comes after what its stream holds
    /// back; it may be held back altogether. The result of a call comes after all that the call's streams held back.
    pub(crate) fn redact(&mut self, detector: &Arc<LeakDetector>, event: AgentEvent) -> Vec<AgentEvent> {
        match event {
            AgentEvent::Log { stream, text, call_id } => {
                self.redact_log(detector, stream, &text, call_id).into_iter().collect()
            }
            mut event => {
                let mut events = match &event {
                    AgentEvent::ToolResult { call_id, .. } => {
                        self.finish_where(detector, |tail| tail.call_id.as_ref() == Some(call_id))
                    }
                    _ => Vec::new(),
                };
                detector.redact_event(&mut event);
                events.push(event);
                events
            }
        }
    }

    /// Ends all streams: the events with what they held back.
    pub(crate) fn finish(&mut self, detector: &Arc<LeakDetector>) -> Vec<AgentEvent> {
        self.finish_where(detector, |_| true)
    }

    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.tails.is_empty()
    }

    fn redact_log(
        &mut self,
        detector: &Arc<LeakDetector>,
        stream: LogStream,
        text: &str,
        call_id: Option<CallId>,
    ) -> Option<AgentEvent> {
        let is_of_stream = |tail: &Tail| tail.stream == stream && tail.call_id == call_id;
        let known = self.tails.iter().position(is_of_stream);
        let before = known.map(|index| self.tails.remove(index).held).unwrap_or_default();
        let (mut redactor, mut shown) = StreamRedactor::resume(Arc::clone(detector), &before);
        shown.push_str(&redactor.push(text));
        let held = redactor.held();
        if !held.is_empty() {
            if self.tails.len() >= MAX_STREAMS {
                self.tails.remove(0);
            }
            self.tails.push(Tail { call_id: call_id.clone(), stream, held });
        }
        let is_held = shown.is_empty() && !text.is_empty();
        (!is_held).then(|| log_event(detector, stream, shown, call_id))
    }

    fn finish_where(&mut self, detector: &Arc<LeakDetector>, ends: impl Fn(&Tail) -> bool) -> Vec<AgentEvent> {
        let (ended, open) = std::mem::take(&mut self.tails).into_iter().partition(ends);
        self.tails = open;
        let event = |Tail { call_id, stream, held }: Tail| {
            let (redactor, mut shown) = StreamRedactor::resume(Arc::clone(detector), &held);
            shown.push_str(&redactor.finish().0);
            log_event(detector, stream, shown, call_id)
        };
        let events = Vec::into_iter(ended).map(event);
        events.filter(|event| !matches!(event, AgentEvent::Log { text, .. } if text.is_empty())).collect()
    }
}

/// The event of a text that is redacted already.
fn log_event(detector: &LeakDetector, stream: LogStream, shown: String, call_id: Option<CallId>) -> AgentEvent {
    let mut event = AgentEvent::Log { stream, text: String::new(), call_id };
    detector.redact_event(&mut event);
    if let AgentEvent::Log { text, .. } = &mut event {
        *text = shown;
    }
    event
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
        AgentEvent::Log { stream, text: text.to_owned(), call_id: None }
    }

    fn log_of_call(call_id: &str, text: &str) -> AgentEvent {
        AgentEvent::Log { stream: LogStream::Stdout, text: text.to_owned(), call_id: Some(CallId(call_id.to_owned())) }
    }

    fn result_of_call(call_id: &str) -> AgentEvent {
        AgentEvent::ToolResult {
            call_id: CallId(call_id.to_owned()),
            tool: "shell".to_owned(),
            success: true,
            output: String::new(),
            truncated: false,
            duration_ms: 1,
        }
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

    #[test]
    fn the_end_of_a_secret_that_is_also_a_word_is_held_with_its_beginning() {
        for (pieces, expected) in [
            (["hunter2", "\n-secret", ""], "[redacted]"),
            (["hunter2", "\n-secret", "hunter2-secret"], "[redacted]"),
            (["say hunter2\n", "-secret", " now"], "say [redacted] now"),
        ] {
            let (detector, mut tails) = (detector(), LogTails::default());
            let mut events: Vec<AgentEvent> =
                pieces.iter().flat_map(|piece| tails.redact(&detector, log(LogStream::Stdout, piece))).collect();
            events.extend(tails.finish(&detector));
            assert_eq!(texts(&events, LogStream::Stdout).concat(), expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_secret_in_pieces_of_one_call_is_found_whatever_another_call_prints_in_between() {
        let (detector, mut tails) = (detector(), LogTails::default());
        let mut events = Vec::new();
        for event in [
            log_of_call("a", "a: hunter2"),
            log_of_call("b", "b: hun"),
            log_of_call("a", "-sec"),
            log_of_call("b", "dred\n"),
            log_of_call("a", "ret.\n"),
        ] {
            events.extend(tails.redact(&detector, event));
        }
        let expected = [("a", "a: "), ("b", "b: "), ("b", "hundred\n"), ("a", "[redacted].\n")];
        assert_eq!(events, expected.map(|(call, text)| log_of_call(call, text)));
        assert!(tails.is_empty());
    }

    #[test]
    fn the_result_of_a_call_comes_after_what_the_call_held_back() {
        let (detector, mut tails) = (detector(), LogTails::default());
        assert_eq!(tails.redact(&detector, log_of_call("a", "hunt")), []);
        assert_eq!(tails.redact(&detector, log_of_call("b", "hunter")), []);
        let events = tails.redact(&detector, result_of_call("a"));
        assert_eq!(events, [log_of_call("a", "hunt"), result_of_call("a")]);
        assert_eq!(tails.finish(&detector), [log_of_call("b", "hunter")]);
    }

    #[test]
    fn no_more_is_held_of_a_secret_that_is_repeated() {
        let (detector, mut tails) = (detector(), LogTails::default());
        let mut events = Vec::new();
        for _ in 0..100 {
            events.extend(tails.redact(&detector, log(LogStream::Stdout, &"hunter2-secret".repeat(100))));
            assert!(tails.tails.iter().all(|tail| tail.held.len() < 8_192));
        }
        events.extend(tails.finish(&detector));
        assert_eq!(texts(&events, LogStream::Stdout).concat().replace("[redacted]", ""), "");
    }

    #[test]
    fn the_number_of_streams_is_bounded() {
        let (detector, mut tails) = (detector(), LogTails::default());
        for call in 0..MAX_STREAMS + 10 {
            tails.redact(&detector, log_of_call(&call.to_string(), "hunt"));
        }
        assert_eq!(tails.tails.len(), MAX_STREAMS);
    }

    proptest! {
        #[test]
        fn the_pieces_of_a_stream_are_together_the_redacted_stream(
            pieces in prop::collection::vec("(hunter2|-secret|-sec|ret|%2D|hunter2-secret|[a-z \n]{0,6}|aHVudGVyMi1zZWNyZXQ=){0,3}", 0..8),
        ) {
            let (detector, mut tails) = (detector(), LogTails::default());
            let mut events: Vec<AgentEvent> =
                pieces.iter().flat_map(|piece| tails.redact(&detector, log(LogStream::Stdout, piece))).collect();
            events.extend(tails.finish(&detector));
            let shown = texts(&events, LogStream::Stdout).concat();
            let whole = pieces.concat();
            let merged = |text: &str| text.replace("[redacted][redacted]", "[redacted]");
            prop_assert_eq!(merged(&merged(&shown)), merged(&merged(&detector.redact(&whole).0)), "{:?}", pieces);
        }
    }
}
