//! What a session starts from: the job's prompt, or the transcript of an earlier attempt.
//!
//! Pure. Owns that the prompt of a resumed job is the job's own, whole, whatever was recorded of it.

use agent::{OpenCalls, Run, Transcript};
use protocol::{JobAssignment, Message};

/// Bytes by which the recorded prompt is recognised: a prompt that was recorded shortened still starts like the job's.
const RECOGNISED_BYTES: usize = 1_000;

/// The transcript and the run that the loop starts with. The instructions are not among what is recorded: they are this
/// worker's own.
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
    let head = &prompt[..prompt.floor_char_boundary(RECOGNISED_BYTES)];
    recorded == prompt || (prompt.len() > RECOGNISED_BYTES && recorded.starts_with(head))
}
