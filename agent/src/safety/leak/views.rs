//! A text as it reads after an encoding is undone, while it is being read: percent-encoding, line breaks within base64,
//! and what programs print between hexadecimal digits.
//!
//! A view exists only while it can differ from the text: it begins at the first encoded character and ends once it is
//! at the start of the automaton.

use std::collections::VecDeque;

use aho_corasick::automaton::StateID;

use super::{LeakDetector, MIN_SECRET_BYTES, scanner::Hits};

/// Separators in a row within hexadecimal digits: a line break and the indentation of the next line.
const MAX_SEPARATORS: u8 = 24;

/// Hexadecimal digits that a view begins with: half of those of the shortest secret.
const FIRST_DIGITS: usize = MIN_SECRET_BYTES;

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

/// A view of hexadecimal digits in small letters, without the blanks, colons, line breaks and `\x` between them. It begins with
/// several digits and ends at any other character, so that it costs little in ordinary text.
pub(super) struct HexDigits {
    view: View,
    /// The first digits and their offsets, which the view gets once there are all of them.
    first: [(u8, usize); FIRST_DIGITS],
    /// How many there are.
    digits: usize,
    /// The separators since the last digit.
    separators: u8,
}

impl HexDigits {
    pub(super) fn new(detector: &LeakDetector) -> Self {
        let view = View { state: detector.start, starts: VecDeque::new() };
        Self { view, first: [(0, 0); FIRST_DIGITS], digits: 0, separators: 0 }
    }

    /// Takes the byte at this offset.
    pub(super) fn push(&mut self, detector: &LeakDetector, byte: u8, at: usize, hits: &mut Hits) {
        let is_digit = byte.is_ascii_hexdigit();
        let is_separator =
            matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b':' | b'\\' | b'x') && self.separators < MAX_SEPARATORS;
        self.separators = (self.separators + u8::from(is_separator)) * u8::from(!is_digit);
        // In ordinary text digits come and go with each word: branches on them would be mispredicted.
        let Some(place) = self.first.get_mut(self.digits) else {
            if is_digit {
                self.view.push(detector, byte.to_ascii_lowercase(), (at, at + 1), hits);
            } else if !is_separator {
                *self = Self::new(detector);
            }
            return;
        };
        *place = (byte.to_ascii_lowercase(), at);
        self.digits = (self.digits + usize::from(is_digit)) * usize::from(is_digit || is_separator);
        if self.digits == FIRST_DIGITS {
            for (digit, at) in self.first {
                self.view.push(detector, digit, (at, at + 1), hits);
            }
        }
    }

    /// Where the earliest pattern that may still be completed begins.
    pub(super) fn pending(&self, detector: &LeakDetector) -> Option<usize> {
        if self.digits == FIRST_DIGITS {
            return self.view.pending();
        }
        let first = &self.first[..self.digits];
        let state = first.iter().fold(detector.start, |state, (digit, _)| detector.next(state, *digit));
        let (_, at) = first.get(self.digits.checked_sub(detector.depth(state))?)?;
        Some(*at)
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
