//! `GET /worker/{id}/job`: the job's assignment.

use axum::{Json, extract::State};
use chrono::TimeDelta;
use protocol::JobAssignment;

use super::{
    WorkerApi,
    caller::{Caller, ended, fenced},
};
use crate::problem::ApiError;

pub(super) async fn get(
    State(api): State<WorkerApi>,
    Caller { attempt, .. }: Caller,
) -> Result<Json<JobAssignment>, ApiError> {
    let key = attempt.key();
    // Read again: usage changes without a transition, so the registry's record may be stale.
    let job = api.store.job(key.job).await?.filter(|job| job.attempt == key.attempt).ok_or_else(ended)?;
    let now = api.clock.now();
    let lease_expires_at = now + TimeDelta::from_std(api.lease).unwrap_or_default();
    api.store.heartbeat(job.id, job.attempt, now, lease_expires_at).await?.ok_or_else(fenced)?;
    let running = job.running();
    if running.is_none_or(|running| running.worker_seen_at.is_none()) {
        // The attempt's first call: its last activity is its start.
        let began = job.last_activity_at.unwrap_or(now);
        api.metrics.first_worker_call((now - began).to_std().unwrap_or_default());
    }
    // The conversation of earlier attempts is resumed.
    let has_earlier_calls = running.is_some_and(|running| running.calls_before_attempt > 0);
    let transcript = if has_earlier_calls { api.store.transcript(job.id).await? } else { vec![] };
    let temperature = api.store.settings(&job.brief.user_id).await?.temperature;
    Ok(Json(JobAssignment {
        job_id: job.id,
        attempt: job.attempt,
        tools: api.tools.offered(api.tools.context_of(&job).await?).await,
        approve: job.brief.approve.clone(),
        title: job.brief.title.clone(),
        prompt: job.brief.first_message(),
        mode: job.brief.mode,
        command: vec![],
        plan: job.brief.plan,
        limits: job.remaining_limits(),
        model: job.brief.model.clone(),
        temperature,
        transcript: Some(transcript).filter(|transcript| !transcript.is_empty()),
        lease_seconds: api.lease.as_secs(),
        delimiter_nonce: job.brief.delimiter_nonce.as_ref().map(|nonce| nonce.as_str().to_owned()),
        egress_names: egress::names(&job.brief.egress_view().allow),
        egress: job.brief.egress_view(),
        context_tokens: api.meter.gateway.context_tokens(),
        text_tool_calls: api.meter.gateway.recovers_text_tool_calls(),
        outage_patience_seconds: Some(api.outage_patience.as_secs()),
        worker_patience_seconds: Some(api.worker_patience.as_secs()),
    }))
}
