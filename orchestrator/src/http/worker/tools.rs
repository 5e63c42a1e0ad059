//! `GET …/tools` and `POST …/tools/{name}`: the orchestrator's tools, through the one guarded path, once per call id.

use axum::{Json, extract::State};
use protocol::{ToolCallReply, ToolCallRequest, ToolErrorKind, ToolFailure, ToolList};

use super::{WorkerApi, caller::Caller, check_call_id, seats::Entry, under_way::reused};
use crate::{
    domain::job::JobRecord,
    http::{
        extract::{ApiPath, WorkerJson},
        problem::{ApiError, Carried},
    },
    store::ActionRow,
    tools::Caller as ToolCaller,
};

pub(super) async fn list(State(api): State<WorkerApi>, Caller { job }: Caller) -> Json<ToolList> {
    Json(ToolList { tools: api.tools.offered(job.tools.as_deref()) })
}

pub(super) async fn call(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    ApiPath((_, name)): ApiPath<(String, String)>,
    WorkerJson(request): WorkerJson<ToolCallRequest>,
) -> Result<Json<ToolCallReply>, Carried> {
    check_call_id(&request.call_id)?;
    let key = (job.id, job.attempt, request.call_id.clone());
    let (calls, tool) = (api.tool_calls.clone(), name.clone());
    let reply = calls.join(key, &name, async move { once(&api, &job, &tool, request).await }).await?;
    Ok(Json(ToolCallReply::clone(&reply)))
}

/// Looks for the recorded reply; else calls, records, and only then answers.
async fn once(
    api: &WorkerApi,
    job: &JobRecord,
    name: &str,
    request: ToolCallRequest,
) -> Result<ToolCallReply, ApiError> {
    // The loop keeps this limit too; a worker that is not our loop does not get past it here.
    let limit = job.limits.max_tool_calls;
    let look = api.store.tool_calls_made(job.id, job.attempt, &request.call_id);
    let seat = match api.tool_seats.enter(job.id, limit.into(), look).await? {
        Entry::Known((tool, reply)) => return if tool == name { Ok(reply) } else { Err(reused()) },
        Entry::Full => return Ok(limit_reached(limit)),
        Entry::Free(seat) => seat,
    };
    let _in_flight = api.pulse.in_flight(job.id, job.attempt);
    let caller = ToolCaller { job: job.id, user: &job.user_id, narrowing: job.tools.as_deref() };
    let done = api.tools.call(&caller, &request.call_id, name, request.arguments).await;
    let row = ActionRow {
        job: job.id,
        attempt: job.attempt,
        call_id: &request.call_id,
        at: api.clock.now(),
        tool: name,
        input: &done.input_shown,
        output: &done.output,
        reply: &done.reply,
    };
    let (store, record) = (&api.store, &row);
    seat.leave(api.written(job.id, move || store.record_tool_call(record))).await?;
    Ok(done.reply)
}

fn limit_reached(max_tool_calls: u32) -> ToolCallReply {
    ToolCallReply {
        success: false,
        output: None,
        truncated: false,
        duration_ms: 0,
        error: Some(ToolFailure {
            kind: ToolErrorKind::NotAuthorized,
            message: format!(
                "the job makes no more than limits.max_tool_calls = {max_tool_calls}; report what there is"
            ),
            retry_after_seconds: None,
        }),
    }
}
