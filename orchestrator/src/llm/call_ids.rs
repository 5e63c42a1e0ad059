//! Makes the ids of tool calls unique before an answer is recorded.
//!
//! Owns that an id names one call of its conversation. Servers that number the calls of each reply, and those that give no
//! ids, would otherwise name many calls alike. An id that is unique is left as the provider gave it.

use std::collections::HashSet;

use protocol::{CallId, Message, ToolCall};

/// The longest id that the worker API takes.
const MAX_ID_BYTES: usize = 200;

/// Replaces missing, overlong and repeated ids.
pub(super) fn make_unique(conversation: &[Message], calls: &mut [ToolCall]) {
    if calls.is_empty() {
        return;
    }
    let of_message = |message: &Message| match message {
        Message::Assistant { tool_calls, .. } => tool_calls.iter().map(|call| call.id.clone()).collect(),
        Message::System { .. } | Message::User { .. } | Message::Tool { .. } => Vec::new(),
    };
    let mut taken: HashSet<String> = conversation.iter().flat_map(of_message).collect();
    for call in calls {
        let is_usable = !call.id.is_empty() && call.id.len() <= MAX_ID_BYTES;
        if !is_usable || taken.contains(&call.id) {
            call.id = format!("call_{}", CallId::generate());
        }
        taken.insert(call.id.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str) -> ToolCall {
        ToolCall { id: id.to_owned(), name: "echo".to_owned(), arguments: json!({}), thought_signatures: vec![] }
    }

    fn named(earlier: &[&str], given: &[&str]) -> Vec<String> {
        let tool_calls = earlier.iter().map(|id| call(id)).collect();
        let conversation = [Message::Assistant { content: String::new(), tool_calls, reasoning: None }];
        let mut calls: Vec<ToolCall> = given.iter().map(|id| call(id)).collect();
        make_unique(&conversation, &mut calls);
        calls.into_iter().map(|call| call.id).collect()
    }

    #[test]
    fn ids_that_name_one_call_stay_as_they_are() {
        assert_eq!(named(&["call_0"], &["call_1", "toolu_01"]), ["call_1", "toolu_01"]);
    }

    #[test]
    fn others_are_replaced() {
        let long = "x".repeat(MAX_ID_BYTES + 1);
        let ids = named(&["call_0"], &["call_0", "a", "a", "", "", &long]);
        assert_eq!(ids[1], "a");
        let unique: HashSet<&String> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "{ids:?}");
        assert!(!unique.contains(&"call_0".to_owned()) && ids.iter().all(|id| (1..=MAX_ID_BYTES).contains(&id.len())));
    }
}
