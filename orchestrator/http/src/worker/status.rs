//! `POST …/status`: the heartbeat.

use axum::{Json, extract::State};
use chrono::TimeDelta;
use protocol::{AgentEvent, ErrorCode, StatusReply, StatusReport, limits::MAX_STATUS_MESSAGE_BYTES};

use super::{
    WorkerApi,
    caller::{Caller, fenced},
};
use crate::{extract::WorkerJson, problem::ApiError};

pub(super) async fn heartbeat(
    State(api): State<WorkerApi>,
    Caller { attempt, .. }: Caller,
    WorkerJson { value: report, .. }: WorkerJson<StatusReport>,
) -> Result<Json<StatusReply>, ApiError> {
    let key = attempt.key();
    let now = api.clock.now();
    let lease_expires_at = now + TimeDelta::from_std(api.lease).unwrap_or_default();
    let cancel = api.store.heartbeat(key.job, key.attempt, now, lease_expires_at).await?.ok_or_else(fenced)?;
    if attempt.record_iteration(report.iteration) {
        api.ingestion.record_progress(&attempt, now).await?;
    }
    if let Some(mut message) = report.message.filter(|message| !message.is_empty()) {
        message.truncate(message.floor_char_boundary(MAX_STATUS_MESSAGE_BYTES));
        attempt.limits().take_events(1, message.len(), api.clock.monotonic()).map_err(|wait| {
            ApiError::new(ErrorCode::RateLimited, "too many events; send the heartbeat without a message")
                .with_retry_after(wait)
        })?;
        let status = AgentEvent::Status { message, iteration: report.iteration };
        api.ingestion.append_one(&attempt, now, status).await?;
    }
    Ok(Json(StatusReply { cancel, lease_expires_at }))
}
