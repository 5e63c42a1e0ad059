//! `GET …/prompt`: a long poll for the next follow-up prompt. An attempt has one poll: the newest.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{PromptId, limits::MAX_PROMPT_WAIT_SECONDS};
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::{WorkerApi, caller::Caller};
use crate::{extract::ApiQuery, problem::ApiError};

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
    Caller { attempt, .. }: Caller,
    ApiQuery(query): ApiQuery<Query>,
) -> Result<Response, ApiError> {
    let until = Instant::now() + Duration::from_secs(query.wait_seconds.min(MAX_PROMPT_WAIT_SECONDS));
    let poll = attempt.begin_poll();
    // Before the first read, so that no prompt is missed.
    let mut changes = attempt.subscribe();
    loop {
        if let Some(prompt) = api.store.next_prompt(attempt.key().job, query.after, api.clock.now()).await? {
            return Ok(Json(prompt).into_response());
        }
        // A worker that has reported holds a void token.
        let is_open = attempt.is_live() && attempt.record().token_hash().is_some();
        let has_changed = is_open
            && tokio::select! {
                woken = timeout_at(until, changes.changed()) => woken.is_ok(),
                () = api.drain.cancelled() => false,
                () = poll.cancelled() => false,
            };
        if !has_changed {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
}
