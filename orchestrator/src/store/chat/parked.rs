//! Turns that wait for a person: parked with their gate, stopped while they wait.

use agent::{ApprovalRequest, Run};
use chrono::{DateTime, Utc};
use protocol::{CallId, ChatContent, ThreadId, ThreadState};
use sqlx::FromRow;

use super::{
    super::{Store, StoreError, gates, rows::RowRef, write_tx::WriteTx},
    TurnKey,
    rows::{NewMessage, append},
    threads::set_state,
    turns::{is_current, save},
};

/// The reason of the gate of such a turn.
const STOPPED_BY_USER: &str = "the user stopped the turn";

/// What the model reads of the calls of such a turn that had not run.
const STOPPED: &str = "error (not_authorized): the user stopped the turn; the call was not run";

/// A turn whose next call waits for a person.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedTurn {
    /// The model's messages, as JSON.
    pub transcript: String,
    /// The run, as JSON.
    pub run: String,
    /// What the person is asked.
    pub request: ApprovalRequest,
}

impl Store {
    /// Parks a turn: stores its state and opens its gate. False: the turn is over.
    pub async fn park_chat_turn(
        &self,
        key: TurnKey,
        parked: ParkedTurn,
        at: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        self.write(move |tx| {
            Box::pin(async move {
                if !is_current(tx, key).await? {
                    return Ok(false);
                }
                let ParkedTurn { transcript, run, request } = parked;
                save(tx, key, transcript, Some(run)).await?;
                set_state(tx, key.thread, ThreadState::AwaitingApproval, at).await?;
                gates::open(tx, key.thread, &request, at).await?;
                Ok(true)
            })
        })
        .await
    }

    /// Ends a turn that waits for a person, because its user stopped it. False: none waits.
    pub async fn stop_waiting_chat_turn(&self, thread: ThreadId, at: DateTime<Utc>) -> Result<bool, StoreError> {
        self.write(move |tx| Box::pin(async move { stop(tx, thread, ThreadState::AwaitingApproval, at).await })).await
    }

    /// Ends a turn whose answer has come and that has not gone on yet, because its user stopped it. False: there is none.
    pub async fn stop_answered_chat_turn(&self, thread: ThreadId, at: DateTime<Utc>) -> Result<bool, StoreError> {
        self.write(move |tx| Box::pin(async move { stop(tx, thread, ThreadState::Processing, at).await })).await
    }
}

#[derive(FromRow)]
struct ParkedRow {
    turn: i64,
    run: String,
}

async fn stop(tx: &mut WriteTx, thread: ThreadId, state: ThreadState, at: DateTime<Utc>) -> Result<bool, StoreError> {
    let row: Option<ParkedRow> = sqlx::query_as(
        "SELECT turn, run FROM chat_threads JOIN chat_transcripts ON thread_id = id \
         WHERE id = $1 AND state = $2 AND run IS NOT NULL",
    )
    .bind(*thread.as_uuid())
    .bind(state.as_str())
    .fetch_optional(&mut tx.db)
    .await?;
    let Some(ParkedRow { turn, run }) = row else { return Ok(false) };
    let row_ref = RowRef { table: "chat_transcripts", id: *thread.as_uuid() };
    let turn: u32 = row_ref.number("turn", turn)?;
    let run: Run = row_ref.json("run", &run)?;
    sqlx::query("UPDATE chat_transcripts SET run = NULL WHERE thread_id = $1")
        .bind(*thread.as_uuid())
        .execute(&mut tx.db)
        .await?;
    // The model has made the call; the entry is for the user.
    if let Some(ApprovalRequest { call_id, tool, redacted_input, .. }) = run.approval_request().cloned() {
        let content = ChatContent::ToolUse { call_id, tool, input: redacted_input };
        append(tx, thread, NewMessage { content, turn: Some(turn), due: false, at }).await?;
    }
    for call in run.waiting_calls() {
        let content = ChatContent::ToolResult {
            call_id: CallId(call.id.clone()),
            tool: call.name.clone(),
            success: false,
            output: STOPPED.to_owned(),
            truncated: false,
            duration_ms: 0,
        };
        append(tx, thread, NewMessage { content, turn: Some(turn), due: true, at }).await?;
    }
    let content = ChatContent::System { content: "Stopped.".to_owned() };
    append(tx, thread, NewMessage { content, turn: Some(turn), due: false, at }).await?;
    set_state(tx, thread, ThreadState::Idle, at).await?;
    gates::deny_pending(tx, thread, STOPPED_BY_USER, at).await?;
    tx.after_commit(|committed| committed.notifier.wake_chats());
    Ok(true)
}
