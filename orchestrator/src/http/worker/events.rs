//! `POST …/events`: the worker's events, in order, each stored once.

use axum::{Json, extract::State};
use protocol::{
    AgentEvent, ErrorCode, EventAck, EventBatch, EventData, EventKind, LimitName, WorkerEvent,
    limits::{MAX_ACCEPTED_EVENT_BYTES, MAX_BATCH_EVENTS, MAX_MESSAGE_EVENT_BYTES},
};

use super::{
    WorkerApi,
    caller::{Caller, fenced},
};
use crate::{
    dispatch::{self, Attempt, EventAllowance, MAX_EVENT_BYTES as MAX_TOTAL_BYTES, MAX_EVENT_BYTES_HARD},
    http::{extract::WorkerJson, problem::ApiError},
    store::{Appended, WorkerBatch},
};

pub(super) async fn append(
    State(api): State<WorkerApi>,
    Caller { attempt, .. }: Caller,
    WorkerJson { value: batch, bytes }: WorkerJson<EventBatch>,
) -> Result<Json<EventAck>, ApiError> {
    if batch.events.len() > MAX_BATCH_EVENTS {
        return Err(ApiError::new(ErrorCode::TooLarge, format!("at most {MAX_BATCH_EVENTS} events in a batch")));
    }
    // A small body has no large event.
    if bytes.len() > MAX_ACCEPTED_EVENT_BYTES && batch.events.iter().any(is_too_large) {
        let limit = format!("an event must be at most {MAX_ACCEPTED_EVENT_BYTES} bytes; shorten it");
        return Err(ApiError::new(ErrorCode::TooLarge, limit));
    }
    attempt.limits().take_events(batch.events.len(), bytes.len(), api.clock.monotonic()).map_err(|wait| {
        ApiError::new(ErrorCode::RateLimited, "too many events; send this batch again later").with_retry_after(wait)
    })?;
    let key = attempt.key();
    let keeps = stored_kinds(&api, &attempt, bytes.len()).await?;
    let batch = WorkerBatch { events: batch.events, keeps };
    match api.store.append_worker_events(key.job, key.attempt, api.clock.now(), batch).await? {
        Appended::Stored { last_client_seq, added_bytes } => {
            if attempt.limits().event_quota.count_stored(added_bytes) {
                record_quota_reached(&api, &attempt).await?;
            }
            api.record_progress(&attempt).await?;
            Ok(Json(EventAck { last_client_seq }))
        }
        Appended::Gap { expected } => Err(ApiError::new(
            ErrorCode::Invalid,
            format!("client_seq {expected} is due; numbers must not be left out"),
        )),
        Appended::Fenced => Err(fenced()),
    }
}

/// Which kinds of a batch are stored, by what the job has written in all.
async fn stored_kinds(api: &WorkerApi, attempt: &Attempt, bytes: usize) -> Result<fn(EventKind) -> bool, ApiError> {
    let (key, quota) = (attempt.key(), &attempt.limits().event_quota);
    if !quota.is_known() {
        quota.initialize(api.store.event_bytes(key.job).await?);
    }
    match quota.allowance(bytes as u64) {
        EventAllowance::All => Ok(|_| true),
        EventAllowance::EssentialOnly => Ok(dispatch::is_essential),
        EventAllowance::None => {
            let detail = format!("this job's events have reached their limit of {} MB", MAX_EVENT_BYTES_HARD >> 20);
            Err(ApiError::new(ErrorCode::TooLarge, detail))
        }
    }
}

async fn record_quota_reached(api: &WorkerApi, attempt: &Attempt) -> Result<(), ApiError> {
    let key = attempt.key();
    let limit = EventData::Limit { limit: LimitName::MaxEventsMb, value: (MAX_TOTAL_BYTES >> 20).into() };
    api.store.append_if_live(key.job, key.attempt, api.clock.now(), limit).await?;
    tracing::info!(job.id = %key.job, "the job has reached its event quota; only its conversation is stored");
    Ok(())
}

fn is_too_large(event: &WorkerEvent) -> bool {
    let max_bytes = match event.data {
        AgentEvent::Message { .. } => MAX_MESSAGE_EVENT_BYTES,
        _ => MAX_ACCEPTED_EVENT_BYTES,
    };
    serde_json::to_string(event).is_ok_and(|text| text.len() > max_bytes)
}
