//! A job as the job tools report it to a model.

use agent::{ToolOutput, elide};
use protocol::JobState;
use serde_json::{Value, json};

use super::wait::has_ended;
use domain::job::JobRecord;

/// Longest text of a result that is reported; a tool's whole output has at most 100 000 bytes.
const MAX_RESULT_BYTES: usize = 64 * 1024;

/// State, result and usage of a job. A job that did not complete reports its text so far as `partial`.
pub(super) fn report(job: &JobRecord) -> ToolOutput {
    let result = job.result().unwrap_or_default();
    let texts = [("result", result.text), ("partial", result.partial.map(|partial| partial.text))];
    let mut content = json!({
        "job_id": job.id,
        "title": job.brief.title,
        "state": job.state(),
        "usage": job.usage,
    });
    let mut truncated = false;
    for (name, text) in texts {
        let Some(text) = text.filter(|text| name == "result" || !text.is_empty()) else { continue };
        truncated |= text.len() > MAX_RESULT_BYTES;
        content[name] = Value::String(elide(&text, MAX_RESULT_BYTES));
    }
    for (name, value) in [("reason", json!(job.reason())), ("message", json!(job.message()))] {
        if !value.is_null() {
            content[name] = value;
        }
    }
    ToolOutput { truncated, ..ToolOutput::success(content) }
}

/// A job that has ended, or the state of one that has not.
pub(super) fn report_if_ended(job: &JobRecord) -> ToolOutput {
    if has_ended(job.state()) { report(job) } else { ToolOutput::success(brief(job, job.state())) }
}

/// A job's id and state.
pub(super) fn brief(job: &JobRecord, state: JobState) -> Value {
    json!({"job_id": job.id, "state": state})
}
