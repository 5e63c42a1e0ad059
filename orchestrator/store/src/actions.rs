//! Tool calls that the orchestrator executes, recorded before their reply is used: those of jobs in `job_actions`,
//! those of chat threads and of runs of routines in `thread_actions`, where a run is a separate thread and its attempts
//! are the turns.
//!
//! The calls of a thread outlive it without their texts.

mod threads;

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use protocol::{CallId, JobId, RunId, ToolActionRecord, ToolCallReply, ToolErrorKind, ToolFailure};
use sqlx::FromRow;
use uuid::Uuid;

pub(super) use self::threads::forget_texts;
use super::{
    CallPosition, Store, StoreError, TurnKey,
    rows::{RowRef, column, count, dollars, text},
    write_tx::{StatementBatch, StatementResult, WriteTx},
};

/// Who makes a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCaller {
    Job {
        job: JobId,
        attempt: u32,
    },
    /// A turn of a chat thread.
    Turn(TurnKey),
    /// An attempt of a run of a routine.
    Run {
        run: RunId,
        attempt: u32,
    },
}

/// Names a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallKey {
    pub caller: ToolCaller,
    /// Unique within the attempt or turn.
    pub call_id: CallId,
}

/// A tool call that is about to be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToolCall {
    pub key: ToolCallKey,
    /// Digest of its tool and arguments.
    pub request_digest: String,
    pub at: DateTime<Utc>,
    pub tool: String,
    /// Its arguments, redacted and truncated.
    pub input: serde_json::Value,
    /// What the tool declares that the call costs at worst.
    pub estimated_cost_micro_usd: u64,
    /// Whether it may be executed again if a crash interrupted it.
    pub is_repeatable: bool,
    /// Maximum number of tool calls of the caller; `None`: its loop runs in this process, which keeps the limit.
    pub max_calls: Option<u64>,
}

/// The outcome of opening a tool call.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenedToolCall {
    /// Its row is written; it may be executed, once, or again if a crash interrupted it and it is repeatable.
    Open,
    /// It was executed before, with this reply.
    Recorded(ToolCallReply),
    /// Another call has this id.
    IdReused,
    LimitReached,
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCallOutcome {
    pub at: DateTime<Utc>,
    /// Its arguments to store; `None` keeps those from when it was opened.
    pub input: Option<serde_json::Value>,
    /// The output that the list of calls shows.
    pub output: String,
    /// What the call cost, where the tool knows it.
    pub cost_micro_usd: Option<u64>,
    /// The reply, returned again for a repeated call.
    pub reply: ToolCallReply,
}

/// A tool call that was not executed, with its result.
#[derive(Debug, Clone, PartialEq)]
pub struct ClosedToolCall {
    pub call: NewToolCall,
    pub outcome: ToolCallOutcome,
}

/// The output of a call that was in flight when its process ended. It may have had its effect, so it is not run again
/// unless it is repeatable.
const INTERRUPTED: &str = "interrupted: the orchestrator restarted during the call; it may have had its effect";

/// Closes the calls of jobs without a container that were announced by an event and not opened. Their loop ended with
/// its process, while a worker may still make its calls.
const INTERRUPT_ON_HOST: &str = "UPDATE job_actions SET success = FALSE, output = $1, duration_ms = 0, reply = $2 \
     WHERE success IS NULL AND job_id IN (SELECT id FROM jobs WHERE placement = 'host' AND state IN ('in_progress', 'stuck'))";

impl Store {
    /// Opens a tool call before it is executed: counts it against its caller's limit and writes its row.
    pub async fn open_tool_call(&self, call: &NewToolCall) -> Result<OpenedToolCall, StoreError> {
        let call = call.clone();
        self.write_batched(transaction!(|tx| open(tx, &call).await)).await
    }

    /// Closes a tool call with its reply. A call that is already closed is unchanged.
    pub async fn close_tool_call(&self, key: &ToolCallKey, outcome: &ToolCallOutcome) -> Result<(), StoreError> {
        let (key, outcome) = (key.clone(), outcome.clone());
        match key.caller {
            ToolCaller::Job { .. } => self.write_one(transaction!(|tx| close(tx, &key, &outcome).await)).await,
            ToolCaller::Turn(_) | ToolCaller::Run { .. } => {
                self.write(transaction!(|tx| close(tx, &key, &outcome).await)).await
            }
        }
    }

    /// Closes the tool calls that an earlier process left open as interrupted. A repeated call gets that reply, unless
    /// it may be executed again.
    pub async fn close_interrupted_tool_calls(&self) -> Result<u64, StoreError> {
        let reply = text(&interrupted())?;
        self.write_one(transaction!(|tx| {
            let mut closed = 0;
            for statements in [&JOB_ACTIONS, &THREAD_ACTIONS] {
                let query = sqlx::query(statements.interrupt).bind(INTERRUPTED).bind(&reply);
                closed += query.execute(&mut tx.db).await?.rows_affected();
            }
            let query = sqlx::query(INTERRUPT_ON_HOST).bind(INTERRUPTED).bind(&reply);
            Ok(closed + query.execute(&mut tx.db).await?.rows_affected())
        }))
        .await
    }

    /// The ids of every tool call of a job.
    pub async fn tool_call_ids(&self, job: JobId) -> Result<HashSet<String>, StoreError> {
        let ids: Vec<String> = sqlx::query_scalar("SELECT DISTINCT call_id FROM job_actions WHERE job_id = $1")
            .bind(job)
            .fetch_all(&self.read)
            .await?;
        Ok(ids.into_iter().collect())
    }

    /// The ids of every tool call of a run of a routine.
    pub async fn run_tool_call_ids(&self, run: RunId) -> Result<HashSet<String>, StoreError> {
        let ids: Vec<String> = sqlx::query_scalar("SELECT DISTINCT call_id FROM thread_actions WHERE thread_id = $1")
            .bind(run)
            .fetch_all(&self.read)
            .await?;
        Ok(ids.into_iter().collect())
    }

    /// Whether a tool call of this attempt is open.
    pub async fn waits_for_tool(&self, job: JobId, attempt: u32) -> Result<bool, StoreError> {
        let open: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM job_actions WHERE job_id = $1 AND attempt = $2 AND success IS NULL",
        )
        .bind(job)
        .bind(i64::from(attempt))
        .fetch_one(&self.read)
        .await?;
        Ok(open > 0)
    }

    /// A job's tool calls after a position, oldest first, each with its position.
    pub async fn actions(
        &self,
        job: JobId,
        after: Option<&CallPosition>,
        limit: u32,
    ) -> Result<Vec<(CallPosition, ToolActionRecord)>, StoreError> {
        let (attempt, at, call_id) = CallPosition::bounds(after);
        let rows: Vec<ActionListRow> = sqlx::query_as(
            "SELECT attempt, call_id, at, tool, input, success, output, duration_ms, estimated_cost_micro_usd, \
             cost_micro_usd FROM job_actions \
             WHERE job_id = $1 AND (attempt, at, call_id) > ($2, $3, $4) ORDER BY attempt, at, call_id LIMIT $5",
        )
        .bind(job)
        .bind(attempt)
        .bind(at)
        .bind(call_id)
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        let row_ref = RowRef { table: "job_actions", id: *job.as_uuid() };
        rows.into_iter().map(|row| row.into_record(row_ref)).collect()
    }
}

/// Writes the row of a tool call that was not executed, unless it has one.
pub(super) async fn insert_closed(tx: &mut WriteTx, closed: &ClosedToolCall) -> Result<(), StoreError> {
    if let Checked::New(insert) = check(tx, &closed.call).await? {
        tx.run(insert).await?;
        close(tx, &closed.call.key, &closed.outcome).await?;
    }
    Ok(())
}

/// Closes a call that has no reply.
async fn close(tx: &mut WriteTx, key: &ToolCallKey, outcome: &ToolCallOutcome) -> Result<(), StoreError> {
    let ToolCallKey { caller, call_id } = key;
    let (owner, part) = caller.columns();
    sqlx::query(caller.statements().close)
        .bind(owner)
        .bind(part)
        .bind(&call_id.0)
        .bind(outcome.at)
        .bind(outcome.reply.success)
        .bind(&outcome.output)
        .bind(column(outcome.reply.duration_ms))
        .bind(text(&outcome.reply)?)
        .bind(outcome.input.as_ref().map(text).transpose()?)
        .bind(outcome.cost_micro_usd.map(column))
        .execute(&mut tx.db)
        .await?;
    if let ToolCaller::Turn(turn) = caller {
        threads::forget_text_without_thread(tx, *turn, call_id).await?;
    }
    Ok(())
}

fn interrupted() -> ToolCallReply {
    let failure =
        ToolFailure { kind: ToolErrorKind::Failed, message: INTERRUPTED.to_owned(), retry_after_seconds: None };
    ToolCallReply { success: false, output: None, truncated: false, duration_ms: 0, error: Some(failure) }
}

/// The statements about the calls of one kind of caller. $1 and $2 are [`ToolCaller::columns`], $3 is the call's id.
struct ActionStatements {
    table: &'static str,
    /// The state before a tool call is opened: its caller's other calls, and this one if it was made before.
    before: &'static str,
    insert: &'static str,
    close: &'static str,
    interrupt: &'static str,
}

/// `$counted` are the calls that count against the caller's limit; `$extra` is a further column with its value.
macro_rules! action_statements {
    ($table:literal, $owner:literal, $part:literal, $counted:literal, ($extra:literal, $value:literal)) => {
        ActionStatements {
            table: $table,
            before: concat!(
                "SELECT (SELECT COUNT(*) FROM ", $table, " WHERE ", $counted, " AND NOT (", $part,
                " = $2 AND call_id = $3)) AS others, tool, request_digest, reply FROM (SELECT 1) AS one LEFT JOIN ",
                $table, " ON ", $owner, " = $1 AND ", $part, " = $2 AND call_id = $3"
            ),
            insert: concat!(
                "INSERT INTO ", $table, " (", $owner, ", ", $part, ", call_id, at, tool, input, request_digest, \
                 estimated_cost_micro_usd", $extra, ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8", $value, ") ON CONFLICT (", $owner, ", ", $part,
                ", call_id) DO UPDATE SET at = excluded.at, tool = excluded.tool, input = excluded.input, success = NULL, \
                 output = NULL, duration_ms = NULL, reply = NULL, request_digest = excluded.request_digest, estimated_cost_micro_usd = excluded.estimated_cost_micro_usd"
            ),
            close: concat!(
                "UPDATE ", $table, " SET at = $4, success = $5, output = $6, duration_ms = $7, reply = $8, \
                 input = COALESCE($9, input), cost_micro_usd = $10 WHERE ", $owner, " = $1 AND ", $part,
                " = $2 AND call_id = $3 AND reply IS NULL"
            ),
            interrupt: concat!(
                "UPDATE ", $table, " SET success = FALSE, output = $1, duration_ms = 0, reply = $2 \
                 WHERE reply IS NULL AND request_digest IS NOT NULL"
            ),
        }
    };
}

/// A job's limit counts the calls of all its attempts.
const JOB_ACTIONS: ActionStatements = action_statements!("job_actions", "job_id", "attempt", "job_id = $1", ("", ""));
/// The limit applies to each turn separately. A thread that was deleted has no owner, so its calls are refused.
const THREAD_ACTIONS: ActionStatements = action_statements!(
    "thread_actions",
    "thread_id",
    "turn",
    "thread_id = $1 AND turn = $2",
    (
        ", user_id",
        ", COALESCE((SELECT user_id FROM chat_threads WHERE id = $1), (SELECT user_id FROM routine_runs WHERE id = $1))"
    )
);

impl ToolCaller {
    const fn statements(self) -> &'static ActionStatements {
        match self {
            Self::Job { .. } => &JOB_ACTIONS,
            Self::Turn(_) | Self::Run { .. } => &THREAD_ACTIONS,
        }
    }

    /// The owner of the rows, and its attempt or turn.
    fn columns(self) -> (Uuid, i64) {
        match self {
            Self::Job { job, attempt } => (*job.as_uuid(), i64::from(attempt)),
            Self::Turn(TurnKey { thread, turn }) => (*thread.as_uuid(), i64::from(turn)),
            Self::Run { run, attempt } => (*run.as_uuid(), i64::from(attempt)),
        }
    }
}

#[derive(FromRow)]
struct BeforeActionRow {
    others: i64,
    tool: Option<String>,
    request_digest: Option<String>,
    reply: Option<String>,
}

/// Counts a tool call against its caller's limit and writes its row, unless it was made before.
async fn open(tx: &mut WriteTx, call: &NewToolCall) -> Result<OpenedToolCall, StoreError> {
    match check(tx, call).await? {
        Checked::New(insert) => {
            tx.run_last(insert).await?;
            Ok(OpenedToolCall::Open)
        }
        Checked::Ended(opened) => Ok(opened),
    }
}

/// Whether a call may be opened.
enum Checked {
    /// It may, by this statement.
    New(StatementBatch),
    Ended(OpenedToolCall),
}

async fn check(tx: &mut WriteTx, call: &NewToolCall) -> Result<Checked, StoreError> {
    let ToolCallKey { caller, call_id } = &call.key;
    let (statements, (owner, part)) = (caller.statements(), caller.columns());
    let batch = StatementBatch::new(&[statements.before]).bind(owner).bind(part).bind(call_id.0.clone());
    let results = tx.run(batch).await?;
    let row: Option<BeforeActionRow> = results.first().map(StatementResult::decode_first).transpose()?.flatten();
    let BeforeActionRow { others, tool, request_digest, reply } = row.ok_or(StoreError::WriterFailed)?;
    let row_ref = RowRef { table: statements.table, id: owner };
    if let Some((tool, reply)) = tool.zip(reply) {
        // Calls of versions without digests can be compared by their tool only.
        let is_same = tool == call.tool && request_digest.as_deref().is_none_or(|digest| digest == call.request_digest);
        if !is_same {
            return Ok(Checked::Ended(OpenedToolCall::IdReused));
        }
        let reply = row_ref.json("reply", &reply)?;
        if !call.is_repeatable || reply != interrupted() {
            return Ok(Checked::Ended(OpenedToolCall::Recorded(reply)));
        }
    }
    if call.max_calls.is_some_and(|max| count(others) >= max) {
        return Ok(Checked::Ended(OpenedToolCall::LimitReached));
    }
    let insert = StatementBatch::new(&[statements.insert])
        .bind(owner)
        .bind(part)
        .bind(call_id.0.clone())
        .bind(call.at)
        .bind(call.tool.clone())
        .bind(text(&call.input)?)
        .bind(call.request_digest.clone())
        .bind(column(call.estimated_cost_micro_usd));
    Ok(Checked::New(insert))
}

#[derive(FromRow)]
struct ActionListRow {
    attempt: i64,
    call_id: String,
    at: DateTime<Utc>,
    tool: String,
    input: String,
    success: Option<bool>,
    output: Option<String>,
    duration_ms: Option<i64>,
    estimated_cost_micro_usd: i64,
    cost_micro_usd: Option<i64>,
}

impl ActionListRow {
    fn into_record(self, row_ref: RowRef) -> Result<(CallPosition, ToolActionRecord), StoreError> {
        let attempt = row_ref.number("attempt", self.attempt)?;
        let position = CallPosition { attempt, at: self.at, call_id: self.call_id.clone() };
        let record = ToolActionRecord {
            call_id: CallId(self.call_id),
            attempt,
            tool: self.tool,
            input: row_ref.json("input", &self.input)?,
            success: self.success,
            output: self.output,
            duration_ms: self.duration_ms.map(|ms| row_ref.number("duration_ms", ms)).transpose()?,
            estimated_cost_usd: dollars(self.estimated_cost_micro_usd),
            cost_usd: self.cost_micro_usd.map(dollars),
            at: self.at,
        };
        Ok((position, record))
    }
}
