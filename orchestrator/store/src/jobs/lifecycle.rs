//! Transitions in the store: load the job, let the domain decide, write by compare-and-set together with the events.

use chrono::{DateTime, Utc};
use protocol::{CompleteReport, EventData, JobId, MessageRole, PartialResult, ReportedOutcome};
use sqlx::{Executor, Sqlite};
use uuid::Uuid;

use super::{
    json, prompts,
    stage_columns::StageColumns,
    transition_metrics::{Before, publish},
};
use crate::{
    AuditEntry, Connection, JobChange, Store, StoreError,
    access::audit,
    chat,
    events::{self, EventStamp},
    routines::{self, events::own_events},
    sqlite::{
        rows::{EventRow, JobRow, RowRef, job_columns, job_tables, text},
        write_tx::WriteTx,
    },
};
use base::failpoint;
use domain::job::{JobRecord, Refused, Step};

/// Tool results kept in a partial result.
const LAST_ACTIONS: i64 = 5;
/// Messages searched for the agent's latest one.
const LAST_MESSAGES: i64 = 20;

/// The outcome of a transition.
#[derive(Debug, Clone, PartialEq)]
pub enum Transition {
    /// It is committed; this is the job now.
    Applied(Box<JobRecord>),
    /// The job's stage does not allow it; nothing was written.
    Refused(Refused),
    /// No such job.
    NotFound,
}

/// The outcome of a worker's report.
#[derive(Debug, Clone, PartialEq)]
pub enum Reported {
    /// The transition, which is refused if the attempt is over.
    Decided(Transition),
    /// The worker has not fetched all prompts; nothing was written.
    PromptsWaiting,
}

impl Store {
    /// Applies a transition to a job, with its events and its audit entry. If the step has `needs_partial`, the job's
    /// partial result is built from its recorded events.
    pub async fn transition(
        &self,
        job: JobId,
        now: DateTime<Utc>,
        audit: Option<&AuditEntry>,
        decide: impl FnOnce(JobRecord) -> Result<Step, Refused> + Send + 'static,
    ) -> Result<Transition, StoreError> {
        let audit = audit.cloned();
        self.write(transaction!(|tx| {
            let Some(record) = load(&mut tx.db, job).await? else { return Ok(Transition::NotFound) };
            apply(tx, record, now, audit.as_ref(), decide).await
        }))
        .await
    }

    /// Applies the worker's report. Refused while it has not fetched all prompts, so that none is lost.
    pub async fn complete(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
        report: &CompleteReport,
    ) -> Result<Reported, StoreError> {
        let report = report.clone();
        let reported = self
            .write(transaction!(|tx| {
                let Some(record) = load(&mut tx.db, job).await? else {
                    return Ok(Reported::Decided(Transition::NotFound));
                };
                if record.attempt != attempt {
                    let refused = Refused { state: record.state(), verb: "finish an old attempt" };
                    return Ok(Reported::Decided(Transition::Refused(refused)));
                }
                if report.outcome == ReportedOutcome::Completed
                    && record.is_running()
                    && !record.is_stopping()
                    && prompts::waiting(&mut tx.db, job).await? > 0
                {
                    return Ok(Reported::PromptsWaiting);
                }
                let finished = apply(tx, record, now, None, |job| job.finish(now, &report)).await?;
                failpoint::reach("complete.before_commit");
                Ok(Reported::Decided(finished))
            }))
            .await?;
        failpoint::reach("complete.after_commit");
        Ok(reported)
    }

    /// Stores what is known of the attempt's container: for the API, for its adoption and its exit code.
    pub async fn set_container(
        &self,
        job: JobId,
        attempt: u32,
        container: &protocol::ContainerInfo,
    ) -> Result<bool, StoreError> {
        let container = container.clone();
        self.write_one(transaction!(|tx| {
            let updated = sqlx::query("UPDATE jobs SET container = $1 WHERE id = $2 AND attempt = $3")
                .bind(text(&container)?)
                .bind(job)
                .bind(i64::from(attempt))
                .execute(&mut tx.db)
                .await?;
            let is_recorded = updated.rows_affected() == 1;
            if is_recorded {
                tx.after_commit(move |committed| {
                    (committed.observer)(JobChange::ContainerRecorded { job, attempt, container: &container });
                });
            }
            Ok(is_recorded)
        }))
        .await
    }

    /// Renews the lease of the current attempt. Returns whether the worker is to stop; `None` when the attempt is over.
    pub async fn heartbeat(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
        lease_expires_at: DateTime<Utc>,
    ) -> Result<Option<bool>, StoreError> {
        self.write_one(transaction!(|tx| {
            let renewed: Option<(bool, bool)> = sqlx::query_as(
                "UPDATE jobs SET lease_expires_at = $1, worker_seen_at = COALESCE(worker_seen_at, $2) \
                 WHERE id = $3 AND attempt = $4 AND state IN ('in_progress', 'stuck') \
                 RETURNING cancel_requested_at IS NOT NULL, worker_seen_at = $2",
            )
            .bind(lease_expires_at)
            .bind(now)
            .bind(job)
            .bind(i64::from(attempt))
            .fetch_optional(&mut tx.db)
            .await?;
            if let Some((_, true)) = renewed {
                tx.after_commit(move |committed| (committed.observer)(JobChange::WorkerCalled { job, attempt }));
            }
            Ok(renewed.map(|(cancel, _)| cancel))
        }))
        .await
    }

    /// Sets the message of pending jobs that says what they wait for. A message of another kind stays.
    pub async fn explain_pending(&self, message: Option<&str>) -> Result<(), StoreError> {
        let message = message.map(str::to_owned);
        self.write_one(transaction!(|tx| {
            sqlx::query(
                "UPDATE jobs SET message = $1, message_is_wait = $1 IS NOT NULL WHERE state = 'pending' AND NOT held \
                 AND placement = 'container' AND message IS DISTINCT FROM $1 AND (message IS NULL OR message_is_wait)",
            )
            .bind(message)
            .execute(&mut tx.db)
            .await?;
            Ok(())
        }))
        .await
    }
}

pub(crate) async fn load<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    job: JobId,
) -> Result<Option<JobRecord>, StoreError> {
    let row: Option<JobRow> =
        sqlx::query_as(concat!("SELECT ", job_columns!(), " FROM ", job_tables!(), " WHERE id = $1"))
            .bind(job)
            .fetch_optional(db)
            .await?;
    row.map(JobRow::into_record).transpose()
}

/// Decides and writes a transition, records who asked for it, and publishes it once it is committed.
pub(crate) async fn apply(
    tx: &mut WriteTx,
    record: JobRecord,
    now: DateTime<Utc>,
    audit: Option<&AuditEntry>,
    decide: impl FnOnce(JobRecord) -> Result<Step, Refused>,
) -> Result<Transition, StoreError> {
    let before = Before::of(&record);
    let mut step = match decide(record) {
        Ok(step) => step,
        Err(refused) => return Ok(Transition::Refused(refused)),
    };
    if step.needs_partial {
        let partial = recorded_work(&mut tx.db, &step.job).await?;
        step = step.with_partial(partial);
    }
    let Step { job, events, .. } = step;
    if job.rev != before.rev {
        update(&mut tx.db, &before, &job).await?;
        if job.attempt != before.attempt {
            prompts::requeue_undelivered(&mut tx.db, job.id).await?;
        }
        events::append(tx, EventStamp { job: job.id, attempt: job.attempt, at: now }, &events).await?;
        json::events::append(tx, job.id, now).await?;
        publish(tx, &before, &job);
        chat::post_end(tx, &job, now).await?;
        if !before.is_finished() {
            own_events::job_ended(tx, &job, now).await?;
        }
        routines::end_with_job(tx, &job, now).await?;
    }
    audit::record(&mut tx.db, audit, job.id).await?;
    tx.notify_job(job.id, &job.brief.user_id);
    Ok(Transition::Applied(Box::new(job)))
}

/// Writes the record by compare-and-set. A new attempt has no session, no worker and no tools of servers yet.
async fn update(tx: &mut Connection, before: &Before, job: &JobRecord) -> Result<(), StoreError> {
    let columns = StageColumns::of(&job.stage)?;
    let written = sqlx::query(
        "UPDATE jobs SET rev = $1, state = $2, reason = $3, message = $4, \
         message_is_wait = message_is_wait AND message IS $4, attempt = $5, repair_attempts = $6, \
         started_at = $7, last_activity_at = $8, cancel_requested_at = $9, cancel_message = $10, finished_at = $11, \
         not_before = $12, token_hash = $13, lease_expires_at = $14, \
         container = $15, last_client_seq = CASE WHEN $16 THEN 0 ELSE last_client_seq END, \
         worker_seen_at = CASE WHEN $16 THEN NULL ELSE worker_seen_at END, \
         session_attempt = CASE WHEN $16 THEN $5 ELSE session_attempt END, \
         session_hash = CASE WHEN $16 THEN NULL ELSE session_hash END, \
         calls_before_attempt = CASE WHEN $16 THEN $17 ELSE calls_before_attempt END, \
         attempt_tools = CASE WHEN $16 OR $11 IS NOT NULL THEN NULL ELSE attempt_tools END, \
         activity = CASE WHEN $2 IN ('in_progress', 'stuck') AND NOT $16 THEN activity END, \
         cancelled_by_parent = $18, held = $19 WHERE id = $20 AND rev = $21",
    )
    .bind(job.rev)
    .bind(columns.state)
    .bind(columns.reason)
    .bind(columns.message)
    .bind(i64::from(job.attempt))
    .bind(i64::from(job.repair_attempts))
    .bind(job.started_at)
    .bind(job.last_activity_at)
    .bind(columns.cancel_requested_at)
    .bind(columns.cancel_message)
    .bind(columns.finished_at)
    .bind(columns.not_before)
    .bind(columns.token_hash)
    .bind(columns.lease_expires_at)
    .bind(job.container.as_ref().map(text).transpose()?)
    .bind(job.attempt != before.attempt)
    .bind(columns.calls_before_attempt)
    .bind(columns.cancelled_by_parent)
    .bind(columns.held)
    .bind(job.id)
    .bind(before.rev)
    .execute(&mut *tx)
    .await?;
    if written.rows_affected() != 1 {
        return Err(RowRef { table: "jobs", id: *job.id.as_uuid() }.invalid("rev"));
    }
    if before.has_result || columns.result_text.is_some() || columns.result_partial.is_some() {
        sqlx::query("UPDATE job_texts SET result_text = $1, result_partial = $2, result_cut = $3 WHERE job_id = $4")
            .bind(columns.result_text)
            .bind(columns.result_partial)
            .bind(columns.result_cut)
            .bind(job.id)
            .execute(tx)
            .await?;
    }
    Ok(())
}

/// The partial result according to the recorded events.
async fn recorded_work(tx: &mut Connection, job: &JobRecord) -> Result<PartialResult, StoreError> {
    let messages = recent(tx, *job.id.as_uuid(), "message", LAST_MESSAGES).await?;
    let text = messages.into_iter().find_map(|event| match event {
        EventData::Message { role: MessageRole::Assistant, content } => Some(content),
        _ => None,
    });
    let mut last_actions: Vec<String> = recent(tx, *job.id.as_uuid(), "tool_result", LAST_ACTIONS)
        .await?
        .into_iter()
        .filter_map(|event| match event {
            EventData::ToolResult { tool, success, .. } => {
                Some(format!("{tool}: {}", if success { "ok" } else { "failed" }))
            }
            _ => None,
        })
        .collect();
    last_actions.reverse();
    let counts = job.counts();
    let calls = u32::try_from(job.usage.llm_calls).unwrap_or(u32::MAX);
    Ok(PartialResult {
        text: text.unwrap_or_default(),
        last_actions,
        iterations: counts.iterations.max(calls),
        ..counts
    })
}

async fn recent(tx: &mut Connection, job: Uuid, kind: &'static str, limit: i64) -> Result<Vec<EventData>, StoreError> {
    let rows: Vec<EventRow> = sqlx::query_as(
        "SELECT cursor, job_id, seq, attempt, at, kind, data FROM events WHERE job_id = $1 AND kind = $2 \
         ORDER BY seq DESC LIMIT $3",
    )
    .bind(job)
    .bind(kind)
    .bind(limit)
    .fetch_all(tx)
    .await?;
    rows.into_iter().map(|row| row.into_event()?.parse()).collect()
}
