//! The answer of a tool of an MCP server as a tool's output. Pure.

use agent::ToolOutput;
use mcp::{Answer, AnswerPart};
use serde_json::Value;

/// Text is joined, structured content is JSON, and everything else is named, with its size if that is known.
pub(super) fn output(answer: Answer) -> ToolOutput {
    let Answer { parts, structured, is_error } = answer;
    let texts: Vec<String> = parts
        .into_iter()
        .map(|part| match part {
            AnswerPart::Text(text) => text,
            AnswerPart::Other { kind, media_type, bytes } => {
                let media_type = media_type.map(|name| format!(", {name}")).unwrap_or_default();
                let bytes = bytes.map(|bytes| format!(", {bytes} bytes")).unwrap_or_default();
                format!("[{kind}{media_type}{bytes}: not shown]")
            }
        })
        .collect();
    let text = texts.join("\n");
    let content = match structured {
        None => Value::String(text),
        Some(structured) if text.is_empty() || parsed(&text).as_ref() == Some(&structured) => {
            without_base64(structured)
        }
        Some(structured) if repeats(&structured, &texts, &text) => Value::String(text),
        Some(structured) => Value::String(format!("{text}\n{}", without_base64(structured))),
    };
    if is_error { ToolOutput::failure(content) } else { ToolOutput::success(content) }
}

fn parsed(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

/// Whether structured content says what the texts say. Servers repeat one in the other, for clients that know only one: the
/// libraries for Python as the only field of an object, others with the content itself in one.
fn repeats(structured: &Value, texts: &[String], text: &str) -> bool {
    let Some(fields) = structured.as_object().filter(|fields| fields.len() == 1) else { return false };
    fields.iter().all(|(name, value)| match value {
        Value::String(said) => said == text,
        Value::Array(items) => {
            let is_block = |item: &Value| match item["type"].as_str() {
                Some("text") => texts.iter().any(|text| item["text"].as_str() == Some(text)),
                kind => kind.is_some_and(|kind| BLOCKS.contains(&kind)),
            };
            let says =
                |(item, text): (&Value, &String)| item.as_str() == Some(text) || parsed(text).as_ref() == Some(item);
            let is_list = items.len() == texts.len() && items.iter().zip(texts).all(says);
            is_list
                || (name == "content" && !items.is_empty() && items.iter().all(is_block))
                || parsed(text).as_ref() == Some(value)
        }
        other => parsed(text).as_ref() == Some(other),
    })
}

/// The kinds of parts of the protocol that are no text.
const BLOCKS: [&str; 4] = ["image", "audio", "resource", "resource_link"];
/// Longer texts in the alphabet of base64 are files, unless they have only one kind of its characters, as sequences and
/// hexadecimal numbers have.
const MIN_BASE64_BYTES: usize = 1_024;

/// The value with the size of each file in it in place of the file.
fn without_base64(mut value: Value) -> Value {
    match &mut value {
        Value::String(text) => {
            let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_');
            let kinds = [u8::is_ascii_lowercase, u8::is_ascii_uppercase, u8::is_ascii_digit];
            let is_mixed = || kinds.iter().all(|is_kind| text.bytes().any(|byte| is_kind(&byte)));
            if text.len() >= MIN_BASE64_BYTES && text.bytes().all(is_base64) && is_mixed() {
                *text = format!("[{} characters of base64: not shown]", text.len());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_base64(item.take())),
        Value::Object(fields) => fields.values_mut().for_each(|field| *field = without_base64(field.take())),
        _ => {}
    }
    value
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn answer(texts: &[&str], structured: Option<Value>) -> Answer {
        let parts = texts.iter().map(|text| AnswerPart::Text((*text).to_owned())).collect();
        Answer { parts, structured, is_error: false }
    }

    #[test]
    fn texts_are_joined() {
        assert_eq!(output(answer(&["a", "b"], None)), ToolOutput::success("a\nb"));
        assert_eq!(output(answer(&[], None)), ToolOutput::success(""));
        let failed = Answer { is_error: true, ..answer(&["no"], None) };
        assert_eq!(output(failed), ToolOutput::failure("no"));
    }

    #[test]
    fn structured_content_is_shown_once() {
        let value = json!({"a": 1});
        assert_eq!(output(answer(&[], Some(value.clone()))), ToolOutput::success(value.clone()));
        assert_eq!(output(answer(&["{ \"a\": 1 }"], Some(value.clone()))), ToolOutput::success(value.clone()));
        assert_eq!(output(answer(&["one"], Some(value))), ToolOutput::success("one\n{\"a\":1}"));
    }

    #[rstest]
    #[case::fastmcp_text(&["text 3"], json!({"result": "text 3"}), "text 3")]
    #[case::fastmcp_list(&["a", "b"], json!({"result": ["a", "b"]}), "a\nb")]
    #[case::fastmcp_number(&["3"], json!({"result": 3}), "3")]
    #[case::objects(&["{\"a\":1}", "{\"a\":2}"], json!({"result": [{"a": 1}, {"a": 2}]}), "{\"a\":1}\n{\"a\":2}")]
    #[case::filesystem(&["line"], json!({"content": "line"}), "line")]
    #[case::blocks(&["[image: not shown]"], json!({"content": [{"type": "image", "data": "aaaa"}]}), "[image: not shown]")]
    #[case::other_blocks(&["2 found"], json!({"content": [{"type": "paragraph"}]}), "2 found\n{\"content\":[{\"type\":\"paragraph\"}]}")]
    #[case::summary(&["2 found"], json!({"result": ["a", "b"]}), "2 found\n{\"result\":[\"a\",\"b\"]}")]
    #[case::two_fields(&["a"], json!({"result": "a", "next": 2}), "a\n{\"result\":\"a\",\"next\":2}")]
    fn structured_content_that_repeats_the_text_is_left_out(
        #[case] texts: &[&str],
        #[case] structured: Value,
        #[case] expected: &str,
    ) {
        assert_eq!(output(answer(texts, Some(structured))), ToolOutput::success(expected));
    }

    #[test]
    fn a_file_in_structured_content_is_not_shown() {
        let (file, sequence) = ("QUJ1".to_owned() + &"QUJD1a".repeat(200), "ACGT".repeat(300));
        let value = json!({"name": "a.png", "data": [file], "dna": sequence});
        let shown = json!({"name": "a.png", "data": ["[1204 characters of base64: not shown]"], "dna": sequence});
        assert_eq!(output(answer(&[], Some(value))), ToolOutput::success(shown));
    }

    #[test]
    fn other_content_is_named_with_its_size() {
        let image =
            AnswerPart::Other { kind: "image".to_owned(), media_type: Some("image/png".to_owned()), bytes: Some(7) };
        let blob = AnswerPart::Other { kind: "resource".to_owned(), media_type: None, bytes: Some(9) };
        let video = AnswerPart::Other { kind: "video".to_owned(), media_type: None, bytes: None };
        let answer = Answer { parts: vec![image, blob, video], structured: None, is_error: false };
        let expected = "[image, image/png, 7 bytes: not shown]\n[resource, 9 bytes: not shown]\n[video: not shown]";
        assert_eq!(output(answer).content, expected);
    }
}
