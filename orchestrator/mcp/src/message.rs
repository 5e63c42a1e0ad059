//! A server's messages as they arrive, for the protocol library.
//!
//! Guarantees that no result is lost because the library does not know something in it: a result is handed through it as
//! text and read afterwards, part by part. Bytes that are not UTF-8 become replacement characters.

use rmcp::model::{CustomResult, InitializeResult, ServerJsonRpcMessage, ServerResult};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// The fields of a response. Values that are not looked into may be nested as deeply as they are.
#[derive(Deserialize)]
struct Response<'m> {
    #[serde(borrow)]
    id: Option<&'m RawValue>,
    #[serde(borrow)]
    result: Option<&'m RawValue>,
}

/// Reads a message; none if it is not one of the protocol.
pub(super) fn read_message(bytes: &[u8]) -> Option<ServerJsonRpcMessage> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let Ok(Response { id: Some(id), result: Some(result) }) = serde_json::from_str(text) else {
        return serde_json::from_str(text).ok();
    };
    let id = serde_json::from_str(id.get()).ok()?;
    // The library reads the answer to its own request.
    let result = match serde_json::from_str::<InitializeResult>(result.get()) {
        Ok(handshake) => ServerResult::InitializeResult(handshake),
        Err(_) => ServerResult::CustomResult(CustomResult::new(Value::from(result.get()))),
    };
    Some(ServerJsonRpcMessage::response(result, id))
}

/// The JSON object that a server sent as a result; none if it sent anything else.
pub(super) fn result_object(result: ServerResult) -> Option<String> {
    match result {
        ServerResult::CustomResult(CustomResult(Value::String(text))) if text.starts_with('{') => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::RequestId;
    use rstest::rstest;

    use super::*;

    fn result_of(message: ServerJsonRpcMessage) -> Option<String> {
        match message {
            ServerJsonRpcMessage::Response(response) => result_object(response.result),
            _ => None,
        }
    }

    fn result(bytes: &[u8]) -> Option<String> {
        read_message(bytes).and_then(result_of)
    }

    #[rstest]
    #[case::plain(br#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#, r#"{"a":1}"#)]
    #[case::mark(b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":1}}\r\n", r#"{"a":1}"#)]
    #[case::latin_1(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"\xe9\"}}", "{\"a\":\"\u{fffd}\"}")]
    #[case::of_another_type(
        br#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","tools":[null]}}"#,
        r#"{"resultType":"complete","tools":[null]}"#
    )]
    fn a_result_is_kept_as_it_was_sent(#[case] bytes: &[u8], #[case] expected: &str) {
        assert_eq!(result(bytes).as_deref(), Some(expected));
        // The library reads an event once more.
        let event = serde_json::to_vec(&read_message(bytes).unwrap()).unwrap();
        assert_eq!(result_of(serde_json::from_slice(&event).unwrap()).as_deref(), Some(expected));
    }

    #[test]
    fn a_result_may_be_nested_deeply() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        let message = format!("{{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":{deep}}}");
        assert_eq!(result(message.as_bytes()), Some(deep));
    }

    #[test]
    fn other_messages_are_the_librarys() {
        let error = br#"{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"no"}}"#;
        assert!(
            matches!(read_message(error), Some(ServerJsonRpcMessage::Error(error)) if error.id == Some(RequestId::Number(3)))
        );
        let change = br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        assert!(matches!(read_message(change), Some(ServerJsonRpcMessage::Notification(_))));
        let handshake = br#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"n","version":"1"}}}"#;
        let Some(ServerJsonRpcMessage::Response(response)) = read_message(handshake) else { panic!("a response") };
        assert!(matches!(response.result, ServerResult::InitializeResult(_)));
    }

    #[rstest]
    #[case(b"hello")]
    #[case(b"")]
    #[case(b"{}")]
    #[case(b"[]")]
    #[case(br#"{"jsonrpc":"2.0","id":{},"result":{}}"#)]
    fn anything_else_is_no_message(#[case] bytes: &[u8]) {
        assert!(read_message(bytes).is_none());
    }
}
