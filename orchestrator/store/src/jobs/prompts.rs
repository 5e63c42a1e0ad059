//! Follow-up prompts: stored when accepted, delivered to the worker in order, acknowledged by it.

use chrono::{DateTime, Utc};
use protocol::{JobId, JobPrompt, JobState, PromptDelivery, PromptId, PromptMode, PromptReceipt, PromptRequest};
use sqlx::FromRow;
use uuid::Uuid;

use super::lifecycle;
use crate::{
    AuditEntry, Connection, JobChange, Store, StoreError, Transition,
    accepted::{self, IdempotencyKey, Lookup},
    access::audit,
    events,
    sqlite::{
        inconsistent_rows::Row,
        rows::{RowRef, text},
    },
    users::user_storage,
};
use domain::job::JobRecord;

/// Maximum number of undelivered prompts of one job.
const MAX_WAITING: i64 = 1_000;

/// The outcome of adding a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompted {
    /// Stored; the worker will see it.
    Stored(PromptReceipt),
    /// The idempotency key was seen before.
    Known(Lookup),
    /// The job has finished, in this state.
    Finished(JobState),
    /// The job is being cancelled.
    Stopping,
    /// An earlier prompt had `done: true`.
    Closed,
    /// Too many prompts are waiting.
    Full,
    /// No such job.
    Missing,
}

impl Store {
    /// Accepts a prompt, serialized with the job's transitions: before the job's end, or not at all.
    pub async fn add_prompt(
        &self,
        job: JobId,
        now: DateTime<Utc>,
        request: &PromptRequest,
        key: Option<IdempotencyKey>,
        audit: Option<&AuditEntry>,
    ) -> Result<Prompted, StoreError> {
        let (audit, request) = (audit.cloned(), request.clone());
        self.write(transaction!(|tx| {
            if let Some(known) = accepted::lookup(&mut tx.db, key.as_ref(), now).await? {
                return Ok(Prompted::Known(known));
            }
            let Some(record) = lifecycle::load(&mut tx.db, job).await? else { return Ok(Prompted::Missing) };
            if !record.is_open() {
                return Ok(Prompted::Finished(record.state()));
            }
            if record.is_stopping() {
                return Ok(Prompted::Stopping);
            }
            if record.prompts_closed {
                return Ok(Prompted::Closed);
            }
            if waiting(&mut tx.db, job).await? >= MAX_WAITING {
                return Ok(Prompted::Full);
            }
            user_storage::ensure_room(tx, &record.brief.user_id).await?;
            let receipt = PromptReceipt { prompt_id: PromptId::generate() };
            let prompt = NewPrompt {
                id: receipt.prompt_id,
                job,
                content: &request.content,
                mode: request.mode,
                done: request.done,
                source: PromptSource::User,
            };
            insert(&mut tx.db, &prompt, now).await?;
            if request.done {
                sqlx::query("UPDATE jobs SET prompts_closed = TRUE WHERE id = $1")
                    .bind(job)
                    .execute(&mut tx.db)
                    .await?;
            }
            if let Some(key) = &key {
                accepted::answer(&mut tx.db, key, (202, text(&receipt)?), None, now).await?;
            }
            audit::record(&mut tx.db, audit.as_ref(), job).await?;
            tx.notify_job(job, &record.brief.user_id);
            tx.after_commit(move |committed| (committed.observer)(JobChange::PromptAdded(job)));
            Ok(Prompted::Stored(receipt))
        }))
        .await
    }

    /// Repairs a stuck job with a prompt to its worker, delivered before the next model call. `None` when that is not
    /// possible.
    pub async fn nudge(
        &self,
        job: JobId,
        now: DateTime<Utc>,
        content: &str,
    ) -> Result<Option<Box<JobRecord>>, StoreError> {
        let content = content.to_owned();
        self.write(transaction!(|tx| {
            let Some(record) = lifecycle::load(&mut tx.db, job).await? else { return Ok(None) };
            let nudged = lifecycle::apply(tx, record, now, None, JobRecord::nudge).await?;
            let Transition::Applied(nudged) = nudged else { return Ok(None) };
            let prompt = NewPrompt {
                id: PromptId::generate(),
                job,
                content: &content,
                mode: PromptMode::Steer,
                done: false,
                source: PromptSource::System,
            };
            insert(&mut tx.db, &prompt, now).await?;
            Ok(Some(nudged))
        }))
        .await
    }

    /// The next prompt. With `after`, all prompts up to it are acknowledged, and the next one is returned until it is
    /// acknowledged as well. Without, a prompt is acknowledged by its delivery.
    pub async fn next_prompt(
        &self,
        job: JobId,
        after: Option<PromptId>,
        now: DateTime<Utc>,
    ) -> Result<Option<PromptDelivery>, StoreError> {
        if let Some(after) = after.filter(|id| *id != PromptId::nil()) {
            self.write_one(transaction!(|tx| {
                sqlx::query(
                    "UPDATE prompts SET acknowledged_at = $1 WHERE job_id = $2 AND acknowledged_at IS NULL \
                     AND seq <= (SELECT seq FROM prompts WHERE job_id = $2 AND id = $3)",
                )
                .bind(now)
                .bind(job)
                .bind(after)
                .execute(&mut tx.db)
                .await?;
                Ok(())
            }))
            .await?;
        }
        let row: Option<(Uuid, String, String, bool)> = sqlx::query_as(
            "SELECT id, content, mode, done FROM prompts WHERE job_id = $1 AND acknowledged_at IS NULL ORDER BY seq LIMIT 1",
        )
        .bind(job)
        .fetch_optional(&self.read)
        .await?;
        let Some((id, content, mode, done)) = row else { return Ok(None) };
        let mode = PromptMode::parse(&mode).ok_or_else(|| RowRef { table: "prompts", id }.invalid("mode"))?;
        if after.is_none() {
            self.write_one(transaction!(|tx| {
                sqlx::query("UPDATE prompts SET acknowledged_at = $1 WHERE id = $2")
                    .bind(now)
                    .bind(id)
                    .execute(&mut tx.db)
                    .await?;
                Ok(())
            }))
            .await?;
        }
        Ok(Some(PromptDelivery { prompt_id: PromptId::from_uuid(id), content, mode, done }))
    }
}

/// Characters of a prompt that a list shows.
const LISTED_CHARS: u32 = 1_000;

#[derive(FromRow)]
struct ListedRow {
    seq: i64,
    id: PromptId,
    content: String,
    mode: String,
    done: bool,
    created_at: DateTime<Utc>,
    acknowledged_at: Option<DateTime<Utc>>,
}

impl Store {
    /// Prompts of people to a job, the newest first, with the number to read on from, if there are more.
    pub async fn prompts(
        &self,
        job: JobId,
        before: Option<i64>,
        limit: u32,
    ) -> Result<(Vec<JobPrompt>, Option<i64>), StoreError> {
        let mut rows: Vec<Row<ListedRow>> = sqlx::query_as(
            "SELECT seq, id, substr(content, 1, $4) AS content, mode, done, created_at, acknowledged_at FROM prompts \
             WHERE job_id = $1 AND source = 'user' AND ($2 IS NULL OR seq < $2) ORDER BY seq DESC LIMIT $3",
        )
        .bind(job)
        .bind(before)
        // One more, to know whether there is a next page.
        .bind(limit + 1)
        .bind(LISTED_CHARS)
        .fetch_all(&self.read)
        .await?;
        let has_more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let listed = self.inconsistent.read_each(rows, |row| Ok((row.seq, row.into_prompt()?)))?;
        let next = listed.last().map(|(seq, _)| *seq).filter(|_| has_more);
        Ok((listed.into_iter().map(|(_, prompt)| prompt).collect(), next))
    }
}

impl ListedRow {
    fn into_prompt(self) -> Result<JobPrompt, StoreError> {
        let row = RowRef { table: "prompts", id: *self.id.as_uuid() };
        let mode = PromptMode::parse(&self.mode).ok_or_else(|| row.invalid("mode"))?;
        let Self { id, content, done, created_at, acknowledged_at: read_at, .. } = self;
        Ok(JobPrompt { id, content, mode, done, created_at, read_at })
    }
}

/// The number of user prompts that the worker has not acknowledged. A nudge does not delay completion.
pub(crate) async fn waiting(tx: &mut Connection, job: JobId) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar(
        "SELECT COUNT(*) FROM prompts WHERE job_id = $1 AND acknowledged_at IS NULL AND source = 'user'",
    )
    .bind(job)
    .fetch_one(tx)
    .await?)
}

struct NewPrompt<'a> {
    id: PromptId,
    job: JobId,
    content: &'a str,
    mode: PromptMode,
    done: bool,
    source: PromptSource,
}

/// The author of a prompt.
#[derive(Clone, Copy)]
enum PromptSource {
    User,
    System,
}

/// Stores a prompt under the next number of its job.
async fn insert(tx: &mut Connection, prompt: &NewPrompt<'_>, now: DateTime<Utc>) -> Result<(), StoreError> {
    let seq: i64 = sqlx::query_scalar(
        "UPDATE jobs SET last_prompt_seq = last_prompt_seq + 1 WHERE id = $1 RETURNING last_prompt_seq",
    )
    .bind(prompt.job)
    .fetch_one(&mut *tx)
    .await?;
    sqlx::query(
        "INSERT INTO prompts (id, job_id, seq, content, mode, done, source, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(prompt.id)
    .bind(prompt.job)
    .bind(seq)
    .bind(prompt.content)
    .bind(prompt.mode.as_str())
    .bind(prompt.done)
    .bind(match prompt.source {
        PromptSource::User => "user",
        PromptSource::System => "system",
    })
    .bind(now)
    .execute(tx)
    .await?;
    Ok(())
}

/// Prepares the prompts of a job for a new attempt, which rebuilds the conversation from the events. Prompts in it are
/// not delivered again; prompts that a worker fetched but never sent to the model are. Nudges concern the old worker
/// only.
pub(crate) async fn requeue_undelivered(tx: &mut Connection, job: JobId) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM prompts WHERE job_id = $1 AND source = 'system' AND acknowledged_at IS NULL")
        .bind(job)
        .execute(&mut *tx)
        .await?;
    let taken: Vec<(Uuid, String)> = sqlx::query_as(
        "SELECT id, content FROM prompts WHERE job_id = $1 AND acknowledged_at IS NOT NULL AND source = 'user' \
         ORDER BY seq",
    )
    .bind(job)
    .fetch_all(&mut *tx)
    .await?;
    if taken.is_empty() {
        return Ok(());
    }
    let mut sent = events::user_messages_sent(tx, job).await?;
    for (id, content) in taken {
        match sent.iter().position(|message| *message == content) {
            Some(at) => {
                sent.swap_remove(at);
            }
            None => {
                sqlx::query("UPDATE prompts SET acknowledged_at = NULL WHERE id = $1")
                    .bind(id)
                    .execute(&mut *tx)
                    .await?;
            }
        }
    }
    Ok(())
}
