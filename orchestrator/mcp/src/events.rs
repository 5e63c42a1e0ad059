//! The events of a response's body, for the protocol library: those that are no messages have no data.
//!
//! Guarantees that the body is cut at the connection's limit while it is read, and that bytes which are not UTF-8 end no
//! stream.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream, stream::BoxStream};
use sse_stream::{Error as SseError, Sse, SseStream};

use super::{http::RequestFailed, message::read_message, receive_limit::ReceiveLimit, reconnects::Reconnects};
use egress::OpenResponse;

/// The body as it is read.
struct Body {
    response: OpenResponse,
    limit: ReceiveLimit,
    text: Utf8Text,
}

/// Text that arrives in chunks, which can divide a character.
#[derive(Default)]
struct Utf8Text(Vec<u8>);

/// The events of a body.
pub(super) fn events(
    response: OpenResponse,
    limit: ReceiveLimit,
    reconnects: Reconnects,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let body = Body { response, limit, text: Utf8Text::default() };
    let chunks = stream::unfold(Some(body), async |body| body?.next().await);
    let events = SseStream::from_bytes_stream(chunks.boxed()).map(move |event| {
        event.map(|mut event| {
            // Otherwise the library keeps to it, whatever it is.
            if let Some(milliseconds) = event.retry.take() {
                reconnects.ask(milliseconds);
            }
            let message = event.data.as_deref().and_then(|data| read_message(data.as_bytes()));
            event.data = message.and_then(|message| serde_json::to_string(&message).ok());
            event
        })
    });
    events.boxed()
}

impl Body {
    /// The next chunk, and the rest of the body if it may have more.
    async fn next(mut self) -> Option<(Result<Bytes, RequestFailed>, Option<Self>)> {
        let chunk = match self.response.chunk().await {
            Ok(Some(chunk)) => chunk,
            // Some servers end the body without the blank line that ends an event.
            Ok(None) => return Some((Ok(Bytes::from_static(b"\n\n")), None)),
            Err(error) => return Some((Err(RequestFailed::new(&error)), None)),
        };
        match self.limit.take(chunk.len()) {
            Ok(()) => Some((Ok(self.text.push(&chunk)), Some(self))),
            Err(error) => Some((Err(RequestFailed::new(&error)), None)),
        }
    }
}

impl Utf8Text {
    /// The text until the end of the chunk, without a character that has only begun.
    fn push(&mut self, chunk: &[u8]) -> Bytes {
        self.0.extend_from_slice(chunk);
        let last = self.0.utf8_chunks().last().map_or(&[][..], |last| last.invalid());
        let has_begun = std::str::from_utf8(last).is_err_and(|error| error.error_len().is_none());
        let rest = self.0.split_off(self.0.len() - if has_begun { last.len() } else { 0 });
        let text = std::mem::replace(&mut self.0, rest);
        Bytes::from(String::from_utf8_lossy(&text).into_owned())
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
        let read: Vec<u8> = chunks.iter().flat_map(|chunk| text.push(chunk)).collect();
        assert_eq!(String::from_utf8(read).unwrap(), expected);
    }
}
