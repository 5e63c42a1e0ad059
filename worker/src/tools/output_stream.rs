//! The output of a call while it runs, as `log` events: few, of bounded size, and complete up to a bound.
//!
//! Owns when a piece is sent and where it ends. A call that ends before its first piece is due sends none, because its
//! result follows at once. Never delays the command: a piece that the journal has no room for is sent later, with what
//! came since.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use agent::{Journal as _, is_incomplete_escape, sanitize_piece};
use protocol::{AgentEvent, CallId, LogStream};
use tokio::time::{Instant, sleep_until};

use super::capture::without_cut_end;
use crate::journal::EventQueue;

/// How long output is collected before a piece is sent.
const PIECE_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum size of a piece.
const MAX_PIECE_BYTES: usize = 64 * 1024;
/// Bytes of a call's output that are sent.
const MAX_CALL_BYTES: usize = 256 * 1024;
/// Bytes of the output of all calls of a session that are sent.
const MAX_SESSION_BYTES: usize = 16 * 1024 * 1024;
/// The end of a stream of which not everything is sent.
const CUT_NOTE: &str = "\n[… the output continues; the call's result has its end …]\n";

/// The bytes of output that a session may still send.
#[derive(Debug)]
pub(crate) struct StreamBudget(AtomicUsize);

impl Default for StreamBudget {
    fn default() -> Self {
        Self(AtomicUsize::new(MAX_SESSION_BYTES))
    }
}

impl StreamBudget {
    /// Takes up to `wanted` bytes and returns how many.
    fn take(&self, wanted: usize) -> usize {
        let before =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(wanted)));
        before.unwrap_or_else(|left| left).min(wanted)
    }
}

/// Sends the output of one call.
pub(super) struct OutputStream {
    journal: EventQueue,
    call_id: CallId,
    pieces: Pieces,
}

impl OutputStream {
    /// The stream of a call that starts.
    pub(super) const fn new(journal: EventQueue, call_id: CallId, budget: Arc<StreamBudget>) -> Self {
        Self { journal, call_id, pieces: Pieces::new(budget) }
    }

    /// Takes output.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.pieces.push(chunk, Instant::now());
    }

    /// Sends each piece when it is due. Cancel safe; never returns.
    pub(super) async fn send_pieces(&mut self) -> std::convert::Infallible {
        loop {
            match self.pieces.due() {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
            if let Some(text) = self.pieces.take(Instant::now())
                && let Some(AgentEvent::Log { text, .. }) = self.journal.try_record(event(&self.call_id, text))
            {
                self.pieces.put_back(text);
            }
        }
    }

    /// Sends what is left, if a piece was sent before. Waits while the journal is full.
    pub(super) async fn finish(mut self) {
        while let Some(text) = self.pieces.take_last() {
            if self.journal.record(event(&self.call_id, text)).await.is_err() {
                // A closed journal means that the session has stopped; the agent loop handles that.
                return;
            }
        }
    }
}

/// The command's output is one stream, in which standard error stands where a terminal would show it.
fn event(call_id: &CallId, text: String) -> AgentEvent {
    AgentEvent::Log { stream: LogStream::Stdout, text, call_id: Some(call_id.clone()) }
}

/// Divides output into pieces.
#[derive(Debug)]
struct Pieces {
    budget: Arc<StreamBudget>,
    /// Bytes that may still be taken.
    left: usize,
    waiting: VecDeque<u8>,
    /// A piece that could not be sent.
    unsent: Option<String>,
    due: Option<Instant>,
    has_begun: bool,
    cut: Cut,
}

/// Whether output was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    No,
    /// The note about it is not sent yet.
    Unnoted,
    Noted,
}

impl Pieces {
    const fn new(budget: Arc<StreamBudget>) -> Self {
        Self {
            budget,
            left: MAX_CALL_BYTES,
            waiting: VecDeque::new(),
            unsent: None,
            due: None,
            has_begun: false,
            cut: Cut::No,
        }
    }

    fn push(&mut self, chunk: &[u8], now: Instant) {
        if self.cut != Cut::No {
            return;
        }
        let taken = &chunk[..chunk.len().min(self.left)];
        self.left -= taken.len();
        self.waiting.extend(taken);
        if taken.len() < chunk.len() {
            self.cut = Cut::Unnoted;
        }
        self.due.get_or_insert(now + PIECE_INTERVAL);
    }

    /// When the next piece is to be sent.
    const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The next piece, without a character or an escape sequence that is not complete yet.
    fn take(&mut self, now: Instant) -> Option<String> {
        let text = self.unsent.take().or_else(|| self.next(false));
        self.due = (!self.waiting.is_empty() || self.cut == Cut::Unnoted).then(|| now + PIECE_INTERVAL);
        self.has_begun |= text.is_some();
        text
    }

    /// Returns a piece that could not be sent.
    fn put_back(&mut self, text: String) {
        self.unsent = Some(text);
        self.due.get_or_insert_with(|| Instant::now() + PIECE_INTERVAL);
    }

    /// The next piece of an output that has ended.
    fn take_last(&mut self) -> Option<String> {
        if !self.has_begun {
            return None;
        }
        self.unsent.take().or_else(|| self.next(true))
    }

    fn next(&mut self, has_ended: bool) -> Option<String> {
        loop {
            let bytes = self.waiting.make_contiguous();
            let is_all = bytes.len() <= MAX_PIECE_BYTES;
            let bytes = &bytes[..bytes.len().min(MAX_PIECE_BYTES)];
            // Nothing follows what was cut.
            let is_end = is_all && (has_ended || self.cut == Cut::Unnoted);
            let complete = if is_end { bytes } else { without_incomplete_escape(without_cut_end(bytes)) };
            let mut text = String::from_utf8_lossy(complete).into_owned();
            let used = complete.len();
            self.waiting.drain(..used);
            let granted = self.budget.take(used);
            if granted < used {
                text.truncate(text.floor_char_boundary(granted));
                self.waiting.clear();
                self.cut = Cut::Unnoted;
            }
            let mut text = sanitize_piece(text);
            if self.waiting.is_empty() && self.cut == Cut::Unnoted {
                self.cut = Cut::Noted;
                text.push_str(CUT_NOTE);
            }
            if !text.is_empty() {
                return Some(text);
            }
            if used == 0 {
                return None;
            }
        }
    }
}

fn without_incomplete_escape(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().rposition(|byte| *byte == b'\x1b');
    let incomplete = start.filter(|start| is_incomplete_escape(&String::from_utf8_lossy(&bytes[*start..])));
    &bytes[..incomplete.unwrap_or(bytes.len())]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn pieces() -> Pieces {
        Pieces::new(Arc::default())
    }

    /// What is sent of a command that ends after this output, which came at once and long before the end.
    fn streamed(pieces: &mut Pieces, output: &[u8]) -> Vec<String> {
        let start = Instant::now();
        pieces.push(output, start);
        let first = pieces.take(start + PIECE_INTERVAL);
        first.into_iter().chain(std::iter::from_fn(|| pieces.take_last())).collect()
    }

    #[test]
    fn a_piece_has_the_output_of_an_interval_and_none_is_due_without_output() {
        let (mut pieces, start) = (pieces(), Instant::now());
        assert_eq!(pieces.due(), None);
        pieces.push(b"one\n", start);
        pieces.push(b"two\n", start + PIECE_INTERVAL / 2);
        assert_eq!(pieces.due(), Some(start + PIECE_INTERVAL));
        assert_eq!(pieces.take(start + PIECE_INTERVAL).as_deref(), Some("one\ntwo\n"));
        assert_eq!((pieces.due(), pieces.take_last()), (None, None));
    }

    #[test]
    fn output_before_the_first_piece_is_due_is_only_in_the_result() {
        let mut pieces = pieces();
        pieces.push(b"done\n", Instant::now());
        assert_eq!(pieces.take_last(), None);
    }

    #[test]
    fn a_piece_that_was_not_sent_comes_before_what_follows() {
        let (mut pieces, start) = (pieces(), Instant::now());
        pieces.push(b"one\n", start);
        let unsent = pieces.take(start + PIECE_INTERVAL).unwrap();
        pieces.put_back(unsent);
        pieces.push(b"two\n", start + PIECE_INTERVAL);
        assert!(pieces.due().is_some());
        let sent = [pieces.take(start), pieces.take(start), pieces.take(start)];
        assert_eq!(sent.map(Option::unwrap_or_default), ["one\n", "two\n", ""]);
    }

    #[rstest]
    #[case::character("漢".as_bytes(), "漢")]
    #[case::escape_sequence(b"\x1b[31mred\x1b[0m", "red")]
    #[case::invalid(b"\xff!", "\u{fffd}!")]
    #[case::hyperlink(b"\x1b]8;;http://x\x07link", "link")]
    fn a_character_or_escape_sequence_in_two_reads_is_in_one_piece(#[case] output: &[u8], #[case] shown: &str) {
        for middle in 0..output.len() {
            let (mut pieces, start) = (pieces(), Instant::now());
            let mut sent = String::new();
            for part in [&b"begin\n"[..], &output[..middle], &output[middle..]] {
                pieces.push(part, start);
                sent.push_str(&pieces.take(start).unwrap_or_default());
            }
            sent.extend(std::iter::from_fn(|| pieces.take_last()));
            assert_eq!(sent, format!("begin\n{shown}"), "cut at {middle}");
        }
    }

    #[test]
    fn a_calls_stream_ends_at_its_limit_with_one_note() {
        let mut pieces = pieces();
        let sent = streamed(&mut pieces, &b"0123456789abcde\n".repeat(MAX_CALL_BYTES / 16 + 1));
        assert!(sent.iter().all(|piece| piece.len() <= MAX_PIECE_BYTES + CUT_NOTE.len()));
        let sent = sent.concat();
        assert_eq!(sent.len(), MAX_CALL_BYTES + CUT_NOTE.len());
        assert!(sent.ends_with(CUT_NOTE) && sent.matches('…').count() == 2);
        pieces.push(b"more\n", Instant::now());
        assert_eq!(pieces.take_last(), None);
    }

    #[test]
    fn the_calls_of_a_session_share_its_limit() {
        let budget = Arc::new(StreamBudget(AtomicUsize::new(10)));
        let [first, second, third] = ["12345678\n", "12\n", "x\n"]
            .map(|output| streamed(&mut Pieces::new(Arc::clone(&budget)), output.as_bytes()).concat());
        assert_eq!(first, "12345678\n");
        assert_eq!((second, third), (format!("1{CUT_NOTE}"), CUT_NOTE.to_owned()));
    }

    proptest! {
        #[test]
        fn the_pieces_are_together_the_output(
            output in prop::collection::vec("[a-zäß漢🦀\n]{0,9}|\x1b\\[[0-9;]{0,4}m", 0..30),
            cuts in prop::collection::vec((1usize..12, prop::bool::ANY), 1..60),
        ) {
            let (output, now) = (output.concat(), Instant::now());
            let (mut pieces, mut sent, mut rest) = (pieces(), String::new(), output.as_bytes());
            pieces.push(b"-", now);
            sent.push_str(&pieces.take(now).unwrap());
            for (length, is_taken) in cuts {
                let (part, more) = rest.split_at(length.min(rest.len()));
                rest = more;
                pieces.push(part, now);
                if is_taken {
                    sent.push_str(&pieces.take(now).unwrap_or_default());
                }
            }
            pieces.push(rest, now);
            sent.extend(std::iter::from_fn(|| pieces.take_last()));
            prop_assert_eq!(sent, sanitize_piece(format!("-{output}")));
        }
    }
}
