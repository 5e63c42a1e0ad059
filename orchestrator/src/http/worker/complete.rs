//! `POST …/complete`: the worker's report. Once; the same report again gets the same answer.

use axum::{Json, extract::State};
use protocol::{CompleteReply, CompleteReport, ErrorCode};

use super::{
    WorkerApi,
    caller::{Known, fenced},
};
use crate::{
    http::{extract::ApiJson, problem::ApiError},
    store::Changed,
};

pub(super) async fn complete(
    State(api): State<WorkerApi>,
    known: Known,
    ApiJson(report): ApiJson<CompleteReport>,
) -> Result<Json<CompleteReply>, ApiError> {
    if known.attempt < known.job.attempt {
        return Err(fenced());
    }
    if !known.current {
        // The answer to an earlier report was lost on its way; the report was not.
        let reported = known.attempt == known.job.attempt && known.job.result.is_some();
        return if reported {
            Ok(Json(CompleteReply { accepted: true }))
        } else {
            Err(ApiError::new(ErrorCode::Unauthorized, "this token's attempt has ended"))
        };
    }
    match api.store.complete(known.job.id, known.attempt, api.clock.now(), &report).await? {
        Changed::Done(_) => {
            // The dispatcher gives the worker a moment to leave by itself, so this answer arrives.
            api.wake.wake();
            Ok(Json(CompleteReply { accepted: true }))
        }
        Changed::PromptsWaiting => {
            Err(ApiError::new(ErrorCode::PromptsWaiting, "prompts have arrived; fetch them and go on"))
        }
        Changed::Refused(_) | Changed::Missing => {
            Err(ApiError::new(ErrorCode::Unauthorized, "this token's attempt has ended"))
        }
    }
}
