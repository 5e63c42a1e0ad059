//! A job's events, as a page or as a stream: first from the store, then as they are written, until the final state.
//!
//! Owns where the stream starts and ends.

use auth::Identity;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response, sse::Event as Sse},
};
use domain::job::JobRecord;
use protocol::{CallId, Event, EventData, EventKind, JobId, JobState};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{EventFilter, EventPage, EventQuery, EventSubscription, Store, StoreError, StoredEvent, Topic};
use utoipa::{IntoParams, ToSchema};

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, ApiQuery, Caller, authorize_job, cursor, filter},
        response::{
            negotiate::wants_stream,
            stream::{self, BATCH, Batch, EventSource, Next, named},
        },
    },
};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
    /// Only events with a larger `seq`.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// The newest events with a smaller `seq`, still ordered by `seq`: the last page of a long job, or the page before
    /// another one. Not for streams.
    #[param(minimum = 1)]
    before: Option<i64>,
    /// Cut texts of more characters, and lists of more than 50 items; such events have `cut: true`. 200 to 10,000. Not for
    /// streams.
    #[param(minimum = 200, maximum = 10_000)]
    max_text: Option<usize>,
    /// Maximum number of items, 1 to 200; default 50. A page also ends at 1 MiB. Ignored for streams.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// A kind, or several separated by commas.
    kind: Option<String>,
    /// Only events of this tool call: the call, its output and its result. Not for streams.
    call_id: Option<CallId>,
    /// `true`: only failures, of the job, its tool calls, model calls and connections, and reached limits. Not for
    /// streams.
    #[serde(default)]
    failed: bool,
}

impl EventParams {
    /// The first given one that streams do not have.
    fn for_pages_only(&self) -> Option<&'static str> {
        let given = [
            ("before", self.before.is_some()),
            ("max_text", self.max_text.is_some()),
            ("call_id", self.call_id.is_some()),
            ("failed", self.failed),
        ];
        given.into_iter().find_map(|(name, is_given)| is_given.then_some(name))
    }
}

/// A page of a job's events.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventPage)]
struct EventList {
    /// Ordered by `seq`.
    #[schema(value_type = Vec<Event>)]
    items: Vec<StoredEvent>,
    /// Pass as `after` to get the next page; null on the last page, and on a page that was asked for with `before`.
    next_after: Option<i64>,
    /// Pass as `before` to get the page before this one; null unless this one was asked for with `before` and is not the first.
    next_before: Option<i64>,
    /// The `seq` of the newest event of the job.
    last_seq: i64,
}

/// `max_text`. Names and ids are shorter: what they are is never cut.
const MAX_TEXT: std::ops::RangeInclusive<usize> = 200..=10_000;

/// Lists or streams a job's events.
///
/// With `Accept: text/event-stream` the answer is a stream: stored events first, then new ones as they are written, until
/// the job has finished. Its last message is `event: end`. Every 15 seconds `event: position` has the `seq` up to which the stream
/// has got, and the server's time. When the requested position is not available (it was trimmed, or
/// it lies beyond the last event) the stream starts with `event: resync` and continues at the oldest stored event.
#[utoipa::path(
    get, path = "/api/jobs/{id}/events", operation_id = "list_events", tag = "jobs",
    params(
        ("id" = String, Path, description = "Job id."), EventParams,
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
    ApiQuery(params): ApiQuery<EventParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let job = authorize_job(&api, &who, id).await?;
    let after = params.after.unwrap_or(0);
    if after < 0 {
        return Err(ApiError::field("after", "must be at least 0"));
    }
    if params.before.is_some_and(|before| before < 1) {
        return Err(ApiError::field("before", "must be at least 1"));
    }
    if params.max_text.is_some_and(|max| !MAX_TEXT.contains(&max)) {
        let message = format!("must be from {} to {}", MAX_TEXT.start(), MAX_TEXT.end());
        return Err(ApiError::field("max_text", message));
    }
    let kinds = filter::names("kind", params.kind.as_deref(), EventKind::ALL, EventKind::as_str)?;
    if wants_stream(&headers) {
        if let Some(name) = params.for_pages_only() {
            return Err(ApiError::field(name, "is for pages only; ask for application/json"));
        }
        let after = stream::last_event_id(&headers, "the `seq` of an event")?.unwrap_or(after);
        return open_stream(&api, who, &job, after, kinds).await;
    }
    let limit = cursor::limit(params.limit)?;
    let _permit = api.read_permit(&who).await?;
    let EventParams { before, max_text, call_id, failed, .. } = params;
    let filter = EventFilter { kinds, call: call_id, failed };
    let query = EventQuery { after, before, limit, filter, max_text };
    let EventPage { items, more } = api.store.event_page(id, query).await?;
    let last_seq = api.store.last_seq(id).await?;
    let (first, last) = (items.first().map(|event| event.seq), items.last().map(|event| event.seq));
    let next_after = last.filter(|_| more && before.is_none());
    let next_before = first.filter(|_| more && before.is_some());
    Ok(Json(EventList { items, next_after, next_before, last_seq }).into_response())
}

/// Returns one event of a job.
///
/// With all of its texts, also those that a page has cut.
#[utoipa::path(
    get, path = "/api/jobs/{id}/events/{seq}", operation_id = "get_event", tag = "jobs",
    params(("id" = String, Path, description = "Job id."), ("seq" = i64, Path, description = "The event's `seq`.")),
    responses((status = 200, body = Event, description = "The event."))
)]
pub(super) async fn event(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath((id, seq)): ApiPath<(JobId, i64)>,
) -> Result<Json<StoredEvent>, ApiError> {
    authorize_job(&api, &who, id).await?;
    api.store.event(id, seq).await?.map(Json).ok_or_else(ApiError::not_found)
}

enum Start {
    /// After this `seq`.
    After(i64),
    /// The requested `seq` does not exist: at `oldest`, the oldest event that is kept.
    Resync { oldest: i64 },
    /// The client has seen all events of a finished job.
    Finished,
}

/// Opens a stream of the events after `after`, of some kinds or all. 204 when the job has finished and there are none:
/// an `EventSource` reconnects after any other answer.
async fn open_stream(
    api: &PublicApi,
    who: Identity,
    job: &JobRecord,
    after: i64,
    kinds: Vec<EventKind>,
) -> Result<Response, ApiError> {
    let permit = api.stream_permit(&who)?;
    let (after, resync) = match start(api, job, after, &kinds).await? {
        Start::After(after) => (after, None),
        Start::Resync { oldest } => (oldest - 1, Some(oldest)),
        Start::Finished => return Ok(StatusCode::NO_CONTENT.into_response()),
    };
    let events = JobEvents {
        store: api.store.clone(),
        subscription: api.store.event_notifier().subscribe(Topic::Job(job.id)),
        job: job.id,
        is_reviewed: job.brief.review,
        after,
        kinds,
        resync,
    };
    Ok(stream::respond(api, who, permit, events))
}

async fn start(api: &PublicApi, job: &JobRecord, after: i64, kinds: &[EventKind]) -> Result<Start, StoreError> {
    let last = api.store.last_seq(job.id).await?;
    if after > last {
        let kept = api.store.events(job.id, 0, 1, None).await?.items;
        return Ok(Start::Resync { oldest: kept.first().map_or(last + 1, |event| event.seq) });
    }
    if after > 0 && job.state().is_finished() {
        let filter = EventFilter { kinds: kinds.to_vec(), ..EventFilter::default() };
        let query = EventQuery { after, limit: 1, filter, ..EventQuery::default() };
        if api.store.event_page(job.id, query).await?.items.is_empty() {
            return Ok(Start::Finished);
        }
    }
    Ok(Start::After(after))
}

struct JobEvents {
    store: Store,
    subscription: EventSubscription,
    job: JobId,
    /// The job is reviewed: `completed` is followed by `submitted`, so it is not the end.
    is_reviewed: bool,
    after: i64,
    /// Of these kinds; all kinds if empty.
    kinds: Vec<EventKind>,
    /// The `seq` that the stream starts at in place of the requested one.
    resync: Option<i64>,
}

impl EventSource for JobEvents {
    async fn changed(&mut self) {
        self.subscription.changed().await;
    }

    async fn read(&mut self) -> Result<Batch, StoreError> {
        let mut messages: Vec<Sse> = self.resync.take().map(resync).into_iter().collect();
        // Not filtered by kind: a state event marks the end of every stream.
        let EventPage { items: events, more } = self.store.events(self.job, self.after, BATCH, None).await?;
        let mut next = if more { Next::Read } else { Next::Wait };
        let Some(first) = events.first() else {
            if let Some(end) = self.end_if_finished().await? {
                messages.push(end);
                next = Next::End;
            }
            return Ok(Batch { messages, next });
        };
        // `seq` has no gaps: missing events before the first one have been trimmed.
        if first.seq - 1 > self.after {
            messages.push(resync(first.seq));
        }
        for event in events {
            self.after = event.seq;
            if self.kinds.is_empty() || self.kinds.contains(&event.kind) {
                messages.push(message(&event));
            }
            let last = final_state(&event)?.filter(|state| *state != JobState::Completed || !self.is_reviewed);
            if let Some(state) = last {
                messages.push(self.end(state));
                next = Next::End;
            }
        }
        Ok(Batch { messages, next })
    }

    fn position(&self) -> (&'static str, i64) {
        ("seq", self.after)
    }
}

impl JobEvents {
    /// The last message, when no event is left and the job has finished.
    async fn end_if_finished(&mut self) -> Result<Option<Sse>, StoreError> {
        if let Some(job) = self.store.job(self.job).await?
            && job.state().is_finished()
            && self.store.events(self.job, self.after, 1, None).await?.items.is_empty()
        {
            self.after = self.store.last_seq(self.job).await?;
            return Ok(Some(self.end(job.state())));
        }
        Ok(None)
    }

    fn end(&self, state: JobState) -> Sse {
        named("end", &json!({"state": state, "seq": self.after}))
    }
}

fn final_state(event: &StoredEvent) -> Result<Option<JobState>, StoreError> {
    if event.kind != EventKind::State {
        return Ok(None);
    }
    Ok(match event.parse()? {
        EventData::State { to, .. } if to.is_finished() => Some(to),
        _ => None,
    })
}

fn message(event: &StoredEvent) -> Sse {
    let data = serde_json::to_string(event).unwrap_or_default();
    Sse::default().id(event.seq.to_string()).event(event.kind.as_str()).data(data)
}

/// The message that events are missing and that `oldest` comes next.
fn resync(oldest: i64) -> Sse {
    named("resync", &json!({"seq": oldest}))
}
