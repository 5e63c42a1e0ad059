//! The pass over the text. Pure.
//!
//! Every step advances by at least one byte, the search for a closing tag ends where the pass continues, and a search
//! that finds nothing ends the pass; so it is linear. Text is cut only beside ASCII characters.

use std::ops::Range;

use super::{
    Cleaned,
    call::{self, Arguments},
    code::{self, Inline},
    tag::{self, Tag, TagKind},
};

/// The thinking tags found so far. A close without an open means that all before it was thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thinking {
    NotSeen,
    /// A block of thinking.
    Seen,
    /// A tag in the middle of the text, which is part of it.
    Mentioned,
}

/// The pass and what it has found.
pub(super) struct Scan<'t> {
    text: &'t str,
    /// The same text in lower case (ASCII only, so at the same places), for finding what closes a tag.
    lower: String,
    is_offered: &'t dyn Fn(&str) -> bool,
    inline: Inline,
    thinking: Thinking,
    /// Whether `out.text` is more than white space.
    has_text: bool,
    at: usize,
    out: Cleaned,
}

impl<'t> Scan<'t> {
    pub(super) fn new(text: &'t str, is_offered: &'t dyn Fn(&str) -> bool) -> Self {
        Self {
            text,
            lower: text.to_ascii_lowercase(),
            is_offered,
            inline: Inline::find(text),
            thinking: Thinking::NotSeen,
            has_text: false,
            at: 0,
            out: Cleaned::default(),
        }
    }

    pub(super) fn run(mut self) -> Cleaned {
        while self.at < self.text.len() {
            let starts_line = self.at == 0 || self.text.as_bytes()[self.at - 1] == b'\n';
            if starts_line && self.fence() {
                continue;
            }
            let done = match self.text.as_bytes()[self.at] {
                b'`' => self.inline_code(),
                b'<' => self.tag(),
                b'[' => self.bracket(),
                _ => false,
            };
            if !done {
                self.prose();
            }
        }
        self.out
    }

    /// Copies up to the next place where something may start.
    fn prose(&mut self) {
        let rest = &self.text.as_bytes()[self.at + 1..];
        let length = rest.iter().position(|byte| b"`<[\n".contains(byte)).unwrap_or(rest.len());
        let mut end = self.at + 1 + length;
        // A line break belongs to what it ends, so that the next step stands at the start of a line.
        if self.text.as_bytes().get(end) == Some(&b'\n') {
            end += 1;
        }
        self.copy(end);
    }

    fn copy(&mut self, end: usize) {
        let copied = &self.text[self.at..end];
        self.has_text = self.has_text || !copied.trim().is_empty();
        self.out.text.push_str(copied);
        self.at = end;
    }

    fn fence(&mut self) -> bool {
        let Some(fence) = code::fence_at(self.text, self.at) else { return false };
        let language = self.text[fence.info.clone()].trim();
        let may_be_call = ["", "json", "tool", "tool_call", "tool_code"].contains(&language);
        let content = &self.text[fence.content.clone()];
        let calls = if may_be_call { call::calls_in(content, Arguments::Required, self.is_offered) } else { None };
        match calls {
            Some(calls) => {
                self.out.calls.extend(calls);
                self.at = fence.end;
            }
            None => self.copy(fence.end),
        }
        true
    }

    fn inline_code(&mut self) -> bool {
        let run = code::run_length(&self.text.as_bytes()[self.at..], b'`');
        let end = self.inline.end(self.at).unwrap_or(self.at + run);
        self.copy(end);
        true
    }

    fn tag(&mut self) -> bool {
        let Some(tag) = tag::tag_at(self.text, self.at) else { return false };
        match &tag.kind {
            TagKind::ThinkingOpen if !self.has_text => self.think(&tag),
            TagKind::ThinkingClose if self.closes_thinking() => self.stray_close(&tag),
            TagKind::ThinkingOpen | TagKind::ThinkingClose => self.mention(&tag),
            TagKind::WrapperOpen => self.wrapper(&tag),
            TagKind::CallOpen { tool } => {
                let body = self.body(&tag);
                if (self.is_offered)(tool) {
                    self.out.calls.push(call::from_body(tool.clone(), &self.text[body]));
                }
            }
            TagKind::CallClose => self.at = tag.end,
        }
        true
    }

    /// Thinking extends to its closing tag, or to the end of the text without one.
    fn think(&mut self, tag: &Tag) {
        self.thinking = Thinking::Seen;
        let body = self.body(tag);
        self.out.thinking.push_str(&self.text[body]);
        self.out.thinking.push('\n');
    }

    /// Whether a close without an open ends thinking. Models whose template opens it write the close at the end of a
    /// line or directly after a sentence; one with a blank before it on its line stands in a sentence about tags.
    fn closes_thinking(&self) -> bool {
        self.thinking != Thinking::Mentioned && !self.out.text.ends_with([' ', '\t'])
    }

    fn stray_close(&mut self, tag: &Tag) {
        if self.thinking == Thinking::NotSeen {
            let before = std::mem::take(&mut self.out.text);
            self.out.thinking.push_str(&before);
            self.has_text = false;
            self.thinking = Thinking::Seen;
        }
        self.at = tag.end;
    }

    /// Models think at the start of a reply. A tag elsewhere is something that the text is about.
    fn mention(&mut self, tag: &Tag) {
        self.thinking = Thinking::Mentioned;
        self.copy(tag.end);
    }

    /// Within a wrapper stands JSON, or nested tags that the pass then meets.
    fn wrapper(&mut self, tag: &Tag) {
        self.at = tag.end;
        if !self.text[tag.end..].trim_start().starts_with(['{', '[']) {
            return;
        }
        let body = self.body(tag);
        let calls = call::calls_in(&self.text[body], Arguments::Optional, self.is_offered);
        self.out.calls.extend(calls.unwrap_or_default());
    }

    /// The text between a tag and its closing tag, or the end; the pass continues after it.
    fn body(&mut self, tag: &Tag) -> Range<usize> {
        let nothing = (self.text.len(), self.text.len());
        let (start, end) = self.close_of(tag).unwrap_or(nothing);
        self.at = end;
        tag.end..start
    }

    /// The first tag after this one that closes its name, nested or not.
    fn close_of(&self, open: &Tag) -> Option<(usize, usize)> {
        let mut from = open.end;
        while let Some(length) = self.text[from..].find('<') {
            let start = from + length;
            if let Some(tag) = tag::tag_at(self.text, start).filter(|tag| tag.closes(open)) {
                return Some((start, tag.end));
            }
            from = start + 1;
        }
        None
    }

    /// `[TOOL_CALL]{…}[/TOOL_CALL]`, `[tool: name {…}]`, `[tool: name] {…}`.
    fn bracket(&mut self) -> bool {
        const OPEN: &str = "[tool_call]";
        const CLOSE: &str = "[/tool_call]";
        let here = &self.lower[self.at..];
        if here.starts_with(CLOSE) {
            self.at += CLOSE.len();
            return true;
        }
        if here.starts_with(OPEN) {
            let start = self.at + OPEN.len();
            let close = self.lower[start..].find(CLOSE).map(|length| start + length);
            let body = &self.text[start..close.unwrap_or(self.text.len())];
            let calls = call::calls_in(body, Arguments::Optional, self.is_offered);
            self.out.calls.extend(calls.unwrap_or_default());
            self.at = close.map_or(self.text.len(), |close| close + CLOSE.len());
            return true;
        }
        here.starts_with("[tool:") && self.named_bracket()
    }

    fn named_bracket(&mut self) -> bool {
        let inner = self.text[self.at + "[tool:".len()..].trim_start();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let (name, rest) = inner.split_at(inner.find(|c| !is_name(c)).unwrap_or(inner.len()));
        if !(self.is_offered)(name) {
            return false;
        }
        let rest = rest.trim_start();
        // The arguments stand before the closing bracket or after it.
        let (closed, rest) = rest.strip_prefix(']').map_or((false, rest), |rest| (true, rest.trim_start()));
        let Some((arguments, used)) = call::leading_object(rest) else { return false };
        let after = &rest[used..];
        let after = if closed { after } else { after.trim_start().strip_prefix(']').unwrap_or(after) };
        self.out.calls.push(call::call(name.to_owned(), arguments));
        self.at = self.text.len() - after.len();
        true
    }
}
