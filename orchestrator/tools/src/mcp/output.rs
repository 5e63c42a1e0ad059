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
        // Servers repeat structured content as text, for clients that do not know it.
        Some(structured)
            if text.is_empty() || serde_json::from_str::<Value>(&text).ok().as_ref() == Some(&structured) =>
        {
            structured
        }
        Some(structured) => Value::String(format!("{text}\n{structured}")),
    };
    if is_error { ToolOutput::failure(content) } else { ToolOutput::success(content) }
}

#[cfg(test)]
mod tests {
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
