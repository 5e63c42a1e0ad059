//! `/api/jobs/{id}/llm-calls/{call}/request`: what the model was sent, rebuilt from the job's record.
//!
//! Nothing is stored for it. Owns what the answer says is missing.

use axum::{Json, extract::State};
use domain::transcript::request::{EventsAroundCall, request_messages};
use protocol::{CallId, ErrorCode, EventData, JobId, LlmCallRequest, Message, ModelMessage, UnrecordedPart};
use store::CallWithEvents;

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, Caller, authorize_job},
    },
};

/// Shows what a model call was sent.
///
/// Rebuilt from the job's record, without the secrets that the owner has stored now. `unrecorded` says what is missing of it: always the agent's
/// instructions and the definitions of the tools. Only for the job's owner. Of a conversation, the last 2 MiB before the call.
#[utoipa::path(
    get, path = "/api/jobs/{id}/llm-calls/{call}/request", operation_id = "get_model_request", tag = "jobs",
    params(
        ("id" = String, Path, description = "Job id."),
        ("call" = String, Path, description = "`call_id` of the model call; if several attempts have one with this id, that of the last."),
    ),
    responses(
        (status = 200, body = LlmCallRequest, description = "The messages, and what is missing."),
        (status = 403, description = "The job belongs to another user."),
        (status = 404, description = "No such job or call, or its record was deleted."),
    )
)]
pub(super) async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath((id, call)): ApiPath<(JobId, String)>,
) -> Result<Json<LlmCallRequest>, ApiError> {
    let job = authorize_job(&api, &who, id).await?;
    if job.brief.user_id != who.user {
        let detail = "only the owner of a job can read what its model was sent";
        return Err(ApiError::new(ErrorCode::Forbidden, detail));
    }
    // It reads as much as a search.
    let _permit = api.list_permit(&who, true).await?;
    let call_id = CallId(call);
    let call = api.store.model_call_with_events(id, &call_id).await?.ok_or_else(ApiError::not_found)?;
    let CallWithEvents { attempt, provider, model, at, events, is_cut } = call;
    let mut unrecorded = vec![UnrecordedPart::Instructions, UnrecordedPart::ToolDefinitions];
    let parts = [
        (is_cut, UnrecordedPart::EarlierMessages),
        (has_long_texts(&events), UnrecordedPart::LongTexts),
        (job.brief.plan, UnrecordedPart::PlanInstruction),
    ];
    unrecorded.extend(parts.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, part)| part));
    let nonce = job.brief.delimiter_nonce.clone();
    let detector = api.detectors.of(&job.brief.user_id).await?;
    // A conversation is up to 2 MiB.
    let messages = tokio::task::spawn_blocking(move || {
        let mut messages = request_messages(events, attempt, &job.brief.first_message(), nonce)?;
        detector.redact_messages(&mut messages);
        Some(messages)
    });
    let messages: Option<Vec<Message>> = messages.await.map_err(ApiError::internal)?;
    if messages.is_none() {
        unrecorded = vec![UnrecordedPart::SummaryRequest];
    }
    let messages = messages.unwrap_or_default().into_iter().map(ModelMessage::from).collect();
    Ok(Json(LlmCallRequest { call_id, attempt, provider, model, at, messages, unrecorded }))
}

/// Whether a text of the conversation was shortened.
fn has_long_texts(events: &EventsAroundCall) -> bool {
    events.before.iter().any(|(_, event)| match event {
        EventData::ToolResult { truncated, .. } => *truncated,
        EventData::Message { content, .. } => content.contains(" bytes left out …]"),
        _ => false,
    })
}
