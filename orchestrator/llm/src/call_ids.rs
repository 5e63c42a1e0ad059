//! Makes the ids of tool calls unique before an answer is recorded.
//!
//! Guarantees that an id names one call of its job. Servers that number the calls of each reply, and those that give no
//! ids, would otherwise name many calls alike. An id that is unique is left as the provider gave it.

use std::collections::HashSet;

use protocol::{CallId, Message, ToolCall, limits::MAX_CALL_ID_BYTES};

/// Ids of this length and more are taken to be random: those of providers that make random ones have 24 characters and
/// more after a prefix. Shorter ones (`call_0`) may have been used by messages that the conversation no longer has.
const MIN_RANDOM_ID_BYTES: usize = 24;

/// Whether any of the ids may be that of an earlier call of the job.
pub(super) fn may_repeat(calls: &[ToolCall]) -> bool {
    calls.iter().any(|call| call.id.len() < MIN_RANDOM_ID_BYTES)
}

/// Replaces missing and overlong ids and those that `conversation` or `used` has.
pub(super) fn make_unique(conversation: &[Message], used: HashSet<String>, calls: &mut [ToolCall]) {
    let mut taken = used;
    for message in conversation {
        if let Message::Assistant { tool_calls, .. } = message {
            taken.extend(tool_calls.iter().map(|call| call.id.clone()));
        }
    }
    for call in calls {
        let is_usable = !call.id.is_empty() && call.id.len() <= MAX_CALL_ID_BYTES;
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
        ToolCall { id: id.to_owned(), name: "echo".to_owned(), arguments: json!({}) }
    }

    fn renamed(earlier: &[&str], used: &[&str], given: &[&str]) -> Vec<String> {
        let tool_calls = earlier.iter().map(|id| call(id)).collect();
        let conversation = [Message::Assistant { content: String::new(), tool_calls, native: None }];
        let mut calls: Vec<ToolCall> = given.iter().map(|id| call(id)).collect();
        make_unique(&conversation, used.iter().map(|id| (*id).to_owned()).collect(), &mut calls);
        calls.into_iter().map(|call| call.id).collect()
    }

    #[test]
    fn ids_that_name_one_call_stay_as_they_are() {
        assert_eq!(renamed(&["call_0"], &["call_2"], &["call_1", "toolu_01"]), ["call_1", "toolu_01"]);
    }

    #[test]
    fn others_are_replaced() {
        let long = "x".repeat(MAX_CALL_ID_BYTES + 1);
        let ids = renamed(&["call_0"], &["call_1"], &["call_0", "call_1", "a", "a", "", "", &long]);
        assert_eq!(ids[2], "a");
        let unique: HashSet<&String> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "{ids:?}");
        assert!(ids.iter().all(|id| id != "call_0" && id != "call_1"), "{ids:?}");
        assert!(ids.iter().all(|id| (1..=MAX_CALL_ID_BYTES).contains(&id.len())));
    }

    #[test]
    fn only_short_ids_are_looked_up() {
        let is_looked_up = |id: &str| may_repeat(&[call("toolu_01A09q90qw90lq917835lq9"), call(id)]);
        assert!(is_looked_up("call_0") && is_looked_up("") && is_looked_up("9aB3xY7qR"));
        assert!(!is_looked_up("call_ndKtw0yA1GxTlBqoVtT2mHfz") && !may_repeat(&[]));
    }
}
