//! Replacing ranges of a text that is released in pieces. Pure.

use std::ops::Range;

use super::REDACTED;

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
    /// Adds a piece.
    pub(super) fn hold(&mut self, piece: &str) {
        self.held.push_str(piece);
    }

    /// The text that was not released yet.
    pub(super) fn held(&self) -> &str {
        &self.held
    }

    /// Where a release up to this offset may end: not within a range, since what is held then would be the end of a
    /// credential without its beginning.
    pub(super) fn end_outside(end: usize, ranges: &mut [Range<usize>]) -> usize {
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.iter().rev().fold(end, |end, range| if range.contains(&end) { range.start } else { end })
    }

    /// Writes the text up to this offset without the ranges, and forgets the ranges that end there.
    pub(super) fn release(&mut self, end: usize, ranges: &mut Vec<Range<usize>>, to: &mut String) {
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
                to.push_str(REDACTED);
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
