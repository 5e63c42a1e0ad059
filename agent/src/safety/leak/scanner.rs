//! One pass over a text that may arrive in pieces: what is to be replaced, and up to where that is known. Pure.

use std::{collections::BTreeSet, ops::Range};

use aho_corasick::{
    Anchored,
    automaton::{Automaton as _, StateID},
};

use super::{
    LeakDetector,
    json_escapes::JsonUnescaped,
    key_block::KeyBlock,
    rules::{self, MAX_WORD_BYTES, PRIVATE_KEY_SOURCE, is_word_byte},
    views::{HexDigits, PercentDecoded, View},
};

impl LeakDetector {
    pub(super) fn next(&self, state: StateID, byte: u8) -> StateID {
        self.automaton.next_state(Anchored::No, state, byte)
    }

    /// The length of the longest pattern prefix that ends in this state.
    pub(super) fn depth(&self, state: StateID) -> usize {
        self.depths.get(state.as_usize()).copied().map_or(0, usize::from)
    }

    /// The longest pattern that ends in this state, and its length.
    pub(super) fn match_at(&self, state: StateID) -> Option<(usize, usize)> {
        if !self.automaton.is_match(state) {
            return None;
        }
        // A state lists its own pattern before those that are suffixes of it.
        let pattern = self.automaton.match_pattern(state, 0);
        Some((pattern.as_usize(), self.automaton.pattern_len(pattern)))
    }
}

/// What was found so far.
#[derive(Default)]
pub(super) struct Hits {
    ranges: Vec<Range<usize>>,
    sources: BTreeSet<usize>,
}

impl Hits {
    pub(super) fn add(&mut self, detector: &LeakDetector, range: Range<usize>, source: usize) {
        self.sources.insert(source);
        if !detector.redacts(source) {
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if (last.start..=last.end).contains(&range.start) => last.end = last.end.max(range.end),
            _ => self.ranges.push(range),
        }
    }
}

/// The state of the pass. Offsets count from the first byte of the first piece.
pub(super) struct Scanner {
    at: usize,
    state: StateID,
    percent_decoded: Option<PercentDecoded>,
    json_unescaped: Option<JsonUnescaped>,
    unwrapped: Option<View>,
    /// Only stored secrets are looked for in them.
    hex_digits: Option<Box<HexDigits>>,
    word: String,
    key_block: KeyBlock,
    hits: Hits,
}

impl Scanner {
    pub(super) fn new(detector: &LeakDetector) -> Self {
        Self {
            at: 0,
            state: detector.start,
            percent_decoded: None,
            json_unescaped: None,
            unwrapped: None,
            hex_digits: detector.has_secrets().then(|| Box::new(HexDigits::new(detector))),
            word: String::new(),
            key_block: KeyBlock::default(),
            hits: Hits::default(),
        }
    }

    /// Takes the next piece.
    pub(super) fn push(&mut self, detector: &LeakDetector, piece: &str) {
        for byte in piece.bytes() {
            self.push_views(detector, byte);
            self.push_word(detector, byte);
            if let Some(range) = self.key_block.push(byte, self.at) {
                self.hits.add(detector, range, PRIVATE_KEY_SOURCE);
            }
            self.push_text(detector, byte);
            self.at += 1;
        }
    }

    /// Ends the text.
    pub(super) fn finish(&mut self, detector: &LeakDetector) {
        self.end_word(detector);
        if let Some(range) = self.key_block.finish(self.at) {
            self.hits.add(detector, range, PRIVATE_KEY_SOURCE);
        }
        self.state = detector.start;
        self.percent_decoded = None;
        self.json_unescaped = None;
        self.unwrapped = None;
        if let Some(hex_digits) = &mut self.hex_digits {
            **hex_digits = HexDigits::new(detector);
        }
    }

    /// What is replaced before this offset does not depend on later pieces.
    pub(super) fn decided(&self, detector: &LeakDetector) -> usize {
        let text = self.at - detector.depth(self.state);
        let percent_decoded = self.percent_decoded.as_ref().and_then(PercentDecoded::pending);
        let json_unescaped = self.json_unescaped.as_ref().and_then(JsonUnescaped::pending);
        let unwrapped = self.unwrapped.as_ref().and_then(View::pending);
        let hex_digits = self.hex_digits.as_ref().and_then(|digits| digits.pending(detector));
        let pending = [percent_decoded, json_unescaped, unwrapped, hex_digits, self.key_block.start()];
        pending.into_iter().flatten().fold(text.min(self.at - self.word.len()), usize::min)
    }

    /// The ranges to replace, in no particular order.
    pub(super) fn ranges_mut(&mut self) -> &mut Vec<Range<usize>> {
        &mut self.hits.ranges
    }

    /// The indexes of the sources that were found.
    pub(super) const fn sources(&self) -> &BTreeSet<usize> {
        &self.hits.sources
    }

    fn push_text(&mut self, detector: &LeakDetector, byte: u8) {
        self.state = detector.next(self.state, byte);
        let Some((pattern, length)) = detector.match_at(self.state) else { return };
        let start = self.at + 1 - length;
        match detector.pattern_sources[pattern] {
            Some(source) => self.hits.add(detector, start..self.at + 1, source),
            None => self.key_block.begin(start),
        }
    }

    /// The views start from the state before this byte.
    fn push_views(&mut self, detector: &LeakDetector, byte: u8) {
        if let Some(hex_digits) = &mut self.hex_digits {
            hex_digits.push(detector, byte, self.at, &mut self.hits);
        }
        if byte == b'%' && self.percent_decoded.is_none() {
            self.percent_decoded = Some(PercentDecoded::new(View::new(detector, self.state, self.at)));
        }
        if let Some(view) = &mut self.percent_decoded {
            view.push(detector, byte, self.at, &mut self.hits);
            if view.pending().is_none() {
                self.percent_decoded = None;
            }
        }
        if byte == b'\\' && self.json_unescaped.is_none() {
            self.json_unescaped = Some(JsonUnescaped::new(|| View::new(detector, self.state, self.at)));
        }
        if let Some(views) = &mut self.json_unescaped {
            views.push(detector, byte, self.at, &mut self.hits);
            if views.pending().is_none() {
                self.json_unescaped = None;
            }
        }
        let is_line_break = matches!(byte, b'\r' | b'\n');
        if is_line_break && self.unwrapped.is_none() && detector.depth(self.state) > 0 {
            self.unwrapped = Some(View::new(detector, self.state, self.at));
        }
        if let Some(view) = self.unwrapped.as_mut().filter(|_| !is_line_break) {
            view.push(detector, byte, (self.at, self.at + 1), &mut self.hits);
            if view.pending().is_none() {
                self.unwrapped = None;
            }
        }
    }

    fn push_word(&mut self, detector: &LeakDetector, byte: u8) {
        if !is_word_byte(byte) || self.word.len() == MAX_WORD_BYTES {
            self.end_word(detector);
        }
        if is_word_byte(byte) {
            self.word.push(char::from(byte));
        }
    }

    fn end_word(&mut self, detector: &LeakDetector) {
        let start = self.at - self.word.len();
        for (range, source) in rules::find(&self.word) {
            self.hits.add(detector, start + range.start..start + range.end, source);
        }
        self.word.clear();
    }
}
