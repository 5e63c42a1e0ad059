//! `GET …/tools` and `POST …/tools/{name}`: the orchestrator's tools, through the one guarded path.

use axum::{Json, extract::State};
use protocol::{ToolCallReply, ToolCallRequest, ToolList};

use super::{WorkerApi, caller::Caller, check_call_id};
use crate::{
    http::{
        extract::{ApiJson, ApiPath},
        problem::ApiError,
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
    ApiJson(request): ApiJson<ToolCallRequest>,
) -> Result<Json<ToolCallReply>, ApiError> {
    check_call_id(&request.call_id)?;
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
