//! `POST …/events`: what the worker saw and did, in order, each once.

use axum::{Json, extract::State};
use protocol::{ErrorCode, EventAck, EventBatch, EventData, EventKind, WorkerEvent};

use super::{
    WorkerApi,
    caller::{Caller, fenced},
    event_quota::{self, MAX_EVENT_BYTES as MAX_TOTAL_BYTES, MAX_EVENT_BYTES_HARD as MAX_TOTAL_BYTES_HARD, Room},
};
use crate::{
    domain::job::JobRecord,
    http::{extract::WorkerJsonBytes, problem::ApiError},
    store::{Appended, WorkerBatch},
};

/// In one batch.
const MAX_EVENTS: usize = 1_000;
/// Of one event: the 256 KiB at which the worker cuts it, what is around its text, and its escapes.
const MAX_EVENT_BYTES: usize = 384 * 1024;

pub(super) async fn append(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    WorkerJsonBytes { value: batch, bytes }: WorkerJsonBytes<EventBatch>,
) -> Result<Json<EventAck>, ApiError> {
    if batch.events.len() > MAX_EVENTS {
        return Err(ApiError::new(ErrorCode::TooLarge, format!("at most {MAX_EVENTS} events in a batch")));
    }
    if let Some(event) = batch.events.iter().find(|event| !event.data.kind().from_worker()) {
        let kind = event.data.kind().as_str();
        return Err(ApiError::new(ErrorCode::Invalid, format!("a worker may not send {kind} events")));
    }
    // A body that is small has none that is large.
    if bytes.len() > MAX_EVENT_BYTES && batch.events.iter().any(is_too_large) {
        let limit = format!("an event has at most {MAX_EVENT_BYTES} bytes; cut what it says");
        return Err(ApiError::new(ErrorCode::TooLarge, limit));
    }
    api.pace.take(job.id, (batch.events.len(), bytes.len()), api.clock.monotonic()).map_err(|wait| {
        ApiError::new(ErrorCode::RateLimited, "too many events; send this batch again later").with_retry_after(wait)
    })?;
    let keeps = within_quota(&api, &job, bytes.len()).await?;
    let batch = WorkerBatch { events: batch.events, keeps };
    match api.store.append_worker_events(job.id, job.attempt, api.clock.now(), batch).await? {
        Appended::Stored { last_client_seq } => {
            api.got_somewhere(&job).await?;
            Ok(Json(EventAck { last_client_seq }))
        }
        Appended::Gap { expected } => Err(ApiError::new(
            ErrorCode::Invalid,
            format!("client_seq {expected} is due; numbers must not be left out"),
        )),
        Appended::Fenced => Err(fenced()),
    }
}

/// Which of a batch's kinds are stored, as much as the job has written by now.
async fn within_quota(api: &WorkerApi, job: &JobRecord, bytes: usize) -> Result<fn(EventKind) -> bool, ApiError> {
    if !api.quota.knows(job.id) {
        api.quota.learn(job.id, api.store.event_bytes(job.id).await?);
    }
    match api.quota.take(job.id, bytes as u64) {
        Room::All => Ok(|_| true),
        Room::ReachedNow => {
            let limit =
                EventData::Limit { limit: event_quota::LIMIT.to_owned(), value: (MAX_TOTAL_BYTES >> 20).into() };
            api.store.tell(job.id, job.attempt, api.clock.now(), limit).await?;
            tracing::info!(job.id = %job.id, "the job has written as many events as may be; only its conversation is kept");
            Ok(|_| true)
        }
        Room::Essential => Ok(event_quota::is_essential),
        Room::None => {
            let detail =
                format!("this job's events fill {} MB, which is all there is for them", MAX_TOTAL_BYTES_HARD >> 20);
            Err(ApiError::new(ErrorCode::TooLarge, detail))
        }
    }
}

fn is_too_large(event: &WorkerEvent) -> bool {
    serde_json::to_string(event).is_ok_and(|text| text.len() > MAX_EVENT_BYTES)
}
