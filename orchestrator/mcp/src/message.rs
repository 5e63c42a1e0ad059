//! A server's messages as they arrive, for the protocol library.
//!
//! Guarantees that no result is lost because the library does not know something in it: a result is handed through it as
//! text and read afterwards, part by part. Bytes that are not UTF-8 become replacement characters.

use rmcp::{
    ErrorData,
    model::{CustomResult, ErrorCode, InitializeResult, ServerJsonRpcMessage, ServerResult},
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// The fields of a response. Values that are not looked into may be nested as deeply as they are.
#[derive(Deserialize)]
struct Response<'m> {
    #[serde(borrow)]
    id: Option<&'m RawValue>,
    #[serde(borrow)]
    result: Option<&'m RawValue>,
    #[serde(borrow)]
    error: Option<&'m RawValue>,
}

/// Reads the messages in a line, an event or a body: one, or a batch of them. Those that are not of the protocol are left
/// out.
pub(super) fn read_messages(bytes: &[u8]) -> Vec<ServerJsonRpcMessage> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    match serde_json::from_str::<Vec<&RawValue>>(text) {
        Ok(batch) => batch.into_iter().filter_map(|message| read_message(message.get())).collect(),
        Err(_) => read_message(text).into_iter().collect(),
    }
}

fn read_message(text: &str) -> Option<ServerJsonRpcMessage> {
    match serde_json::from_str(text) {
        Ok(Response { id: Some(id), result: Some(result), .. }) => {
            let id = serde_json::from_str(id.get()).ok()?;
            // The library reads the answer to its own request.
            let result = match serde_json::from_str::<InitializeResult>(result.get()) {
                Ok(handshake) => ServerResult::InitializeResult(handshake),
                Err(_) => ServerResult::CustomResult(CustomResult::new(Value::from(result.get()))),
            };
            Some(ServerJsonRpcMessage::response(result, id))
        }
        Ok(Response { id: Some(id), error: Some(error), .. }) => {
            let id = serde_json::from_str(id.get()).ok()?;
            Some(ServerJsonRpcMessage::error(error_of(error.get()), Some(id)))
        }
        _ => serde_json::from_str(text).ok(),
    }
}

/// An error as a server sent it. Some have text for the code, or for the whole error.
fn error_of(error: &str) -> ErrorData {
    let Ok(error) = serde_json::from_str::<Value>(error) else {
        return ErrorData::new(ErrorCode::INTERNAL_ERROR, "the error cannot be read", None);
    };
    let code = &error["code"];
    let number = code.as_i64().or_else(|| code.as_str()?.parse().ok()).and_then(|code| i32::try_from(code).ok());
    let message = error["message"].as_str().or_else(|| error.as_str()).or_else(|| code.as_str());
    let message = message.unwrap_or("the error has no message").to_owned();
    ErrorData::new(number.map_or(ErrorCode::INTERNAL_ERROR, ErrorCode), message, None)
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
        read_messages(bytes).pop().and_then(result_of)
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
        let event = serde_json::to_vec(&read_messages(bytes)[0]).unwrap();
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
            matches!(&read_messages(error)[..], [ServerJsonRpcMessage::Error(error)] if error.id == Some(RequestId::Number(3)))
        );
        let change = br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        assert!(matches!(&read_messages(change)[..], [ServerJsonRpcMessage::Notification(_)]));
        let handshake = br#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"n","version":"1"}}}"#;
        let Some(ServerJsonRpcMessage::Response(response)) = read_messages(handshake).pop() else {
            panic!("a response")
        };
        assert!(matches!(response.result, ServerResult::InitializeResult(_)));
    }

    #[rstest]
    #[case(r#"{"code":"E_AUTH","message":"no"}"#, -32_603, "no")]
    #[case(r#"{"code":"-32602","message":null}"#, -32_602, "-32602")]
    #[case(r#"{"code":-32602}"#, -32_602, "the error has no message")]
    #[case(r#"{"code":1e99,"message":5}"#, -32_603, "the error has no message")]
    #[case(r#""it failed""#, -32_603, "it failed")]
    fn an_error_is_that_of_its_request(#[case] error: &str, #[case] code: i32, #[case] message: &str) {
        let text = format!(r#"{{"jsonrpc":"2.0","id":3,"error":{error}}}"#);
        let Some(ServerJsonRpcMessage::Error(read)) = read_messages(text.as_bytes()).pop() else { panic!("an error") };
        assert_eq!((read.id, read.error.code.0, &*read.error.message), (Some(RequestId::Number(3)), code, message));
    }

    #[test]
    fn an_error_that_is_nested_deeply_ends_its_request() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        let text = format!(r#"{{"jsonrpc":"2.0","id":3,"error":{{"code":1,"message":"no","data":{deep}}}}}"#);
        let Some(ServerJsonRpcMessage::Error(read)) = read_messages(text.as_bytes()).pop() else { panic!("an error") };
        assert_eq!((read.id, &*read.error.message), (Some(RequestId::Number(3)), "the error cannot be read"));
    }

    #[test]
    fn the_messages_of_a_batch_are_read_one_by_one() {
        let batch = br#"[{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}, 5,
            {"jsonrpc":"2.0","id":1,"result":{"a":1}}]"#;
        let [ServerJsonRpcMessage::Notification(_), response] = &read_messages(batch)[..] else { panic!("two") };
        assert_eq!(result_of(response.clone()).as_deref(), Some(r#"{"a":1}"#));
    }

    #[rstest]
    #[case(b"hello")]
    #[case(b"")]
    #[case(b"{}")]
    #[case(b"[]")]
    #[case(br#"{"jsonrpc":"2.0","id":{},"result":{}}"#)]
    fn anything_else_is_no_message(#[case] bytes: &[u8]) {
        assert!(read_messages(bytes).is_empty());
    }
}
