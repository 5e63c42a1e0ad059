//! Tool calls that the orchestrator executes, recorded before their reply is used, with those that workers report in
//! their events. Those of jobs, chat threads and runs are in one table.
//!
//! The calls of a thread outlive it without their texts.

mod list;
mod threads;

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use protocol::{Execution, JobId, ToolCallReply, ToolErrorKind, ToolFailure, WorkId};
use sqlx::FromRow;

pub(crate) use self::threads::forget_texts;
use crate::{
    CallKey, Store, StoreError,
    sqlite::{
        data_migrations::DataMigration,
        rows::{column, count, text},
        write_tx::{StatementBatch, StatementResult, WriteTx},
    },
};

/// Moves the calls of threads and runs, which earlier versions stored by themselves.
pub(crate) const OF_THREADS: DataMigration = DataMigration {
    name: "tool_calls_of_threads",
    table: "thread_actions",
    step: &[
        "INSERT INTO tool_calls (work_id, kind, attempt, call_id, user_id, at, tool, input, success, output, duration_ms, \
         reply, request_digest, estimated_cost_micro_usd, cost_micro_usd) SELECT thread_id, \
         CASE WHEN thread_id IN (SELECT id FROM routine_runs) THEN 'run' ELSE 'thread' END, turn, call_id, user_id, \
         at, tool, input, success, output, duration_ms, reply, request_digest, estimated_cost_micro_usd, \
         cost_micro_usd FROM thread_actions WHERE rowid > ?1 AND rowid <= ?2 ORDER BY rowid",
        "DELETE FROM thread_actions WHERE rowid > ?1 AND rowid <= ?2",
    ],
    finish: &["DROP TABLE thread_actions"],
};

/// A tool call that is about to be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToolCall {
    pub key: CallKey,
    /// Digest of its tool and arguments.
    pub request_digest: String,
    pub at: DateTime<Utc>,
    pub tool: String,
    /// Its arguments, redacted and truncated.
    pub input: serde_json::Value,
    /// The model's reason, redacted, where the caller knows it.
    pub reasoning: Option<String>,
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

/// The state before a tool call ($1, $2, $3) is opened: the calls that count against its limit, which are those of all
/// attempts if $4, the owner of the work, and the call if it was made before.
const BEFORE_CALL: &str = "SELECT (SELECT COUNT(*) FROM tool_calls WHERE work_id = $1 AND ($4 OR attempt = $2) \
     AND NOT (attempt = $2 AND call_id = $3)) AS others, \
     COALESCE((SELECT user_id FROM jobs WHERE id = $1), (SELECT user_id FROM chat_threads WHERE id = $1), \
     (SELECT user_id FROM routine_runs WHERE id = $1)) AS owner, tool, request_digest, reply \
     FROM (SELECT 1) AS one LEFT JOIN tool_calls ON work_id = $1 AND attempt = $2 AND call_id = $3";

const INSERT_CALL: &str = "INSERT INTO tool_calls (work_id, attempt, call_id, at, tool, input, request_digest, \
     estimated_cost_micro_usd, user_id, kind, reasoning) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
     ON CONFLICT (work_id, attempt, call_id) DO UPDATE SET at = excluded.at, tool = excluded.tool, \
     input = excluded.input, success = NULL, output = NULL, duration_ms = NULL, reply = NULL, \
     request_digest = excluded.request_digest, estimated_cost_micro_usd = excluded.estimated_cost_micro_usd, \
     reasoning = IFNULL(excluded.reasoning, reasoning)";

const CLOSE_CALL: &str = "UPDATE tool_calls SET at = $4, success = $5, output = $6, duration_ms = $7, reply = $8, \
     input = COALESCE($9, input), cost_micro_usd = $10 \
     WHERE work_id = $1 AND attempt = $2 AND call_id = $3 AND reply IS NULL";

/// Closes the calls that were opened and have no reply.
const INTERRUPT_OPEN: &str = "UPDATE tool_calls SET success = FALSE, output = $1, duration_ms = 0, reply = $2 \
     WHERE reply IS NULL AND request_digest IS NOT NULL";

/// Closes the calls of jobs without a container that were announced by an event and not opened. Their loop ended with
/// its process, while a worker may still make its calls.
const INTERRUPT_ON_HOST: &str = "UPDATE tool_calls SET success = FALSE, output = $1, duration_ms = 0, reply = $2 \
     WHERE success IS NULL AND work_id IN (SELECT id FROM jobs WHERE placement = 'host' AND state IN ('in_progress', 'stuck'))";

impl Store {
    /// Opens a tool call before it is executed: counts it against the limit of its execution and writes its row.
    pub async fn open_tool_call(&self, call: &NewToolCall) -> Result<OpenedToolCall, StoreError> {
        let call = call.clone();
        self.write_batched(transaction!(|tx| open(tx, &call).await)).await
    }

    /// Closes a tool call with its reply. A call that is already closed is unchanged.
    pub async fn close_tool_call(&self, key: &CallKey, outcome: &ToolCallOutcome) -> Result<(), StoreError> {
        let close = close(key, outcome)?;
        self.write_batched(transaction!(|tx| tx.run_last(close).await.map(drop))).await
    }

    /// Closes the tool calls that an earlier process left open as interrupted. A repeated call gets that reply, unless
    /// it may be executed again.
    pub async fn close_interrupted_tool_calls(&self) -> Result<u64, StoreError> {
        let reply = text(&interrupted())?;
        self.write_one(transaction!(|tx| {
            let mut closed = 0;
            for statement in [INTERRUPT_OPEN, INTERRUPT_ON_HOST] {
                let query = sqlx::query(statement).bind(INTERRUPTED).bind(&reply);
                closed += query.execute(&mut tx.db).await?.rows_affected();
            }
            Ok(closed)
        }))
        .await
    }

    /// The ids of every tool call of a job or a run, in all its attempts. Of a thread those of the turn, also of calls
    /// that are not recorded yet.
    pub async fn tool_call_ids(&self, Execution { work, attempt }: Execution) -> Result<HashSet<String>, StoreError> {
        let statement = match work {
            WorkId::Job(_) | WorkId::Run(_) => "SELECT DISTINCT call_id FROM tool_calls WHERE work_id = $1",
            WorkId::Thread(_) => {
                "SELECT json_extract(data, '$.call_id') FROM chat_messages \
                 WHERE thread_id = $1 AND role = 'tool_use' AND turn = $2"
            }
        };
        let ids = sqlx::query_scalar(statement).bind(*work.as_uuid()).bind(i64::from(attempt));
        Ok(ids.fetch_all(&self.read).await?.into_iter().collect())
    }

    /// Whether a tool call of this attempt is open.
    pub async fn waits_for_tool(&self, job: JobId, attempt: u32) -> Result<bool, StoreError> {
        let open: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM tool_calls WHERE work_id = $1 AND attempt = $2 AND success IS NULL",
        )
        .bind(job)
        .bind(i64::from(attempt))
        .fetch_one(&self.read)
        .await?;
        Ok(open > 0)
    }
}

/// Writes the row of a tool call that was not executed, unless it has one.
pub(crate) async fn insert_closed(tx: &mut WriteTx, closed: &ClosedToolCall) -> Result<(), StoreError> {
    if let Checked::New(insert) = check(tx, &closed.call).await? {
        tx.run(insert).await?;
        tx.run(close(&closed.call.key, &closed.outcome)?).await?;
    }
    Ok(())
}

/// Closes a call that has no reply. One whose thread was deleted while it ran keeps no texts.
fn close(key: &CallKey, outcome: &ToolCallOutcome) -> Result<StatementBatch, StoreError> {
    Ok(key
        .bind_to(StatementBatch::new(&[CLOSE_CALL, threads::FORGET_TEXTS_WITHOUT_THREAD]))
        .bind(outcome.at)
        .bind(outcome.reply.success)
        .bind(outcome.output.clone())
        .bind(column(outcome.reply.duration_ms))
        .bind(text(&outcome.reply)?)
        .bind(outcome.input.as_ref().map(text).transpose()?)
        .bind(outcome.cost_micro_usd.map(column)))
}

fn interrupted() -> ToolCallReply {
    let failure =
        ToolFailure { kind: ToolErrorKind::Failed, message: INTERRUPTED.to_owned(), retry_after_seconds: None };
    ToolCallReply { success: false, output: None, truncated: false, duration_ms: 0, error: Some(failure) }
}

#[derive(FromRow)]
struct BeforeCallRow {
    others: i64,
    owner: Option<String>,
    tool: Option<String>,
    request_digest: Option<String>,
    reply: Option<String>,
}

/// Counts a tool call against its limit and writes its row, unless it was made before.
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
    let work = call.key.execution.work;
    // A job's limit counts the calls of all its attempts.
    let counts_all_attempts = matches!(work, WorkId::Job(_));
    let batch = call.key.bind_to(StatementBatch::new(&[BEFORE_CALL])).bind(counts_all_attempts);
    let results = tx.run(batch).await?;
    let row: Option<BeforeCallRow> = results.first().map(StatementResult::decode_first).transpose()?.flatten();
    let BeforeCallRow { others, owner, tool, request_digest, reply } = row.ok_or(StoreError::WriterFailed)?;
    let row_ref = call.key.row_ref("tool_calls");
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
    // A thread that was deleted has no owner, so its calls are refused.
    let owner = row_ref.known("work_id", owner)?;
    let insert = call
        .key
        .bind_to(StatementBatch::new(&[INSERT_CALL]))
        .bind(call.at)
        .bind(call.tool.clone())
        .bind(text(&call.input)?)
        .bind(call.request_digest.clone())
        .bind(column(call.estimated_cost_micro_usd))
        .bind(Some(owner).filter(|_| work.job().is_none()))
        .bind(work.kind())
        .bind(call.reasoning.clone());
    Ok(Checked::New(insert))
}
