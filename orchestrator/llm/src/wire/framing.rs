//! Splits the bytes of an answer into its JSON payloads: server-sent events, lines, or one document.
//!
//! Tolerates deviations of servers: any line ending, a byte order mark, comments, keep-alives, a last event
//! without its blank line, a JSON document where a stream was asked for, parts of characters. Never looks into a
//! payload.

use serde_json::Value;

use super::{
    decoder::DecodeError,
    json::{self, Nesting},
};

/// Maximum size of one event, line or document. The largest answers of today's models are some hundred kilobytes.
const MAX_FRAME_BYTES: usize = 32 << 20;
/// Maximum size of an answer's body: 512 bytes of stream for each of 128 000 tokens. What is decoded from it is sent to
/// a worker in one response (`protocol::limits::MAX_WORKER_RESPONSE_BYTES`).
const MAX_BODY_BYTES: usize = 64 << 20;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How a wire separates its payloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events.
    #[default]
    Events,
    /// A JSON value per line.
    Lines,
}

/// A part of an answer.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    /// A JSON value, with the event's name if it has one.
    Json { event: Option<String>, value: Value },
    /// `[DONE]`.
    Done,
    /// The body was one JSON document, which has been delivered.
    EndOfDocument,
}

/// Receives frames.
type Deliver<'a> = &'a mut dyn FnMut(Frame) -> Result<(), DecodeError>;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    /// Only white space has been received.
    #[default]
    Start,
    Events,
    Lines,
    /// One JSON document, complete at the end of the body.
    Document,
}

/// Splits one body.
#[derive(Debug, Default)]
pub(super) struct Framer {
    framing: Framing,
    mode: Mode,
    /// Bytes that do not make a line yet; the whole document in that mode.
    pending: Vec<u8>,
    received_bytes: usize,
    /// How many of the pending bytes have been searched.
    searched: usize,
    /// The last line ended with a carriage return: a line feed that follows belongs to it.
    after_return: bool,
    event: Option<String>,
    data: Vec<u8>,
    /// Of the data, where a value may span lines.
    nesting: Nesting,
    /// Any event, comment or value was recognised.
    recognised: bool,
}

impl Framer {
    pub(super) fn new(framing: Framing) -> Self {
        Self { framing, ..Self::default() }
    }

    /// Takes bytes and delivers the frames that they complete.
    pub(super) fn push(&mut self, bytes: &[u8], deliver: Deliver<'_>) -> Result<(), DecodeError> {
        self.received_bytes += bytes.len();
        if self.received_bytes > MAX_BODY_BYTES {
            return Err(DecodeError::Invalid(format!("the answer is larger than {MAX_BODY_BYTES} bytes")));
        }
        self.pending.extend_from_slice(bytes);
        if self.pending.len() + self.data.len() > MAX_FRAME_BYTES {
            return Err(DecodeError::Invalid(format!("a part of the answer is larger than {MAX_FRAME_BYTES} bytes")));
        }
        if self.mode == Mode::Start && !self.detect_mode() {
            return Ok(());
        }
        if self.mode == Mode::Document {
            return Ok(());
        }
        let mut pending = std::mem::take(&mut self.pending);
        let mut searched = std::mem::take(&mut self.searched);
        let mut rest = pending.as_slice();
        let mut result = Ok(());
        while result.is_ok() {
            if self.after_return && !rest.is_empty() {
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
                self.after_return = false;
            }
            let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
            let Some(end) = rest[searched..].iter().position(is_break).map(|at| searched + at) else { break };
            searched = 0;
            self.after_return = rest[end] == b'\r';
            let line = &rest[..end];
            rest = &rest[end + 1..];
            result = self.line(line, deliver);
        }
        self.searched = rest.len();
        pending.drain(..pending.len() - self.searched);
        self.pending = pending;
        result
    }

    /// The end of the body: delivers what is left. A last payload that is cut off is not delivered.
    pub(super) fn finish(&mut self, deliver: Deliver<'_>) -> Result<(), DecodeError> {
        let rest = std::mem::take(&mut self.pending);
        match self.mode {
            Mode::Start => Ok(()),
            Mode::Document => document(&rest, deliver),
            Mode::Lines => {
                self.data.extend_from_slice(&rest);
                last_payload(&self.data, None, deliver)
            }
            Mode::Events => {
                if !rest.is_empty() {
                    self.field(&rest);
                }
                let (event, data) = (self.event.take(), std::mem::take(&mut self.data));
                if data.is_empty() && !self.recognised {
                    return Err(DecodeError::Invalid("the answer is not an event stream".to_owned()));
                }
                last_payload(&data, event, deliver)
            }
        }
    }

    /// Detects the framing by the first byte that is not white space; events never begin with a brace or a bracket.
    fn detect_mode(&mut self) -> bool {
        if self.pending.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(&self.pending) {
            return false;
        }
        if self.pending.starts_with(BYTE_ORDER_MARK) {
            self.pending.drain(..BYTE_ORDER_MARK.len());
        }
        let Some(first) = self.pending[self.searched..].iter().find(|byte| !byte.is_ascii_whitespace()) else {
            self.searched = self.pending.len();
            return false;
        };
        self.searched = 0;
        self.mode = match (self.framing, first) {
            (Framing::Lines, _) => Mode::Lines,
            (Framing::Events, b'{' | b'[') => Mode::Document,
            (Framing::Events, _) => Mode::Events,
        };
        true
    }

    fn line(&mut self, line: &[u8], deliver: Deliver<'_>) -> Result<(), DecodeError> {
        if self.mode == Mode::Lines {
            return self.json_line(line, deliver);
        }
        if !line.is_empty() {
            self.field(line);
            return Ok(());
        }
        let (event, data) = (self.event.take(), std::mem::take(&mut self.data));
        if data.is_empty() { Ok(()) } else { payloads(&data, event, deliver) }
    }

    /// A field of an event; a line without a colon and a comment are ignored.
    fn field(&mut self, line: &[u8]) {
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                if !self.data.is_empty() {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => self.event = Some(String::from_utf8_lossy(value).into_owned()),
            // llama.cpp reports a failure in a field of this name.
            b"error" => {
                self.event = Some("error".to_owned());
                self.data = [b"{\"error\":", value, b"}"].concat();
            }
            b"" | b"id" | b"retry" => {}
            _ => return,
        }
        self.recognised = true;
    }

    /// A value that spans several lines is buffered until it is complete.
    fn json_line(&mut self, line: &[u8], deliver: Deliver<'_>) -> Result<(), DecodeError> {
        self.data.extend_from_slice(line);
        self.nesting.read(line);
        if self.nesting.is_open() {
            self.data.push(b'\n');
            return Ok(());
        }
        if self.data.trim_ascii().is_empty() {
            self.data.clear();
            return Ok(());
        }
        match json::parse(&self.data) {
            Ok(value) => {
                self.data.clear();
                deliver(Frame::Json { event: None, value })
            }
            Err(error) if error.is_eof() => {
                self.data.push(b'\n');
                Ok(())
            }
            Err(error) => Err(not_json(&error)),
        }
    }
}

fn not_json(error: &serde_json::Error) -> DecodeError {
    DecodeError::Invalid(format!("the answer is not JSON: {error}"))
}

/// The values of one event: mostly one; servers that leave out blank lines send several, one a line.
fn payloads(data: &[u8], event: Option<String>, deliver: Deliver<'_>) -> Result<(), DecodeError> {
    let data = data.trim_ascii();
    if data.is_empty() {
        return Ok(());
    }
    if data == b"[DONE]" {
        return deliver(Frame::Done);
    }
    match json::parse(data) {
        Ok(value) => deliver(Frame::Json { event, value }),
        Err(_) if data.contains(&b'\n') => {
            data.split(|byte| *byte == b'\n').try_for_each(|line| payloads(line, event.clone(), deliver))
        }
        Err(error) => Err(not_json(&error)),
    }
}

/// Delivers the last payload of a body, unless it is cut off.
fn last_payload(data: &[u8], event: Option<String>, deliver: Deliver<'_>) -> Result<(), DecodeError> {
    let is_cut = |data: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(data).is_err_and(|error| error.is_eof());
    let data = data.trim_ascii();
    let last_line = data.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    if data.is_empty() || is_cut(data) || is_cut(last_line) || b"[DONE]".starts_with(data) && data != b"[DONE]" {
        return Ok(());
    }
    payloads(data, event, deliver)
}

fn document(data: &[u8], deliver: Deliver<'_>) -> Result<(), DecodeError> {
    let value = match json::parse(data) {
        // Google reports errors in a list of one.
        Ok(Value::Array(mut list)) if list.len() == 1 => list.remove(0),
        Ok(value) => value,
        Err(error) if error.is_eof() => return Err(DecodeError::Interrupted),
        Err(error) => return Err(not_json(&error)),
    };
    deliver(Frame::Json { event: None, value })?;
    deliver(Frame::EndOfDocument)
}

#[cfg(test)]
mod tests;
