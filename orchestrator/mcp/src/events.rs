//! The events of a response's body, for the protocol library: those that are no messages have no data.
//!
//! Guarantees that the body is cut at the connection's limit while it is read, and that bytes which are not UTF-8 end no
//! stream.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream, stream::BoxStream};
use rmcp::model::ServerJsonRpcMessage;
use sse_stream::{Error as SseError, Sse, SseStream};

use super::{http::RequestFailed, message::read_messages, receive_limit::ReceiveLimit, reconnects::Reconnects};
use egress::OpenResponse;

/// The body as it is read.
struct Body {
    response: OpenResponse,
    limit: ReceiveLimit,
    text: Utf8Text,
    lines: EventLines,
}

/// Text that arrives in chunks, which can divide a character.
#[derive(Default)]
struct Utf8Text(Vec<u8>);

/// The lines of events without those that the library ends a stream for.
#[derive(Default)]
struct EventLines {
    /// The line that has begun.
    line: String,
    /// The fields of the current event that it can have once.
    fields: Vec<String>,
    /// Whether the last character was a carriage return.
    is_returned: bool,
    /// Bytes of the whole lines of the current event.
    event_bytes: usize,
}

/// The events of a body.
pub(super) fn events(
    response: OpenResponse,
    limit: ReceiveLimit,
    reconnects: Reconnects,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let body = Body { response, limit, text: Utf8Text::default(), lines: EventLines::default() };
    let chunks = stream::unfold(Some(body), async |body| body?.next().await);
    let events = SseStream::from_bytes_stream(chunks.boxed()).map(move |event| {
        let mut event = match event {
            Ok(event) => event,
            Err(error) => return vec![Err(error)],
        };
        // Otherwise the library keeps to it, whatever it is.
        if let Some(milliseconds) = event.retry.take() {
            reconnects.ask(milliseconds);
        }
        let data = event.data.take().unwrap_or_default();
        let messages = read_messages(data.as_bytes())
            .into_iter()
            .map(|message| Ok(Sse { event: event.event.clone(), ..event_of(&message) }));
        let messages: Vec<_> = messages.collect();
        // The event itself has the id, which the library remembers.
        std::iter::once(Ok(event)).chain(messages).collect()
    });
    events.flat_map(stream::iter).boxed()
}

/// An event with this message.
pub(super) fn event_of(message: &ServerJsonRpcMessage) -> Sse {
    Sse { data: serde_json::to_string(message).ok(), ..Sse::default() }
}

impl Body {
    /// The next chunk, and the rest of the body if it may have more.
    async fn next(mut self) -> Option<(Result<Bytes, RequestFailed>, Option<Self>)> {
        let chunk = match self.response.chunk().await {
            Ok(Some(chunk)) => chunk,
            // Some servers end the body without the blank line that ends an event.
            Ok(None) => return Some((Ok(self.lines.push("\n\n")), None)),
            Err(error) => return Some((Err(RequestFailed::new(&error)), None)),
        };
        match self.limit.take(chunk.len()) {
            Ok(()) => {
                let text = self.text.push(&chunk);
                let lines = self.lines.push(&text);
                match self.limit.check_message(self.lines.event_bytes + self.lines.line.len()) {
                    Ok(()) => Some((Ok(lines), Some(self))),
                    Err(error) => Some((Err(RequestFailed::new(&error)), None)),
                }
            }
            Err(error) => Some((Err(RequestFailed::new(&error)), None)),
        }
    }
}

impl Utf8Text {
    /// The text until the end of the chunk, without a character that has only begun.
    fn push(&mut self, chunk: &[u8]) -> String {
        self.0.extend_from_slice(chunk);
        let last = self.0.utf8_chunks().last().map_or(&[][..], |last| last.invalid());
        let has_begun = std::str::from_utf8(last).is_err_and(|error| error.error_len().is_none());
        let rest = self.0.split_off(self.0.len() - if has_begun { last.len() } else { 0 });
        let text = std::mem::replace(&mut self.0, rest);
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl EventLines {
    /// The lines that end in this text.
    fn push(&mut self, text: &str) -> Bytes {
        let mut lines = String::new();
        for part in text.split_inclusive(['\r', '\n']) {
            let is_second = std::mem::take(&mut self.is_returned) && part == "\n";
            if is_second {
                continue;
            }
            let Some(rest) = part.strip_suffix(['\r', '\n']) else {
                self.line.push_str(part);
                continue;
            };
            self.line.push_str(rest);
            self.is_returned = part.ends_with('\r');
            let line = std::mem::take(&mut self.line);
            self.event_bytes = if line.is_empty() { 0 } else { self.event_bytes + line.len() };
            if self.is_known(&line) {
                lines.push_str(&line);
                lines.push('\n');
            }
        }
        Bytes::from(lines)
    }

    fn is_known(&mut self, line: &str) -> bool {
        if line.is_empty() {
            self.fields.clear();
            return true;
        }
        let Some((field, value)) = line.trim_start_matches('\u{feff}').split_once(':') else { return false };
        match field {
            "" | "data" => true,
            "retry" if value.trim().parse::<u64>().is_err() => false,
            "event" | "id" | "retry" => {
                let is_first = !self.fields.iter().any(|known| known == field);
                if is_first {
                    self.fields.push(field.to_owned());
                }
                is_first
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::valid(&["a\u{e9}".as_bytes(), b"b"], "a\u{e9}b")]
    #[case::divided(&[&b"a\xe2"[..], b"\x82", b"\xacb"], "a\u{20ac}b")]
    #[case::latin_1(&[&b"caf\xe9"[..], b"\n"], "caf\u{fffd}\n")]
    #[case::within_a_chunk(&[&b"\xff\xe9a"[..]], "\u{fffd}\u{fffd}a")]
    #[case::begun_at_the_end(&[&b"a\xe2\x82"[..]], "a")]
    fn bytes_that_are_not_utf_8_are_replaced(#[case] chunks: &[&[u8]], #[case] expected: &str) {
        let mut text = Utf8Text::default();
        let read: String = chunks.iter().map(|chunk| text.push(chunk)).collect();
        assert_eq!(read, expected);
    }

    #[rstest]
    #[case::known(&["event: a\r\nid: 1\r", "\ndata: {}\n\n", "id: 2\n"], "event: a\nid: 1\ndata: {}\n\nid: 2\n")]
    #[case::without_a_colon(&["noise\ndata\nda", "ta: 1\n\n"], "data: 1\n\n")]
    #[case::retry(&["retry: soon\nretry: 5\nretry: 6\n"], "retry: 5\n")]
    #[case::unknown(&["x: y\n: comment\n"], ": comment\n")]
    #[case::returns_only(&["data: 1\r\rdata: 2\r", "\r"], "data: 1\n\ndata: 2\n\n")]
    #[case::mark(&["\u{feff}data: 1\n"], "\u{feff}data: 1\n")]
    fn lines_that_are_not_of_the_format_are_left_out(#[case] chunks: &[&str], #[case] expected: &str) {
        let mut lines = EventLines::default();
        let read: Vec<u8> = chunks.iter().flat_map(|chunk| lines.push(chunk)).collect();
        assert_eq!(String::from_utf8(read).unwrap(), expected);
    }
}
