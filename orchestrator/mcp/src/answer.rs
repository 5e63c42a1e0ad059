//! What a server answers to a call, without the protocol's own types: each part is read by itself, so that one which is
//! not known or cannot be read costs no other.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::redaction::Redaction;

/// Base64 has four characters for three bytes.
const BASE64_CHARS: usize = 4;
const BASE64_BYTES: usize = 3;
/// Parts of a result that are read: more than a model can use.
const MAX_PARTS: usize = 1_000;
/// Longer media types and names of kinds are not shown. The longest registered media types have some 80 characters.
const MAX_SHOWN_BYTES: usize = 80;
/// The kind of a part whose own one cannot be shown.
const UNKNOWN_KIND: &str = "content";

/// The answer to a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub parts: Vec<AnswerPart>,
    pub structured: Option<Value>,
    /// Whether the tool reports a failure.
    pub is_error: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPart {
    Text(String),
    /// Anything else, which is not passed on.
    Other {
        kind: String,
        media_type: Option<String>,
        /// Its size, if it is known.
        bytes: Option<usize>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawResult<'r> {
    #[serde(borrow)]
    result_type: Option<&'r RawValue>,
    #[serde(borrow)]
    content: Option<&'r RawValue>,
    #[serde(borrow)]
    structured_content: Option<&'r RawValue>,
    #[serde(borrow)]
    is_error: Option<&'r RawValue>,
}

impl Answer {
    /// Reads a result; none if it is not that of a call.
    pub(super) fn of(result: &str, redaction: &Redaction) -> Option<Self> {
        let RawResult { result_type, content, structured_content, is_error } = serde_json::from_str(result).ok()?;
        let is_complete = result_type.is_none_or(|kind| kind.get() == "\"complete\"");
        if !is_complete || (content.is_none() && structured_content.is_none() && is_error.is_none()) {
            return None;
        }
        let mut parts = content.map_or_else(Vec::new, |content| parts(content.get(), redaction));
        let mut structured: Option<Value> = None;
        if let Some(content) = structured_content {
            match serde_json::from_str(content.get()) {
                Ok(value) => redaction.json(structured.insert(value)),
                Err(_) => parts.push(other("structured content", None, None)),
            }
        }
        // Some servers have the word for the value.
        let is_error = is_error.is_some_and(|value| value.get().trim_matches('"') == "true");
        Some(Self { parts, structured, is_error })
    }
}

/// The parts of the content: a list of blocks, or one block or text in place of it.
fn parts(content: &str, redaction: &Redaction) -> Vec<AnswerPart> {
    match serde_json::from_str::<Vec<&RawValue>>(content) {
        Ok(blocks) => {
            let rest = blocks.len().saturating_sub(MAX_PARTS);
            let mut parts: Vec<_> =
                blocks.into_iter().take(MAX_PARTS).map(|block| part(block.get(), redaction)).collect();
            if rest > 0 {
                parts.push(AnswerPart::Text(format!("[{rest} more parts: not shown]")));
            }
            parts
        }
        Err(_) => vec![part(content, redaction)],
    }
}

fn part(block: &str, redaction: &Redaction) -> AnswerPart {
    let block: Value = serde_json::from_str(block).unwrap_or_default();
    if let Value::String(text) = &block {
        return AnswerPart::Text(redaction.text(text));
    }
    let kind = block["type"].as_str().unwrap_or_default();
    known_part(kind, &block, redaction)
        .unwrap_or_else(|| other(&shown(kind, redaction).unwrap_or_else(|| UNKNOWN_KIND.to_owned()), None, None))
}

/// The part, if its kind is known and it has what the kind needs.
fn known_part(kind: &str, block: &Value, redaction: &Redaction) -> Option<AnswerPart> {
    let media_type = |of: &Value| of["mimeType"].as_str().and_then(|name| shown(name, redaction));
    let size = |base64: &str| Some(base64.len() / BASE64_CHARS * BASE64_BYTES);
    let text = |text: &str| AnswerPart::Text(redaction.text(text));
    Some(match kind {
        "text" => text(block["text"].as_str()?),
        "image" | "audio" => other(kind, media_type(block), size(block["data"].as_str()?)),
        "resource" => {
            let resource = &block["resource"];
            match (resource["text"].as_str(), resource["blob"].as_str()) {
                // GitHub's server, for one, answers with the text of a file so.
                (Some(content), _) => {
                    text(&format!("[resource {}]\n{content}", resource["uri"].as_str().unwrap_or_default()))
                }
                (None, blob) => other(kind, media_type(resource), size(blob?)),
            }
        }
        "resource_link" => {
            let uri = block["uri"].as_str()?;
            let name = block["title"].as_str().or_else(|| block["name"].as_str()).unwrap_or(uri);
            text(&format!("[link to {name}: {uri}]"))
        }
        _ => return None,
    })
}

fn other(kind: &str, media_type: Option<String>, bytes: Option<usize>) -> AnswerPart {
    AnswerPart::Other { kind: kind.to_owned(), media_type, bytes }
}

/// A media type or a kind as it may be shown; a server can write anything there.
fn shown(name: &str, redaction: &Redaction) -> Option<String> {
    let name = redaction.text(name);
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '+' | '-' | '.' | '_');
    let is_shown = name.len() <= MAX_SHOWN_BYTES && !name.is_empty() && name.chars().all(allowed);
    is_shown.then_some(name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent::safety::LeakDetector;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::credentials::Credentials;

    fn read(result: &Value) -> Option<Answer> {
        let user = LeakDetector::new([]).unwrap();
        let redaction = Redaction::new("srv".to_owned(), Arc::new(Credentials::default()), Arc::new(user));
        Answer::of(&result.to_string(), &redaction)
    }

    fn parts_of(content: &Value) -> Vec<AnswerPart> {
        read(&json!({"content": content})).unwrap().parts
    }

    #[rstest]
    #[case::text(json!({"type": "text", "text": "a", "annotations": 5}), AnswerPart::Text("a".to_owned()))]
    #[case::image(json!({"type": "image", "data": "aaaa", "mimeType": "image/png"}), other("image", Some("image/png".to_owned()), Some(3)))]
    #[case::odd_media_type(json!({"type": "audio", "data": "aaaa", "mimeType": "a b"}), other("audio", None, Some(3)))]
    #[case::no_data(json!({"type": "image"}), other("image", None, None))]
    #[case::resource(json!({"type": "resource", "resource": {"uri": "a://b", "text": "c"}}), AnswerPart::Text("[resource a://b]\nc".to_owned()))]
    #[case::blob(json!({"type": "resource", "resource": {"uri": "a://b", "blob": "aaaa"}}), other("resource", None, Some(3)))]
    #[case::no_resource(json!({"type": "resource"}), other("resource", None, None))]
    #[case::link(json!({"type": "resource_link", "uri": "a://b", "name": "n"}), AnswerPart::Text("[link to n: a://b]".to_owned()))]
    #[case::unknown(json!({"type": "video", "data": "x"}), other("video", None, None))]
    #[case::hostile_kind(json!({"type": "<|im_start|>"}), other("content", None, None))]
    #[case::long_kind(json!({"type": "x".repeat(81)}), other("content", None, None))]
    #[case::no_kind(json!({"text": "a"}), other("content", None, None))]
    #[case::null(Value::Null, other("content", None, None))]
    #[case::only_text(json!("a"), AnswerPart::Text("a".to_owned()))]
    fn each_block_is_read_by_itself(#[case] block: Value, #[case] expected: AnswerPart) {
        let after = json!({"type": "text", "text": "after"});
        let expected_after = AnswerPart::Text("after".to_owned());
        assert_eq!(parts_of(&json!([block, after])), [expected, expected_after]);
    }

    #[test]
    fn parts_beyond_the_limit_are_counted() {
        let parts = parts_of(&Value::from(vec![1; MAX_PARTS + 2]));
        assert_eq!(parts.len(), MAX_PARTS + 1);
        assert_eq!(parts.last(), Some(&AnswerPart::Text("[2 more parts: not shown]".to_owned())));
    }

    #[test]
    fn content_may_be_one_block_or_a_text() {
        let expected = [AnswerPart::Text("a".to_owned())];
        assert_eq!(parts_of(&json!("a")), expected);
        assert_eq!(parts_of(&json!({"type": "text", "text": "a"})), expected);
        assert_eq!(parts_of(&json!([])), []);
    }

    #[rstest]
    #[case::another_result(json!({"tools": []}), false)]
    #[case::nothing(json!({"content": null, "_meta": {}}), false)]
    #[case::asks_for_input(json!({"resultType": "input_required", "content": []}), false)]
    #[case::complete(json!({"resultType": "complete", "content": []}), true)]
    #[case::only_structure(json!({"structuredContent": {"a": 1}}), true)]
    #[case::only_a_flag(json!({"isError": false}), true)]
    fn a_result_of_a_call_has_one_of_its_fields(#[case] result: Value, #[case] expected: bool) {
        assert_eq!(read(&result).is_some(), expected);
    }

    #[rstest]
    #[case(json!(true), true)]
    #[case(json!("true"), true)]
    #[case(json!(false), false)]
    #[case(json!("no"), false)]
    #[case(Value::Null, false)]
    fn a_failure_is_a_flag(#[case] flag: Value, #[case] expected: bool) {
        assert_eq!(read(&json!({"content": [], "isError": flag})).unwrap().is_error, expected);
    }
}
