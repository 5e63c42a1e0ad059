//! Jobs: created, loaded and counted.

use agent::safety::DelimiterNonce;
use chrono::{DateTime, Utc};
use protocol::{ContainerInfo, JobCounts, JobId, JobState, Limits, PROMPT_PREVIEW_CHARS, StateCounts};
use uuid::Uuid;

use super::{
    AuditEntry, Connection, JobChange, Store, StoreError, audit,
    events::{self, EventStamp},
    idempotency::{self, CreateOutcome, IdempotencyKey, RecordedResponse},
    job_tree, lifecycle,
    rows::{RowRef, count, text},
    write_tx::WriteTx,
};
use domain::job::{ChildRefused, JobRecord, Step};

/// Maximum number of pending jobs of one user, including held ones.
pub const MAX_PENDING_PER_USER: u32 = 10_000;
/// Maximum number of pending jobs of all users: ten full queues.
pub const MAX_PENDING: u32 = 10 * MAX_PENDING_PER_USER;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueFull {
    User,
    /// The queue of all users together.
    Instance,
}

/// A running job, as the disk sweep needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningJob {
    pub id: JobId,
    pub attempt: u32,
    pub limits: Limits,
    /// The name of its attempt's container.
    pub container: Option<String>,
}

impl RunningJob {
    /// Takes what is needed from a job's record.
    pub fn of(job: &JobRecord) -> Self {
        let container = job.container.as_ref().map(|container| container.name.clone());
        Self { id: job.id, attempt: job.attempt, limits: job.brief.limits, container }
    }
}

#[derive(Debug, Default, PartialEq)]
pub struct RunningJobs {
    /// Jobs with valid rows.
    pub jobs: Vec<RunningJob>,
    /// Ids of jobs with inconsistent rows.
    pub unreadable: Vec<Uuid>,
}

impl Store {
    /// Stores a new job with its first event. Stores nothing when the idempotency key is known, or when the job's
    /// parent may not create another child.
    pub async fn create_job(
        &self,
        job: JobRecord,
        key: Option<IdempotencyKey>,
        audit: Option<&AuditEntry>,
    ) -> Result<CreateOutcome, StoreError> {
        let audit = audit.cloned();
        self.write(transaction!(|tx| create(tx, job, key.as_ref(), audit.as_ref()).await)).await
    }

    pub async fn job(&self, id: JobId) -> Result<Option<JobRecord>, StoreError> {
        lifecycle::load(&self.read, id).await
    }

    /// Where a job stands in the queue of its placement by priority and age, from 1 for the next; `None` if it is not
    /// in a queue.
    pub async fn queue_position(&self, id: JobId) -> Result<Option<u64>, StoreError> {
        let ahead: Option<i64> = sqlx::query_scalar(QUEUE_AHEAD).bind(id).fetch_optional(&self.read).await?;
        Ok(ahead.map(|ahead| count(ahead) + 1))
    }

    /// The number of jobs with a running attempt in a container.
    pub async fn count_at_work(&self) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM jobs WHERE state IN ('in_progress', 'stuck') AND placement = 'container'",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// All running jobs that have a container. An inconsistent row does not affect the others.
    pub async fn running(&self) -> Result<RunningJobs, StoreError> {
        let rows: Vec<(Uuid, i64, String, Option<String>)> =
            sqlx::query_as("SELECT id, attempt, limits, container FROM jobs WHERE state IN ('in_progress', 'stuck') AND placement = 'container'")
                .fetch_all(&self.read)
                .await?;
        let mut running = RunningJobs::default();
        for (id, attempt, limits, container) in rows {
            let container = container.map(|text| serde_json::from_str::<ContainerInfo>(&text)).transpose();
            match (u32::try_from(attempt), serde_json::from_str(&limits), container) {
                (Ok(attempt), Ok(limits), Ok(container)) => {
                    let (id, container) = (JobId::from_uuid(id), container.map(|container| container.name));
                    running.jobs.push(RunningJob { id, attempt, limits, container });
                }
                _ => running.unreadable.push(id),
            }
        }
        Ok(running)
    }

    /// When a job was finished or submitted; `None` while it is open or if it does not exist.
    pub async fn ended_at(&self, id: JobId) -> Result<Option<DateTime<Utc>>, StoreError> {
        let at: Option<Option<DateTime<Utc>>> = sqlx::query_scalar(
            "SELECT CASE WHEN state = 'submitted' THEN last_activity_at ELSE finished_at END FROM jobs WHERE id = $1",
        )
        .bind(id)
        .fetch_optional(&self.read)
        .await?;
        Ok(at.flatten())
    }

    /// Counts by state, and the usage since `midnight`.
    pub async fn summary(&self, user: Option<&str>, midnight: DateTime<Utc>) -> Result<JobCounts, StoreError> {
        let counted: Vec<(String, i64)> = match user {
            Some(user) => sqlx::query_as(COUNT_OF_USER).bind(user).fetch_all(&self.read).await?,
            None => sqlx::query_as(COUNT_OF_ALL).fetch_all(&self.read).await?,
        };
        let mut states = StateCounts::default();
        for (state, jobs) in counted {
            let jobs = count(jobs);
            match JobState::parse(&state) {
                Some(JobState::Pending) => states.pending = jobs,
                Some(JobState::InProgress) => states.in_progress = jobs,
                Some(JobState::Completed) => states.completed = jobs,
                Some(JobState::Submitted) => states.submitted = jobs,
                Some(JobState::Accepted) => states.accepted = jobs,
                Some(JobState::Failed) => states.failed = jobs,
                Some(JobState::Stuck) => states.stuck = jobs,
                Some(JobState::Cancelled) => states.cancelled = jobs,
                None => tracing::error!(state, jobs, "the summary leaves out jobs with an unknown state"),
            }
        }
        Ok(JobCounts { states, usage_today: self.usage_since(user, midnight).await? })
    }
}

/// The number of jobs before a queued job ($1), from the index of the queue alone.
const QUEUE_AHEAD: &str = "SELECT (SELECT COUNT(*) FROM jobs AS q WHERE q.state = 'pending' AND q.held = FALSE \
     AND q.placement = j.placement AND (q.priority > j.priority OR (q.priority = j.priority AND q.id < j.id))) \
     FROM jobs AS j WHERE j.id = $1 AND j.state = 'pending' AND j.held = FALSE AND j.cancel_requested_at IS NULL";

pub(super) const COUNT_OF_USER: &str = "SELECT state, COUNT(*) FROM jobs WHERE user_id = $1 GROUP BY state";
pub(super) const COUNT_OF_ALL: &str = "SELECT state, COUNT(*) FROM jobs GROUP BY state";

/// Stores a new job in a transaction that may write more.
pub(super) async fn create(
    tx: &mut WriteTx,
    job: JobRecord,
    key: Option<&IdempotencyKey>,
    audit: Option<&AuditEntry>,
) -> Result<CreateOutcome, StoreError> {
    let now = job.brief.created_at;
    if let Some(key) = key
        && let Some(known) = idempotency::lookup(&mut tx.db, key, now).await?
    {
        return Ok(known.into());
    }
    if let Some(full) = full_queue(&mut tx.db, &job.brief.user_id).await? {
        return Ok(CreateOutcome::QueueFull(full));
    }
    if let Some(parent) = job.brief.parent_id
        && let Err(refused) = check_parent(&mut tx.db, parent).await?
    {
        return Ok(CreateOutcome::ChildRefused(refused));
    }
    let Step { job, events, .. } = job.created();
    insert(&mut tx.db, &job).await?;
    events::append(tx, EventStamp { job: job.id, attempt: 0, at: now }, &events).await?;
    if let Some(key) = key {
        let response = RecordedResponse { status: 201, body: &text(&job.to_api())? };
        idempotency::insert(&mut tx.db, key, now, response).await?;
    }
    audit::record(&mut tx.db, audit, job.id).await?;
    tx.after_commit(move |committed| (committed.observer)(JobChange::Created(&job)));
    Ok(CreateOutcome::Created)
}

/// The queue that is full for a user's next job, if one is.
async fn full_queue(tx: &mut Connection, user: &str) -> Result<Option<QueueFull>, StoreError> {
    let own: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM jobs WHERE user_id = $1 AND state = 'pending'")
        .bind(user)
        .fetch_one(&mut *tx)
        .await?;
    if own >= i64::from(MAX_PENDING_PER_USER) {
        return Ok(Some(QueueFull::User));
    }
    let all: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM jobs WHERE state = 'pending'").fetch_one(tx).await?;
    Ok((all >= i64::from(MAX_PENDING)).then_some(QueueFull::Instance))
}

/// Whether a job may create one more child, as of this transaction.
async fn check_parent(tx: &mut Connection, parent: JobId) -> Result<Result<(), ChildRefused>, StoreError> {
    let Some(parent) = lifecycle::load(&mut *tx, parent).await? else {
        return Err(RowRef { table: "jobs", id: *parent.as_uuid() }.invalid("id"));
    };
    let trees = job_tree::trees(tx, parent.id).await?;
    Ok(parent.check_child(&trees))
}

async fn insert(tx: &mut Connection, job: &JobRecord) -> Result<(), StoreError> {
    let brief = &job.brief;
    sqlx::query(
        "INSERT INTO jobs (id, rev, user_id, title, prompt_preview, mode, placement, state, priority, labels, limits, \
         tools, image, model, plan, source, restarted_from, attempt, repair_attempts, created_at, last_activity_at, \
         prompts_closed, review, parent_id, depth, held, message, traceparent, approve, egress, delimiter_nonce, routine_id, run_id) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, 0, 0, $18, $18, $19, $20, \
         $21, $22, $23, $24, $25, $26, $27, $28, $29, $30)",
    )
    .bind(job.id)
    .bind(job.rev)
    .bind(&brief.user_id)
    .bind(&brief.title)
    .bind(brief.prompt.chars().take(PROMPT_PREVIEW_CHARS).collect::<String>())
    .bind(brief.mode.as_str())
    .bind(match brief.placement {
        protocol::Placement::Container => "container",
        protocol::Placement::Host => "host",
    })
    .bind(job.state().as_str())
    .bind(i64::from(brief.priority))
    .bind(text(&brief.labels)?)
    .bind(text(&brief.limits)?)
    .bind(brief.tools.as_ref().map(text).transpose()?)
    .bind(&brief.image)
    .bind(&brief.model)
    .bind(brief.plan)
    .bind(brief.source.as_str())
    .bind(brief.restarted_from)
    .bind(brief.created_at)
    .bind(job.prompts_closed)
    .bind(brief.review)
    .bind(brief.parent_id)
    .bind(i64::from(brief.depth))
    .bind(job.is_held())
    .bind(job.message())
    .bind(&brief.traceparent)
    .bind((!brief.approve.is_empty()).then(|| text(&brief.approve)).transpose()?)
    .bind(brief.egress.as_ref().map(text).transpose()?)
    .bind(brief.delimiter_nonce.as_ref().map(DelimiterNonce::as_str))
    .bind(brief.routine.map(|link| link.routine))
    .bind(brief.routine.map(|link| link.run))
    .execute(&mut *tx)
    .await?;
    sqlx::query("INSERT INTO job_texts (job_id, prompt, metadata) VALUES ($1, $2, $3)")
        .bind(job.id)
        .bind(&brief.prompt)
        .bind(text(&brief.metadata)?)
        .execute(tx)
        .await?;
    Ok(())
}
