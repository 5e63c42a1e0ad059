//! Replacing ranges of a text that is released in pieces. Pure.

use std::ops::Range;

/// The text that was not released yet. Ranges that touch or overlap are replaced as one.
#[derive(Debug, Default)]
pub(super) struct Splicer {
    held: String,
    /// The offset of the first held byte.
    base: usize,
    /// Whether the last byte before `base` was replaced.
    is_in_range: bool,
}

impl Splicer {
    /// Begins with a text of which the first bytes are the end of a range.
    pub(super) fn begin_in_range(&mut self) {
        self.is_in_range = true;
    }

    /// The number of held bytes which the range that began before them replaces.
    pub(super) fn replaced(&self, ranges: &[Range<usize>]) -> usize {
        let ends = ranges.iter().filter(|range| range.start <= self.base).map(|range| range.end);
        ends.max().filter(|_| self.is_in_range).map_or(0, |end| end.saturating_sub(self.base))
    }

    /// Adds a piece.
    pub(super) fn hold(&mut self, piece: &str) {
        self.held.push_str(piece);
    }

    /// The text that was not released yet.
    pub(super) fn held(&self) -> &str {
        &self.held
    }

    /// Writes the text up to this offset with `marker` in place of the ranges, and forgets the ranges that end there.
    pub(super) fn release(&mut self, end: usize, ranges: &mut Vec<Range<usize>>, marker: &str, to: &mut String) {
        let length = self.held.floor_char_boundary(end.saturating_sub(self.base));
        let end = self.base + length;
        ranges.sort_unstable_by_key(|range| range.start);
        let mut at = self.base;
        for range in ranges.iter().filter(|range| range.start < end) {
            if range.end <= at {
                continue;
            }
            self.copy(at, range.start.max(at), to);
            if !self.is_in_range {
                to.push_str(marker);
                self.is_in_range = true;
            }
            at = range.end.min(end);
        }
        self.copy(at, end, to);
        ranges.retain(|range| range.end > end);
        self.held.drain(..length);
        self.base = end;
    }

    fn copy(&mut self, from: usize, to: usize, out: &mut String) {
        if from >= to {
            return;
        }
        self.is_in_range = false;
        // Every range begins and ends between characters, because patterns do.
        let start = self.held.floor_char_boundary(from - self.base);
        out.push_str(&self.held[start..self.held.floor_char_boundary(to - self.base)]);
    }
}
