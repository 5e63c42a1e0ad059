//! Redaction of a text that arrives in pieces, such as the deltas of an answer.
//!
//! Holds back no more than could still become a credential: a word, or the part that a known secret begins with,
//! encoded.

use std::{fmt, sync::Arc};

use super::{Finding, LeakDetector, REDACTED, scanner::Scanner, splice::Splicer};

/// The end of a text that cannot be shown yet, of which the first bytes may be the end of a credential whose beginning
/// was replaced already.
#[derive(Clone, Default)]
pub struct Held {
    text: String,
    /// Bytes at the beginning that are replaced, and nothing is shown for them.
    replaced: usize,
}

impl Held {
    /// Whether nothing is held back.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Bytes that are held back.
    pub fn len(&self) -> usize {
        self.text.len()
    }
}

/// Without the text, which may be a part of a credential.
impl fmt::Debug for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Held").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Redacts one text. The pieces that it returns are together what [`LeakDetector::redact`] returns for the whole text.
pub struct StreamRedactor {
    detector: Arc<LeakDetector>,
    scanner: Scanner,
    splicer: Splicer,
}

impl StreamRedactor {
    /// Begins a text.
    pub fn new(detector: Arc<LeakDetector>) -> Self {
        Self { scanner: Scanner::new(&detector), splicer: Splicer::default(), detector }
    }

    /// Takes a piece and returns what can be shown now, which may be empty.
    pub fn push(&mut self, piece: &str) -> String {
        self.scanner.push(&self.detector, piece);
        self.splicer.hold(piece);
        let decided = self.scanner.decided(&self.detector);
        self.release(decided)
    }

    /// The text that cannot be shown yet.
    pub fn held(&mut self) -> Held {
        Held { text: self.splicer.held().to_owned(), replaced: self.splicer.replaced(self.scanner.ranges_mut()) }
    }

    /// Continues a text after what was held back of it. Returns what can be shown now, which may be empty.
    pub fn resume(detector: Arc<LeakDetector>, held: &Held) -> (Self, String) {
        let mut redactor = Self::new(detector);
        if held.replaced > 0 {
            redactor.splicer.begin_in_range();
            redactor.scanner.ranges_mut().push(0..held.replaced);
        }
        let shown = redactor.push(&held.text);
        (redactor, shown)
    }

    /// Ends the text: returns the rest of it, and everything that was found.
    pub fn finish(mut self) -> (String, Vec<Finding>) {
        self.scanner.finish(&self.detector);
        let rest = self.release(self.scanner.decided(&self.detector));
        (rest, self.detector.findings(self.scanner.sources()))
    }

    fn release(&mut self, end: usize) -> String {
        let mut text = String::new();
        self.splicer.release(end, self.scanner.ranges_mut(), REDACTED, &mut text);
        text
    }
}
