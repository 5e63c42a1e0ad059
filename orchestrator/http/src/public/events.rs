//! `GET /api/jobs/{id}/events`: a job's events, as a page or as a stream.

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use protocol::{Event, EventKind, JobId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    PublicApi,
    caller::{Caller, authorize_job},
    cursor, job_stream,
    negotiate::wants_stream,
    stream,
};
use store::{EventPage, StoredEvent};

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Only events with a larger `seq`.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Maximum number of items, 1 to 200; default 50. A page also ends at 1 MiB. Ignored for streams.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// Only events of this kind.
    #[param(inline)]
    kind: Option<EventKind>,
}

/// A page of a job's events.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventPage)]
pub(super) struct EventList {
    /// Ordered by `seq`.
    #[schema(value_type = Vec<Event>)]
    items: Vec<StoredEvent>,
    /// Pass as `after` to get the next page; null on the last page.
    next_after: Option<i64>,
}

/// Lists or streams a job's events.
///
/// With `Accept: text/event-stream` the answer is a stream: stored events first, then new ones as they are written, until
/// the job has finished. Its last message is `event: end`. When the requested position is not available (it was trimmed, or
/// it lies beyond the last event) the stream starts with `event: resync` and continues at the oldest stored event.
#[utoipa::path(
    get, path = "/api/jobs/{id}/events", operation_id = "list_events", tag = "jobs",
    params(
        ("id" = String, Path, description = "Job id."), Params,
        ("Last-Event-ID" = Option<String>, Header, description = "With `Accept: text/event-stream`: resume after this `seq`."),
    ),
    responses(
        (status = 200, description = "A page, or the stream.",
            content((EventList = "application/json"), (String = "text/event-stream"))),
        (status = 204, description = "The job has finished and there are no events after the requested `seq`; stop reconnecting."),
    )
)]
pub(super) async fn events(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<Params>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let job = authorize_job(&api, &who, id).await?;
    let after = params.after.unwrap_or(0);
    if after < 0 {
        return Err(ApiError::field("after", "must be at least 0"));
    }
    if wants_stream(&headers) {
        let after = stream::last_event_id(&headers, "the `seq` of an event")?.unwrap_or(after);
        return job_stream::open(&api, who, &job, after, params.kind).await;
    }
    let limit = cursor::limit(params.limit)?;
    let _permit = api.read_permit(&who).await?;
    let EventPage { items, more } = api.store.events(id, after, limit, params.kind).await?;
    let next_after = items.last().filter(|_| more).map(|event| event.seq);
    Ok(Json(EventList { items, next_after }).into_response())
}
