//! The end of what a server's program prints to its standard error: often the only reason why it does not start.
//!
//! Guarantees that it takes a few KB of memory, that it is read without secrets only, and that reading ends after some
//! MB: the engine discards the rest.

use std::sync::Arc;

use agent::{elide, safety::neutralize};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::{AbortOnDropHandle, TaskTracker},
};

use super::redaction::Redaction;

/// Length of the text that is shown.
const MAX_BYTES: usize = 4_096;
/// Bytes that are kept. The first part is never shown when something was dropped before it: it could begin with the end
/// of a secret, which is not found.
const MAX_KEPT_BYTES: usize = 2 * MAX_BYTES;
/// Bytes that are read.
const MAX_READ_BYTES: usize = 16 * 1024 * 1024;
/// Length of the line that names the reason.
const MAX_LINE_BYTES: usize = 300;

/// Reads a program's standard error until this is dropped.
pub(super) struct ErrorOutput {
    kept: Arc<Mutex<Tail>>,
    ended: CancellationToken,
    _reading: AbortOnDropHandle<()>,
}

/// The last bytes.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl ErrorOutput {
    pub(super) fn of(stderr: Box<dyn AsyncRead + Send + Unpin>, tasks: &TaskTracker) -> Self {
        let (kept, ended) = (Arc::<Mutex<Tail>>::default(), CancellationToken::new());
        let reading = tasks.spawn(read(stderr, Arc::clone(&kept), ended.clone().drop_guard()));
        Self { kept, ended, _reading: AbortOnDropHandle::new(reading) }
    }

    /// Returns when no more is read.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// The end of the output, without secrets.
    pub(super) fn text(&self, redaction: &Redaction) -> String {
        self.kept.lock().text(redaction)
    }
}

async fn read(mut stderr: Box<dyn AsyncRead + Send + Unpin>, kept: Arc<Mutex<Tail>>, _ended: DropGuard) {
    let mut chunk = vec![0; MAX_KEPT_BYTES];
    let mut left = MAX_READ_BYTES;
    while left > 0 {
        let Ok(bytes @ 1..) = stderr.read(&mut chunk).await else { return };
        kept.lock().push(&chunk[..bytes]);
        left = left.saturating_sub(bytes);
    }
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let surplus = self.bytes.len().saturating_sub(MAX_KEPT_BYTES);
        self.bytes.drain(..surplus);
        self.is_cut |= surplus > 0;
    }

    fn text(&self, redaction: &Redaction) -> String {
        let text = redaction.text(&String::from_utf8_lossy(&self.bytes));
        let first = if self.is_cut { MAX_BYTES } else { 0 };
        let start = first.max(text.len().saturating_sub(MAX_BYTES)).min(text.len());
        neutralize(text[text.ceil_char_boundary(start)..].trim()).into_owned()
    }
}

/// The line that names the reason most likely: the last one about an error, as of a traceback; otherwise the first.
pub(super) fn reason(text: &str) -> Option<String> {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_error = |line: &&str| {
        let line = line.to_ascii_lowercase();
        line.contains("error") || line.contains("exception")
    };
    lines().rfind(is_error).or_else(|| lines().next()).map(|line| elide(line, MAX_LINE_BYTES))
}

#[cfg(test)]
mod tests {
    use agent::safety::{LeakDetector, StoredSecret};
    use rstest::rstest;

    use super::*;
    use crate::credentials::Credentials;

    fn redaction() -> Redaction {
        let detector = LeakDetector::new([StoredSecret { name: "s", value: "the-secret-value" }]).unwrap();
        Redaction::new("srv".to_owned(), Arc::new(Credentials::default()), Arc::new(detector))
    }

    #[test]
    fn the_end_is_kept_without_secrets() {
        let mut tail = Tail::default();
        tail.push(b"token the-secret");
        tail.push(b"-value is wrong\n");
        assert_eq!(tail.text(&redaction()), "token [redacted] is wrong");
        for _ in 0..1_000 {
            tail.push(b"the-secret-value and more of it\n");
        }
        let text = tail.text(&redaction());
        assert!(text.len() <= MAX_BYTES && text.ends_with("[redacted] and more of it"), "{text}");
        assert!(!text.contains("value"), "{text}");
    }

    #[rstest]
    #[case("TOKEN not set\nusage: x\n", Some("TOKEN not set"))]
    #[case("Traceback (most recent call last):\n  File x\nValueError: no port\n\n", Some("ValueError: no port"))]
    #[case(" \n", None)]
    fn a_line_names_the_reason(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(reason(text).as_deref(), expected);
    }
}
