//! `POST …/events`: the worker's events, in order, each stored once.

use axum::{Json, extract::State};
use protocol::{
    AgentEvent, ErrorCode, EventAck, EventBatch, WorkerEvent,
    limits::{MAX_ACCEPTED_EVENT_BYTES, MAX_BATCH_EVENTS, MAX_MESSAGE_EVENT_BYTES},
};

use super::{
    WorkerApi,
    caller::{Caller, fenced},
};
use dispatch::{IngestError, MAX_EVENT_BYTES_HARD};
use store::Appended;

use crate::{extract::WorkerJson, problem::ApiError};

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
    match api.ingestion.append(&attempt, api.clock.now(), batch.events, bytes.len()).await? {
        Appended::Stored { last_client_seq, .. } => {
            api.ingestion.record_progress(&attempt, api.clock.now()).await?;
            Ok(Json(EventAck { last_client_seq }))
        }
        Appended::Gap { expected } => Err(ApiError::new(
            ErrorCode::Invalid,
            format!("client_seq {expected} is due; numbers must not be left out"),
        )),
        Appended::Fenced => Err(fenced()),
    }
}

impl From<IngestError> for ApiError {
    fn from(error: IngestError) -> Self {
        match error {
            IngestError::QuotaReached => {
                let detail = format!("this job's events have reached their limit of {} MB", MAX_EVENT_BYTES_HARD >> 20);
                Self::new(ErrorCode::TooLarge, detail)
            }
            IngestError::Unsearched(error) => error.into(),
            IngestError::Store(error) => error.into(),
        }
    }
}

fn is_too_large(event: &WorkerEvent) -> bool {
    let max_bytes = match event.data {
        AgentEvent::Message { .. } => MAX_MESSAGE_EVENT_BYTES,
        _ => MAX_ACCEPTED_EVENT_BYTES,
    };
    serde_json::to_string(event).is_ok_and(|text| text.len() > max_bytes)
}
