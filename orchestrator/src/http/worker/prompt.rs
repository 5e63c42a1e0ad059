//! `GET …/prompt`: the next follow-up prompt, waited for. One poll for each job: the newest.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::PromptId;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::{WorkerApi, caller::Caller};
use crate::http::{extract::ApiQuery, problem::ApiError};

/// The longest wait; the worker asks again.
const MAX_WAIT: Duration = Duration::from_mins(1);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    #[serde(default)]
    wait_seconds: u64,
    /// The last prompt that arrived (or the nil id): acknowledges, and makes asking again safe.
    after: Option<PromptId>,
}

pub(super) async fn next(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    ApiQuery(query): ApiQuery<Query>,
) -> Result<Response, ApiError> {
    let until = Instant::now() + Duration::from_secs(query.wait_seconds).min(MAX_WAIT);
    let poll = api.polls.begin(job.id);
    let mut follower = api.store.feed().follow(job.id);
    loop {
        if let Some(prompt) = api.store.next_prompt(job.id, query.after, api.clock.now()).await? {
            return Ok(Json(prompt).into_response());
        }
        let open = api.store.job(job.id).await?.is_some_and(|now| now.token_hash == job.token_hash);
        let changed = tokio::select! {
            changed = timeout_at(until, follower.changed()) => changed.is_ok(),
            () = api.drain.cancelled() => false,
            () = poll.overtaken() => false,
        };
        if !open || !changed {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
}
