//! `GET /worker/{id}/job`: what is to be done.

use axum::{Json, extract::State};
use chrono::TimeDelta;
use protocol::{EgressView, JobAssignment};

use super::{
    WorkerApi,
    caller::{Caller, fenced},
};
use crate::http::problem::ApiError;

pub(super) async fn get(State(api): State<WorkerApi>, Caller { job }: Caller) -> Result<Json<JobAssignment>, ApiError> {
    let now = api.clock.now();
    let lease_expires_at = now + TimeDelta::from_std(api.lease).unwrap_or_default();
    api.store.heartbeat(job.id, job.attempt, now, lease_expires_at).await?.ok_or_else(fenced)?;
    Ok(Json(JobAssignment {
        job_id: job.id,
        attempt: job.attempt,
        tools: api.tools.offered(job.tools.as_deref()),
        title: job.title,
        prompt: job.prompt,
        mode: job.mode,
        command: vec![],
        plan: job.plan,
        limits: job.limits,
        model: job.model,
        transcript: None,
        lease_seconds: api.lease.as_secs(),
        egress: EgressView::default(),
    }))
}
