//! `POST …/status`: the heartbeat.

use axum::{Json, extract::State};
use chrono::TimeDelta;
use protocol::{EventData, StatusReply, StatusReport};

use super::{
    WorkerApi,
    caller::{Caller, fenced},
};
use crate::http::{extract::WorkerJson, problem::ApiError};

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
    if let Some(message) = report.message.filter(|message| !message.is_empty()) {
        let told = EventData::Status { message, iteration: report.iteration };
        api.store.tell(job.id, job.attempt, now, told).await?;
    }
    Ok(Json(StatusReply { cancel, lease_expires_at }))
}
