//! `POST /api/jobs/{id}/restart`: a new job that goes on where a failed or cancelled one ended.

use axum::{extract::State, response::Response};
use protocol::{CreateJob, ErrorCode, Job, JobId, JobState, Problem, RestartRequest};

use super::{
    PublicApi,
    audit_entry::AuditedCaller,
    caller::authorize_job,
    create::{NewJob, rejected, seen, store},
    idempotent::ClientHeaders,
};
use crate::{
    domain::{
        job::JobRecord,
        request::{Accepted, MAX_PROMPT_BYTES, check_prompt, within_priorities},
    },
    http::{
        extract::{ApiPath, OptionalJson},
        problem::ApiError,
    },
};

/// Of the last job's own words, in the note to the next.
const MAX_NOTE_TEXT_BYTES: usize = 4_000;

/// Restarts a job.
#[utoipa::path(
    post, path = "/api/jobs/{id}/restart", operation_id = "restart_job", tag = "jobs", params(
        ("id" = String, Path, description = "The job."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and body within 24 h get the first answer again."),
    ),
    request_body = Option<RestartRequest>,
    responses(
        (status = 201, body = Job, description = "A new job with the old one's files. Its limits, image, model and tools are held to what the operator allows today; `message` says what that changed.", headers(("Location" = String))),
        (status = 400, body = Problem, content_type = "application/problem+json", description = "Malformed."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "Neither failed nor cancelled."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Too large."),
        (status = 415, body = Problem, content_type = "application/problem+json", description = "Not JSON."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "Invalid."),
        (status = 429, body = Problem, content_type = "application/problem+json", description = "As many jobs are pending as may be."),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "No sandbox."),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "The server's disk is full, or nearly so."),
    )
)]
pub(super) async fn restart(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
    client: ClientHeaders,
    OptionalJson(request): OptionalJson<RestartRequest>,
) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(&request).map_err(ApiError::internal)?;
    let source = client.source;
    let key = client.bind(&who.user, &format!("POST /api/jobs/{id}/restart"), &body);
    if let Some(replayed) = seen(&api, key.as_ref()).await? {
        return Ok(replayed);
    }
    if let Some(prompt) = &request.prompt {
        check_prompt("prompt", prompt).map_err(rejected)?;
    }
    let old = authorize_job(&api, &who, id).await?;
    if !matches!(old.state(), JobState::Failed | JobState::Cancelled) {
        let detail = format!("the job is {}; only failed and cancelled jobs restart", old.state());
        return Err(ApiError::new(ErrorCode::NotRestartable, detail));
    }
    let kept = old.finished_at().is_none_or(|at| api.retention.contains(at, api.clock.now()));
    let prompt = with_note(request.prompt.as_deref().unwrap_or(&old.brief.prompt), &old, kept);
    // What was allowed then is held to what is allowed today.
    let today = api.ceiling.recall(&old.brief.limits, (&old.brief.image, &old.brief.model), old.brief.tools.as_deref());
    let accepted = Accepted {
        title: old.brief.title.clone(),
        limits: today.limits,
        image: today.image,
        model: today.model,
        files: vec![],
    };
    let message =
        (!today.changes.is_empty()).then(|| format!("held to what is allowed today: {}", today.changes.join("; ")));
    let request = CreateJob {
        prompt,
        mode: Some(old.brief.mode),
        tools: today.tools,
        plan: old.brief.plan,
        review: old.brief.review,
        priority: within_priorities(old.brief.priority),
        labels: old.brief.labels.clone(),
        metadata: old.brief.metadata.clone(),
        ..CreateJob::default()
    };
    // It stays its owner's, also when an admin restarts it.
    let new = NewJob { user: old.brief.user_id.clone(), request, source, restarted_from: Some(id), message, entry };
    store(&api, new, accepted, key).await
}

fn with_note(prompt: &str, old: &JobRecord, kept: bool) -> String {
    let reason = old.reason().map_or("for no recorded reason".to_owned(), |reason| format!("with reason {reason}"));
    let files = if kept {
        "The files it left are in the workspace; look at them before you start."
    } else {
        "The files it left are no longer kept."
    };
    let mut note = format!("\n\n[Note: an earlier attempt at this task ended as {} {reason}. {files}", old.state());
    let said = old.result().and_then(|result| result.partial).map(|partial| partial.text);
    if let Some(said) = said.as_deref().filter(|said| !said.is_empty()) {
        let end = said.floor_char_boundary(MAX_NOTE_TEXT_BYTES);
        note.push_str(" Its last words were:\n");
        note.push_str(&said[..end]);
    }
    note.push(']');
    // A second restart replaces the note of the first.
    let task = prompt.split("\n\n[Note: an earlier attempt at this task ended as ").next().unwrap_or(prompt);
    let end = task.floor_char_boundary(MAX_PROMPT_BYTES);
    format!("{}{note}", &task[..end])
}
