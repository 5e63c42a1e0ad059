//! Turns of a thread: begun, recorded, parked, ended; and those that an earlier process left unfinished.
//!
//! Every write names the turn, and changes nothing once the thread is at another one.

use std::{collections::BTreeSet, time::Duration};

use agent::{ApprovalAnswer, Run};
use chrono::{DateTime, Utc};
use protocol::{ChatContent, ChatMessage, JobReason, ThreadId, ThreadState};
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    super::{
        Store, StoreError,
        calls::model_calls::forget_answers,
        chat::{gates, heartbeats, system_lines},
        sqlite::{
            inconsistent_rows::Row,
            rows::{RowRef, count},
            write_tx::WriteTx,
        },
    },
    At, MAX_MESSAGES_PER_THREAD, TurnError, TurnKey,
    rows::{MessageRow, NewMessage, append, message_columns},
    threads::{publish_state, set_state},
};
use protocol::MAIN_THREAD;

/// The message of a turn that did not survive its process.
const INTERRUPTED: &str = "the server restarted during this turn; send the message again";

/// The message of a turn whose parked run cannot be read.
const UNREADABLE: &str = "the state of this turn cannot be read; send the message again";

/// Threads that a turn can begin or go on in: those with an answer that has come, and idle ones with a queued message.
/// It begins at the indexes of busy threads and of queued messages, which say in words what the indexes are limited to,
/// so it costs as much as there is to do, however many threads and transcripts there are.
const RUNNABLE: &str = "WITH waiting (id, user_id, since) AS ( \
     SELECT t.id, t.user_id, t.updated_at FROM chat_threads AS t INDEXED BY chat_threads_busy \
     WHERE t.state = 'processing' AND t.state <> 'idle' \
     AND EXISTS (SELECT 1 FROM chat_transcripts AS p WHERE p.thread_id = t.id AND p.run IS NOT NULL) \
     UNION ALL SELECT t.id, t.user_id, MIN(m.at) FROM chat_messages AS m INDEXED BY chat_messages_queued \
     CROSS JOIN chat_threads AS t ON t.id = m.thread_id WHERE m.seq IS NULL AND t.state = 'idle' GROUP BY m.thread_id) \
     SELECT id, user_id FROM (SELECT id, user_id, since, ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY since, id) AS place \
     FROM waiting) WHERE place <= $1 ORDER BY since, id";

/// Threads whose turn an earlier process has left unfinished.
const LEFT_UNFINISHED: &str = "SELECT t.id, t.turn FROM chat_threads AS t INDEXED BY chat_threads_busy \
     WHERE t.state = 'processing' AND t.state <> 'idle' \
     AND NOT EXISTS (SELECT 1 FROM chat_transcripts AS p WHERE p.thread_id = t.id AND p.run IS NOT NULL)";

/// The next queued message of a thread.
const NEXT_QUEUED: &str =
    "SELECT id, data, due FROM chat_messages WHERE thread_id = $1 AND seq IS NULL ORDER BY rowid LIMIT 1";

/// The statements of a step of the engine, for the test of their plans.
#[cfg(test)]
pub(super) const OF_A_STEP: [&str; 3] = [RUNNABLE, LEFT_UNFINISHED, NEXT_QUEUED];

/// A turn that has begun.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub key: TurnKey,
    /// The owner of the thread.
    pub user: String,
    pub title: String,
    /// Tools that the user always allows in this thread.
    pub remembered: BTreeSet<String>,
    /// Whether no person is there to approve calls, and the user is not present: a heartbeat.
    pub is_autonomous: bool,
    /// What the turn begins with.
    pub request: TurnRequest,
    /// Whether the user may store no more, so that it must not begin.
    pub is_storage_full: bool,
    /// How long it has worked before it waited for a person.
    pub worked: Duration,
    /// The model's messages up to the turn before, as JSON; `None` in a new thread.
    pub transcript: Option<String>,
    /// The entries that the model has yet to read, in order.
    pub due: Vec<ChatMessage>,
}

/// What a turn begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnRequest {
    /// A message to the agent, which is the last of those that are due.
    Message,
    /// A command to the engine.
    Command(String),
    /// The run of this turn goes on after a person's answer.
    Resume {
        /// The run, as JSON.
        run: String,
        answer: ApprovalAnswer,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnEnd {
    /// The model's messages, as JSON. `None`: the next turn reads this one's entries again.
    pub transcript: Option<String>,
    /// Why there is no answer.
    pub error: Option<TurnError>,
    /// A notice to the user.
    pub notice: Option<String>,
}

impl Store {
    /// Threads that a turn can begin or go on in, with their owners, those that have waited longest first: at most
    /// `per_user` of each user, so that no user's threads hide another's.
    pub async fn runnable_chat_threads(&self, per_user: u32) -> Result<Vec<(ThreadId, String)>, StoreError> {
        Ok(sqlx::query_as(RUNNABLE).bind(per_user).fetch_all(&self.read).await?)
    }

    /// Begins the next turn of a thread, or goes on with the one whose answer has come. `None`: there is nothing to do.
    pub async fn begin_chat_turn(&self, thread: ThreadId, at: DateTime<Utc>) -> Result<Option<Turn>, StoreError> {
        let begun = self.write(transaction!(|tx| begin(tx, thread, at).await)).await?;
        let Some(mut turn) = begun else { return Ok(None) };
        // Read after the commit, off the writer: only this turn changes them now.
        turn.transcript = self.chat_transcript(thread).await?;
        turn.due = self.due_chat_messages(turn.key).await?;
        Ok(Some(turn))
    }

    pub(super) async fn chat_transcript(&self, thread: ThreadId) -> Result<Option<String>, StoreError> {
        let transcript = sqlx::query_scalar("SELECT transcript FROM chat_transcripts WHERE thread_id = $1");
        let transcript: Option<Option<String>> = transcript.bind(thread).fetch_optional(&self.read).await?;
        Ok(transcript.flatten())
    }

    async fn due_chat_messages(&self, key: TurnKey) -> Result<Vec<ChatMessage>, StoreError> {
        let rows: Vec<Row<MessageRow>> = sqlx::query_as(concat!(
            "SELECT ",
            message_columns!(),
            " FROM chat_messages WHERE thread_id = $1 AND due AND turn = $2 ORDER BY seq"
        ))
        .bind(key.thread)
        .bind(i64::from(key.turn))
        .fetch_all(&self.read)
        .await?;
        self.inconsistent.read_each(rows, MessageRow::into_message)
    }

    /// Appends an entry that the turn writes, and returns the cursor of its event. `None`: the turn is over.
    pub async fn record_in_chat_turn(
        &self,
        key: TurnKey,
        content: ChatContent,
        at: DateTime<Utc>,
    ) -> Result<Option<i64>, StoreError> {
        self.write(transaction!(|tx| {
            if !is_current(tx, key).await? {
                return Ok(None);
            }
            let entry = NewMessage { content, turn: Some(key.turn), due: true, at };
            Ok(append(tx, key.thread, entry).await?.map(|appended| appended.cursor))
        }))
        .await
    }

    /// Ends a turn: the thread is idle. False: the turn is over already.
    pub async fn finish_chat_turn(&self, key: TurnKey, end: TurnEnd, at: DateTime<Utc>) -> Result<bool, StoreError> {
        self.write(transaction!(|tx| {
            if !is_current(tx, key).await? {
                return Ok(false);
            }
            if let Some(transcript) = end.transcript {
                save(tx, key, transcript, None).await?;
            }
            system_lines::settle(tx, key, end.error.as_ref().is_none_or(|error| error.drops_lines), at).await?;
            let turn = Some(key.turn);
            if let Some(content) = end.notice.map(ChatContent::notice) {
                append(tx, key.thread, NewMessage { content, turn, due: false, at }).await?;
            }
            if let Some(TurnError { reason, message, .. }) = end.error {
                let content = ChatContent::Error { reason, content: message };
                append(tx, key.thread, NewMessage { content, turn, due: false, at }).await?;
            }
            trim(tx, key.thread).await?;
            set_state(tx, key.thread, ThreadState::Idle, at).await?;
            tx.after_commit(|committed| committed.notifier.chats.notify_one());
            Ok(true)
        }))
        .await
    }

    /// Ends the turns that an earlier process left unfinished, each with an error. Turns that wait for an answer, or
    /// whose answer has come, are left as they are. Returns how many were ended.
    pub async fn close_interrupted_chat_turns(&self, at: DateTime<Utc>) -> Result<usize, StoreError> {
        self.write(transaction!(|tx| {
            let threads: Vec<(Uuid, i64)> = sqlx::query_as(LEFT_UNFINISHED).fetch_all(&mut tx.db).await?;
            heartbeats::reset_interrupted(tx, at).await?;
            for (id, turn) in &threads {
                let thread = ThreadId::from_uuid(*id);
                let turn = u32::try_from(*turn).ok();
                if let Some(turn) = turn {
                    system_lines::settle(tx, TurnKey { thread, turn }, false, at).await?;
                }
                let content =
                    ChatContent::Error { reason: JobReason::OrchestratorRestart, content: INTERRUPTED.to_owned() };
                append(tx, thread, NewMessage { content, turn, due: false, at }).await?;
                set_state(tx, thread, ThreadState::Idle, at).await?;
            }
            Ok(threads.len())
        }))
        .await
    }
}

#[derive(FromRow)]
struct BeforeTurnRow {
    user_id: String,
    key: Option<String>,
    title: String,
    state: String,
    turn: i64,
    remembered: String,
    run: Option<String>,
    worked_ms: Option<i64>,
    bytes: Option<i64>,
}

async fn begin(tx: &mut WriteTx, thread: ThreadId, at: At) -> Result<Option<Turn>, StoreError> {
    let row: Option<BeforeTurnRow> = sqlx::query_as(
        "SELECT user_id, key, title, state, turn, remembered, run, worked_ms, \
         (SELECT SUM(bytes) FROM user_bytes u WHERE u.user_id = chat_threads.user_id) AS bytes \
         FROM chat_threads LEFT JOIN chat_transcripts ON thread_id = id WHERE id = $1",
    )
    .bind(thread)
    .fetch_optional(&mut tx.db)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let row_ref = RowRef { table: "chat_threads", id: *thread.as_uuid() };
    let last_turn: u32 = row_ref.number("turn", row.turn)?;
    let mut worked = Duration::ZERO;
    let main_of = row.key.as_deref().filter(|key| *key == MAIN_THREAD).map(|_| row.user_id.as_str());
    let (turn, request) = match (row_ref.known("state", ThreadState::parse(&row.state))?, row.run) {
        (ThreadState::Idle, _) => match take_queued(tx, TurnKey { thread, turn: last_turn + 1 }, main_of, at).await? {
            Some(request) => (last_turn + 1, request),
            None => return Ok(None),
        },
        (ThreadState::Processing, Some(run)) => {
            // What goes on must not go on twice.
            sqlx::query("UPDATE chat_transcripts SET run = NULL WHERE thread_id = $1")
                .bind(thread)
                .execute(&mut tx.db)
                .await?;
            let answer = match answer_of(tx, thread, &run).await {
                Err(error) if error.concerns_one_row() => {
                    tracing::error!(thread.id = %thread, error = &error as &dyn std::error::Error, "a parked turn cannot be read");
                    end_unreadable(tx, TurnKey { thread, turn: last_turn }, at).await?;
                    return Ok(None);
                }
                answer => answer?,
            };
            worked = Duration::from_millis(count(row.worked_ms.unwrap_or_default()));
            (last_turn, TurnRequest::Resume { answer, run })
        }
        (ThreadState::Processing | ThreadState::AwaitingApproval, _) => return Ok(None),
    };
    Ok(Some(Turn {
        key: TurnKey { thread, turn },
        user: row.user_id,
        title: row.title,
        remembered: row_ref.json("remembered", &row.remembered)?,
        request,
        is_storage_full: tx.user_storage_limit.is_reached(count(row.bytes.unwrap_or_default())),
        is_autonomous: false,
        worked,
        transcript: None,
        due: Vec::new(),
    }))
}

/// Ends a turn that cannot go on because its parked run, or its gate, cannot be read.
async fn end_unreadable(tx: &mut WriteTx, key: TurnKey, at: At) -> Result<(), StoreError> {
    let content = ChatContent::Error { reason: JobReason::Internal, content: UNREADABLE.to_owned() };
    append(tx, key.thread, NewMessage { content, turn: Some(key.turn), due: false, at }).await?;
    system_lines::settle(tx, key, false, at).await?;
    set_state(tx, key.thread, ThreadState::Idle, at).await?;
    tx.after_commit(|committed| committed.notifier.chats.notify_one());
    Ok(())
}

/// The answer to the call that a parked run waits for.
async fn answer_of(tx: &mut WriteTx, thread: ThreadId, run: &str) -> Result<ApprovalAnswer, StoreError> {
    let row_ref = RowRef { table: "chat_transcripts", id: *thread.as_uuid() };
    let run: Run = row_ref.json("run", run)?;
    match run.approval_request() {
        Some(request) => gates::answer(tx, thread, request).await,
        None => Ok(ApprovalAnswer::Expired),
    }
}

/// Takes the next queued message as that of a turn, which with it begins. In the main session of a user, `main_of`, a
/// message to the agent comes after the lines that wait.
async fn take_queued(
    tx: &mut WriteTx,
    key: TurnKey,
    main_of: Option<&str>,
    at: At,
) -> Result<Option<TurnRequest>, StoreError> {
    let thread = *key.thread.as_uuid();
    let queued: Option<(Uuid, String, bool)> =
        sqlx::query_as(NEXT_QUEUED).bind(thread).fetch_optional(&mut tx.db).await?;
    let Some((id, data, is_due)) = queued else { return Ok(None) };
    if let Some(user) = main_of.filter(|_| is_due) {
        system_lines::take(tx, user, key).await?;
        system_lines::show(tx, key, key.thread, true, at).await?;
    }
    let (seq, user): (i64, String) = sqlx::query_as(
        "UPDATE chat_threads SET state = 'processing', turn = $2, last_seq = last_seq + 1, updated_at = $3 \
         WHERE id = $1 RETURNING last_seq, user_id",
    )
    .bind(thread)
    .bind(i64::from(key.turn))
    .bind(at)
    .fetch_one(&mut tx.db)
    .await?;
    publish_state(tx, &user, key.thread, ThreadState::Processing, at).await?;
    sqlx::query("UPDATE chat_messages SET seq = $2 WHERE id = $1").bind(id).bind(seq).execute(&mut tx.db).await?;
    sqlx::query("UPDATE chat_messages SET turn = $2 WHERE thread_id = $1 AND due AND seq IS NOT NULL")
        .bind(thread)
        .bind(i64::from(key.turn))
        .execute(&mut tx.db)
        .await?;
    if is_due {
        return Ok(Some(TurnRequest::Message));
    }
    let row_ref = RowRef { table: "chat_messages", id };
    let data: serde_json::Value = row_ref.json("data", &data)?;
    let command = data.get("content").and_then(serde_json::Value::as_str).unwrap_or_default();
    Ok(Some(TurnRequest::Command(command.to_owned())))
}

/// Whether the thread is processing this turn.
pub(crate) async fn is_current(tx: &mut WriteTx, key: TurnKey) -> Result<bool, StoreError> {
    let found: Option<i64> =
        sqlx::query_scalar("SELECT 1 FROM chat_threads WHERE id = $1 AND turn = $2 AND state = 'processing'")
            .bind(key.thread)
            .bind(i64::from(key.turn))
            .fetch_optional(&mut tx.db)
            .await?;
    Ok(found.is_some())
}

/// Stores the model's messages and the run that waits. The entries of the turn are in them.
pub(super) async fn save(
    tx: &mut WriteTx,
    key: TurnKey,
    transcript: String,
    run: Option<String>,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO chat_transcripts (thread_id, transcript, run) VALUES ($1, $2, $3) \
         ON CONFLICT (thread_id) DO UPDATE SET transcript = excluded.transcript, run = excluded.run",
    )
    .bind(key.thread)
    .bind(transcript)
    .bind(run)
    .execute(&mut tx.db)
    .await?;
    sqlx::query("UPDATE chat_messages SET due = FALSE WHERE thread_id = $1 AND due AND turn = $2")
        .bind(key.thread)
        .bind(i64::from(key.turn))
        .execute(&mut tx.db)
        .await?;
    forget_answers(&mut tx.db, key.thread).await
}

/// Deletes the oldest entries of a thread that has too many.
pub(crate) async fn trim(tx: &mut WriteTx, thread: ThreadId) -> Result<(), StoreError> {
    sqlx::query(
        "DELETE FROM chat_messages WHERE thread_id = $1 AND NOT due \
         AND seq <= (SELECT last_seq FROM chat_threads WHERE id = $1) - $2",
    )
    .bind(thread)
    .bind(MAX_MESSAGES_PER_THREAD)
    .execute(&mut tx.db)
    .await?;
    Ok(())
}
