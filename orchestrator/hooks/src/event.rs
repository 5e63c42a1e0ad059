//! What a hook is asked about.

use chrono::{DateTime, Utc};
use config::HookPoint;
use protocol::{CallId, JobId, ThreadId, WorkId};
use serde::Serialize;
use serde_json::Value;

/// What a hook is asked about, without the part that it may change.
#[derive(Debug, Clone, Copy)]
pub struct HookEvent<'a> {
    pub point: HookPoint,
    /// The owner of the work.
    pub user: &'a str,
    pub work: Option<WorkId>,
    pub tool: Option<&'a str>,
    /// The tool call's id.
    pub call_id: Option<&'a CallId>,
    /// The arguments of a call that has a result, redacted.
    pub input: Option<&'a Value>,
}

impl<'a> HookEvent<'a> {
    /// An event of this user that concerns no job, thread or run.
    pub const fn new(point: HookPoint, user: &'a str) -> Self {
        Self { point, user, work: None, tool: None, call_id: None, input: None }
    }

    /// The same event, about a job, a thread or a run.
    #[must_use]
    pub fn of(self, work: impl Into<WorkId>) -> Self {
        Self { work: Some(work.into()), ..self }
    }

    /// The body of a webhook's request, in the form that Standard Webhooks recommends.
    pub(super) fn body(&self, hook: &str, at: DateTime<Utc>, parameters: &Value) -> Vec<u8> {
        let data = Data {
            hook,
            user: self.user,
            job_id: self.work.and_then(WorkId::job),
            thread_id: self.work.and_then(WorkId::thread),
            tool: self.tool,
            call_id: self.call_id,
            input: self.input,
            parameters,
        };
        // Strings, ids and values always have a JSON form.
        serde_json::to_vec(&Body { kind: self.point.as_str(), timestamp: at, data }).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: DateTime<Utc>,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    hook: &'a str,
    user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<ThreadId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_id: Option<&'a CallId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a Value>,
    parameters: &'a Value,
}
