//! `POST …/events`: what the worker saw and did, in order, each once.

use axum::{Json, extract::State};
use protocol::{ErrorCode, EventAck, EventBatch, WorkerEvent};

use super::{
    WorkerApi,
    caller::{Caller, fenced},
};
use crate::{
    http::{extract::WorkerJsonBytes, problem::ApiError},
    store::Appended,
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
    match api.store.append_worker_events(job.id, job.attempt, api.clock.now(), batch.events).await? {
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

fn is_too_large(event: &WorkerEvent) -> bool {
    serde_json::to_string(event).is_ok_and(|text| text.len() > MAX_EVENT_BYTES)
}
