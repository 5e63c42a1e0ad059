//! Where code is in a text: fenced blocks and inline code, by Markdown's rules as far as models follow them. Pure.

use std::{collections::HashMap, ops::Range};

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fence {
    /// The info string of the opening fence: the language.
    pub(super) info: Range<usize>,
    /// The lines between the fences.
    pub(super) content: Range<usize>,
    /// Offset of the text after the block.
    pub(super) end: usize,
}

/// The fenced block that opens at `at`, behind the indentation of a line. An unclosed block extends to the end of the text.
pub(super) fn fence_at(text: &str, at: usize) -> Option<Fence> {
    let (mark, length, info_start) = opening(text, at)?;
    let info = info_start..line_end(text, info_start);
    // An info string with a backtick is inline code that starts a line.
    if mark == b'`' && text[info.clone()].contains('`') {
        return None;
    }
    let content_start = (info.end + 1).min(text.len());
    let mut line = content_start;
    while line < text.len() {
        let end = line_end(text, line);
        if closes(&text[line..end], mark, length) {
            return Some(Fence { info, content: content_start..line, end });
        }
        line = end + 1;
    }
    Some(Fence { info, content: content_start..text.len(), end: text.len() })
}

/// Mark, length and end of an opening fence.
fn opening(text: &str, at: usize) -> Option<(u8, usize, usize)> {
    let line = &text.as_bytes()[at..];
    let mark = *line.first().filter(|mark| b"`~".contains(mark))?;
    let length = run_length(line, mark);
    (length >= 3).then_some((mark, length, at + length))
}

fn closes(line: &str, mark: u8, length: usize) -> bool {
    let line = line.trim_start_matches([' ', '\t', '>']).trim_end();
    line.len() >= length && line.bytes().all(|byte| byte == mark)
}

/// The end of the line that `at` is in, its line break not included.
pub(super) fn line_end(text: &str, at: usize) -> usize {
    text.as_bytes()[at..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |length| at + length)
}

/// How often `mark` stands at the start.
pub(super) fn run_length(bytes: &[u8], mark: u8) -> usize {
    bytes.iter().take_while(|byte| **byte == mark).count()
}

/// Inline code by where it starts: from one run of backticks to the next as long on the same line.
#[derive(Debug)]
pub(super) struct Inline(HashMap<usize, usize>);

impl Inline {
    /// Finds it in one pass from the right, so that a text of nothing but backticks costs no more than another.
    pub(super) fn find(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut pairs = HashMap::new();
        let mut next_of_length: HashMap<usize, usize> = HashMap::new();
        let mut at = bytes.len();
        while at > 0 {
            match bytes[at - 1] {
                b'\n' => {
                    next_of_length.clear();
                    at -= 1;
                }
                b'`' => {
                    let start = at - bytes[..at].iter().rev().take_while(|byte| **byte == b'`').count();
                    if let Some(end) = next_of_length.insert(at - start, at) {
                        pairs.insert(start, end);
                    }
                    at = start;
                }
                _ => at -= 1,
            }
        }
        Self(pairs)
    }

    /// The end of the inline code that starts at `at`.
    pub(super) fn end(&self, at: usize) -> Option<usize> {
        self.0.get(&at).copied()
    }
}
