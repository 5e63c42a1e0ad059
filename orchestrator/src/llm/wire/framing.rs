//! Splits the bytes of an answer into its JSON payloads: server-sent events, lines, or one document.
//!
//! Tolerates deviations of servers: any line ending, a byte order mark, comments, keep-alives, a last event
//! without its blank line, a JSON document where a stream was asked for. Never looks into a payload.

use serde_json::Value;

use super::decoder::DecodeError;

/// Maximum size of one event, line or document. The largest answers of today's models are some hundred kilobytes.
const MAX_FRAME_BYTES: usize = 32 << 20;
/// Maximum size of an answer's body: 512 bytes of stream for each of 128 000 tokens. What is decoded from it is sent to a worker
/// in one response (`protocol::limits::MAX_WORKER_RESPONSE_BYTES`).
const MAX_BODY_BYTES: usize = 64 << 20;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How a wire separates its payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Only white space has been received.
    Start,
    Events,
    Lines,
    /// One JSON document, complete at the end of the body.
    Document,
}

/// Splits one body.
#[derive(Debug)]
pub(super) struct Framer {
    framing: Framing,
    mode: Mode,
    /// Bytes that do not make a line yet; the whole document in that mode.
    pending: Vec<u8>,
    received_bytes: usize,
    /// The last line ended with a carriage return: a line feed that follows belongs to it.
    after_return: bool,
    event: Option<String>,
    data: Vec<u8>,
    /// Any event, comment or value was recognised.
    recognised: bool,
}

impl Framer {
    pub(super) fn new(framing: Framing) -> Self {
        Self {
            framing,
            mode: Mode::Start,
            pending: Vec::new(),
            received_bytes: 0,
            after_return: false,
            event: None,
            data: Vec::new(),
            recognised: false,
        }
    }

    /// Takes bytes and delivers the frames that they complete.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        deliver: &mut dyn FnMut(Frame) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
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
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        let mut result = Ok(());
        while result.is_ok() {
            if self.after_return && !rest.is_empty() {
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
                self.after_return = false;
            }
            let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else { break };
            self.after_return = rest[end] == b'\r';
            let line = &rest[..end];
            rest = &rest[end + 1..];
            result = self.line(line, deliver);
        }
        self.pending = rest.to_vec();
        result
    }

    /// The end of the body: delivers what is left. A last payload that is cut off is not delivered.
    pub(super) fn finish(
        &mut self,
        deliver: &mut dyn FnMut(Frame) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
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
        let Some(first) = self.pending.iter().find(|byte| !byte.is_ascii_whitespace()) else { return false };
        self.mode = match (self.framing, first) {
            (Framing::Lines, _) => Mode::Lines,
            (Framing::Events, b'{' | b'[') => Mode::Document,
            (Framing::Events, _) => Mode::Events,
        };
        true
    }

    fn line(
        &mut self,
        line: &[u8],
        deliver: &mut dyn FnMut(Frame) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
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
    fn json_line(
        &mut self,
        line: &[u8],
        deliver: &mut dyn FnMut(Frame) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        self.data.extend_from_slice(line);
        if self.data.trim_ascii().is_empty() {
            self.data.clear();
            return Ok(());
        }
        match serde_json::from_slice::<Value>(&self.data) {
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
fn payloads(
    data: &[u8],
    event: Option<String>,
    deliver: &mut dyn FnMut(Frame) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let data = data.trim_ascii();
    if data.is_empty() {
        return Ok(());
    }
    if data == b"[DONE]" {
        return deliver(Frame::Done);
    }
    match serde_json::from_slice(data) {
        Ok(value) => deliver(Frame::Json { event, value }),
        Err(_) if data.contains(&b'\n') => {
            data.split(|byte| *byte == b'\n').try_for_each(|line| payloads(line, event.clone(), deliver))
        }
        Err(error) => Err(not_json(&error)),
    }
}

/// Delivers the last payload of a body, unless it is cut off.
fn last_payload(
    data: &[u8],
    event: Option<String>,
    deliver: &mut dyn FnMut(Frame) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let is_cut = |data: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(data).is_err_and(|error| error.is_eof());
    let data = data.trim_ascii();
    let last_line = data.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    if data.is_empty() || is_cut(data) || is_cut(last_line) || b"[DONE]".starts_with(data) && data != b"[DONE]" {
        return Ok(());
    }
    payloads(data, event, deliver)
}

fn document(data: &[u8], deliver: &mut dyn FnMut(Frame) -> Result<(), DecodeError>) -> Result<(), DecodeError> {
    let value = match serde_json::from_slice(data) {
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
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn frames(framing: Framing, parts: &[&[u8]]) -> Result<Vec<Frame>, DecodeError> {
        let mut framer = Framer::new(framing);
        let mut found = Vec::new();
        let mut keep = |frame| {
            found.push(frame);
            Ok(())
        };
        for part in parts {
            framer.push(part, &mut keep)?;
        }
        framer.finish(&mut keep)?;
        Ok(found)
    }

    fn value(value: Value) -> Frame {
        Frame::Json { event: None, value }
    }

    #[rstest]
    #[case::plain("data: 1\n\ndata: 2\n\ndata: [DONE]\n\n", &["1", "2", "done"])]
    #[case::carriage_returns("data: 1\r\rdata: 2\r\r", &["1", "2"])]
    #[case::both("data: 1\r\n\r\ndata: 2\r\n\r\n", &["1", "2"])]
    #[case::byte_order_mark("\u{feff}data: 1\n\n", &["1"])]
    #[case::no_space("data:1\n\n", &["1"])]
    #[case::comments(": ping\n\n: ping\n\ndata: 1\n\n:\n\n", &["1"])]
    #[case::other_fields("id: 7\nretry: 10\ndata: 1\nnonsense\n\n", &["1"])]
    #[case::empty_data("data:\n\ndata: \n\ndata: 1\n\n", &["1"])]
    #[case::leading_blank_lines("\n\n\r\n data\n\ndata: 1\n\n", &["1"])]
    #[case::a_value_over_several_lines("data: [1,\ndata: 2]\n\n", &["[1,2]"])]
    #[case::no_blank_lines("data: 1\ndata: 2\ndata: [DONE]\n\n", &["1", "2", "done"])]
    #[case::no_last_blank_line("data: 1\n\ndata: [DONE]", &["1", "done"])]
    #[case::cut_off("data: 1\n\ndata: {\"a\": ", &["1"])]
    #[case::cut_off_mark("data: 1\n\ndata: [DO", &["1"])]
    #[case::a_document(" {\"a\": 1}\n", &["{\"a\":1}", "end"])]
    #[case::a_list_of_one("[{\"error\": 1}]", &["{\"error\":1}", "end"])]
    #[case::an_error_field("error: {\"code\": 500}\n\n", &["{\"error\":{\"code\":500}}"])]
    #[case::nothing("", &[])]
    fn events(#[case] body: &str, #[case] expected: &[&str]) {
        let describe = |frame: Frame| match frame {
            Frame::Json { value, .. } => value.to_string(),
            Frame::Done => "done".to_owned(),
            Frame::EndOfDocument => "end".to_owned(),
        };
        let found: Vec<_> = frames(Framing::Events, &[body.as_bytes()]).unwrap().into_iter().map(describe).collect();
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case::lines("1\n{\"a\":2}\r\n\n3", vec![json!(1), json!({"a": 2}), json!(3)])]
    #[case::pretty("{\n  \"a\": [\n1]\n}\n4\n", vec![json!({"a": [1]}), json!(4)])]
    #[case::cut_off("1\n{\"a\":", vec![json!(1)])]
    fn lines(#[case] body: &str, #[case] expected: Vec<Value>) {
        let expected: Vec<_> = expected.into_iter().map(value).collect();
        assert_eq!(frames(Framing::Lines, &[body.as_bytes()]).unwrap(), expected);
    }

    #[rstest]
    #[case(Framing::Events, "data: }{\n\n")]
    #[case(Framing::Events, "<html>welcome</html>")]
    #[case(Framing::Events, "{]")]
    #[case(Framing::Lines, "}{\n")]
    fn unusable_answers_are_refused(#[case] framing: Framing, #[case] body: &str) {
        assert!(matches!(frames(framing, &[body.as_bytes()]), Err(DecodeError::Invalid(_))));
    }

    #[test]
    fn an_event_keeps_its_name_and_a_part_has_a_limit() {
        let named = frames(Framing::Events, &[b"event: ping\ndata: {}\n\n"]).unwrap();
        assert_eq!(named, [Frame::Json { event: Some("ping".to_owned()), value: json!({}) }]);
        let comments = vec![b":\n".repeat(MAX_FRAME_BYTES / 2); MAX_BODY_BYTES / MAX_FRAME_BYTES + 1];
        let comments: Vec<&[u8]> = comments.iter().map(Vec::as_slice).collect();
        assert!(matches!(frames(Framing::Events, &comments), Err(DecodeError::Invalid(_))));
        let endless = vec![b'x'; MAX_FRAME_BYTES];
        assert!(matches!(frames(Framing::Events, &[b"data: ", &endless]), Err(DecodeError::Invalid(_))));
    }

    proptest! {
        /// However the bytes are split, the frames are the same.
        #[test]
        fn any_split_gives_the_same_frames(
            body in "(data: ?(1|\\{\"a\": \"[a-zé]\"\\}|\\[DONE\\])|event: x|: c|)((\r\n|\n|\r)(data: ?(1|\\[2\\])|event: y|: c|)){0,12}",
            cuts in proptest::collection::vec(0..200_usize, 0..20),
        ) {
            let bytes = body.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut parts = Vec::new();
            let mut from = 0;
            for cut in cuts {
                parts.push(&bytes[from..cut]);
                from = cut;
            }
            parts.push(&bytes[from..]);
            let whole = frames(Framing::Events, &[bytes]);
            let split = frames(Framing::Events, &parts);
            prop_assert_eq!(whole.is_ok(), split.is_ok());
            if let (Ok(whole), Ok(split)) = (whole, split) {
                prop_assert_eq!(whole, split);
            }
        }
    }
}
