//! Messages of a thread: sent by users, written by Gantry, listed.

use std::str::FromStr;

use chrono::{DateTime, Utc};
use protocol::{AuditOutcome, ChatContent, ChatMessage, MAIN_THREAD, MessageId, MessageReceipt, ThreadId, ThreadState};
use sqlx::FromRow;

use super::{
    super::{
        Store, StoreError, accepted,
        access::audit,
        routines::events::own_events,
        sqlite::{
            rows::{RowRef, text},
            write_tx::WriteTx,
        },
        users::user_storage,
    },
    Delivery, MAX_QUEUED_PER_USER, OwnedThread, Sent, SentMessage, answer_words,
    rows::{MessageRow, NewMessage, append, data_of, message_columns, publish},
    threads::{self, create, find, move_key, set_title},
    turns::trim,
};
use domain::chat::{ThreadRef, title_of};

/// HTTP status of the response to a message that is stored.
const ACCEPTED: u16 = 202;

/// The queued messages of a user: from the user's threads, not from the queued messages of all.
pub(super) const QUEUED_OF_USER: &str = "SELECT COUNT(*) FROM chat_threads AS t CROSS JOIN chat_messages AS m \
     INDEXED BY chat_messages_queued ON m.thread_id = t.id WHERE t.user_id = $1 AND m.seq IS NULL";

/// Bytes of messages at which a page ends.
const MAX_PAGE_BYTES: usize = 1024 * 1024;

/// Where a page of messages ends: before this position in the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessagePosition(i64);

/// A page of a thread's messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MessagePage {
    /// The state of the thread; `None` if there are no messages.
    pub state: Option<ThreadState>,
    /// The messages, oldest first.
    pub messages: Vec<ChatMessage>,
    /// Where the page before this one ends, if there is one.
    pub next: Option<MessagePosition>,
}

impl std::fmt::Display for MessagePosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MessagePosition {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Store {
    /// Stores a user's message. The thread `main` is created by its first message.
    pub async fn send_chat_message(&self, message: SentMessage) -> Result<Sent, StoreError> {
        self.write(transaction!(|tx| send(tx, &message).await)).await
    }

    /// Stores a command that starts a new conversation: a thread that takes over the key of this one. The receipt names
    /// it.
    pub async fn start_conversation(&self, message: SentMessage) -> Result<Sent, StoreError> {
        self.write(transaction!(|tx| {
            if let Some(known) = known(tx, &message).await? {
                return Ok(known);
            }
            let thread = match writable(tx, &message).await? {
                Ok(owned) => owned.thread,
                Err(refused) => return Ok(refused),
            };
            user_storage::ensure_room(tx, &message.user).await?;
            let Some(new) = create(tx, &message.user, None, message.audit.at).await? else {
                return Ok(Sent::TooManyThreads);
            };
            move_key(&mut tx.db, &thread, new.thread.id).await?;
            let shown = insert(tx, thread.id, &message).await?;
            finish(tx, &message, threads::receipt(new.thread.id, shown)).await
        }))
        .await
    }

    /// Whether a command has not been done yet.
    pub async fn is_chat_command_pending(&self, message: MessageId) -> Result<bool, StoreError> {
        let pending: Option<bool> = sqlx::query_scalar("SELECT command_pending FROM chat_messages WHERE id = $1")
            .bind(message)
            .fetch_optional(&self.read)
            .await?;
        Ok(pending.unwrap_or_default())
    }

    /// Records that a command is done, and appends Gantry's answer, if there is one. With `due` the model reads it with
    /// the next message. False: that was recorded before, or the thread does not exist any more.
    pub async fn answer_chat_command(
        &self,
        (thread, message): (ThreadId, MessageId),
        answer: Option<ChatContent>,
        due: bool,
        at: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        self.write(transaction!(|tx| {
            let done = sqlx::query(
                "UPDATE chat_messages SET command_pending = FALSE WHERE id = $1 AND thread_id = $2 AND command_pending",
            );
            if done.bind(message).bind(thread).execute(&mut tx.db).await?.rows_affected() == 0 {
                return Ok(false);
            }
            if let Some(content) = answer {
                trim(tx, thread).await?;
                append(tx, thread, NewMessage { content, turn: None, due, at }).await?;
            }
            Ok(true)
        }))
        .await
    }

    /// The messages before a position, the newest `limit` of them, with the state of the thread at that moment. The
    /// page without a position ends with the queued ones.
    pub async fn chat_messages(
        &self,
        thread: ThreadId,
        before: Option<MessagePosition>,
        limit: u32,
    ) -> Result<MessagePage, StoreError> {
        // One statement, so that the state fits the messages.
        let rows: Vec<PageRow> = sqlx::query_as(concat!(
            "SELECT ",
            message_columns!(),
            ", (SELECT state FROM chat_threads WHERE id = $1) AS state FROM (SELECT * FROM (SELECT ",
            message_columns!(),
            ", rowid AS place FROM chat_messages WHERE thread_id = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3) UNION ALL SELECT ",
            message_columns!(),
            ", rowid AS place FROM chat_messages WHERE thread_id = $1 AND seq IS NULL AND $4) \
             ORDER BY seq IS NULL, seq DESC, place"
        ))
        .bind(thread)
        .bind(before.map_or(i64::MAX, |position| position.0))
        .bind(i64::from(limit) + 1)
        .bind(before.is_none())
        .fetch_all(&self.read)
        .await?;
        let row_ref = RowRef { table: "chat_threads", id: *thread.as_uuid() };
        let state = rows.first().and_then(|row| row.state.as_deref());
        let state = state.map(|name| row_ref.known("state", ThreadState::parse(name))).transpose()?;
        let (queued, older): (Vec<_>, Vec<_>) =
            rows.into_iter().map(|row| row.message).partition(|row| row.seq.is_none());
        let found = older.len();
        let (mut bytes, mut messages, mut shown, mut oldest) = (0, Vec::new(), 0, None);
        for row in older.into_iter().take(limit as usize) {
            bytes += row.bytes();
            if bytes > MAX_PAGE_BYTES && !messages.is_empty() {
                break;
            }
            (shown, oldest) = (shown + 1, row.seq);
            messages.extend(self.inconsistent.skip(row.into_message())?);
        }
        let next = oldest.filter(|_| found > shown).map(MessagePosition);
        messages.reverse();
        for row in queued {
            messages.extend(self.inconsistent.skip(row.into_message())?);
        }
        Ok(MessagePage { state, messages, next })
    }
}

#[derive(FromRow)]
struct PageRow {
    #[sqlx(flatten)]
    message: MessageRow,
    state: Option<String>,
}

async fn send(tx: &mut WriteTx, message: &SentMessage) -> Result<Sent, StoreError> {
    if let Some(known) = known(tx, message).await? {
        return Ok(known);
    }
    let thread = match writable(tx, message).await? {
        Ok(owned) => owned.thread,
        Err(refused) => return Ok(refused),
    };
    if answer_words::resolve_gate(tx, &thread, message).await? {
        let shown = SentMessage { delivery: Delivery::Show, ..message.clone() };
        let id = insert(tx, thread.id, &shown).await?;
        return finish(tx, message, threads::receipt(thread.id, id)).await;
    }
    user_storage::ensure_room(tx, &message.user).await?;
    if message.delivery.is_queued() && queued_of(tx, &message.user).await? >= i64::from(MAX_QUEUED_PER_USER) {
        return Ok(Sent::QueueFull);
    }
    if message.delivery == Delivery::Queue {
        set_title(&mut tx.db, thread.id, &title_of(&message.content)).await?;
    }
    let id = insert(tx, thread.id, message).await?;
    if message.delivery == Delivery::Queue {
        own_events::chat_message_sent(tx, &message.user, &message.content, message.audit.at).await?;
    }
    let waiting_for_gate = message.delivery.is_queued() && thread.state == ThreadState::AwaitingApproval;
    finish(tx, message, MessageReceipt { thread_id: thread.id, message_id: id, waiting_for_gate }).await
}

/// The response to an earlier message with this key.
async fn known(tx: &mut WriteTx, message: &SentMessage) -> Result<Option<Sent>, StoreError> {
    Ok(accepted::lookup(&mut tx.db, message.key.as_ref(), message.audit.at).await?.map(Sent::Known))
}

/// The thread that a user may write to. The thread `main` is created where there is none.
async fn writable(tx: &mut WriteTx, message: &SentMessage) -> Result<Result<OwnedThread, Sent>, StoreError> {
    if let Some(owned) = find(&mut tx.db, &message.user, &message.thread).await? {
        return Ok(if owned.user == message.user { Ok(owned) } else { Err(Sent::NotOwner) });
    }
    if message.thread != ThreadRef::main() {
        return Ok(Err(Sent::Missing));
    }
    let created = create(tx, &message.user, Some(MAIN_THREAD), message.audit.at).await?;
    Ok(created.ok_or(Sent::TooManyThreads))
}

async fn queued_of(tx: &mut WriteTx, user: &str) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar(QUEUED_OF_USER).bind(user).fetch_one(&mut tx.db).await?)
}

async fn insert(tx: &mut WriteTx, thread: ThreadId, message: &SentMessage) -> Result<MessageId, StoreError> {
    let content = ChatContent::User { content: message.content.clone() };
    let at = message.audit.at;
    if !message.delivery.is_queued() {
        let shown = append(tx, thread, NewMessage { content, turn: None, due: false, at }).await?;
        let id = shown.map_or_else(MessageId::generate, |shown| shown.id);
        if message.delivery == Delivery::Command {
            let pending = sqlx::query("UPDATE chat_messages SET command_pending = TRUE WHERE id = $1").bind(id);
            pending.execute(&mut tx.db).await?;
        }
        return Ok(id);
    }
    let id = MessageId::generate();
    sqlx::query("INSERT INTO chat_messages (id, thread_id, role, data, due, at) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(id)
        .bind(thread)
        .bind(content.role())
        .bind(data_of(&content)?)
        .bind(message.delivery == Delivery::Queue)
        .bind(at)
        .execute(&mut tx.db)
        .await?;
    publish(tx, &message.user, thread, ChatMessage { id, seq: None, at, content }).await?;
    tx.after_commit(|committed| committed.notifier.chats.notify_one());
    Ok(id)
}

/// Records the response and the audit entry.
async fn finish(tx: &mut WriteTx, message: &SentMessage, receipt: MessageReceipt) -> Result<Sent, StoreError> {
    if let Some(key) = &message.key {
        accepted::answer(&mut tx.db, key, (ACCEPTED, text(&receipt)?), None, message.audit.at).await?;
    }
    audit::insert(&mut tx.db, &message.audit, AuditOutcome::Done, None).await?;
    Ok(Sent::Stored(receipt))
}
