//! `GET /api/events`: the events of the instance that the caller may see, as a stream or as a page.

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use protocol::{InstanceEvent, InstanceEventKind};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{PublicApi, caller::Caller, cursor, instance_stream, name_list, negotiate::wants_page, stream};
use auth::Identity;
use store::{InstanceEventFilter, StoredInstanceEvent};

use crate::{extract::ApiQuery, problem::ApiError};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Only events with a larger `cursor`. Without it (and without `Last-Event-ID`) a stream begins with the next event, and
    /// a page with the oldest one.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Maximum number of items, 1 to 200; default 50. A page also ends at 1 MiB. Ignored for streams.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// A kind, or several separated by commas.
    kind: Option<String>,
}

/// A page of the instance's events.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstanceEventPage)]
pub(super) struct InstanceEventList {
    /// Ordered by `cursor`.
    #[schema(value_type = Vec<InstanceEvent>)]
    items: Vec<StoredInstanceEvent>,
    /// Pass as `after` to get the next page; null on the last page. A page can be empty although there is a next one.
    next_after: Option<i64>,
}

/// Streams or lists the events of the instance.
///
/// Events of jobs, gates, chat threads and notifications in the order of their `cursor`: an admin's stream has those of all
/// users, others have their own. The stream has no end; `Last-Event-ID` resumes it. A message that has only an id moves the
/// position and nothing else. When events after the requested position were trimmed, or it lies beyond the last event, the
/// stream starts with `event: resync` and continues at the oldest stored event. With `Accept: application/json` the answer is
/// a page.
#[utoipa::path(
    get, path = "/api/events", operation_id = "list_instance_events", tag = "events",
    params(
        Params,
        ("Last-Event-ID" = Option<String>, Header, description = "Resume the stream after this `cursor`."),
    ),
    responses(
        (status = 200, description = "The stream, or a page.",
            content((String = "text/event-stream"), (InstanceEventList = "application/json"))),
        (status = 429, description = "Too many open event streams."),
    )
)]
pub(super) async fn events(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if params.after.is_some_and(|after| after < 0) {
        return Err(ApiError::field("after", "must be at least 0"));
    }
    let kinds = name_list::parse("kind", params.kind.as_deref(), InstanceEventKind::ALL, InstanceEventKind::as_str)?;
    let filter = InstanceEventFilter { user: visible_to(&who), kinds, thread: None };
    if !wants_page(&headers) {
        let after = stream::last_event_id(&headers, "the `cursor` of an event")?.or(params.after);
        return instance_stream::open(&api, who, filter, after).await;
    }
    let limit = cursor::limit(params.limit)?;
    let _permit = api.read_permit(&who).await?;
    let page = api.store.instance_events(&filter, params.after.unwrap_or(0), limit).await?;
    let next_after = page.has_more().then_some(page.read_to);
    Ok(Json(InstanceEventList { items: page.items, next_after }).into_response())
}

/// The user whose events the caller sees; `None` for all.
fn visible_to(who: &Identity) -> Option<String> {
    (!who.role.sees_all()).then(|| who.user.clone())
}
