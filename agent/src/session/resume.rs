//! The initial transcript of a job's attempt: the job's prompt, or the transcript of an earlier attempt.
//!
//! Pure. The prompt of a resumed attempt is always the job's own: recorded, it may be truncated or without its secrets.

use protocol::Message;

use crate::{Run, Transcript, safety::DelimiterNonce};

/// The transcript and the run that the loop starts with. `recorded` is that of earlier attempts,
/// empty if there were none. It begins with the prompt, unless that was lost with the worker that had not sent it yet: no other
/// message of a user can come before the first reply. System instructions are not recorded; each attempt adds its own. `nonce` is
/// the job's, which its attempts share.
pub fn start_attempt(
    system: String,
    prompt: &str,
    recorded: &[Message],
    nonce: Option<DelimiterNonce>,
) -> (Transcript, Run) {
    let nonce = nonce.unwrap_or_else(DelimiterNonce::generate);
    let rest = match recorded {
        [] => return (Transcript::new(system, prompt).with_nonce(nonce), Run::new()),
        [Message::User { .. }, rest @ ..] => rest,
        all => all,
    };
    let first = [Message::System { content: system }, Message::User { content: prompt.to_owned() }];
    let messages = first.into_iter().chain(rest.iter().cloned()).collect();
    let transcript = Transcript::resume(messages).with_nonce(nonce);
    let run = Run::resume(&transcript);
    (transcript, run)
}

#[cfg(test)]
mod tests {
    use protocol::{ToolCall, limits::MAX_PROMPT_BYTES};
    use serde_json::json;

    use super::*;

    fn user(content: &str) -> Message {
        Message::User { content: content.to_owned() }
    }

    fn reply(content: &str, calls: &[&str]) -> Message {
        let call = |id: &&str| ToolCall { id: (*id).to_owned(), name: "shell".to_owned(), arguments: json!({}) };
        Message::Assistant { content: content.to_owned(), tool_calls: calls.iter().map(call).collect(), native: None }
    }

    fn started(prompt: &str, recorded: &[Message]) -> Vec<Message> {
        start_attempt("be an agent".to_owned(), prompt, recorded, None).0.messages().to_vec()
    }

    fn expected(prompt: &str, rest: &[Message]) -> Vec<Message> {
        let first = [Message::System { content: "be an agent".to_owned() }, user(prompt)];
        first.into_iter().chain(rest.iter().cloned()).collect()
    }

    #[test]
    fn without_a_record_it_starts_with_the_prompt() {
        assert_eq!(started("do it", &[]), expected("do it", &[]));
    }

    #[test]
    fn the_prompt_is_the_jobs_own_whatever_was_recorded_of_it() {
        let prompt = "say \"hello\"\n".repeat(MAX_PROMPT_BYTES / 12);
        let shortened = format!("{}\n[… 1000 bytes left out …]", &prompt[..5_000]);
        let rest = [reply("working", &[]), user("go on")];
        let redacted = "say \"[redacted:KEY]\"".to_owned();
        for recorded in [prompt.clone(), shortened, redacted] {
            let recorded: Vec<_> = [user(&recorded)].into_iter().chain(rest.clone()).collect();
            assert_eq!(started(&prompt, &recorded), expected(&prompt, &rest));
        }
    }

    #[test]
    fn a_record_without_the_prompt_is_unchanged() {
        let rest = [reply("working", &[]), user("another prompt")];
        assert_eq!(started("do it", &rest), expected("do it", &rest));
    }

    #[test]
    fn a_call_that_was_open_has_a_result_that_says_so() {
        let messages = started("do it", &[user("do it"), reply("", &["a"])]);
        let Some(Message::Tool { tool_call_id, content, .. }) = messages.last() else { panic!("{messages:?}") };
        assert!(tool_call_id == "a" && content.contains("ended before this call's result was known"), "{content}");
    }
}
