//! `POST …/events`: what the worker saw and did, in order, each once.

use axum::{Json, extract::State};
use protocol::{ErrorCode, EventAck, EventBatch};

use super::{
    WorkerApi,
    caller::{Caller, fenced},
};
use crate::{
    http::{extract::WorkerJson, problem::ApiError},
    store::Appended,
};

/// In one batch.
const MAX_EVENTS: usize = 1_000;

pub(super) async fn append(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    WorkerJson(batch): WorkerJson<EventBatch>,
) -> Result<Json<EventAck>, ApiError> {
    if batch.events.len() > MAX_EVENTS {
        return Err(ApiError::new(ErrorCode::TooLarge, format!("at most {MAX_EVENTS} events in a batch")));
    }
    if let Some(event) = batch.events.iter().find(|event| !event.data.kind().from_worker()) {
        let kind = event.data.kind().as_str();
        return Err(ApiError::new(ErrorCode::Invalid, format!("a worker may not send {kind} events")));
    }
    api.pace.take(job.id, batch.events.len(), api.clock.monotonic()).map_err(|wait| {
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
