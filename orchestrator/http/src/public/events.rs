//! `GET /api/events`: the events of the instance that the caller may see, as a stream or as a page. The stream has no end.
//!
//! Owns what a caller may ask for, and where the stream starts.

mod live_chat;
mod live_jobs;
mod reader;
mod source;

use auth::Identity;
use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response, sse::Event as Sse},
};
use protocol::{InstanceEvent, InstanceEventKind, JobId};
use serde::{Deserialize, Serialize};
use store::{InstanceEventFilter, OwnedThread, StoredInstanceEvent, Topic};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::live_jobs::LiveJobs;
pub(super) use self::{live_chat::LiveChat, reader::InstanceReader, source::InstanceEvents};
use super::{
    PublicApi, chat,
    request::{ApiQuery, Caller, authorize_job, cursor, filter},
    response::{negotiate::wants_page, stream},
};
use crate::problem::ApiError;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(events))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventParams {
    /// Only events with a larger `cursor`. Without it (and without `Last-Event-ID`) a stream begins with the next event, and
    /// a page with the oldest one.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Maximum number of items, 1 to 200; default 50. A page also ends at 1 MiB. Ignored for streams.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// A kind, or several separated by commas.
    kind: Option<String>,
    /// Id of a job; besides these kinds, all events of the job's own stream.
    job: Option<JobId>,
    /// A thread, named by its id or key; besides these kinds, all events of the thread, and in a stream its pieces of answers
    /// and progress, as `GET /api/chat/events` sends them.
    thread: Option<String>,
}

/// A page of the instance's events.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstanceEventPage)]
struct InstanceEventList {
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
/// position and nothing else.
///
/// A `job` event has the job as lists show it, and follows each of its transitions. While a job runs, a stream that
/// asks for the kind `job` also has `job` messages without an id and a `cursor`, at most once in 2 seconds: they are not stored. An event of a job has its `seq`, so
/// that a reader of `job=ID` can tell that it has all of them.
///
/// Every 15 seconds `event: position` tells how far the stream has got, and the server's time. When events after the requested position were trimmed, or it lies beyond the last event, the
/// stream starts with `event: resync` and continues at the oldest stored event. With `Accept: application/json` the answer is
/// a page.
#[utoipa::path(
    get, path = "/api/events", operation_id = "list_instance_events", tag = "events",
    params(
        EventParams,
        ("Last-Event-ID" = Option<String>, Header, description = "Resume the stream after this `cursor`."),
    ),
    responses(
        (status = 200, description = "The stream, or a page.",
            content((String = "text/event-stream"), (InstanceEventList = "application/json"))),
        (status = 429, description = "Too many open event streams."),
    )
)]
async fn events(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<EventParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if params.after.is_some_and(|after| after < 0) {
        return Err(ApiError::field("after", "must be at least 0"));
    }
    let kinds = filter::names("kind", params.kind.as_deref(), InstanceEventKind::ALL, InstanceEventKind::as_str)?;
    if let Some(job) = params.job {
        authorize_job(&api, &who, job).await?;
    }
    let thread = match &params.thread {
        Some(thread) => Some(chat::authorize(&api, &who, thread).await?),
        None => None,
    };
    let filter = InstanceEventFilter {
        user: (!who.role.sees_all()).then(|| who.user.clone()),
        kinds,
        thread: None,
        with_job: params.job,
        with_thread: thread.as_ref().map(|owned| owned.thread.id),
    };
    if !wants_page(&headers) {
        let after = stream::last_event_id(&headers, "the `cursor` of an event")?.or(params.after);
        return open_stream(&api, who, filter, (after, thread)).await;
    }
    let limit = cursor::limit(params.limit)?;
    let _permit = api.read_permit(&who).await?;
    let page = api.store.instance_events(&filter, params.after.unwrap_or(0), limit).await?;
    let next_after = page.has_more().then_some(page.read_to);
    Ok(Json(InstanceEventList { items: page.items, next_after }).into_response())
}

/// Opens a stream of the events after `after`; without it, of those that are still to come. With what is live of a thread.
async fn open_stream(
    api: &PublicApi,
    who: Identity,
    filter: InstanceEventFilter,
    (after, thread): (Option<i64>, Option<OwnedThread>),
) -> Result<Response, ApiError> {
    let permit = api.stream_permit(&who)?;
    let topic = filter.user.clone().map_or(Topic::AllUsers, Topic::User);
    let subscription = api.store.event_notifier().subscribe(topic);
    let live =
        |owned: OwnedThread| LiveChat::new(api.chats.engine.live().subscribe(&owned.user), Some(owned.thread.id));
    let chat = thread.map(live);
    let has_jobs = filter.kinds.contains(&InstanceEventKind::Job);
    let jobs = has_jobs.then(|| LiveJobs::new(api.store.clone(), api.clock.clone(), filter.user.clone()));
    let stored = InstanceReader::open(api.store.clone(), filter, after, message).await?;
    let events = InstanceEvents::new(subscription, stored).with_chat(chat).with_jobs(jobs);
    Ok(stream::respond(api, who, permit, events))
}

fn message(event: &StoredInstanceEvent) -> Sse {
    let data = serde_json::to_string(event).unwrap_or_default();
    Sse::default().id(event.cursor.to_string()).event(event.kind.as_str()).data(data)
}
