//! Jobs: made, found, counted.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use protocol::{ContainerInfo, JobId, JobState, JobSummary, Limits, StateCounts, Usage};
use sqlx::{FromRow as _, QueryBuilder, Row as _, Sqlite, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    Connection, Store, StoreError, events,
    idempotency::{self, Claim, Key},
    lifecycle,
    rows::{JobRow, column, dollars, job_columns, text},
};
use crate::domain::job::{JobRecord, NoChild, Step};

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
    /// Only older than this one.
    pub before: Option<JobId>,
    /// At most so many.
    pub limit: u32,
}

/// What the dispatcher looks after.
#[derive(Debug, Default)]
pub struct Unfinished {
    /// The jobs.
    pub jobs: Vec<JobRecord>,
    /// Jobs whose row makes no sense, with what is wrong about each.
    pub unreadable: Vec<(JobId, StoreError)>,
}

/// A job that runs, for what looks after its workspace.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningJob {
    /// Which.
    pub id: JobId,
    /// What it may hold.
    pub limits: Limits,
    /// Its attempt's container, by name.
    pub container: Option<String>,
}

impl RunningJob {
    /// From a job's record.
    pub fn of(job: &JobRecord) -> Self {
        let container = job.container.as_ref().map(|container| container.name.clone());
        Self { id: job.id, limits: job.limits, container }
    }
}

/// The jobs that run.
#[derive(Debug, Default, PartialEq)]
pub struct RunningJobs {
    /// Those whose rows can be read.
    pub jobs: Vec<RunningJob>,
    /// The others.
    pub unreadable: Vec<Uuid>,
}

impl Store {
    /// Stores a new job with its first event. With an idempotency key that was seen before, nothing is stored.
    pub async fn create_job(&self, job: JobRecord, key: Option<Key<'_>>) -> Result<Claim, StoreError> {
        let mut tx = self.begin().await?;
        let now = job.created_at;
        if let Some(key) = &key
            && let Some(known) = idempotency::lookup(&mut tx, key, now).await?
        {
            return Ok(known);
        }
        let Step { job, events } = job.born();
        insert(&mut tx, &job).await?;
        events::append(&mut tx, job.id, 0, now, &events).await?;
        if let Some(key) = &key {
            idempotency::insert(&mut tx, key, now, (201, &text(&job.to_api())?)).await?;
        }
        self.note(&mut tx, job.id).await?;
        tx.commit().await?;
        Ok(Claim::New)
    }

    /// Stores a job that another one makes, unless that one may make no more.
    pub async fn create_child(
        &self,
        parent: JobId,
        child: JobRecord,
    ) -> Result<Result<JobRecord, NoChild>, StoreError> {
        let mut tx = self.begin().await?;
        let Some(above) = lifecycle::load(&mut tx, parent).await? else {
            return Err(super::rows::Place { table: "jobs", id: *parent.as_uuid() }.wrong("id"));
        };
        let children: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM jobs WHERE parent_id = $1")
            .bind(*parent.as_uuid())
            .fetch_one(&mut *tx)
            .await?;
        let child = match above.adopt(child, u32::try_from(children).unwrap_or(u32::MAX)) {
            Ok(child) => child,
            Err(no) => return Ok(Err(no)),
        };
        let Step { job, events } = child.born();
        insert(&mut tx, &job).await?;
        events::append(&mut tx, job.id, 0, job.created_at, &events).await?;
        tx.commit().await?;
        Ok(Ok(job))
    }

    /// One job.
    pub async fn job(&self, id: JobId) -> Result<Option<JobRecord>, StoreError> {
        let mut connection = self.read.acquire().await?;
        lifecycle::load(&mut connection, id).await
    }

    /// Whether an attempt's job is to stop; none once the attempt is over.
    pub async fn is_to_stop(&self, id: JobId, attempt: u32) -> Result<Option<bool>, StoreError> {
        let stops = sqlx::query_scalar(
            "SELECT cancel_requested_at IS NOT NULL FROM jobs \
             WHERE id = $1 AND attempt = $2 AND state IN ('in_progress', 'stuck')",
        )
        .bind(*id.as_uuid())
        .bind(i64::from(attempt))
        .fetch_optional(&self.read)
        .await?;
        Ok(stops)
    }

    /// Jobs, newest first.
    pub async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRecord>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(concat!("SELECT ", job_columns!(), " FROM jobs WHERE 1 = 1"));
        if let Some(user) = &filter.user {
            query.push(" AND user_id = ").push_bind(user);
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
            query.push(" AND labels ->> ").push_bind(key).push(" = ").push_bind(value);
        }
        if let Some(words) = &filter.text {
            let escaped = words.to_lowercase().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            query
                .push(" AND lower(title || ' ' || prompt) LIKE ")
                .push_bind(format!("%{escaped}%"))
                .push(" ESCAPE '\\'");
        }
        if let Some(before) = filter.before {
            query.push(" AND id < ").push_bind(*before.as_uuid());
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit));
        let rows: Vec<JobRow> = query.build_query_as().fetch_all(&self.read).await?;
        rows.into_iter().map(JobRow::into_record).collect()
    }

    /// Everything the dispatcher looks after: all that runs, and of each user's queue as many as could be started, first the
    /// urgent, then the old. A queue of thousands is not read to start five.
    ///
    /// A row that makes no sense is an error about that job alone: the others are read.
    pub async fn unfinished(&self, pending_per_user: usize) -> Result<Unfinished, StoreError> {
        let rows: Vec<SqliteRow> = sqlx::query(concat!(
            "SELECT ",
            job_columns!(),
            " FROM jobs WHERE state IN ('in_progress', 'stuck') OR id IN (SELECT id FROM (SELECT id, \
             ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY priority DESC, id) AS place FROM jobs \
             WHERE state = 'pending' AND NOT held) AS queue WHERE place <= $1) ORDER BY id"
        ))
        .bind(column(pending_per_user as u64))
        .fetch_all(&self.read)
        .await?;
        let mut found = Unfinished::default();
        for row in rows {
            match JobRow::from_row(&row).map_err(StoreError::from).and_then(JobRow::into_record) {
                Ok(job) => found.jobs.push(job),
                Err(error) => {
                    // Without even an id it is nobody's.
                    let id = row.try_get("id").map_or_else(|_| JobId::nil(), JobId::from_uuid);
                    found.unreadable.push((id, error));
                }
            }
        }
        Ok(found)
    }

    /// How many jobs have an attempt that has not ended.
    pub async fn count_at_work(&self) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM jobs WHERE state IN ('in_progress', 'stuck')")
            .fetch_one(&self.read)
            .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Every job that runs. A row that makes no sense is no reason to look after none.
    pub async fn running(&self) -> Result<RunningJobs, StoreError> {
        let rows: Vec<(Uuid, String, Option<String>)> =
            sqlx::query_as("SELECT id, limits, container FROM jobs WHERE state IN ('in_progress', 'stuck')")
                .fetch_all(&self.read)
                .await?;
        let mut running = RunningJobs::default();
        for (id, limits, container) in rows {
            let container = container.map(|text| serde_json::from_str::<ContainerInfo>(&text)).transpose();
            match (serde_json::from_str(&limits), container) {
                (Ok(limits), Ok(container)) => {
                    let (id, container) = (JobId::from_uuid(id), container.map(|container| container.name));
                    running.jobs.push(RunningJob { id, limits, container });
                }
                _ => running.unreadable.push(id),
            }
        }
        Ok(running)
    }

    /// Open jobs that nobody stops yet, though their parent was cancelled or failed.
    pub async fn orphaned(&self) -> Result<HashSet<JobId>, StoreError> {
        let ids: Vec<Uuid> = sqlx::query_scalar(
            "SELECT c.id FROM jobs c JOIN jobs p ON p.id = c.parent_id \
             WHERE c.state IN ('pending', 'in_progress', 'stuck') AND c.cancel_requested_at IS NULL \
             AND (p.cancel_requested_at IS NOT NULL OR p.state IN ('cancelled', 'failed'))",
        )
        .fetch_all(&self.read)
        .await?;
        Ok(ids.into_iter().map(JobId::from_uuid).collect())
    }

    /// When a job's work ended, finished or submitted; none while it is open or when there is no such job.
    pub async fn ended_at(&self, id: JobId) -> Result<Option<DateTime<Utc>>, StoreError> {
        let at: Option<Option<DateTime<Utc>>> = sqlx::query_scalar(
            "SELECT CASE WHEN state = 'submitted' THEN last_activity_at ELSE finished_at END FROM jobs WHERE id = $1",
        )
        .bind(*id.as_uuid())
        .fetch_optional(&self.read)
        .await?;
        Ok(at.flatten())
    }

    /// Counts by state and what was used since `midnight`.
    pub async fn summary(&self, user: Option<&str>, midnight: DateTime<Utc>) -> Result<JobSummary, StoreError> {
        let counted: Vec<(String, i64)> =
            sqlx::query_as("SELECT state, COUNT(*) FROM jobs WHERE ($1 IS NULL OR user_id = $1) GROUP BY state")
                .bind(user)
                .fetch_all(&self.read)
                .await?;
        let mut states = StateCounts::default();
        for (state, count) in counted {
            let count = u64::try_from(count).unwrap_or(0);
            match JobState::parse(&state) {
                Some(JobState::Pending) => states.pending = count,
                Some(JobState::InProgress) => states.in_progress = count,
                Some(JobState::Completed) => states.completed = count,
                Some(JobState::Submitted) => states.submitted = count,
                Some(JobState::Accepted) => states.accepted = count,
                Some(JobState::Failed) => states.failed = count,
                Some(JobState::Stuck) => states.stuck = count,
                Some(JobState::Cancelled) => states.cancelled = count,
                None => return Err(super::rows::Place { table: "jobs", id: Uuid::nil() }.wrong("state")),
            }
        }
        let spent: (i64, i64, i64, i64, i64, i64) = sqlx::query_as(
            "SELECT COALESCE(SUM(c.input_tokens), 0), COALESCE(SUM(c.output_tokens), 0), \
             COALESCE(SUM(c.cache_read_tokens), 0), COALESCE(SUM(c.cache_write_tokens), 0), \
             COALESCE(SUM(c.cost_micro_usd), 0), COUNT(*) FROM llm_calls c JOIN jobs j ON j.id = c.job_id \
             WHERE c.at >= $1 AND ($2 IS NULL OR j.user_id = $2)",
        )
        .bind(midnight)
        .bind(user)
        .fetch_one(&self.read)
        .await?;
        let tools: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM job_actions a JOIN jobs j ON j.id = a.job_id \
             WHERE a.at >= $1 AND ($2 IS NULL OR j.user_id = $2)",
        )
        .bind(midnight)
        .bind(user)
        .fetch_one(&self.read)
        .await?;
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        let usage_today = Usage {
            input_tokens: count(spent.0),
            output_tokens: count(spent.1),
            cache_read_tokens: count(spent.2),
            cache_write_tokens: count(spent.3),
            cost_usd: dollars(spent.4),
            llm_calls: count(spent.5),
            tool_calls: count(tools),
            // An iteration is one model call.
            iterations: count(spent.5),
        };
        Ok(JobSummary { states, usage_today })
    }
}

async fn insert(tx: &mut Connection, job: &JobRecord) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO jobs (id, rev, user_id, title, prompt, mode, placement, state, priority, labels, metadata, limits, \
         tools, image, model, plan, source, restarted_from, attempt, repair_attempts, created_at, last_activity_at, \
         prompts_closed, review, parent_id, depth, held, message, traceparent) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 0, 0, $19, $19, $20, $21, \
         $22, $23, $24, $25, $26)",
    )
    .bind(*job.id.as_uuid())
    .bind(job.rev)
    .bind(&job.user_id)
    .bind(&job.title)
    .bind(&job.prompt)
    .bind(job.mode.as_str())
    .bind(match job.placement {
        protocol::Placement::Container => "container",
        protocol::Placement::Host => "host",
    })
    .bind(job.state.as_str())
    .bind(i64::from(job.priority))
    .bind(text(&job.labels)?)
    .bind(text(&job.metadata)?)
    .bind(text(&job.limits)?)
    .bind(job.tools.as_ref().map(text).transpose()?)
    .bind(&job.image)
    .bind(&job.model)
    .bind(job.plan)
    .bind(job.source.as_str())
    .bind(job.restarted_from.map(|id| *id.as_uuid()))
    .bind(job.created_at)
    .bind(job.prompts_closed)
    .bind(job.review)
    .bind(job.parent_id.map(|id| *id.as_uuid()))
    .bind(i64::from(job.depth))
    .bind(job.held)
    .bind(&job.message)
    .bind(&job.traceparent)
    .execute(tx)
    .await?;
    Ok(())
}
