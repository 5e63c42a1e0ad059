//! Rebuilds what a model call was sent from the events around it. Pure.
//!
//! Owns where a call stands among the events: those that its answer led to come after it. A summary takes the place of the
//! messages that it stands for. Never invents what is not recorded: the agent's instructions, the definitions of tools.

use agent::{
    safety::{DelimiterNonce, wrap_untrusted},
    start_attempt, summarised_messages,
};
use protocol::{EventData, Message, MessageRole};

use super::rebuild;

/// The events around a call.
#[derive(Debug, Default)]
pub struct EventsAroundCall {
    /// The conversation before the call was recorded, each event with its attempt.
    pub before: Vec<(u32, EventData)>,
    /// The first events of the conversation after that.
    pub after: Vec<EventData>,
    /// Whether the call has an answer with a text or tool calls.
    pub has_answer: bool,
}

/// The messages that the model was sent in this attempt, without the instructions in front; `None` if the call was for a
/// summary, whose request is not a part of the conversation. `prompt` and `nonce` are the job's.
pub fn request_messages(
    around: EventsAroundCall,
    attempt: u32,
    prompt: &str,
    nonce: Option<DelimiterNonce>,
) -> Option<Vec<Message>> {
    let EventsAroundCall { before, after, has_answer } = around;
    // A summary is recorded right after the call for it. Another call has events of its answer in between.
    let next = after.iter().find(|event| !matches!(event, EventData::ToolResult { .. }));
    if has_answer && next.is_some_and(|event| summary(event).is_some()) {
        return None;
    }
    let (earlier, mut current): (Vec<_>, Vec<_>) = before.into_iter().partition(|(of, _)| *of < attempt);
    // A worker sends its events a little later than they happen.
    let late = after.into_iter().take_while(|event| is_of_request(event, has_answer));
    current.extend(late.map(|event| (attempt, event)));
    let recorded = rebuild(earlier.into_iter().map(|(_, event)| event), &[]);
    let mut current = current.into_iter().map(|(_, event)| event);
    let (first, mut next_summary) = until_summary(&mut current);
    let first = rebuild(first, &[]);
    let (begun, rest) = if recorded.is_empty() { (first, vec![]) } else { (recorded, first) };
    let (transcript, _) = start_attempt(String::new(), prompt, &begun, nonce);
    let mut messages: Vec<Message> = transcript.messages().iter().skip(1).cloned().chain(rest).collect();
    while let Some((count, content)) = next_summary {
        let end = count.saturating_add(1).min(messages.len());
        messages.splice(1..end.max(1), [Message::User { content }]);
        let (events, following) = until_summary(&mut current);
        messages.extend(rebuild(events, &[]));
        next_summary = following;
    }
    for message in &mut messages {
        if let Message::Tool { name, content, .. } = message {
            *content = wrap_untrusted(&format!("tool:{name}"), content, transcript.nonce());
        }
    }
    Some(messages)
}

/// The number of messages that a summary stands for, and its text.
fn summary(event: &EventData) -> Option<(usize, &str)> {
    match event {
        EventData::Message { role: MessageRole::System, content } => {
            summarised_messages(content).map(|count| (count, content.as_str()))
        }
        _ => None,
    }
}

/// The events up to the next summary, and that.
fn until_summary(events: &mut impl Iterator<Item = EventData>) -> (Vec<EventData>, Option<(usize, String)>) {
    let mut before = vec![];
    for event in events {
        if let Some((count, content)) = summary(&event) {
            return (before, Some((count, content.to_owned())));
        }
        before.push(event);
    }
    (before, None)
}

/// Whether an event that was stored after a call belongs to its request. The events of its answer do not, nor what comes
/// after them.
fn is_of_request(event: &EventData, has_answer: bool) -> bool {
    match event {
        EventData::ToolResult { .. } => true,
        EventData::Message { role: MessageRole::User | MessageRole::System, .. } => has_answer,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use protocol::CallId;
    use serde_json::json;

    use super::*;

    fn message(role: MessageRole, content: &str) -> EventData {
        EventData::Message { role, content: content.to_owned() }
    }

    fn user(content: &str) -> EventData {
        message(MessageRole::User, content)
    }

    fn says(content: &str) -> EventData {
        message(MessageRole::Assistant, content)
    }

    fn summary_of(count: usize) -> EventData {
        let text = format!("Summary of the work so far ({count} older messages were left out):\n\nshort");
        message(MessageRole::System, &text)
    }

    fn used(id: &str) -> EventData {
        EventData::ToolUse { call_id: CallId(id.into()), tool: "t".into(), input: json!({}), reasoning: None }
    }

    fn result(id: &str) -> EventData {
        let (call_id, tool, output) = (CallId(id.to_owned()), "t".to_owned(), format!("of {id}"));
        EventData::ToolResult { call_id, tool, success: true, output, truncated: false, duration_ms: 1 }
    }

    fn around(before: &[(u32, EventData)], after: Vec<EventData>) -> EventsAroundCall {
        EventsAroundCall { before: before.to_vec(), after, has_answer: true }
    }

    /// One text for each message; the result of a tool without its markers.
    fn shown(around: EventsAroundCall, attempt: u32) -> Vec<String> {
        let messages = request_messages(around, attempt, "do it", None).expect("not a summary");
        let text = |message: &Message| match message {
            Message::System { content } => format!("system {content}"),
            Message::User { content } => content.clone(),
            Message::Assistant { content, tool_calls, .. } => {
                let ids: Vec<_> = tool_calls.iter().map(|call| call.id.as_str()).collect();
                format!("reply {content}{}", ids.join("+"))
            }
            Message::Tool { content, .. } => {
                let text = agent::safety::unwrap_untrusted(content);
                assert_ne!(text, content, "it has no markers");
                text.trim().to_owned()
            }
        };
        messages.iter().map(text).collect()
    }

    #[test]
    fn a_request_has_what_was_recorded_before_its_answer() {
        let before = [(1, user("do it")), (1, used("a"))];
        // Stored after the call, since the worker was slow.
        let late = vec![result("a"), user("faster"), says("ok"), used("b"), result("b")];
        assert_eq!(shown(around(&before, late.clone()), 1), ["do it", "reply a", "of a", "faster"]);
        // A reply without anything in it leaves no event; what follows it belongs to the next request.
        let without_answer = EventsAroundCall { has_answer: false, ..around(&before, late) };
        assert_eq!(shown(without_answer, 1), ["do it", "reply a", "of a"]);
        assert_eq!(shown(around(&[], vec![]), 1), ["do it"]);
    }

    #[test]
    fn a_later_attempt_reads_that_the_result_of_an_open_call_is_not_known() {
        let before = [(1, user("do it")), (1, used("a")), (2, used("b")), (2, result("b"))];
        let shown = shown(around(&before, vec![]), 2);
        assert!(shown[2].contains("ended before this call's result was known"), "{shown:?}");
        assert_eq!([&shown[0], &shown[1], &shown[3], &shown[4]], ["do it", "reply a", "reply b", "of b"]);
    }

    #[test]
    fn a_summary_stands_in_place_of_what_it_sums_up() {
        let mut before = vec![(1, user("do it"))];
        for id in ["a", "b"] {
            before.extend([(1, used(id)), (1, result(id))]);
        }
        let asks = around(&before, vec![summary_of(2)]);
        assert_eq!(request_messages(asks, 1, "do it", None), None, "the call for a summary");
        before.extend([(1, summary_of(2)), (1, says("go")), (1, user("on"))]);
        let one = shown(around(&before, vec![]), 1);
        assert!(one[1].starts_with("Summary"), "{one:?}");
        assert_eq!(
            (one[0].as_str(), &one[2..]),
            ("do it", &["reply b", "of b", "reply go", "on"].map(str::to_owned)[..])
        );
        // The next one stands for the first one, too.
        before.push((1, summary_of(4)));
        let two = shown(around(&before, vec![]), 1);
        assert_eq!((two.len(), two[2].as_str()), (3, "on"));
    }
}
