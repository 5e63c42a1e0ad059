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
