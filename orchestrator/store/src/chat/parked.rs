//! Turns that wait for a person, or whose answer has come and that have not gone on yet: parked with their gate,
//! stopped.

use std::time::Duration;

use agent::{ApprovalRequest, Run};
use chrono::{DateTime, Utc};
use protocol::{ChatContent, GateId, ThreadId, ThreadState, ToolCall};
use sqlx::FromRow;

use super::{
    super::{
        ClosedToolCall, Store, StoreError,
        calls::tool_calls::insert_closed,
        chat::{gates, system_lines},
        sqlite::{
            rows::{RowRef, column},
            write_tx::WriteTx,
        },
    },
    TurnKey,
    rows::{NewMessage, append},
    threads::set_state,
    turns::{is_current, save},
};

/// The reason of the gate of such a turn.
const STOPPED_BY_USER: &str = "the user stopped the turn";

/// A turn whose next call waits for a person.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedTurn {
    /// The model's messages, as JSON.
    pub transcript: String,
    /// The run, as JSON.
    pub run: String,
    /// What the person is asked.
    pub request: ApprovalRequest,
    /// How long the turn has worked so far.
    pub worked: Duration,
}

/// A turn that is parked, and has not gone on.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingTurn {
    pub key: TurnKey,
    pub gate: GateId,
    /// The owner of the thread.
    pub user: String,
    /// The calls that have not run, with the arguments that they would run with. None if the run cannot be read.
    pub calls: Vec<ToolCall>,
    /// The model's reason for them; may be empty.
    pub reasoning: String,
}

impl Store {
    /// Parks a turn: stores its state and opens its gate. False: the turn is over.
    pub async fn park_chat_turn(
        &self,
        key: TurnKey,
        parked: ParkedTurn,
        at: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        self.write(transaction!(|tx| {
            if !is_current(tx, key).await? {
                return Ok(false);
            }
            let ParkedTurn { transcript, run, request, worked } = parked;
            save(tx, key, transcript, Some(run)).await?;
            set_worked(tx, key.thread, worked).await?;
            set_state(tx, key.thread, ThreadState::AwaitingApproval, at).await?;
            gates::open(tx, key.thread, &request, at).await?;
            Ok(true)
        }))
        .await
    }

    /// The turn of a thread that is parked, if there is one.
    pub async fn waiting_chat_turn(&self, thread: ThreadId) -> Result<Option<WaitingTurn>, StoreError> {
        let row: Option<WaitingRow> = sqlx::query_as(
            "SELECT user_id, turn, gate_id, run FROM chat_threads JOIN chat_transcripts ON thread_id = id \
             WHERE id = $1 AND state IN ('awaiting_approval', 'processing') AND run IS NOT NULL",
        )
        .bind(thread)
        .fetch_optional(&self.read)
        .await?;
        row.map(|row| row.into_turn(thread)).transpose()
    }

    /// Ends a turn that is parked, because its user stopped it, with the rows of the calls that do not run. False: it
    /// is no longer parked at this gate.
    pub async fn stop_waiting_chat_turn(
        &self,
        key: TurnKey,
        gate: GateId,
        calls: Vec<ClosedToolCall>,
        at: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        self.write(transaction!(|tx| {
            let is_stopped = take_run(tx, key, gate).await?;
            if is_stopped {
                end_stopped(tx, key, calls, at).await?;
            }
            Ok(is_stopped)
        }))
        .await
    }
}

#[derive(FromRow)]
struct WaitingRow {
    user_id: String,
    turn: i64,
    gate_id: GateId,
    run: String,
}

impl WaitingRow {
    fn into_turn(self, thread: ThreadId) -> Result<WaitingTurn, StoreError> {
        let row_ref = RowRef { table: "chat_threads", id: *thread.as_uuid() };
        let run: Option<Run> = serde_json::from_str(&self.run).ok();
        let mut calls: Vec<ToolCall> = run.iter().flat_map(Run::waiting_calls).cloned().collect();
        let request = run.as_ref().and_then(Run::approval_request);
        if let Some((call, request)) = calls.first_mut().zip(request) {
            call.arguments = request.arguments.clone();
        }
        let key = TurnKey { thread, turn: row_ref.number("turn", self.turn)? };
        let reasoning = request.map(|request| request.reasoning.clone()).unwrap_or_default();
        Ok(WaitingTurn { key, gate: self.gate_id, user: self.user_id, calls, reasoning })
    }
}

/// Takes the run of a turn that is parked at this gate. False: there is none.
async fn take_run(tx: &mut WriteTx, TurnKey { thread, turn }: TurnKey, gate: GateId) -> Result<bool, StoreError> {
    let taken = sqlx::query(
        "UPDATE chat_transcripts SET run = NULL WHERE thread_id = $1 AND gate_id = $2 AND run IS NOT NULL \
         AND EXISTS (SELECT 1 FROM chat_threads WHERE id = $1 AND turn = $3 AND state IN ('awaiting_approval', 'processing'))",
    )
    .bind(thread)
    .bind(gate)
    .bind(i64::from(turn))
    .execute(&mut tx.db)
    .await?;
    Ok(taken.rows_affected() == 1)
}

/// Records that the calls of a turn did not run, and ends it.
async fn end_stopped(
    tx: &mut WriteTx,
    key: TurnKey,
    calls: Vec<ClosedToolCall>,
    at: DateTime<Utc>,
) -> Result<(), StoreError> {
    let (thread, turn) = (key.thread, Some(key.turn));
    // The model has made the calls; these entries are for the user.
    for ClosedToolCall { call, .. } in &calls {
        let content = ChatContent::ToolUse {
            call_id: call.key.call_id.clone(),
            tool: call.tool.clone(),
            input: call.input.clone(),
            reasoning: call.reasoning.clone(),
        };
        append(tx, thread, NewMessage { content, turn, due: false, at }).await?;
    }
    for closed in calls {
        insert_closed(tx, &closed).await?;
        let content = ChatContent::ToolResult {
            call_id: closed.call.key.call_id,
            tool: closed.call.tool,
            success: false,
            output: closed.outcome.output,
            truncated: false,
            duration_ms: 0,
        };
        append(tx, thread, NewMessage { content, turn, due: true, at }).await?;
    }
    let content = ChatContent::notice("Stopped.".to_owned());
    append(tx, thread, NewMessage { content, turn, due: false, at }).await?;
    system_lines::settle(tx, key, true, at).await?;
    set_state(tx, thread, ThreadState::Idle, at).await?;
    gates::deny_pending(tx, thread, STOPPED_BY_USER, at).await?;
    tx.after_commit(|committed| committed.notifier.chats.notify_one());
    Ok(())
}

async fn set_worked(tx: &mut WriteTx, thread: ThreadId, worked: Duration) -> Result<(), StoreError> {
    let worked_ms = u64::try_from(worked.as_millis()).unwrap_or(u64::MAX);
    sqlx::query("UPDATE chat_transcripts SET worked_ms = $2 WHERE thread_id = $1")
        .bind(thread)
        .bind(column(worked_ms))
        .execute(&mut tx.db)
        .await?;
    Ok(())
}
