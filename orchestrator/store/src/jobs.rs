//! Jobs: created, loaded and counted.

pub(crate) mod attempt_tools;
pub(crate) mod deletion;
pub(crate) mod histogram;
pub(crate) mod json;
pub(crate) mod lifecycle;
pub(crate) mod list;
pub(crate) mod open_jobs;
pub(crate) mod prompts;
pub(crate) mod sessions;
pub(crate) mod stage_columns;
pub(crate) mod transcript;
pub(crate) mod transition_metrics;
pub(crate) mod tree;

use agent::safety::DelimiterNonce;
use chrono::{DateTime, NaiveDate, Utc};
use protocol::{ContainerInfo, Effort, JobCounts, JobId, JobState, Limits, PROMPT_PREVIEW_CHARS, StateCounts};
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    AuditEntry, Connection, JobChange, Store, StoreError,
    accepted::{self, IdempotencyKey, Lookup},
    access::audit,
    events::{self, EventStamp},
    sqlite::{
        inconsistent_rows::Row,
        rows::{RowRef, count, text},
        write_tx::WriteTx,
    },
    users::user_storage,
};
use domain::job::{ChildRefused, JobRecord, Step};

/// Maximum number of pending jobs of one user, without held ones.
pub const MAX_PENDING_PER_USER: u32 = 10_000;
/// Maximum number of held jobs of one user.
pub const MAX_HELD_PER_USER: u32 = 1_000;
/// Number of pending jobs of all users, without held ones, above which only users with fewer than the average create
/// more: ten full queues.
pub const MAX_PENDING: u32 = 10 * MAX_PENDING_PER_USER;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueFull {
    User,
    /// The user has the maximum number of held jobs.
    Held,
    /// The queue of all users together.
    Instance,
}

/// The outcome of creating a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateOutcome {
    Created,
    /// The idempotency key was seen before; nothing is stored.
    Known(Lookup),
    /// Nothing is stored because the queue is full.
    QueueFull(QueueFull),
    /// Nothing is stored because the job's parent may not create another child.
    ChildRefused(ChildRefused),
    /// Nothing is stored because the run that the job is for no longer waits.
    RunGone,
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

#[derive(FromRow)]
struct RunningRow {
    id: Uuid,
    attempt: i64,
    limits: String,
    container: Option<String>,
}

impl RunningRow {
    fn into_job(self) -> Result<RunningJob, StoreError> {
        let row = RowRef { table: "jobs", id: self.id };
        let container = self.container.map(|text| row.json::<ContainerInfo>("container", &text)).transpose()?;
        Ok(RunningJob {
            id: JobId::from_uuid(self.id),
            attempt: row.number("attempt", self.attempt)?,
            limits: row.json("limits", &self.limits)?,
            container: container.map(|container| container.name),
        })
    }
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

    /// Whether of the job's texts only the beginnings are kept, since it finished long ago.
    pub async fn has_cut_texts(&self, id: JobId) -> Result<bool, StoreError> {
        let cut = sqlx::query_scalar("SELECT trimmed_at IS NOT NULL FROM jobs WHERE id = $1");
        Ok(cut.bind(id).fetch_optional(&self.read).await?.unwrap_or(false))
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

    /// The number of jobs that wait for a slot of a container.
    pub async fn count_queued(&self) -> Result<u64, StoreError> {
        let queued: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM jobs WHERE state = 'pending' AND held = FALSE AND placement = 'container'",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(count(queued))
    }

    /// All running jobs that have a container. An inconsistent row does not affect the others.
    pub async fn running(&self) -> Result<Vec<RunningJob>, StoreError> {
        let rows: Vec<Row<RunningRow>> =
            sqlx::query_as("SELECT id, attempt, limits, container FROM jobs WHERE state IN ('in_progress', 'stuck') AND placement = 'container'")
                .fetch_all(&self.read)
                .await?;
        self.inconsistent.read_each(rows, RunningRow::into_job)
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

    /// Counts by state, and the usage of a day and what follows it.
    pub async fn summary(&self, user: Option<&str>, today: NaiveDate) -> Result<JobCounts, StoreError> {
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
        Ok(JobCounts { states, usage_today: self.usage_since(user, today).await? })
    }
}

/// The number of jobs before a queued job ($1), from the index of the queue alone.
const QUEUE_AHEAD: &str = "SELECT (SELECT COUNT(*) FROM jobs AS q WHERE q.state = 'pending' AND q.held = FALSE \
     AND q.placement = j.placement AND (q.priority > j.priority OR (q.priority = j.priority AND q.id < j.id))) \
     FROM jobs AS j WHERE j.id = $1 AND j.state = 'pending' AND j.held = FALSE AND j.cancel_requested_at IS NULL";

pub(super) const COUNT_OF_USER: &str = "SELECT state, SUM(jobs) FROM job_counts WHERE user_id = $1 GROUP BY state";
pub(super) const COUNT_OF_ALL: &str = "SELECT state, SUM(jobs) FROM job_counts GROUP BY state";

/// Stores a new job in a transaction that may write more.
pub(super) async fn create(
    tx: &mut WriteTx,
    job: JobRecord,
    key: Option<&IdempotencyKey>,
    audit: Option<&AuditEntry>,
) -> Result<CreateOutcome, StoreError> {
    let now = job.brief.created_at;
    if let Some(known) = accepted::lookup(&mut tx.db, key, now).await? {
        return Ok(CreateOutcome::Known(known));
    }
    let facts = QueueFacts::read(&mut tx.db, &job.brief.user_id).await?;
    if let Some(full) = facts.full_queue(job.is_held()) {
        return Ok(CreateOutcome::QueueFull(full));
    }
    if tx.user_storage_limit.is_reached(count(facts.stored_bytes)) {
        user_storage::ensure_room(tx, &job.brief.user_id).await?;
    }
    if let Some(parent) = job.brief.parent_id
        && let Err(refused) = check_parent(&mut tx.db, parent).await?
    {
        return Ok(CreateOutcome::ChildRefused(refused));
    }
    let Step { job, events, .. } = job.created();
    insert(&mut tx.db, &job).await?;
    events::append(tx, EventStamp { job: job.id, attempt: 0, at: now }, &events).await?;
    json::events::append(tx, job.id, now).await?;
    if let Some(key) = key {
        accepted::answer(&mut tx.db, key, (201, text(&job.to_api())?), Some(job.id), now).await?;
    }
    audit::record(&mut tx.db, audit, job.id).await?;
    tx.after_commit(move |committed| (committed.observer)(JobChange::Created(&job)));
    Ok(CreateOutcome::Created)
}

/// What decides whether a user's next job is admitted.
#[derive(FromRow)]
struct QueueFacts {
    own: i64,
    held: i64,
    /// The pending jobs of all users, and the number of these users; the latter only if it matters.
    all: i64,
    users: i64,
    stored_bytes: i64,
}

impl QueueFacts {
    async fn read(tx: &mut Connection, user: &str) -> Result<Self, StoreError> {
        Ok(sqlx::query_as(
            "WITH n (own, held, total) AS (SELECT \
             (SELECT COUNT(*) FROM jobs WHERE state = 'pending' AND held = FALSE AND user_id = $1), \
             (SELECT COUNT(*) FROM jobs WHERE state = 'pending' AND held = TRUE AND user_id = $1), \
             (SELECT COUNT(*) FROM jobs WHERE state = 'pending' AND held = FALSE)) \
             SELECT own, held, total AS \"all\", CASE WHEN total < $2 THEN 1 ELSE \
             (SELECT COUNT(DISTINCT user_id) FROM jobs WHERE state = 'pending' AND held = FALSE) END AS users, \
             (SELECT IFNULL(SUM(bytes), 0) FROM user_bytes WHERE user_id = $1) AS stored_bytes FROM n",
        )
        .bind(user)
        .bind(i64::from(MAX_PENDING))
        .fetch_one(tx)
        .await?)
    }

    /// The queue that is full for the user's next job, if one is. A user with fewer jobs than the average has a place
    /// whatever the others do.
    fn full_queue(&self, is_held: bool) -> Option<QueueFull> {
        if is_held {
            return (self.held >= i64::from(MAX_HELD_PER_USER)).then_some(QueueFull::Held);
        }
        if self.own >= i64::from(MAX_PENDING_PER_USER) {
            return Some(QueueFull::User);
        }
        let is_full = self.all >= i64::from(MAX_PENDING) && self.own * self.users >= self.all;
        is_full.then_some(QueueFull::Instance)
    }
}

/// Whether a job may create one more child, as of this transaction.
async fn check_parent(tx: &mut Connection, parent: JobId) -> Result<Result<(), ChildRefused>, StoreError> {
    let Some(parent) = lifecycle::load(&mut *tx, parent).await? else {
        return Err(RowRef { table: "jobs", id: *parent.as_uuid() }.invalid("id"));
    };
    let trees = tree::trees(tx, parent.id).await?;
    Ok(parent.check_child(&trees))
}

async fn insert(tx: &mut Connection, job: &JobRecord) -> Result<(), StoreError> {
    let brief = &job.brief;
    sqlx::query(
        "INSERT INTO jobs (id, rev, user_id, title, prompt_preview, mode, placement, state, priority, labels, limits, \
         tools, image, model, plan, source, restarted_from, attempt, repair_attempts, created_at, last_activity_at, \
         prompts_closed, review, parent_id, depth, held, message, traceparent, approve, egress, delimiter_nonce, routine_id, run_id, \
         effort) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, 0, 0, $18, $18, $19, $20, \
         $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31)",
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
    .bind(brief.effort.map(Effort::as_str))
    .execute(&mut *tx)
    .await?;
    sqlx::query("INSERT INTO job_texts (job_id, prompt, note, metadata) VALUES ($1, $2, $3, $4)")
        .bind(job.id)
        .bind(&brief.prompt)
        .bind(&brief.note)
        .bind(text(&brief.metadata)?)
        .execute(tx)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::room(9_999, 999, 99_999, 1, (None, None))]
    #[case::own_queue(10_000, 0, 10_000, 1, (Some(QueueFull::User), None))]
    #[case::own_held(0, 1_000, 0, 1, (None, Some(QueueFull::Held)))]
    #[case::above_the_average(2_000, 0, 100_000, 100, (Some(QueueFull::Instance), None))]
    #[case::at_the_average(1_000, 0, 100_000, 100, (Some(QueueFull::Instance), None))]
    #[case::below_the_average(999, 0, 100_000, 100, (None, None))]
    #[case::none_of_its_own(0, 0, 100_000, 10, (None, None))]
    fn a_user_below_the_average_is_admitted(
        #[case] own: i64,
        #[case] held: i64,
        #[case] all: i64,
        #[case] users: i64,
        #[case] full: (Option<QueueFull>, Option<QueueFull>),
    ) {
        let facts = QueueFacts { own, held, all, users, stored_bytes: 0 };
        assert_eq!((facts.full_queue(false), facts.full_queue(true)), full);
    }
}
