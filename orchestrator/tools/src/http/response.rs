//! What the model reads of a response. Pure.

use agent::ToolOutput;
use egress::{BodyEnd, OutboundResponse};
use serde_json::{Map, Value, json};

use super::text::{self, Text};

/// Maximum size of the headers that are shown: a tenth of what a model reads of a call's output.
const MAX_HEADER_BYTES: usize = 10_000;

/// The first status that reports a failure.
const FIRST_ERROR_STATUS: u16 = 400;

/// Why a redirect was not followed.
const BODY_STAYS: &str =
    "the redirect was not followed, because a request with a body is not sent on to another origin";

/// `{url, status, headers, body}`: the body as text, or a note where it is none. The body is last, because an output that
/// is too long loses its end.
pub(super) fn output(response: OutboundResponse) -> ToolOutput {
    let OutboundResponse { url, redirected_to, status, headers, body, body_end, undecoded } = response;
    let truncated = body_end != BodyEnd::Complete;
    let (headers, omitted) = shown_headers(headers);
    let content_type = headers.get("content-type").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
    let mut content = json!({"url": url, "status": status, "headers": headers});
    let mut notes = Vec::new();
    if omitted > 0 {
        notes.push(format!("{omitted} headers were left out"));
    }
    if let Some(to) = redirected_to {
        content["redirected_to"] = to.into();
        notes.push(BODY_STAYS.to_owned());
    }
    match body_end {
        BodyEnd::Complete | BodyEnd::TooLarge => {}
        BodyEnd::BrokenOff => notes.push("the response broke off".to_owned()),
        BodyEnd::TimedOut(after) => {
            notes.push(format!("the response was not complete after {} s", after.as_secs_f64()));
        }
    }
    let body = match (undecoded, text::decode(&body, &content_type, truncated)) {
        (Some(encoding), _) => {
            format!("[content that cannot be decoded was left out: {} bytes of {encoding}]", body.len())
        }
        (None, Some(Text { text, not_all_are })) => {
            notes.extend(not_all_are.map(|encoding| format!("some bytes of the body are not {encoding}")));
            text
        }
        (None, None) => format!("[binary content was left out: {} bytes]", body.len()),
    };
    if !notes.is_empty() {
        content["note"] = notes.join("; ").into();
    }
    if truncated {
        content["truncated"] = true.into();
    }
    content["body"] = body.into();
    ToolOutput { success: status < FIRST_ERROR_STATUS, truncated, ..ToolOutput::success(content) }
}

/// The headers by name, as many as fit, and the number of the others. Values of one name are joined as HTTP does it, and those
/// of `set-cookie` are an array.
fn shown_headers(headers: Vec<(String, String)>) -> (Map<String, Value>, usize) {
    let (mut shown, mut bytes, mut omitted) = (Map::new(), 0, 0);
    for (name, value) in headers {
        bytes += name.len() + value.len();
        if bytes > MAX_HEADER_BYTES {
            omitted += 1;
            continue;
        }
        match shown.get_mut(&name) {
            Some(Value::Array(earlier)) => earlier.push(value.into()),
            // RFC 9110, 5.3: its values may contain commas.
            Some(earlier) if name == "set-cookie" => *earlier = json!([earlier.take(), value]),
            Some(Value::String(earlier)) => *earlier = format!("{earlier}, {value}"),
            _ => {
                shown.insert(name, Value::from(value));
            }
        }
    }
    (shown, omitted)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn response(status: u16) -> OutboundResponse {
        let url = "https://a.example/".to_owned();
        let body_end = BodyEnd::Complete;
        OutboundResponse { url, redirected_to: None, status, headers: vec![], body: vec![], body_end, undecoded: None }
    }

    fn of(content_type: &str, body: &[u8], truncated: bool) -> Value {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        let body_end = if truncated { BodyEnd::TooLarge } else { BodyEnd::Complete };
        output(OutboundResponse { headers, body: body.to_vec(), body_end, ..response(200) }).content
    }

    #[rstest]
    #[case("text/html; charset=Shift_JIS", b"\x93\xfa", json!({"body": "日"}))]
    #[case("text/html", b"caf\xe9!", json!({"note": "some bytes of the body are not UTF-8", "body": "caf\u{fffd}!"}))]
    #[case("image/png", b"\x89PNG\r\n\x1a\n", json!({"body": "[binary content was left out: 8 bytes]"}))]
    fn a_body_is_text_or_a_note(#[case] content_type: &str, #[case] body: &[u8], #[case] expected: Value) {
        let mut content = of(content_type, body, false);
        let content = content.as_object_mut().unwrap();
        content.retain(|name, _| ["note", "body"].contains(&name.as_str()));
        assert_eq!(Value::from(content.clone()), expected);
    }

    #[test]
    fn a_cut_body_ends_with_a_whole_character() {
        let content = of("application/json", b"caf\xc3", true);
        assert_eq!((&content["body"], &content["truncated"]), (&json!("caf"), &json!(true)));
        assert_eq!(of("application/json", b"caf\xc3\xa9", false).get("truncated"), None);
    }

    #[test]
    fn cookies_are_not_joined() {
        let cookie = |value: &str| ("set-cookie".to_owned(), value.to_owned());
        let cookies = ["a=1; expires=Thu, 01 Jan 2026 00:00:00 GMT", "b=2", "c=3"];
        let of = |count| {
            output(OutboundResponse { headers: cookies[..count].iter().map(|c| cookie(c)).collect(), ..response(200) })
        };
        assert_eq!(of(1).content["headers"]["set-cookie"], json!(cookies[0]));
        assert_eq!(of(3).content["headers"]["set-cookie"], json!(cookies));
    }

    #[test]
    fn a_body_that_cannot_be_decoded_names_its_encoding() {
        let undecoded = Some("zstd".to_owned());
        let content = output(OutboundResponse { body: b"text".to_vec(), undecoded, ..response(200) }).content;
        assert_eq!(content["body"], "[content that cannot be decoded was left out: 4 bytes of zstd]");
    }

    #[test]
    fn a_slow_body_is_what_came_of_it() {
        let body_end = BodyEnd::TimedOut(std::time::Duration::from_secs(30));
        let output = output(OutboundResponse { body: b"half".to_vec(), body_end, ..response(200) });
        let expected = json!({
            "url": "https://a.example/", "status": 200, "headers": {},
            "note": "the response was not complete after 30 s", "truncated": true, "body": "half"
        });
        assert_eq!((output.content, output.truncated), (expected, true));
    }

    #[test]
    fn headers_are_joined_and_bounded() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let large = "x".repeat(MAX_HEADER_BYTES);
        let headers = vec![header("a", "1"), header("b", "2"), header("a", "3"), header("c", &large)];
        let output = output(OutboundResponse { headers, ..response(404) });
        assert!(!output.success);
        let expected = json!({
            "url": "https://a.example/", "status": 404, "headers": {"a": "1, 3", "b": "2"},
            "note": "1 headers were left out", "body": ""
        });
        assert_eq!(output.content, expected);
        assert_eq!(output.content.as_object().unwrap().keys().next_back().unwrap(), "body");
    }
}
