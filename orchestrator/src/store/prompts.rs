//! Follow-up prompts: stored when accepted, handed to the worker in order, acknowledged by it.

use chrono::{DateTime, Utc};
use protocol::{JobId, JobState, PromptDelivery, PromptId, PromptMode, PromptReceipt, PromptRequest};
use uuid::Uuid;

use super::{
    AuditEntry, Connection, JobChange, Store, StoreError, Transition, audit, events,
    idempotency::{self, Claim, Key},
    lifecycle,
    rows::{Place, text},
};
use crate::domain::job::JobRecord;

/// Prompts that may wait in one job; a person who is ahead of the agent by more than this should cancel.
const MAX_WAITING: i64 = 1_000;

/// What became of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompted {
    /// Stored; the worker will see it.
    Stored(PromptReceipt),
    /// The idempotency key was seen before.
    Known(Claim),
    /// The job has ended so.
    Finished(JobState),
    /// It is being stopped.
    Stopping,
    /// A prompt with `done: true` came before.
    Closed,
    /// Too many wait.
    Full,
    /// No such job.
    Missing,
}

impl Store {
    /// Accepts a prompt, in the same order of things as the job's end: before it, or not at all.
    pub async fn add_prompt(
        &self,
        job: JobId,
        now: DateTime<Utc>,
        request: &PromptRequest,
        key: Option<Key<'_>>,
        audit: Option<&AuditEntry>,
    ) -> Result<Prompted, StoreError> {
        let (audit, key, request) = (audit.cloned(), key.map(idempotency::Key::to_owned), request.clone());
        self.write(move |tx| {
            Box::pin(async move {
                if let Some(key) = &key
                    && let Some(known) = idempotency::lookup(&mut tx.db, &key.as_key(), now).await?
                {
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
                let receipt = PromptReceipt { prompt_id: PromptId::generate() };
                let (content, how) = (&request.content, (request.mode, request.done));
                insert(&mut tx.db, (job, receipt.prompt_id, now), content, how).await?;
                if request.done {
                    sqlx::query("UPDATE jobs SET prompts_closed = TRUE WHERE id = $1")
                        .bind(*job.as_uuid())
                        .execute(&mut tx.db)
                        .await?;
                }
                if let Some(key) = &key {
                    idempotency::insert(&mut tx.db, &key.as_key(), now, (202, &text(&receipt)?)).await?;
                }
                audit::record(&mut tx.db, audit.as_ref(), job).await?;
                tx.notify(job);
                tx.after_commit(move |committed| (committed.observer)(JobChange::PromptAdded(job)));
                Ok(Prompted::Stored(receipt))
            })
        })
        .await
    }

    /// Repairs a stuck job by a word to its worker, seen before the next model call.
    /// The job when that was possible.
    pub async fn nudge(
        &self,
        job: JobId,
        now: DateTime<Utc>,
        content: &str,
    ) -> Result<Option<Box<JobRecord>>, StoreError> {
        let content = content.to_owned();
        self.write(move |tx| {
            Box::pin(async move {
                let Some(record) = lifecycle::load(&mut tx.db, job).await? else { return Ok(None) };
                let nudged = lifecycle::apply(tx, record, now, None, JobRecord::nudged).await?;
                let Transition::Applied(nudged) = nudged else { return Ok(None) };
                insert(&mut tx.db, (job, PromptId::generate(), now), &content, (PromptMode::Steer, false)).await?;
                Ok(Some(nudged))
            })
        })
        .await
    }

    /// The next prompt. With `after`, everything up to it is acknowledged and the next is offered until it is, too;
    /// without, a prompt counts as acknowledged by being handed out.
    pub async fn next_prompt(
        &self,
        job: JobId,
        after: Option<PromptId>,
        now: DateTime<Utc>,
    ) -> Result<Option<PromptDelivery>, StoreError> {
        if let Some(after) = after.filter(|id| *id != PromptId::nil()) {
            self.write_one(move |tx| {
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE prompts SET acknowledged_at = $1 WHERE job_id = $2 AND id <= $3 AND acknowledged_at IS NULL",
                    )
                    .bind(now)
                    .bind(*job.as_uuid())
                    .bind(*after.as_uuid())
                    .execute(&mut tx.db)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        }
        let row: Option<(Uuid, String, String, bool)> = sqlx::query_as(
            "SELECT id, content, mode, done FROM prompts WHERE job_id = $1 AND acknowledged_at IS NULL ORDER BY id LIMIT 1",
        )
        .bind(*job.as_uuid())
        .fetch_optional(&self.read)
        .await?;
        let Some((id, content, mode, done)) = row else { return Ok(None) };
        let mode = PromptMode::parse(&mode).ok_or_else(|| Place { table: "prompts", id }.wrong("mode"))?;
        if after.is_none() {
            self.write_one(move |tx| {
                Box::pin(async move {
                    sqlx::query("UPDATE prompts SET acknowledged_at = $1 WHERE id = $2")
                        .bind(now)
                        .bind(id)
                        .execute(&mut tx.db)
                        .await?;
                    Ok(())
                })
            })
            .await?;
        }
        Ok(Some(PromptDelivery { prompt_id: PromptId::from_uuid(id), content, mode, done }))
    }
}

/// How many prompts the worker has not acknowledged.
pub(super) async fn waiting(tx: &mut Connection, job: JobId) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar("SELECT COUNT(*) FROM prompts WHERE job_id = $1 AND acknowledged_at IS NULL")
        .bind(*job.as_uuid())
        .fetch_one(tx)
        .await?)
}

async fn insert(
    tx: &mut Connection,
    (job, id, now): (JobId, PromptId, DateTime<Utc>),
    content: &str,
    (mode, done): (PromptMode, bool),
) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO prompts (id, job_id, content, mode, done, created_at) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(*id.as_uuid())
        .bind(*job.as_uuid())
        .bind(content)
        .bind(mode.as_str())
        .bind(done)
        .bind(now)
        .execute(tx)
        .await?;
    Ok(())
}

/// A new attempt reads the conversation from the events. Prompts that are in it are not told again; what a worker took but
/// never put to the model is.
pub(super) async fn requeue_undelivered(tx: &mut Connection, job: JobId) -> Result<(), StoreError> {
    let taken: Vec<(Uuid, String)> =
        sqlx::query_as("SELECT id, content FROM prompts WHERE job_id = $1 AND acknowledged_at IS NOT NULL ORDER BY id")
            .bind(*job.as_uuid())
            .fetch_all(&mut *tx)
            .await?;
    if taken.is_empty() {
        return Ok(());
    }
    let mut heard = events::user_messages_sent(tx, job).await?;
    for (id, content) in taken {
        match heard.iter().position(|said| *said == content) {
            Some(at) => {
                heard.swap_remove(at);
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
