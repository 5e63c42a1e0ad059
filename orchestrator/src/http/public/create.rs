//! `POST /api/jobs`: a new job, or a clear no.

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use chrono::{DateTime, Utc};
use protocol::{CreateJob, ErrorCode, Job, JobId, Placement, Problem, Source};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    PublicApi,
    audit_entry::AuditedCaller,
    files::to_api_error,
    idempotent::{self, Bound, ClientHeaders},
};
use crate::{
    domain::{
        job::{Brief, JobRecord, Queued},
        request::{self, Accepted, Rejected},
    },
    engine::SandboxReadiness,
    failpoint,
    http::{extract::ApiJsonBytes, problem::ApiError},
    store::AuditEntry,
    telemetry::traces,
    workspace::{FileError, WorkspaceError},
};

/// Creates a job.
#[utoipa::path(
    post, path = "/api/jobs", operation_id = "create_job", tag = "jobs", request_body = CreateJob,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key and body within 24 h get the first answer again.")),
    responses(
        (status = 201, description = "Created; it waits for its turn.", body = Job, headers(("Location" = String))),
        (status = 400, body = Problem, content_type = "application/problem+json", description = "Malformed."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Too large."),
        (status = 415, body = Problem, content_type = "application/problem+json", description = "Not JSON."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "Invalid, not available, or the key was used otherwise."),
        (status = 429, body = Problem, content_type = "application/problem+json", description = "As many jobs are pending as may be."),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "No sandbox; nothing is stored."),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "The server's disk is full, or nearly so; nothing is stored."),
    )
)]
pub(super) async fn create(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    client: ClientHeaders,
    body: ApiJsonBytes<CreateJob>,
) -> Result<Response, ApiError> {
    let source = client.source;
    let key = client.bind(&who.user, "POST /api/jobs", &body.bytes);
    if let Some(replayed) = seen(&api, key.as_ref()).await? {
        return Ok(replayed);
    }
    let accepted = request::check(&body.value, &api.ceiling).map_err(rejected)?;
    let new = NewJob { user: who.user, request: body.value, source, restarted_from: None, message: None, entry };
    store(&api, new, accepted, key).await
}

/// What a new job is made of, beside what the request settled.
pub(super) struct NewJob {
    pub(super) user: String,
    pub(super) request: CreateJob,
    pub(super) source: Source,
    pub(super) restarted_from: Option<JobId>,
    /// What its owner should know from the start.
    pub(super) message: Option<String>,
    pub(super) entry: AuditEntry,
}

/// The first answer to this key, if it was seen.
pub(super) async fn seen(api: &PublicApi, key: Option<&Bound>) -> Result<Option<Response>, ApiError> {
    let Some(key) = key else { return Ok(None) };
    match api.store.idempotency(&key.key(), api.clock.now()).await? {
        Some(claim) => idempotent::answer(claim),
        None => Ok(None),
    }
}

/// Stores the job once the sandbox is known to be there and its files are in place. Runs to its end though the client
/// goes away meanwhile: no workspace is left without a job.
pub(super) async fn store(
    api: &PublicApi,
    new: NewJob,
    accepted: Accepted,
    key: Option<Bound>,
) -> Result<Response, ApiError> {
    let whole = api.clone();
    let storing = async move { store_whole(&whole, new, accepted, key).await };
    api.tasks.spawn(storing.in_current_span()).await.map_err(ApiError::internal)?
}

async fn store_whole(
    api: &PublicApi,
    new: NewJob,
    accepted: Accepted,
    key: Option<Bound>,
) -> Result<Response, ApiError> {
    if let SandboxReadiness::NotReady { reason, detail } = api.sandbox.state().await {
        return Err(ApiError::new(ErrorCode::SandboxUnavailable, detail).with_reason(reason.as_str()));
    }
    let id = JobId::generate();
    let from = new.restarted_from;
    let (files, limits) = (accepted.files, accepted.limits);
    let accepted = Accepted { files: vec![], ..accepted };
    if from.is_some() || !files.is_empty() {
        let workspaces = api.workspaces.clone();
        // Not given up when the client goes: this runs to its end.
        let mut upload = api.uploads.begin(&new.user, id, limits, CancellationToken::new()).map_err(to_api_error)?;
        let fill = move || {
            workspaces.announce(id).map_err(|error| to_api_error(FileError::from(error)))?;
            let filled = if let Some(from) = from {
                workspaces.copy_from(from, &mut upload)
            } else {
                let bytes: usize = files.iter().map(|file| file.content.len()).sum();
                upload.count_written(bytes as u64).map_err(to_api_error)?;
                workspaces.create(id, &files)
            };
            filled.map_err(not_filled)
        };
        let filled = api.file_work.run_any(&new.user, fill).await;
        if let Err(error) = filled.and_then(|done| done) {
            stillborn(api, id).await;
            return Err(error);
        }
    }
    let entry = new.entry.clone();
    let record = record(id, api.clock.now(), new, accepted);
    failpoint::reach("create.before_row");
    let claim = match api.store.create_job(record.clone(), key.as_ref().map(Bound::key), Some(&entry)).await {
        Ok(claim) => claim,
        Err(error) => {
            stillborn(api, id).await;
            return Err(error.into());
        }
    };
    failpoint::reach("create.after_row");
    let answered = idempotent::answer(claim);
    if !matches!(answered, Ok(None)) {
        stillborn(api, id).await;
    }
    if let Some(replayed) = answered? {
        return Ok(replayed);
    }
    api.workspaces.born(id);
    api.wake.wake();
    tracing::info!(job.id = %id, user = record.brief.user_id, "job created");
    Ok(created(&record))
}

/// What was made for a job that is not stored goes, and is waited for.
async fn stillborn(api: &PublicApi, id: JobId) {
    let workspaces = api.workspaces.clone();
    // One that dies half-way leaves the mark, and the next start goes on.
    let _ = tokio::task::spawn_blocking(move || workspaces.stillborn(id)).await;
}

fn not_filled(error: WorkspaceError) -> ApiError {
    match error.into_source() {
        error @ FileError::TooLarge(_) => {
            let detail = "the files that the earlier job left are far over limits.disk_mb; make a new job instead";
            ApiError::new(ErrorCode::TooLarge, detail).with_source(error)
        }
        error @ (FileError::NoSpace(_) | FileError::StagingFull(_)) => to_api_error(error),
        error => ApiError::internal(error),
    }
}

fn created(record: &JobRecord) -> Response {
    let mut response = (StatusCode::CREATED, Json(record.to_api())).into_response();
    if let Ok(location) = HeaderValue::from_str(&format!("/api/jobs/{}", record.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// A request that does not hold, as the API tells it.
pub(super) fn rejected(rejected: Rejected) -> ApiError {
    match rejected {
        Rejected::Invalid(errors) => ApiError::invalid(errors),
        Rejected::NotAvailable(errors) => ApiError::not_available_fields(errors),
    }
}

fn record(id: JobId, now: DateTime<Utc>, new: NewJob, accepted: Accepted) -> JobRecord {
    let NewJob { user, request, source, restarted_from, message, entry: _ } = new;
    let brief = Brief {
        user_id: user,
        title: accepted.title,
        prompt: request.prompt,
        mode: request.mode.unwrap_or_default(),
        placement: Placement::Container,
        priority: request.priority,
        labels: request.labels,
        metadata: request.metadata,
        limits: accepted.limits,
        tools: request.tools,
        image: accepted.image,
        model: accepted.model,
        plan: request.plan,
        review: request.review,
        source,
        restarted_from,
        parent_id: None,
        depth: 0,
        created_at: now,
        traceparent: traces::current_traceparent(),
    };
    let message = message.or_else(|| request.hold.then(|| JobRecord::HELD.to_owned()));
    JobRecord::new(id, brief, Queued { held: request.hold, message, ..Queued::default() })
}
