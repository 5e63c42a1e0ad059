//! `GET /api/jobs/{id}/events`: what happened, as a list or as a stream.

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use protocol::{Event, EventKind, JobId, Problem};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    PublicApi,
    caller::{Caller, visible},
    cursor,
    negotiate::wants_stream,
    stream,
};
use crate::{
    http::{
        extract::{ApiPath, ApiQuery},
        problem::ApiError,
    },
    store::{EventPage, StoredEvent},
};

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Only those with a larger `seq`.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// 1 to 200; 50 when left out; fewer come when they are large. A stream has no limit.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// Only of this kind.
    #[param(inline)]
    kind: Option<EventKind>,
}

/// Some of a job's events.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EventList {
    /// In order.
    #[schema(value_type = Vec<Event>)]
    items: Vec<StoredEvent>,
    /// Give it as `after` for what follows; none when this is all there is by now.
    next_after: Option<i64>,
}

/// Lists or streams a job's events.
#[utoipa::path(
    get, path = "/api/jobs/{id}/events", tag = "jobs",
    params(
        ("id" = String, Path, description = "The job."), Params,
        ("Last-Event-ID" = Option<String>, Header, description = "With Accept: text/event-stream: go on after this `seq`."),
    ),
    responses(
        (status = 200, description = "A page; with Accept: text/event-stream a stream that ends with `end`.",
            content((EventList = "application/json"), (String = "text/event-stream"))),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "A parameter is wrong."),
    )
)]
pub(super) async fn events(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<Params>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let job = visible(&api, &who, id).await?;
    let after = params.after.unwrap_or(0);
    if after < 0 {
        return Err(ApiError::field("after", "must be 0 or more"));
    }
    if wants_stream(&headers) {
        let after = match headers.get("last-event-id").map(|value| value.to_str().map(str::trim)) {
            None | Some(Ok("")) => after,
            Some(Ok(text)) => text.parse().ok().filter(|seq| *seq >= 0).ok_or_else(not_a_seq)?,
            Some(Err(_)) => return Err(not_a_seq()),
        };
        return stream::stream(&api, who, &job, after, params.kind);
    }
    let limit = cursor::limit(params.limit)?;
    let _turn = api.list_read(&who).await?;
    let EventPage { items, more } = api.store.events(id, after, limit, params.kind).await?;
    let next_after = items.last().filter(|_| more).map(|event| event.seq);
    Ok(Json(EventList { items, next_after }).into_response())
}

fn not_a_seq() -> ApiError {
    ApiError::field("Last-Event-ID", "must be the id of an event of this stream, a whole number")
}
