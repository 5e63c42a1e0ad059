//! What a job does now, in a few words, as its newest event tells. Pure.

use protocol::EventData;
use serde_json::Value;

/// Characters that a row of a list has room for.
const MAX_CHARS: usize = 120;
/// The arguments that say what a call is about, the most telling first.
const TELLING: [&str; 6] = ["command", "path", "url", "query", "title", "name"];

/// What the job does since an event; empty if it waits for its model, `None` if the event tells nothing about it.
pub fn activity_since(event: &EventData) -> Option<String> {
    match event {
        EventData::ToolUse { tool, input, .. } => {
            let telling = TELLING.iter().find_map(|name| input.get(name).and_then(Value::as_str));
            Some(telling.map_or_else(|| line(tool), |text| line(&format!("{tool}: {text}"))))
        }
        EventData::Status { message, .. } => Some(line(message)),
        EventData::ToolResult { .. } => Some(String::new()),
        _ => None,
    }
}

/// The beginning of a text on one line, without control characters.
fn line(text: &str) -> String {
    let mut characters = text.chars().map(|one| if one.is_control() { ' ' } else { one });
    let mut line: String = characters.by_ref().take(MAX_CHARS).collect();
    if characters.next().is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use protocol::{CallId, MessageRole};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn call(tool: &str, input: Value) -> EventData {
        EventData::ToolUse { call_id: CallId::from("c"), tool: tool.to_owned(), input, reasoning: None }
    }

    #[rstest]
    #[case("shell", json!({"timeout_seconds": 9, "command": "pytest\n-q"}), "shell: pytest -q")]
    #[case("write_file", json!({"content": "x", "path": "a.py"}), "write_file: a.py")]
    #[case("now", json!({}), "now")]
    #[case("echo", json!({"path": 3}), "echo")]
    #[case("shell", json!({"command": "x".repeat(200)}), &format!("shell: {}…", "x".repeat(113)))]
    fn a_call_is_named_with_what_it_is_about(#[case] tool: &str, #[case] input: Value, #[case] expected: &str) {
        assert_eq!(activity_since(&call(tool, input)).as_deref(), Some(expected));
    }

    #[test]
    fn a_message_tells_nothing() {
        let message = EventData::Message { role: MessageRole::Assistant, content: "hi".to_owned() };
        assert_eq!(activity_since(&message), None);
    }
}
