//! Conversion of rows to records. A value that is not valid is `Inconsistent`, never replaced by a default.

use std::sync::Arc;

use agent::safety::DelimiterNonce;
use chrono::{DateTime, Utc};
use protocol::{
    ContainerInfo, Effort, EventData, EventKind, JobId, JobMode, Limits, Placement, RoutineId, RunId, Source, Usage,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use sqlx::FromRow;
use uuid::Uuid;

use crate::{StoreError, jobs::stage_columns::StageColumns};
use domain::job::{Brief, JobRecord, RunLink, WorkerSession};

/// Micro-dollars in a dollar.
const MICRO: f64 = 1_000_000.0;

/// One row of `jobs`.
#[derive(FromRow)]
pub(crate) struct JobRow {
    id: Uuid,
    rev: i64,
    user_id: String,
    title: String,
    prompt: String,
    note: Option<String>,
    mode: String,
    placement: String,
    #[sqlx(flatten)]
    stage: StageColumns,
    priority: i64,
    labels: String,
    metadata: String,
    limits: String,
    tools: Option<String>,
    approve: Option<String>,
    egress: Option<String>,
    delimiter_nonce: Option<String>,
    image: String,
    model: String,
    effort: Option<String>,
    plan: bool,
    review: bool,
    source: String,
    routine_id: Option<RoutineId>,
    run_id: Option<RunId>,
    restarted_from: Option<JobId>,
    parent_id: Option<JobId>,
    depth: i64,
    attempt: i64,
    repair_attempts: i64,
    created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    last_activity_at: Option<DateTime<Utc>>,
    session_attempt: Option<i64>,
    session_hash: Option<String>,
    session_rejected_attempt: Option<i64>,
    container: Option<String>,
    prompts_closed: bool,
    traceparent: Option<String>,
    input_tokens: i64,
    output_tokens: i64,
    cache_read_tokens: i64,
    cache_write_tokens: i64,
    /// None when a call had no price.
    cost_micro_usd: Option<i64>,
    llm_calls: i64,
    tool_calls: i64,
    iterations: i64,
}

/// The columns of [`JobRow`], for SELECT.
macro_rules! job_columns {
    () => {
        "id, rev, user_id, title, prompt, note, mode, placement, state, reason, message, priority, labels, metadata, limits, \
         tools, approve, egress, delimiter_nonce, image, model, effort, plan, review, source, routine_id, run_id, restarted_from, parent_id, depth, attempt, repair_attempts, \
         created_at, started_at, last_activity_at, cancel_requested_at, cancel_message, cancelled_by_parent, finished_at, \
         not_before, result_text, result_partial, result_cut, token_hash, session_attempt, session_hash, session_rejected_attempt, \
         lease_expires_at, calls_before_attempt, worker_seen_at, container, prompts_closed, held, traceparent, \
         input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, \
         CASE WHEN NOT has_unpriced_calls THEN cost_micro_usd END AS cost_micro_usd, llm_calls, tool_calls, iterations"
    };
}
pub(crate) use job_columns;

/// The tables of [`JobRow`], for FROM.
macro_rules! job_tables {
    () => {
        "jobs JOIN job_texts ON job_texts.job_id = jobs.id"
    };
}
pub(crate) use job_tables;

impl JobRow {
    pub(crate) fn into_record(self) -> Result<JobRecord, StoreError> {
        let row = RowRef { table: "jobs", id: self.id };
        let brief = Brief {
            user_id: self.user_id,
            title: self.title,
            prompt: self.prompt,
            note: self.note,
            mode: row.known("mode", JobMode::parse(&self.mode))?,
            placement: row.known("placement", placement(&self.placement))?,
            priority: row.number("priority", self.priority)?,
            labels: row.json("labels", &self.labels)?,
            metadata: row.json("metadata", &self.metadata)?,
            limits: row.json::<Limits>("limits", &self.limits)?,
            tools: self.tools.map(|tools| row.json("tools", &tools)).transpose()?,
            approve: self.approve.map(|tools| row.json("approve", &tools)).transpose()?.unwrap_or_default(),
            egress: self.egress.map(|egress| row.json("egress", &egress)).transpose()?,
            delimiter_nonce: self.delimiter_nonce.map(DelimiterNonce::from_text),
            image: self.image,
            model: self.model,
            effort: self.effort.map(|effort| row.known("effort", Effort::parse(&effort))).transpose()?,
            plan: self.plan,
            review: self.review,
            source: row.known("source", Source::parse(&self.source))?,
            routine: self.routine_id.zip(self.run_id).map(|(routine, run)| RunLink { routine, run }),
            restarted_from: self.restarted_from,
            parent_id: self.parent_id,
            depth: row.number("depth", self.depth)?,
            created_at: self.created_at,
            traceparent: self.traceparent,
        };
        Ok(JobRecord {
            id: JobId::from_uuid(self.id),
            rev: self.rev,
            brief: Arc::new(brief),
            stage: self.stage.into_stage(row)?,
            attempt: row.number("attempt", self.attempt)?,
            repair_attempts: row.number("repair_attempts", self.repair_attempts)?,
            started_at: self.started_at,
            last_activity_at: self.last_activity_at,
            container: self.container.map(|json| row.json::<ContainerInfo>("container", &json)).transpose()?,
            session: session_of(self.attempt, self.session_attempt, self.session_hash),
            session_rejected: self.session_rejected_attempt == Some(self.attempt),
            prompts_closed: self.prompts_closed,
            usage: Usage {
                input_tokens: row.number("input_tokens", self.input_tokens)?,
                output_tokens: row.number("output_tokens", self.output_tokens)?,
                cache_read_tokens: row.number("cache_read_tokens", self.cache_read_tokens)?,
                cache_write_tokens: row.number("cache_write_tokens", self.cache_write_tokens)?,
                cost_usd: self.cost_micro_usd.map(dollars),
                llm_calls: row.number("llm_calls", self.llm_calls)?,
                tool_calls: row.number("tool_calls", self.tool_calls)?,
                iterations: row.number("iterations", self.iterations)?,
            },
        })
    }
}

/// Attempts of versions without sessions need none.
fn session_of(attempt: i64, session_attempt: Option<i64>, hash: Option<String>) -> WorkerSession {
    if session_attempt != Some(attempt) {
        return WorkerSession::NotRequired;
    }
    hash.map_or(WorkerSession::Unopened, WorkerSession::Open)
}

/// One row of `events`.
#[derive(FromRow)]
pub(crate) struct EventRow {
    cursor: i64,
    job_id: JobId,
    seq: i64,
    attempt: i64,
    at: DateTime<Utc>,
    kind: String,
    data: String,
}

/// A stored event, serialized like `protocol::Event`. Its data is passed on as stored, neither parsed nor written
/// again.
#[derive(Debug, Clone, Serialize)]
pub struct StoredEvent {
    v: u8,
    /// Its sequence number in its job.
    pub seq: i64,
    cursor: i64,
    job_id: JobId,
    attempt: u32,
    at: DateTime<Utc>,
    pub kind: EventKind,
    data: Box<RawValue>,
    /// Whether texts of it are cut.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

/// Members of an object or items of a list that an event with cut texts keeps.
const MAX_CUT_ITEMS: usize = 50;

impl StoredEvent {
    pub fn parse(&self) -> Result<EventData, StoreError> {
        let whole = serde_json::json!({"kind": self.kind, "data": self.data});
        serde_json::from_value(whole)
            .map_err(|_| RowRef { table: "events", id: *self.job_id.as_uuid() }.invalid("data"))
    }

    /// The size of its data.
    pub(crate) fn bytes(&self) -> usize {
        self.data.get().len()
    }

    /// The event with texts of at most so many characters, and short lists.
    pub(crate) fn with_texts_cut_to(mut self, max: usize) -> Self {
        // Shorter data has neither.
        if self.bytes() > max.min(2 * MAX_CUT_ITEMS)
            && let Ok(mut data) = serde_json::from_str(self.data.get())
            && cut(&mut data, max)
            && let Ok(data) = serde_json::value::to_raw_value(&data)
        {
            (self.data, self.cut) = (data, true);
        }
        self
    }
}

/// Cuts the texts and lists of a value. Returns whether it has changed.
fn cut(value: &mut serde_json::Value, max: usize) -> bool {
    match value {
        serde_json::Value::String(text) => {
            let end = text.char_indices().nth(max).map(|(end, _)| end);
            if let Some(end) = end {
                text.truncate(end);
            }
            end.is_some()
        }
        serde_json::Value::Array(items) => {
            let is_long = items.len() > MAX_CUT_ITEMS;
            items.truncate(MAX_CUT_ITEMS);
            items.iter_mut().fold(is_long, |has_changed, item| cut(item, max) || has_changed)
        }
        serde_json::Value::Object(fields) => {
            let surplus: Vec<String> = fields.keys().skip(MAX_CUT_ITEMS).cloned().collect();
            for name in &surplus {
                fields.remove(name);
            }
            fields.values_mut().fold(!surplus.is_empty(), |has_changed, value| cut(value, max) || has_changed)
        }
        _ => false,
    }
}

impl EventRow {
    pub(crate) fn into_event(self) -> Result<StoredEvent, StoreError> {
        let row = RowRef { table: "events", id: *self.job_id.as_uuid() };
        Ok(StoredEvent {
            v: 1,
            seq: self.seq,
            cursor: self.cursor,
            job_id: self.job_id,
            attempt: row.number("attempt", self.attempt)?,
            at: self.at,
            kind: row.known("kind", EventKind::parse(&self.kind))?,
            data: RawValue::from_string(self.data).map_err(|_| row.invalid("data"))?,
            cut: false,
        })
    }
}

/// The row that is being read, for errors.
#[derive(Clone, Copy)]
pub(crate) struct RowRef {
    pub(crate) table: &'static str,
    pub(crate) id: Uuid,
}

impl RowRef {
    pub(crate) fn invalid(&self, column: &'static str) -> StoreError {
        StoreError::Inconsistent { table: self.table, column, id: self.id.to_string() }
    }

    pub(crate) fn known<T>(&self, column: &'static str, value: Option<T>) -> Result<T, StoreError> {
        value.ok_or_else(|| self.invalid(column))
    }

    pub(crate) fn number<T: TryFrom<i64>>(&self, column: &'static str, value: i64) -> Result<T, StoreError> {
        T::try_from(value).map_err(|_| self.invalid(column))
    }

    pub(crate) fn json<T: DeserializeOwned>(&self, column: &'static str, text: &str) -> Result<T, StoreError> {
        serde_json::from_str(text).map_err(|_| self.invalid(column))
    }
}

/// A job's placement by its name in the column.
pub(crate) fn placement(name: &str) -> Option<Placement> {
    match name {
        "container" => Some(Placement::Container),
        "host" => Some(Placement::Host),
        _ => None,
    }
}

/// The JSON text of a value for a column.
pub(crate) fn text<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Database(sqlx::Error::Encode(Box::new(error))))
}

/// The JSON text of the data of an event that is written as `{"kind":…,"data":…}`. The event is serialized once, and
/// the enclosing object is cut off. `None` if it is written otherwise.
pub(crate) fn tagged_data<T: Serialize>(event: &T, kind: &str) -> Result<Option<String>, StoreError> {
    let mut whole = text(event)?;
    let before = format!(r#"{{"kind":"{kind}","data":"#);
    if !whole.starts_with(&before) || !whole.ends_with('}') {
        return Ok(None);
    }
    whole.pop();
    whole.drain(..before.len());
    Ok(Some(whole))
}

#[expect(clippy::cast_precision_loss, reason = "9 billion dollars fit")]
pub(crate) fn dollars(micro: i64) -> f64 {
    micro as f64 / MICRO
}

/// A count as a column value; larger counts do not occur.
pub(crate) fn column(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A count from the database, which is never negative.
pub(crate) fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
