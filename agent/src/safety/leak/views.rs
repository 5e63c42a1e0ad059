//! A text as it reads after an encoding is undone, while it is being read: percent-encoding, and line breaks within
//! base64.
//!
//! A view exists only while it can differ from the text: it begins at the first encoded character and ends once it is
//! at the start of the automaton.

use std::collections::VecDeque;

use aho_corasick::automaton::StateID;

use super::{LeakDetector, scanner::Hits};

/// The automaton on a view, with the place in the text of every character that a pattern may have begun with.
pub(super) struct View {
    state: StateID,
    /// The offsets at which the last characters of the view begin, as many as the state is deep.
    starts: VecDeque<usize>,
}

impl View {
    /// A view that is the text up to this offset.
    pub(super) fn new(detector: &LeakDetector, state: StateID, at: usize) -> Self {
        Self { state, starts: (at - detector.depth(state)..at).collect() }
    }

    /// Takes one character of the view, which is the text from `start` to `end`.
    pub(super) fn push(&mut self, detector: &LeakDetector, byte: u8, (start, end): (usize, usize), hits: &mut Hits) {
        self.state = detector.next(self.state, byte);
        self.starts.push_back(start);
        if let Some((pattern, length)) = detector.match_at(self.state)
            && let Some(source) = detector.pattern_sources[pattern]
            && let Some(first) = self.starts.len().checked_sub(length).and_then(|index| self.starts.get(index))
        {
            hits.add(detector, *first..end, source);
        }
        let excess = self.starts.len().saturating_sub(detector.depth(self.state));
        self.starts.drain(..excess);
    }

    /// Where the earliest pattern that may still be completed begins.
    pub(super) fn pending(&self) -> Option<usize> {
        self.starts.front().copied()
    }
}

/// A view of the text with percent-encoding undone.
pub(super) struct PercentDecoded {
    view: View,
    /// The offset of a `%` and the digit after it, if there was one.
    escape: Option<(usize, Option<u8>)>,
}

impl PercentDecoded {
    pub(super) const fn new(view: View) -> Self {
        Self { view, escape: None }
    }

    /// Takes the byte at this offset.
    pub(super) fn push(&mut self, detector: &LeakDetector, byte: u8, at: usize, hits: &mut Hits) {
        match (self.escape, hex_digit(byte)) {
            (None, _) if byte == b'%' => self.escape = Some((at, None)),
            (None, _) => self.view.push(detector, byte, (at, at + 1), hits),
            (Some((start, None)), Some(_)) => self.escape = Some((start, Some(byte))),
            (Some((start, Some(first))), Some(low)) => {
                self.escape = None;
                let decoded = hex_digit(first).unwrap_or_default() * 16 + low;
                self.view.push(detector, decoded, (start, at + 1), hits);
            }
            // No escape after all: its bytes are characters.
            (Some((start, first)), None) => {
                self.escape = None;
                self.view.push(detector, b'%', (start, start + 1), hits);
                if let Some(first) = first {
                    self.view.push(detector, first, (start + 1, start + 2), hits);
                }
                self.push(detector, byte, at, hits);
            }
        }
    }

    pub(super) fn pending(&self) -> Option<usize> {
        self.view.pending().or(self.escape.map(|(start, _)| start))
    }
}

const fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}
