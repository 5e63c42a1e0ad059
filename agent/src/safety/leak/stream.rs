//! Redaction of a text that arrives in pieces, such as the deltas of an answer.
//!
//! Holds back no more than could still become a credential: a word, or the part that a known secret begins with,
//! encoded.

use std::sync::Arc;

use super::{Finding, LeakDetector, scanner::Scanner, splice::Splicer};

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

    /// The text that cannot be shown yet. Another redactor that begins with it continues this one.
    pub fn held(&self) -> &str {
        self.splicer.held()
    }

    /// Ends the text: returns the rest of it, and everything that was found.
    pub fn finish(mut self) -> (String, Vec<Finding>) {
        self.scanner.finish(&self.detector);
        let rest = self.release(self.scanner.decided(&self.detector));
        (rest, self.detector.findings(self.scanner.sources()))
    }

    fn release(&mut self, end: usize) -> String {
        let mut text = String::new();
        let end = Splicer::end_outside(end, self.scanner.ranges_mut());
        self.splicer.release(end, self.scanner.ranges_mut(), &mut text);
        text
    }
}
