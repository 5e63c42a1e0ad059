//! The size of events: one that is too large to be stored is shortened.
//!
//! Pure. An event keeps its kind, unless its structure alone is too large.

use protocol::{
    AgentEvent,
    limits::{MAX_EVENT_BYTES, MAX_MESSAGE_EVENT_BYTES},
};
use serde_json::Value;

use crate::elide;

/// The maximum size of an event. Messages have a higher limit because a resumed attempt reads them.
const fn max_event_bytes(event: &AgentEvent) -> usize {
    match event {
        AgentEvent::Message { .. } => MAX_MESSAGE_EVENT_BYTES,
        _ => MAX_EVENT_BYTES,
    }
}

/// The size of an event in JSON.
pub fn event_bytes(event: &AgentEvent) -> usize {
    serde_json::to_vec(event).map_or(0, |json| json.len())
}

/// Shortens the event's texts until it has the size that is stored, and returns its size. Sets `truncated` on tool
/// results.
pub fn shortened_event(event: AgentEvent) -> (AgentEvent, usize) {
    let max_bytes = max_event_bytes(&event);
    let bytes = event_bytes(&event);
    if bytes <= max_bytes {
        return (event, bytes);
    }
    let kind = event.kind().as_str();
    let Ok(mut value) = serde_json::to_value(event) else {
        return (
            AgentEvent::Status { message: format!("an event of kind {kind} could not be serialised"), iteration: 0 },
            0,
        );
    };
    let bytes = shorten_to_fit(&mut value, max_bytes);
    if let Some(truncated) = value.pointer_mut("/data/truncated") {
        *truncated = Value::Bool(true);
    }
    match serde_json::from_value(value) {
        Ok(event) if bytes <= max_bytes => {
            let bytes = event_bytes(&event);
            (event, bytes)
        }
        // Too large because of its structure, not its texts: a note takes its number.
        _ => {
            let message = format!("an event of kind {kind} was too large and was dropped");
            let note = AgentEvent::Status { message, iteration: 0 };
            let bytes = event_bytes(&note);
            (note, bytes)
        }
    }
}

/// Shortens the longest texts of `value` until its JSON has at most `max_bytes`, if possible. Returns the final size.
pub(crate) fn shorten_to_fit(value: &mut Value, max_bytes: usize) -> usize {
    let mut bytes = value.to_string().len();
    let mut text_bytes = max_bytes / 2;
    while bytes > max_bytes && text_bytes > 16 {
        shorten_texts(value, text_bytes);
        bytes = value.to_string().len();
        text_bytes /= 2;
    }
    bytes
}

fn shorten_texts(value: &mut Value, text_bytes: usize) {
    match value {
        Value::String(text) if text.len() > text_bytes => {
            *text = elide(text, text_bytes);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shorten_texts(item, text_bytes)),
        Value::Object(fields) => fields.values_mut().for_each(|field| shorten_texts(field, text_bytes)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use protocol::{CallId, MessageRole};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn result(output: String) -> AgentEvent {
        let (call_id, tool) = (CallId("c".to_owned()), "shell".to_owned());
        AgentEvent::ToolResult { call_id, tool, success: true, output, truncated: false, duration_ms: 1 }
    }

    #[rstest]
    #[case::message(AgentEvent::Message { role: MessageRole::Assistant, content: "ü".repeat(900_000) })]
    #[case::escapes(AgentEvent::Reasoning { content: "\u{1}\"\n".repeat(300_000) })]
    #[case::result(result("x".repeat(5_000_000)))]
    #[case::nested(AgentEvent::ToolUse { call_id: CallId("c".into()), tool: "write_file".into(), input: json!({"a": [{"b": "y".repeat(900_000)}]}), reasoning: None })]
    fn an_event_that_is_too_large_is_truncated_and_keeps_its_kind(#[case] event: AgentEvent) {
        let (cut, bytes) = shortened_event(event.clone());
        assert!(bytes <= max_event_bytes(&event));
        assert_eq!(event_bytes(&cut), bytes);
        assert_eq!(cut.kind(), event.kind());
        if let AgentEvent::ToolResult { truncated, .. } = cut {
            assert!(truncated);
        }
    }

    #[test]
    fn an_event_with_too_much_structure_is_replaced_by_a_note() {
        let input = json!(vec![1; 300_000]);
        let event = AgentEvent::ToolUse { call_id: CallId("c".into()), tool: "t".into(), input, reasoning: None };
        assert!(matches!(shortened_event(event).0, AgentEvent::Status { .. }));
    }

    #[test]
    fn the_largest_prompt_is_recorded_whole() {
        let content = "\"\n".repeat(protocol::limits::MAX_PROMPT_BYTES / 2);
        let event = AgentEvent::Message { role: MessageRole::User, content };
        assert_eq!(shortened_event(event.clone()).0, event);
    }

    #[test]
    fn an_event_that_fits_is_unchanged() {
        assert_eq!(shortened_event(result("short".into())).0, result("short".into()));
    }
}
