//! Transitions in the store: load, let the domain decide, write by compare-and-set with the events that tell it.

use chrono::{DateTime, Utc};
use protocol::{
    CompleteReport, EventData, JobId, JobResult, JobState, MessageRole, PartialResult, ReportedOutcome, TokenUsage,
};
use uuid::Uuid;

use super::{
    Connection, Store, StoreError, Was, events, prompts,
    rows::{EventRow, JobRow, job_columns, text},
};
use crate::{
    domain::job::{JobRecord, Refused, Step},
    failpoint,
};

/// Tool results remembered in a partial result.
const LAST_ACTIONS: i64 = 5;

/// What became of a transition.
#[derive(Debug, Clone, PartialEq)]
pub enum Changed {
    /// It holds; this is the job now.
    Done(Box<JobRecord>),
    /// The state does not allow it; nothing was written.
    Refused(Refused),
    /// Prompts wait that the worker has not fetched; nothing was written.
    PromptsWaiting,
    /// No such job.
    Missing,
}

impl Store {
    /// Applies a transition to a job.
    pub async fn change(
        &self,
        job: JobId,
        now: DateTime<Utc>,
        decide: impl FnOnce(JobRecord) -> Result<Step, Refused> + Send,
    ) -> Result<Changed, StoreError> {
        let mut tx = self.begin().await?;
        let Some(before) = load(&mut tx, job).await? else { return Ok(Changed::Missing) };
        let was = Was::of(&before);
        let changed = write(&mut tx, before, now, decide).await?;
        self.settle(tx, &was, changed).await
    }

    /// Like [`Self::change`] for what may be an end without the worker's report: then what is known of the work becomes its
    /// partial result.
    pub async fn end(
        &self,
        job: JobId,
        now: DateTime<Utc>,
        decide: impl FnOnce(JobRecord) -> Result<Step, Refused> + Send,
    ) -> Result<Changed, StoreError> {
        let mut tx = self.begin().await?;
        let Some(mut before) = load(&mut tx, job).await? else { return Ok(Changed::Missing) };
        let was = Was::of(&before);
        let untold = before.result.is_none() && before.attempt > 0;
        if untold {
            let partial = account(&mut tx, &before).await?;
            before.result = Some(JobResult { text: None, partial: Some(partial) });
        }
        let decide = |before| {
            let mut step = decide(before)?;
            // It goes on, and what it does from now on belongs into the account, too.
            if untold && !step.job.state.is_finished() {
                step.job.result = None;
            }
            Ok(step)
        };
        let changed = write(&mut tx, before, now, decide).await?;
        self.settle(tx, &was, changed).await
    }

    /// The worker's report. Refused while prompts wait that it has not fetched, so that none is lost.
    pub async fn complete(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
        report: &CompleteReport,
    ) -> Result<Changed, StoreError> {
        let mut tx = self.begin().await?;
        let Some(before) = load(&mut tx, job).await? else { return Ok(Changed::Missing) };
        if before.attempt != attempt {
            return Ok(Changed::Refused(Refused { state: before.state, verb: "finish an old attempt" }));
        }
        if report.outcome == ReportedOutcome::Completed && before.cancel_requested_at.is_none() {
            let waiting: i64 =
                sqlx::query_scalar("SELECT COUNT(*) FROM prompts WHERE job_id = $1 AND acknowledged_at IS NULL")
                    .bind(*job.as_uuid())
                    .fetch_one(&mut *tx)
                    .await?;
            if waiting > 0 && !before.state.is_finished() {
                return Ok(Changed::PromptsWaiting);
            }
        }
        let was = Was::of(&before);
        let changed = write(&mut tx, before, now, |job| job.finish(now, report)).await?;
        failpoint::reach("complete.before_commit");
        let changed = self.settle(tx, &was, changed).await?;
        failpoint::reach("complete.after_commit");
        Ok(changed)
    }

    /// The engine's facts about a job's container, for people.
    pub async fn set_container(
        &self,
        job: JobId,
        attempt: u32,
        container: &protocol::ContainerInfo,
    ) -> Result<bool, StoreError> {
        let done = sqlx::query("UPDATE jobs SET container = $1 WHERE id = $2 AND attempt = $3")
            .bind(text(container)?)
            .bind(*job.as_uuid())
            .bind(i64::from(attempt))
            .execute(&self.write)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// A sign of life from the current attempt's worker: renews the lease. Some(true) = it is to stop; none = fenced.
    pub async fn heartbeat(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
        lease_expires_at: DateTime<Utc>,
    ) -> Result<Option<bool>, StoreError> {
        let cancel: Option<bool> = sqlx::query_scalar(
            "UPDATE jobs SET lease_expires_at = $1, worker_seen_at = COALESCE(worker_seen_at, $2) \
             WHERE id = $3 AND attempt = $4 AND state IN ('in_progress', 'stuck') \
             RETURNING cancel_requested_at IS NOT NULL",
        )
        .bind(lease_expires_at)
        .bind(now)
        .bind(*job.as_uuid())
        .bind(i64::from(attempt))
        .fetch_optional(&self.write)
        .await?;
        Ok(cancel)
    }

    /// Tells people why pending jobs wait. Nothing else about them changes.
    pub async fn explain_pending(&self, message: Option<&str>) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE jobs SET message = $1 WHERE state = 'pending' AND NOT held AND message IS DISTINCT FROM $1 \
             AND (message IS NULL OR message LIKE 'waiting:%')",
        )
        .bind(message)
        .execute(&self.write)
        .await?;
        Ok(())
    }
}

pub(super) async fn load(tx: &mut Connection, job: JobId) -> Result<Option<JobRecord>, StoreError> {
    let row: Option<JobRow> = sqlx::query_as(concat!("SELECT ", job_columns!(), " FROM jobs WHERE id = $1"))
        .bind(*job.as_uuid())
        .fetch_optional(tx)
        .await?;
    row.map(JobRow::into_record).transpose()
}

pub(super) async fn write(
    tx: &mut Connection,
    before: JobRecord,
    now: DateTime<Utc>,
    decide: impl FnOnce(JobRecord) -> Result<Step, Refused>,
) -> Result<Changed, StoreError> {
    let (id, rev, old_attempt) = (before.id, before.rev, before.attempt);
    let Step { job, events } = match decide(before) {
        Ok(step) => step,
        Err(refused) => return Ok(Changed::Refused(refused)),
    };
    if job.rev == rev {
        return Ok(Changed::Done(Box::new(job)));
    }
    let fresh_attempt = job.attempt != old_attempt;
    let written = sqlx::query(
        "UPDATE jobs SET rev = $1, state = $2, reason = $3, message = $4, attempt = $5, repair_attempts = $6, \
         started_at = $7, last_activity_at = $8, cancel_requested_at = $9, cancel_message = $10, finished_at = $11, \
         not_before = $12, result_text = $13, result_partial = $14, token_hash = $15, lease_expires_at = $16, \
         container = $17, iterations = $18, last_client_seq = CASE WHEN $19 THEN 0 ELSE last_client_seq END, \
         worker_seen_at = CASE WHEN $19 THEN NULL ELSE worker_seen_at END, \
         session_attempt = CASE WHEN $19 THEN $5 ELSE session_attempt END, \
         session_hash = CASE WHEN $19 THEN NULL ELSE session_hash END, \
         calls_before_attempt = $20, cancelled_by_parent = $21, held = $22 WHERE id = $23 AND rev = $24",
    )
    .bind(job.rev)
    .bind(job.state.as_str())
    .bind(job.reason.map(protocol::JobReason::as_str))
    .bind(&job.message)
    .bind(i64::from(job.attempt))
    .bind(i64::from(job.repair_attempts))
    .bind(job.started_at)
    .bind(job.last_activity_at)
    .bind(job.cancel_requested_at)
    .bind(&job.cancel_message)
    .bind(job.finished_at)
    .bind(job.not_before)
    .bind(job.result.as_ref().and_then(|result| result.text.as_ref()))
    .bind(job.result.as_ref().and_then(|result| result.partial.as_ref()).map(text).transpose()?)
    .bind(&job.token_hash)
    .bind(job.lease_expires_at)
    .bind(job.container.as_ref().map(text).transpose()?)
    .bind(super::rows::column(job.usage.iterations))
    .bind(fresh_attempt)
    .bind(super::rows::column(job.calls_before_attempt))
    .bind(job.cancelled_by_parent)
    .bind(job.held)
    .bind(*id.as_uuid())
    .bind(rev)
    .execute(&mut *tx)
    .await?;
    if written.rows_affected() != 1 {
        return Err(super::rows::Place { table: "jobs", id: *id.as_uuid() }.wrong("rev"));
    }
    if fresh_attempt {
        prompts::offer_unheard_again(tx, id).await?;
    }
    events::append(tx, id, job.attempt, now, &events).await?;
    Ok(Changed::Done(Box::new(job)))
}

/// What the events say of the work so far.
async fn account(tx: &mut Connection, job: &JobRecord) -> Result<PartialResult, StoreError> {
    let said = recent(tx, *job.id.as_uuid(), "message", 20).await?;
    let text = said.into_iter().find_map(|event| match event {
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
    let usage = &job.usage;
    let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(PartialResult {
        text: text.unwrap_or_default(),
        last_actions,
        iterations: count(usage.iterations.max(usage.llm_calls)),
        tool_calls: count(usage.tool_calls),
        usage: TokenUsage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
        },
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

/// States whose jobs the dispatcher looks after.
pub(super) const fn open(state: JobState) -> bool {
    matches!(state, JobState::Pending | JobState::InProgress | JobState::Stuck)
}
