//! Rebuilds a conversation from recorded events and answers, for the attempt that continues it. Pure.
//!
//! The events define the order. A recorded answer restores a call as the model made it, without what only its provider
//! reads, which is valid behind the same beginning only. Messages of the loop are in the events as system messages. Never invents a result: a call
//! without one stays open, and the loop reports that its result is unknown.

pub mod request;

use std::collections::HashMap;

use protocol::{Completion, EventData, Message, MessageRole, ToolCall};
use serde_json::Value;

/// The conversation; empty without events. `answers` are the model's answers in order.
///
/// A worker may die after the model's answer and before the events of its calls, and those calls may have been
/// executed. Calls of the last answer that are in no event become open calls here, so that they are not executed again.
/// A worker stores the events of calls that are in no answer (written as text, or steps of a plan) before it executes
/// them.
pub fn rebuild(events: impl IntoIterator<Item = EventData>, answers: &[Completion]) -> Vec<Message> {
    let made: HashMap<&str, &ToolCall> =
        answers.iter().flat_map(|answer| &answer.tool_calls).map(|call| (call.id.as_str(), call)).collect();
    let mut unreported = answers.last().filter(|answer| !answer.tool_calls.is_empty());
    let mut messages: Vec<Message> = vec![];
    for event in events {
        match event {
            EventData::Message { role: MessageRole::Assistant, content } => {
                messages.push(Message::Assistant { content, tool_calls: vec![], native: None });
            }
            EventData::Message { role: MessageRole::User | MessageRole::System, content } => {
                messages.push(Message::User { content });
            }
            EventData::ToolUse { call_id, tool, input, .. } => {
                let call = made.get(call_id.as_str()).filter(|call| call.name == tool).copied().cloned();
                unreported =
                    unreported.filter(|answer| answer.tool_calls.iter().all(|call| call.id != call_id.as_str()));
                add_call(&mut messages, call.unwrap_or_else(|| from_event(call_id.0, tool, input)));
            }
            EventData::ToolResult { call_id, tool, output, .. } => {
                messages.push(Message::Tool { tool_call_id: call_id.0, name: tool, content: output });
            }
            _ => {}
        }
    }
    for call in unreported.iter().flat_map(|answer| &answer.tool_calls) {
        add_call(&mut messages, call.clone());
    }
    messages
}

/// Adds a call to the last answer, or to a new one if results came since.
fn add_call(messages: &mut Vec<Message>, call: ToolCall) {
    if let Some(Message::Assistant { tool_calls, .. }) = messages.last_mut() {
        tool_calls.push(call);
    } else {
        messages.push(Message::Assistant { content: String::new(), tool_calls: vec![call], native: None });
    }
}

/// The call according to its event: with redacted parameters.
fn from_event(id: String, name: String, arguments: Value) -> ToolCall {
    ToolCall { id, name, arguments }
}

#[cfg(test)]
mod tests {
    use protocol::{FinishReason, TokenUsage};
    use serde_json::json;

    use super::*;

    fn message(role: MessageRole, content: &str) -> EventData {
        EventData::Message { role, content: content.to_owned() }
    }

    fn used(id: &str) -> EventData {
        EventData::ToolUse {
            call_id: protocol::CallId(id.into()),
            tool: "echo".into(),
            input: json!({"message": id}),
            reasoning: None,
        }
    }

    fn result(id: &str) -> EventData {
        let (call_id, tool) = (protocol::CallId(id.to_owned()), "echo".to_owned());
        EventData::ToolResult { call_id, tool, success: true, output: id.into(), truncated: false, duration_ms: 1 }
    }

    fn call(id: &str) -> ToolCall {
        ToolCall { id: id.into(), name: "echo".into(), arguments: json!({"message": id}) }
    }

    fn answer(id: &str) -> Message {
        Message::Tool { tool_call_id: id.into(), name: "echo".into(), content: id.into() }
    }

    #[test]
    fn a_conversation_survives_the_round_trip() {
        let events = [
            message(MessageRole::User, "do it"),
            EventData::LlmCall {
                model: "m".into(),
                provider: "p".into(),
                input_tokens: 1,
                output_tokens: 1,
                cost_usd: Some(0.0),
                duration_ms: 1,
                finish_reason: "tool_calls".into(),
            },
            message(MessageRole::Assistant, "two at once"),
            used("a"),
            used("b"),
            result("a"),
            result("b"),
            used("c"),
            result("c"),
            message(MessageRole::System, "go on"),
            message(MessageRole::User, "faster"),
            used("d"),
        ];
        let answers = [answered(vec![call("a")]), answered(vec![])];
        let assistant =
            |content: &str, tool_calls| Message::Assistant { content: content.into(), tool_calls, native: None };
        assert_eq!(
            rebuild(events, &answers),
            [
                Message::User { content: "do it".into() },
                assistant("two at once", vec![call("a"), call("b")]),
                answer("a"),
                answer("b"),
                assistant("", vec![call("c")]),
                answer("c"),
                Message::User { content: "go on".into() },
                Message::User { content: "faster".into() },
                assistant("", vec![call("d")]),
            ]
        );
    }

    fn answered(tool_calls: Vec<ToolCall>) -> Completion {
        let (content, finish_reason) = (String::new(), FinishReason::ToolCalls);
        Completion {
            content,
            tool_calls,
            reasoning: None,
            native: None,
            finish_reason,
            usage: TokenUsage::default(),
            notice: None,
            text_tool_calls: None,
        }
    }

    #[test]
    fn calls_that_may_have_run_unrecorded_are_open_and_not_requested_again() {
        let events = || [message(MessageRole::User, "do it"), used("a"), result("a")];
        let answers = [answered(vec![call("a")]), answered(vec![call("b"), call("c")])];
        let messages = rebuild(events(), &answers);
        let open = Message::Assistant { content: String::new(), tool_calls: vec![call("b"), call("c")], native: None };
        assert_eq!(messages.last(), Some(&open));
        assert_eq!(rebuild(events(), &answers[..1]).len(), 3, "reported calls appear once");
    }

    #[test]
    fn a_conversation_without_messages_is_empty() {
        assert_eq!(rebuild([EventData::Status { message: "s".into(), iteration: 1 }], &[]), []);
    }
}
