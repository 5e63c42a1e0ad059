//! `POST …/status`: the heartbeat.

use axum::{Json, extract::State};
use chrono::TimeDelta;
use protocol::{ErrorCode, EventData, StatusReply, StatusReport};

use super::{
    WorkerApi,
    caller::{Caller, fenced},
};
use crate::http::{extract::WorkerJson, problem::ApiError};

/// Kept of what a worker says of itself.
const MAX_MESSAGE_BYTES: usize = 4 * 1024;

pub(super) async fn beat(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    WorkerJson(report): WorkerJson<StatusReport>,
) -> Result<Json<StatusReply>, ApiError> {
    let now = api.clock.now();
    let lease_expires_at = now + TimeDelta::from_std(api.lease).unwrap_or_default();
    let cancel = api.store.heartbeat(job.id, job.attempt, now, lease_expires_at).await?.ok_or_else(fenced)?;
    if api.pulse.iteration(job.id, job.attempt, report.iteration) {
        api.got_somewhere(&job).await?;
    }
    if let Some(mut message) = report.message.filter(|message| !message.is_empty()) {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        api.pace.take(job.id, (1, message.len()), api.clock.monotonic()).map_err(|wait| {
            ApiError::new(ErrorCode::RateLimited, "too many events; beat without a message").with_retry_after(wait)
        })?;
        let told = EventData::Status { message, iteration: report.iteration };
        api.store.tell(job.id, job.attempt, now, told).await?;
    }
    Ok(Json(StatusReply { cancel, lease_expires_at }))
}
