//! Jobs that were made in a thread: linked to it, and their end posted there once.

use agent::elide;
use chrono::{DateTime, Utc};
use protocol::{ChatContent, JobId, JobState, ThreadId};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{
    super::{
        AuditEntry, CreateOutcome, IdempotencyKey, JobFilter, Store, StoreError,
        jobs::{self, list},
        sqlite::{inconsistent_rows::Row, rows::RowRef, write_tx::WriteTx},
    },
    rows::{NewMessage, append},
};
use domain::job::JobRecord;

/// Size of a job's result in a thread; the whole is in the job.
const MAX_POSTED_RESULT_BYTES: usize = 16 * 1024;

impl Store {
    /// Stores a new job that is made in a thread, whose end is posted there.
    pub async fn create_chat_job(
        &self,
        thread: ThreadId,
        job: JobRecord,
        key: Option<IdempotencyKey>,
        audit: Option<&AuditEntry>,
    ) -> Result<CreateOutcome, StoreError> {
        let audit = audit.cloned();
        self.write(transaction!(|tx| {
            let id = job.id;
            let created = jobs::create(tx, job, key.as_ref(), audit.as_ref()).await?;
            if created == CreateOutcome::Created {
                link(tx, thread, id).await?;
            }
            Ok(created)
        }))
        .await
    }
}

/// A job as a chat lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatJob {
    pub id: JobId,
    pub state: JobState,
    pub title: String,
}

#[derive(FromRow)]
struct ChatJobRow {
    id: Uuid,
    state: String,
    title: String,
}

impl ChatJobRow {
    fn into_job(self) -> Result<ChatJob, StoreError> {
        let state = RowRef { table: "jobs", id: self.id }.known("state", JobState::parse(&self.state))?;
        Ok(ChatJob { id: JobId::from_uuid(self.id), state, title: self.title })
    }
}

impl Store {
    /// A user's unfinished jobs, newest first.
    pub async fn unfinished_jobs_of(&self, user: &str, limit: u32) -> Result<Vec<ChatJob>, StoreError> {
        let rows: Vec<Row<ChatJobRow>> = sqlx::query_as(
            "SELECT id, state, title FROM jobs WHERE user_id = $1 AND finished_at IS NULL ORDER BY id DESC LIMIT $2",
        )
        .bind(user)
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        self.inconsistent.read_each(rows, ChatJobRow::into_job)
    }

    /// A user's jobs whose id begins or ends with these lower-case hexadecimal digits, newest first.
    pub async fn jobs_by_id_part(&self, user: &str, digits: &str, limit: u32) -> Result<Vec<ChatJob>, StoreError> {
        let filter =
            JobFilter { user: Some(user.to_owned()), id_part: Some(digits.to_owned()), ..JobFilter::default() };
        let mut query = QueryBuilder::<Sqlite>::new("");
        list::push_walks(&mut query, "SELECT id, state, title FROM jobs", &filter, limit);
        let rows: Vec<Row<ChatJobRow>> = query.build_query_as().fetch_all(&self.read).await?;
        self.inconsistent.read_each(rows, ChatJobRow::into_job)
    }
}

/// Links a job to the thread that it is made in, if the thread exists.
async fn link(tx: &mut WriteTx, thread: ThreadId, job: JobId) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO chat_jobs (job_id, thread_id) SELECT $1, id FROM chat_threads WHERE id = $2")
        .bind(job)
        .bind(thread)
        .execute(&mut tx.db)
        .await?;
    Ok(())
}

/// Posts the end of a job in the thread that it was made in, in the transaction of its transition.
pub(crate) async fn post_end(tx: &mut WriteTx, job: &JobRecord, at: DateTime<Utc>) -> Result<(), StoreError> {
    let is_over = job.state().is_finished() || job.state() == JobState::Submitted;
    if !is_over {
        return Ok(());
    }
    let thread: Option<ThreadId> = sqlx::query_scalar(
        "UPDATE chat_jobs SET posted_at = $2 WHERE job_id = $1 AND posted_at IS NULL RETURNING thread_id",
    )
    .bind(job.id)
    .bind(at)
    .fetch_optional(&mut tx.db)
    .await?;
    let Some(thread) = thread else { return Ok(()) };
    let result = job.result();
    let text = result.and_then(|result| result.text.or_else(|| result.partial.map(|partial| partial.text)));
    let content = ChatContent::Job {
        job_id: job.id,
        title: job.brief.title.clone(),
        state: job.state(),
        reason: job.reason(),
        content: elide(&text.unwrap_or_default(), MAX_POSTED_RESULT_BYTES),
    };
    append(tx, thread, NewMessage { content, turn: None, due: true, at }).await?;
    Ok(())
}
