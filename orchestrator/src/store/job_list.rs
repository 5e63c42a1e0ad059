//! Lists of jobs: pages of summaries, newest first, bounded in rows and in bytes.
//!
//! Never reads a result or metadata, and of a prompt only what a summary shows of it.

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use protocol::{ContainerInfo, JobId, JobMode, JobReason, JobState, JobSummary, Limits, Source, Usage};
use serde_json::value::{RawValue, to_raw_value};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{
    Store, StoreError,
    rows::{Place, count, dollars, placement},
};

/// Most bytes of a page's items (contract: api, "a page ends at 1 MiB"), less what is around them.
const PAGE_BYTES: usize = 1024 * 1024 - 1024;

/// Which jobs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only this user's; none = everybody's (an admin asks).
    pub user: Option<String>,
    /// Only in one of these states; empty = any.
    pub states: Vec<JobState>,
    /// Only with all of these labels.
    pub labels: Vec<(String, String)>,
    /// Only with this text in title or prompt, without regard to ASCII case.
    pub text: Option<String>,
    /// Only whose id begins or ends with these lower-case hexadecimal digits.
    pub id_part: Option<String>,
    /// Only older than this one.
    pub before: Option<JobId>,
    /// At most so many.
    pub limit: u32,
}

/// Some jobs, newest first.
#[derive(Debug, Clone)]
pub struct JobPage {
    /// Each a [`JobSummary`] as JSON, so that it is written once.
    pub items: Vec<Box<RawValue>>,
    /// The last one, when others follow it.
    pub last: Option<JobId>,
}

impl Store {
    /// Jobs, newest first: at most as many as asked for, and as fit into a page.
    pub async fn jobs(&self, filter: &JobFilter) -> Result<JobPage, StoreError> {
        let mut query = select(filter);
        let mut rows = query.build_query_as::<SummaryRow>().fetch(&self.read);
        let mut page = JobPage { items: Vec::new(), last: None };
        let (mut last, mut bytes) = (None, 0);
        while let Some(row) = rows.try_next().await? {
            let (id, summary) = (JobId::from_uuid(row.id), row.into_summary()?);
            let item =
                to_raw_value(&summary).map_err(|error| StoreError::Database(sqlx::Error::Encode(Box::new(error))))?;
            bytes += item.get().len() + 1;
            // One job always fits, whatever its labels are.
            if page.items.len() == filter.limit as usize || (bytes > PAGE_BYTES && last.is_some()) {
                page.last = last;
                break;
            }
            last = Some(id);
            page.items.push(item);
        }
        Ok(page)
    }
}

/// The statement for a filter. A condition that does not apply is left out, so that SQLite can use its indexes.
fn select(filter: &JobFilter) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::<Sqlite>::new(
        "SELECT id, user_id, title, substr(prompt, 1, 200) AS prompt_preview, mode, placement, state, reason, message, \
         priority, labels, limits, model, source, parent_id, restarted_from, attempt, repair_attempts, created_at, \
         started_at, last_activity_at, cancel_requested_at, finished_at, input_tokens, output_tokens, cache_read_tokens, \
         cache_write_tokens, cost_micro_usd, llm_calls, tool_calls, iterations, container FROM jobs WHERE 1 = 1",
    );
    if let Some(user) = &filter.user {
        query.push(" AND user_id = ").push_bind(user.clone());
    }
    if !filter.states.is_empty() {
        query.push(" AND state IN (");
        let mut list = query.separated(", ");
        for state in &filter.states {
            list.push_bind(state.as_str());
        }
        query.push(")");
    }
    for (key, value) in &filter.labels {
        query.push(" AND labels ->> ").push_bind(key.clone()).push(" = ").push_bind(value.clone());
    }
    if let Some(words) = &filter.text {
        let escaped = words.to_lowercase().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        query.push(" AND lower(title || ' ' || prompt) LIKE ").push_bind(format!("%{escaped}%")).push(" ESCAPE '\\'");
    }
    if let Some(part) = &filter.id_part {
        query.push(" AND (lower(hex(id)) LIKE ").push_bind(format!("{part}%"));
        query.push(" OR lower(hex(id)) LIKE ").push_bind(format!("%{part}")).push(")");
    }
    if let Some(before) = filter.before {
        query.push(" AND id < ").push_bind(*before.as_uuid());
    }
    // One more, to know whether there is a next page.
    query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit) + 1);
    query
}

/// The part of a row of `jobs` that a summary shows.
#[derive(FromRow)]
struct SummaryRow {
    id: Uuid,
    user_id: String,
    title: String,
    prompt_preview: String,
    mode: String,
    placement: String,
    state: String,
    reason: Option<String>,
    message: Option<String>,
    priority: i64,
    labels: String,
    limits: String,
    model: String,
    source: String,
    parent_id: Option<Uuid>,
    restarted_from: Option<Uuid>,
    attempt: i64,
    repair_attempts: i64,
    created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    last_activity_at: Option<DateTime<Utc>>,
    cancel_requested_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
    input_tokens: i64,
    output_tokens: i64,
    cache_read_tokens: i64,
    cache_write_tokens: i64,
    cost_micro_usd: i64,
    llm_calls: i64,
    tool_calls: i64,
    iterations: i64,
    container: Option<String>,
}

impl SummaryRow {
    fn into_summary(self) -> Result<JobSummary, StoreError> {
        let row = Place { table: "jobs", id: self.id };
        Ok(JobSummary {
            id: JobId::from_uuid(self.id),
            user_id: self.user_id,
            title: self.title,
            prompt_preview: self.prompt_preview,
            mode: row.known("mode", JobMode::parse(&self.mode))?,
            placement: row.known("placement", placement(&self.placement))?,
            state: row.known("state", JobState::parse(&self.state))?,
            reason: self.reason.map(|r| row.known("reason", JobReason::parse(&r))).transpose()?,
            message: self.message,
            priority: row.number("priority", self.priority)?,
            labels: row.json("labels", &self.labels)?,
            limits: row.json::<Limits>("limits", &self.limits)?,
            egress: None,
            model: self.model,
            source: row.known("source", Source::parse(&self.source))?,
            routine_id: None,
            run_id: None,
            parent_id: self.parent_id.map(JobId::from_uuid),
            restarted_from: self.restarted_from.map(JobId::from_uuid),
            attempt: row.number("attempt", self.attempt)?,
            repair_attempts: row.number("repair_attempts", self.repair_attempts)?,
            created_at: self.created_at,
            started_at: self.started_at,
            last_activity_at: self.last_activity_at,
            cancel_requested_at: self.cancel_requested_at,
            finished_at: self.finished_at,
            usage: Usage {
                input_tokens: count(self.input_tokens),
                output_tokens: count(self.output_tokens),
                cache_read_tokens: count(self.cache_read_tokens),
                cache_write_tokens: count(self.cache_write_tokens),
                cost_usd: dollars(self.cost_micro_usd),
                llm_calls: count(self.llm_calls),
                tool_calls: count(self.tool_calls),
                iterations: count(self.iterations),
            },
            container: self.container.map(|c| row.json::<ContainerInfo>("container", &c)).transpose()?,
        })
    }
}
