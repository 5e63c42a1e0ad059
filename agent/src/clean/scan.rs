//! The pass over the text. Pure.
//!
//! Every step advances by at least one byte, the search for a closing tag ends where the pass continues, and a search
//! that finds nothing ends the pass; so it is linear. Text is cut only beside ASCII characters and marks.

use std::ops::Range;

use protocol::ToolCall;

use super::{
    Cleaned, Offered, UnreadCall, call,
    code::{self, Inline},
    ends,
    harmony::{self, Message},
    marks::{self, CLOSING, OPENING},
    payload::{self, Payload},
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

/// Marks and tags without a call that are looked behind; each look may read to the end of the text. Further ones are text.
const MAX_FAILED_READS: u32 = 32;

/// The languages of fenced blocks that may be a call, if they are JSON.
const LANGUAGES_OF_CALLS: [&str; 7] = ["", "json", "jsonc", "tool", "tool_calls", "tool_use", "function_call"];

/// Markup of a call that is not recovered, as long as no words follow it.
struct Unread {
    /// Where it is in the cleaned text; empty if it is left out.
    place: Range<usize>,
    tool: Option<String>,
}

/// The pass and what it has found.
pub(super) struct Scan<'t> {
    text: &'t str,
    offered: Offered<'t>,
    inline: Inline,
    thinking: Thinking,
    /// Whether `out.text` is more than white space.
    has_text: bool,
    at: usize,
    unread: Vec<Unread>,
    /// Whether nothing that ends a call is left.
    is_past_last_close: bool,
    /// Whether nothing but white space was copied since the last call.
    is_behind_call: bool,
    /// Marks and tags that opened no call.
    failed_reads: u32,
    /// Where JSON that is no call ends.
    json_end: usize,
    out: Cleaned,
}

impl<'t> Scan<'t> {
    pub(super) fn new(text: &'t str, offered: Offered<'t>) -> Self {
        Self {
            text,
            offered,
            inline: Inline::find(text),
            thinking: Thinking::NotSeen,
            has_text: false,
            at: 0,
            unread: Vec::new(),
            is_past_last_close: false,
            is_behind_call: false,
            failed_reads: 0,
            json_end: 0,
            out: Cleaned::default(),
        }
    }

    pub(super) fn run(mut self) -> Cleaned {
        while self.at < self.text.len() {
            let starts_line = self.starts_line();
            if self.may_open_fence() && self.fence() {
                continue;
            }
            let starts_reply = !self.has_text && self.out.calls.is_empty();
            let done = match self.text.as_bytes()[self.at] {
                b'{' | b'[' if (starts_reply || starts_line) && self.only_calls(starts_reply) => true,
                b'`' => self.inline_code(),
                b'<' => self.tag() || self.mark() || self.message(false) || self.end_mark(),
                b'[' => self.mark() || self.named_bracket(),
                byte => {
                    (starts_reply || starts_line) && byte.is_ascii_lowercase() && self.words_of_header(starts_reply)
                }
            };
            if !done {
                self.prose();
            }
        }
        self.end()
    }

    /// Takes the calls out of the text that it ends with.
    fn end(mut self) -> Cleaned {
        if self.unread.is_empty() {
            return self.out;
        }
        let mut text = String::with_capacity(self.out.text.len());
        let mut from = 0;
        for Unread { place, .. } in &self.unread {
            text.push_str(&self.out.text[from..place.start]);
            from = place.end;
        }
        text.push_str(&self.out.text[from..]);
        self.out.text = text;
        let tool = self.unread.into_iter().rev().find_map(|unread| unread.tool);
        self.out.last_unread = Some(UnreadCall { tool });
        self.out
    }

    /// Copies up to the next place where something may start: also after white space, as a reply may begin there.
    fn prose(&mut self) {
        let rest = &self.text.as_bytes()[self.at + 1..];
        let is_blank = self.text.as_bytes()[self.at].is_ascii_whitespace();
        let starts = |byte: &u8| b"`~<[\n".contains(byte) || (is_blank && !byte.is_ascii_whitespace());
        let length = rest.iter().position(starts).unwrap_or(rest.len());
        let mut end = self.at + 1 + length;
        // A line break belongs to what it ends, so that the next step stands at the start of a line.
        if self.text.as_bytes().get(end) == Some(&b'\n') {
            end += 1;
        }
        self.copy(end);
    }

    /// Copies words. Calls before them are something that the text is about.
    fn copy(&mut self, end: usize) {
        if self.text[self.at..end].contains(char::is_alphanumeric) {
            self.unread.clear();
        }
        self.copy_code(end);
    }

    fn copy_code(&mut self, end: usize) {
        let copied = &self.text[self.at..end];
        let has_more = !copied.trim().is_empty();
        self.has_text |= has_more;
        self.is_behind_call &= !has_more;
        self.out.text.push_str(copied);
        self.at = end;
    }

    /// Whether a fence may be here: at the start of a line, or as deep as the item of a list or the quotation that it stands in.
    fn may_open_fence(&self) -> bool {
        let is_mark = b"`~".contains(&self.text.as_bytes()[self.at]);
        is_mark && {
            let before = self.text[..self.at].trim_end_matches([' ', '\t', '>']);
            before.is_empty() || before.ends_with('\n')
        }
    }

    fn fence(&mut self) -> bool {
        let Some(fence) = code::fence_at(self.text, self.at) else { return false };
        let language = self.text[fence.info.clone()].trim().to_ascii_lowercase();
        let content = &self.text[fence.content.clone()];
        // Gemma's blocks are calls, whatever they contain, often in Python.
        let is_call = ["tool_call", "tool_code"].contains(&language.as_str());
        let may_be_call = is_call || LANGUAGES_OF_CALLS.contains(&language.as_str());
        let json = || {
            let (calls, length) = call::json_calls(content, &self.offered);
            Some((calls?, length))
        };
        let json = may_be_call.then(json).flatten();
        let calls = json.or_else(|| is_call.then(|| call::python_calls(content, &self.offered)).flatten());
        match calls {
            Some((calls, length)) if self.recovers(&content[..length]) => self.found(calls, fence.end),
            calls if is_call => {
                self.out.has_unread_calls |= self.offered.recovers && calls.is_none();
                self.leave(fence.end, calls.and_then(|(calls, _)| first_tool(&calls)), true);
            }
            _ => self.copy_code(fence.end),
        }
        true
    }

    fn inline_code(&mut self) -> bool {
        let run = code::run_length(&self.text.as_bytes()[self.at..], b'`');
        let end = self.inline.end(self.at).unwrap_or(self.at + run);
        self.copy_code(end);
        true
    }

    fn tag(&mut self) -> bool {
        let Some(tag) = tag::tag_at(self.text, self.at) else { return false };
        let after = &self.text[tag.end..];
        match &tag.kind {
            TagKind::ThinkingOpen if !self.has_text => self.think(&tag),
            TagKind::ThinkingClose if self.closes_thinking() => self.stray_close(&tag),
            TagKind::ThinkingOpen | TagKind::ThinkingClose => self.mention(&tag),
            TagKind::WrapperOpen if self.may_read() && self.take(payload::read(after), after, self.start_of(after)) => {
            }
            TagKind::WrapperOpen if self.may_read() && self.enclosed(after) => {}
            // Its content is nested tags, which the pass then meets, or text.
            TagKind::CallOpen { .. } if !self.may_read() => return false,
            TagKind::CallOpen { tool } => return self.take(payload::arguments(tool, after), after, self.at),
            TagKind::WrapperOpen | TagKind::CallClose => self.at = tag.end,
            TagKind::ParameterOpen { .. } | TagKind::KeyOpen | TagKind::ValueOpen | TagKind::ParameterClose => {
                return false;
            }
        }
        true
    }

    /// A mark that opens a call, or one that is no text.
    fn mark(&mut self) -> bool {
        let here = &self.text[self.at..];
        if let Some(after) = marks::strip_any(here, &CLOSING) {
            self.at = self.text.len() - after.len();
            return true;
        }
        if !self.may_read() {
            return false;
        }
        if let Some(after) = marks::strip_before_json(here) {
            return self.offered_call(after);
        }
        marks::strip_any(here, &OPENING)
            .is_some_and(|after| self.take(payload::read(after), after, self.start_of(after)) || self.enclosed(after))
    }

    /// A call of an offered tool behind a tag that also has other contents.
    fn offered_call(&mut self, after: &str) -> bool {
        let payload = payload::read(after);
        let is_offered = |call: &ToolCall| self.offered.find(call.clone()).is_some();
        let is_call = matches!(&payload, Payload::Read { calls, .. } if calls.iter().any(is_offered));
        self.take(if is_call { payload } else { Payload::Absent }, after, self.start_of(after))
    }

    /// A message of Harmony whose marks a server has removed. Behind other text, only words that begin no sentence are a header.
    fn words_of_header(&mut self, starts_reply: bool) -> bool {
        let here = &self.text[self.at..];
        let is_header = ["assistant ", "commentary to="].iter().any(|words| here.starts_with(words));
        (starts_reply || is_header) && self.message(true)
    }

    /// A message of Harmony.
    fn message(&mut self, may_lack_marks: bool) -> bool {
        let Some(message) = harmony::message_at(&self.text[self.at..], may_lack_marks) else { return false };
        match message {
            Message::Call(_) if !self.may_read() => return false,
            Message::Call(after) => return self.take(payload::read(after), after, self.at),
            Message::Text(body) => self.at = self.text.len() - body.len(),
            Message::Thinking(Some(thinking), after) => {
                self.thought(thinking);
                self.at = self.text.len() - after.len();
            }
            // The rest is a text about these marks.
            Message::Thinking(None, _) if self.has_text => self.copy(self.text.len()),
            Message::Thinking(None, thinking) => {
                self.thought(thinking);
                self.at = self.text.len();
            }
        }
        true
    }

    fn thought(&mut self, thinking: &str) {
        self.thinking = Thinking::Seen;
        self.out.thinking.push_str(thinking.trim());
        self.out.thinking.push('\n');
    }

    /// What is left of a reply and is nothing but calls as JSON; or a whole reply in Python's notation.
    fn only_calls(&mut self, starts_reply: bool) -> bool {
        let here = &self.text[self.at..];
        // What was read once is not read again from its second object on.
        let is_read = self.at < self.json_end;
        let json = if is_read { None } else { self.json_calls(here) };
        let python = || starts_reply.then(|| call::python_calls(here, &self.offered)).flatten();
        let Some((calls, length)) = json.or_else(python) else { return !is_read && self.broken_call(here) };
        self.take(Payload::Read { calls, has_others: false, rest: &here[length..] }, here, self.at);
        // Nothing but ends of marks follows.
        self.at = self.text.len();
        true
    }

    /// What is left of a reply and is a call as JSON that cannot be read.
    fn broken_call(&mut self, here: &str) -> bool {
        let Some(tool) = call::broken_call(here, &self.offered) else { return false };
        self.out.has_unread_calls |= self.offered.recovers;
        self.leave(self.text.len(), Some(tool), !self.offered.recovers);
        true
    }

    /// A mark behind a call that says nothing. Where no call can be made, such as in a summary, it is text like what follows.
    fn end_mark(&mut self) -> bool {
        if !self.is_behind_call || self.offered.has_tool.is_none() {
            return false;
        }
        let Some(after) = marks::strip_behind_call(&self.text[self.at..]) else { return false };
        self.at = self.text.len() - after.len();
        true
    }

    fn json_calls(&mut self, here: &str) -> Option<(Vec<ToolCall>, usize)> {
        let (calls, length) = call::json_calls(here, &self.offered);
        self.json_end = self.at + length;
        Some((calls?, length))
    }

    /// Leaves what the mark in front of `after` encloses in place of a call, such as a command. False if that is nothing
    /// or nested calls, or if a sentence mentions the mark.
    fn enclosed(&mut self, after: &str) -> bool {
        let content = after.trim_start();
        let is_followed_by_word = after.starts_with([' ', '\t']) && content.starts_with(char::is_alphanumeric);
        let from = self.text.len() - after.len();
        let end = match (self.starts_line(), is_followed_by_word) {
            (true, false) => ends::of_content(self.text, from)
                .or_else(|| ends::of_command(self.text, self.text.len() - content.len())),
            (false, true) => None,
            _ => ends::of_content(self.text, from),
        };
        let Some(end) = end else { return false };
        let tool = call::leading_name(content).0.to_owned();
        let tool = Some(tool).filter(|tool| self.offered.has(tool));
        self.leave(end, tool, true);
        true
    }

    fn starts_line(&self) -> bool {
        self.at == 0 || self.text.as_bytes()[self.at - 1] == b'\n'
    }

    /// Takes what was read of `after`, the text behind a mark; the call's own text begins at `start`. False if it is no
    /// call; then nothing has changed.
    fn take(&mut self, payload: Payload<'_>, after: &str, start: usize) -> bool {
        let is_text = !self.offered.recovers;
        match payload {
            Payload::Absent => {
                self.failed_reads += 1;
                return false;
            }
            Payload::CutOff => self.leave(self.text.len(), None, is_text),
            Payload::Malformed => {
                let end = self.call_end(self.text.len() - after.len());
                // A tag in a text about tags. At the start of a line and before JSON, it is not.
                let is_written = self.starts_line() && after.trim_start().starts_with(['{', '[']);
                if end.is_none() && is_text && !is_written && tag::tag_at(self.text, self.at).is_some() {
                    self.failed_reads += 1;
                    return false;
                }
                self.out.has_unread_calls |= !is_text;
                self.leave(end.unwrap_or(self.text.len()), None, is_text);
            }
            Payload::Read { calls, has_others, rest } => {
                let end = self.text.len() - rest.len();
                let (tool, written) = (first_tool(&calls), calls.len());
                let found: Vec<ToolCall> = calls.into_iter().filter_map(|call| self.offered.find(call)).collect();
                if written == 0 && !has_others {
                    self.at = end;
                } else if found.is_empty() {
                    self.out.has_unread_calls |= !is_text;
                    self.leave(ends::with_close(self.text, end), tool, is_text);
                } else if self.recovers(&self.text[start..end]) {
                    self.out.has_unread_calls |= has_others || found.len() < written;
                    self.found(found, end);
                } else {
                    self.leave(ends::with_close(self.text, end), first_tool(&found), true);
                }
            }
        }
        true
    }

    /// Takes calls whose text ends here.
    fn found(&mut self, calls: Vec<ToolCall>, end: usize) {
        self.out.calls.extend(calls);
        self.is_behind_call = true;
        self.at = end;
    }

    /// Whether another mark or tag may be read for a call.
    const fn may_read(&self) -> bool {
        self.failed_reads < MAX_FAILED_READS
    }

    /// Whether a call with this text is recovered.
    fn recovers(&self, text: &str) -> bool {
        self.offered.recovers && !(self.offered.is_quoted)(text)
    }

    /// Where the text of a call begins whose mark is here. JSON names its tool by itself, in whatever marks.
    fn start_of(&self, after: &str) -> usize {
        if after.trim_start().starts_with(['{', '[']) { self.text.len() - after.len() } else { self.at }
    }

    /// Leaves a call that is not recovered, up to `end`. If words follow, it stays where it `is_text`.
    fn leave(&mut self, end: usize, tool: Option<String>, is_text: bool) {
        let start = self.out.text.len();
        if is_text {
            self.out.text.push_str(&self.text[self.at..end]);
        }
        self.unread.push(Unread { place: start..self.out.text.len(), tool });
        self.is_behind_call = true;
        self.at = end;
    }

    /// The end of the first mark or tag that ends a call.
    fn call_end(&mut self, from: usize) -> Option<usize> {
        if self.is_past_last_close {
            return None;
        }
        let end = ends::of_call(self.text, from);
        self.is_past_last_close = end.is_none();
        end
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
            self.unread.clear();
            self.is_behind_call = false;
            self.out.has_unread_calls = false;
            // What it thought about is not called.
            self.out.calls.clear();
            self.thinking = Thinking::Seen;
        }
        self.at = tag.end;
    }

    /// Models think at the start of a reply. A tag elsewhere is something that the text is about.
    fn mention(&mut self, tag: &Tag) {
        self.thinking = Thinking::Mentioned;
        self.copy(tag.end);
    }

    /// The text between a tag and its closing tag, or the end; the pass continues after it.
    fn body(&mut self, tag: &Tag) -> Range<usize> {
        let nothing = (self.text.len(), self.text.len());
        let (start, end) = ends::of_tag(self.text, tag).unwrap_or(nothing);
        self.at = end;
        tag.end..start
    }

    /// `[tool: name {…}]`, `[tool: name] {…}`.
    fn named_bracket(&mut self) -> bool {
        let Some(inner) = marks::strip(&self.text[self.at..], "[tool:") else { return false };
        let (name, rest) = call::leading_name(inner.trim_start());
        let rest = rest.trim_start();
        // The arguments stand before the closing bracket or after it.
        let (closed, rest) = rest.strip_prefix(']').map_or((false, rest), |rest| (true, rest.trim_start()));
        let Some((arguments, used)) = call::leading_object(rest) else { return false };
        let Some(call) = self.offered.find(call::call(name.to_owned(), arguments)) else { return false };
        let after = &rest[used..];
        let after = if closed { after } else { after.trim_start().strip_prefix(']').unwrap_or(after) };
        self.take(Payload::Read { calls: vec![call], has_others: false, rest: after }, after, self.at)
    }
}

/// The tool of the first call.
fn first_tool(calls: &[ToolCall]) -> Option<String> {
    calls.first().map(|call| call.name.clone())
}
