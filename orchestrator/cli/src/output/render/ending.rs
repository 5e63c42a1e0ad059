//! How a job ended: its state, its usage, and the partial result of a job that did not complete.
//!
//! Pure. Text of the job is escaped.

use protocol::{Job, JobState, PartialResult};

use super::{state, written};
use crate::{
    ids::short_id,
    output::{Paint, cost, one_line},
};

/// The last lines of a followed job: its partial result unless `last_said` is its text, its state with the reason, and
/// its usage.
pub(crate) fn ending(paint: Paint, job: &Job, last_said: &str, width: Option<usize>) -> String {
    let partial = partial(paint, job, last_said, width).map(|text| format!("{text}\n")).unwrap_or_default();
    let reason = job.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let head = format!("{} {}{reason}{}", paint.dim("●"), state(paint, job.state), took(job));
    let message = job.message.as_deref().filter(|_| !matches!(job.state, JobState::Completed | JobState::Accepted));
    let message = message.map(|text| format!(": {}", one_line(text))).unwrap_or_default();
    format!("{partial}{head}{message}\n  {}  {}", usage(job), paint.dim(&short_id(&job.id.to_string())))
}

pub(crate) fn usage(job: &Job) -> String {
    let usage = &job.usage;
    let cost = match usage.cost_usd {
        Some(0.0) => String::new(),
        Some(_) => format!(", {}", cost(usage.cost_usd)),
        None => ", unknown cost".to_owned(),
    };
    format!(
        "{}, {}, {} tokens in, {} out{cost}",
        counted(usage.llm_calls, "model call"),
        counted(usage.tool_calls, "tool call"),
        usage.input_tokens,
        usage.output_tokens,
    )
}

/// The partial result of a job that did not complete. `None` if there is nothing to show.
pub(crate) fn partial(paint: Paint, job: &Job, last_said: &str, width: Option<usize>) -> Option<String> {
    let PartialResult { text, last_actions, .. } = job.result.as_ref()?.partial.as_ref()?;
    let mut parts = Vec::new();
    if !text.trim().is_empty() && text.trim() != last_said {
        parts.push(format!("{}\n       {}", paint.bold("partial result"), written(text, width)));
    }
    if !last_actions.is_empty() {
        let actions = last_actions.iter().map(|action| one_line(action)).collect::<Vec<_>>().join(", ");
        parts.push(format!("{} {actions}", paint.bold("last calls")));
    }
    (!parts.is_empty()).then(|| parts.join("\n"))
}

fn took(job: &Job) -> String {
    let Some((from, to)) = job.started_at.zip(job.summary().work_ended_at()) else { return String::new() };
    let milliseconds = (to - from).num_milliseconds().max(0);
    if milliseconds < 10_000 {
        format!(" in {}.{} s", milliseconds / 1000, milliseconds % 1000 / 100)
    } else {
        format!(" in {} s", milliseconds / 1000)
    }
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
