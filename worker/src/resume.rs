//! The initial transcript of a session: the job's prompt, or the transcript of an earlier attempt.
//!
//! Pure. The prompt of a resumed attempt is always the job's own, even if it was recorded truncated.

use agent::{OpenCalls, Run, Transcript};
use protocol::{JobAssignment, Message};

/// Length of the prefix that identifies a recorded prompt: a truncated prompt still starts like the job's.
const MATCHED_PREFIX_BYTES: usize = 1_000;

/// The transcript and the run that the loop starts with. System instructions are not recorded; each worker adds its own.
pub(crate) fn start(job: &JobAssignment, system: String) -> (Transcript, Run) {
    let Some(recorded) = job.transcript.as_deref().filter(|recorded| !recorded.is_empty()) else {
        return (Transcript::new(system, &job.prompt), Run::new());
    };
    let rest = match recorded {
        [Message::User { content }, rest @ ..] if is_prompt(content, &job.prompt) => rest,
        all => all,
    };
    let first = [Message::System { content: system }, Message::User { content: job.prompt.clone() }];
    let messages = first.into_iter().chain(rest.iter().cloned()).collect();
    let transcript = Transcript::resume(messages, OpenCalls::Unknown);
    let run = Run::resume(&transcript);
    (transcript, run)
}

fn is_prompt(recorded: &str, prompt: &str) -> bool {
    let head = &prompt[..prompt.floor_char_boundary(MATCHED_PREFIX_BYTES)];
    recorded == prompt || (prompt.len() > MATCHED_PREFIX_BYTES && recorded.starts_with(head))
}

#[cfg(test)]
mod tests {
    use protocol::{EgressView, JobId, JobMode, Limits, ToolCall, limits::MAX_PROMPT_BYTES};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn job(prompt: &str, transcript: Option<Vec<Message>>) -> JobAssignment {
        JobAssignment {
            job_id: JobId::nil(),
            attempt: 2,
            title: String::new(),
            prompt: prompt.to_owned(),
            mode: JobMode::Worker,
            command: Vec::new(),
            plan: false,
            limits: Limits::default(),
            model: "m".to_owned(),
            tools: Vec::new(),
            approve: Vec::new(),
            transcript,
            lease_seconds: 30,
            egress: EgressView::default(),
            context_tokens: 0,
            text_tool_calls: false,
            outage_patience_seconds: None,
            worker_patience_seconds: None,
        }
    }

    fn user(content: &str) -> Message {
        Message::User { content: content.to_owned() }
    }

    fn reply(content: &str, calls: &[&str]) -> Message {
        let call = |id: &&str| ToolCall {
            id: (*id).to_owned(),
            name: "shell".to_owned(),
            arguments: json!({}),
            thought_signatures: Vec::new(),
        };
        Message::Assistant {
            content: content.to_owned(),
            tool_calls: calls.iter().map(call).collect(),
            reasoning: None,
        }
    }

    fn started(prompt: &str, recorded: Option<Vec<Message>>) -> Vec<Message> {
        start(&job(prompt, recorded), "be an agent".to_owned()).0.messages().to_vec()
    }

    fn expected(prompt: &str, rest: &[Message]) -> Vec<Message> {
        let first = [Message::System { content: "be an agent".to_owned() }, user(prompt)];
        first.into_iter().chain(rest.iter().cloned()).collect()
    }

    #[rstest]
    #[case::never_recorded(None)]
    #[case::empty(Some(vec![]))]
    fn without_a_record_it_starts_with_the_prompt(#[case] recorded: Option<Vec<Message>>) {
        assert_eq!(started("do it", recorded), expected("do it", &[]));
    }

    #[test]
    fn the_prompt_is_the_jobs_own_whatever_was_recorded_of_it() {
        let prompt = "say \"hello\"\n".repeat(MAX_PROMPT_BYTES / 12);
        let shortened = format!("{}\n[… 1000 bytes left out …]", &prompt[..5_000]);
        let rest = [reply("working", &[]), user("go on")];
        for recorded in [prompt.clone(), shortened] {
            let recorded = [user(&recorded)].into_iter().chain(rest.clone()).collect();
            assert_eq!(started(&prompt, Some(recorded)), expected(&prompt, &rest));
        }
    }

    #[test]
    fn a_record_that_begins_differently_is_unchanged() {
        let rest = [user("another prompt"), reply("working", &[])];
        assert_eq!(started("do it", Some(rest.to_vec())), expected("do it", &rest));
    }

    #[test]
    fn a_call_that_was_open_has_a_result_that_says_so() {
        let messages = started("do it", Some(vec![user("do it"), reply("", &["a"])]));
        let Some(Message::Tool { tool_call_id, content, .. }) = messages.last() else { panic!("{messages:?}") };
        assert!(tool_call_id == "a" && content.contains("ended before this call's result was known"), "{content}");
    }
}
