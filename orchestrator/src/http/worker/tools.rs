//! `GET …/tools` and `POST …/tools/{name}`: the orchestrator's tools, through the one guarded path.

use axum::{Json, extract::State};
use protocol::{ErrorCode, ToolCallReply, ToolCallRequest, ToolList};

use super::{WorkerApi, caller::Caller};
use crate::{
    http::{
        extract::{ApiJson, ApiPath},
        problem::ApiError,
    },
    store::ActionRow,
    tools::Caller as ToolCaller,
};

/// A call id is a name, not a text.
const MAX_CALL_ID_BYTES: usize = 200;

pub(super) async fn list(State(api): State<WorkerApi>, Caller { job }: Caller) -> Json<ToolList> {
    Json(ToolList { tools: api.tools.offered(job.tools.as_deref()) })
}

pub(super) async fn call(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    ApiPath((_, name)): ApiPath<(String, String)>,
    ApiJson(request): ApiJson<ToolCallRequest>,
) -> Result<Json<ToolCallReply>, ApiError> {
    if request.call_id.0.is_empty() || request.call_id.0.len() > MAX_CALL_ID_BYTES {
        return Err(ApiError::new(ErrorCode::Invalid, format!("call_id must be 1 to {MAX_CALL_ID_BYTES} bytes")));
    }
    if let Some(known) = api.store.tool_reply(job.id, job.attempt, &request.call_id).await? {
        return Ok(Json(known));
    }
    let caller = ToolCaller { job: job.id, narrowing: job.tools.as_deref() };
    let done = api.tools.call(&caller, &request.call_id, &name, request.arguments).await;
    let row = ActionRow {
        job: job.id,
        attempt: job.attempt,
        call_id: &request.call_id,
        at: api.clock.now(),
        tool: &name,
        input: &done.input_shown,
        output: &done.output,
        reply: &done.reply,
    };
    api.store.record_tool_call(&row).await?;
    Ok(Json(done.reply))
}
