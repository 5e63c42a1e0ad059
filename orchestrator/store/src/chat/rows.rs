//! Conversion of the rows of chat, and the statement that appends to a thread.

use chrono::{DateTime, Utc};
use protocol::{ChatContent, ChatMessage, ChatThread, InstanceEventData, MessageId, ThreadId, ThreadState};
use serde_json::{Map, Value, from_value};
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    super::{
        Connection, StoreError,
        events::instance_events,
        sqlite::{rows::RowRef, write_tx::WriteTx},
    },
    OwnedThread,
};

/// The columns of [`ThreadRow`], for SELECT.
macro_rules! thread_columns {
    () => {
        "id, user_id, key, title, state, created_at, updated_at"
    };
}
pub(super) use thread_columns;

#[derive(FromRow)]
pub(super) struct ThreadRow {
    id: Uuid,
    user_id: String,
    key: Option<String>,
    title: String,
    state: String,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

impl ThreadRow {
    pub(super) fn into_thread(self) -> Result<OwnedThread, StoreError> {
        let row_ref = RowRef { table: "chat_threads", id: self.id };
        let thread = ChatThread {
            id: ThreadId::from_uuid(self.id),
            key: self.key,
            title: self.title,
            state: row_ref.known("state", ThreadState::parse(&self.state))?,
            created_at: self.created_at,
            updated_at: self.updated_at,
        };
        Ok(OwnedThread { user: self.user_id, thread })
    }
}

/// The columns of [`MessageRow`], for SELECT.
macro_rules! message_columns {
    () => {
        "id, seq, at, role, data"
    };
}
pub(crate) use message_columns;

#[derive(FromRow)]
pub(crate) struct MessageRow {
    id: Uuid,
    pub(super) seq: Option<i64>,
    at: DateTime<Utc>,
    role: String,
    data: String,
}

impl MessageRow {
    /// The size of its data.
    pub(super) fn bytes(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn into_message(self) -> Result<ChatMessage, StoreError> {
        let row_ref = RowRef { table: "chat_messages", id: self.id };
        let mut fields: Map<String, Value> = row_ref.json("data", &self.data)?;
        fields.insert("role".to_owned(), Value::String(self.role));
        let content = from_value(Value::Object(fields)).map_err(|_| row_ref.invalid("data"))?;
        Ok(ChatMessage { id: MessageId::from_uuid(self.id), seq: self.seq, at: self.at, content })
    }
}

/// The data of an entry for its column: its fields without the role, which is a column.
pub(super) fn data_of(content: &ChatContent) -> Result<String, StoreError> {
    let encode = |error| StoreError::Database(sqlx::Error::Encode(Box::new(error)));
    let mut value = serde_json::to_value(content).map_err(encode)?;
    if let Value::Object(fields) = &mut value {
        fields.remove("role");
    }
    Ok(value.to_string())
}

/// An entry that is about to be appended to a thread.
pub(crate) struct NewMessage {
    pub(crate) content: ChatContent,
    /// The turn that writes it.
    pub(crate) turn: Option<u32>,
    /// Whether the model has yet to read it.
    pub(crate) due: bool,
    pub(crate) at: DateTime<Utc>,
}

/// An entry that was appended.
pub(crate) struct Appended {
    pub(crate) id: MessageId,
    /// The cursor of its event.
    pub(crate) cursor: i64,
}

/// Appends an entry at the end of a thread. `None`: the thread does not exist.
pub(crate) async fn append(
    tx: &mut WriteTx,
    thread: ThreadId,
    message: NewMessage,
) -> Result<Option<Appended>, StoreError> {
    let Some((seq, user)) = next_seq(&mut tx.db, thread, message.at).await? else { return Ok(None) };
    let id = MessageId::generate();
    sqlx::query(
        "INSERT INTO chat_messages (id, thread_id, seq, turn, role, data, due, at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(id)
    .bind(thread)
    .bind(seq)
    .bind(message.turn.map(i64::from))
    .bind(message.content.role())
    .bind(data_of(&message.content)?)
    .bind(message.due)
    .bind(message.at)
    .execute(&mut tx.db)
    .await?;
    let message = ChatMessage { id, seq: Some(seq), at: message.at, content: message.content };
    let cursor = publish(tx, &user, thread, message).await?;
    Ok(Some(Appended { id, cursor }))
}

/// Appends the event of a message that was stored, and returns its cursor.
pub(super) async fn publish(
    tx: &mut WriteTx,
    user: &str,
    thread_id: ThreadId,
    message: ChatMessage,
) -> Result<i64, StoreError> {
    let at = message.at;
    let event = InstanceEventData::ChatMessage { thread_id, message: Box::new(message) };
    instance_events::append(tx, user, at, &event).await
}

/// The position of the next entry of a thread, and the thread's owner.
async fn next_seq(
    db: &mut Connection,
    thread: ThreadId,
    at: DateTime<Utc>,
) -> Result<Option<(i64, String)>, StoreError> {
    let next =
        "UPDATE chat_threads SET last_seq = last_seq + 1, updated_at = $2 WHERE id = $1 RETURNING last_seq, user_id";
    Ok(sqlx::query_as(next).bind(thread).bind(at).fetch_optional(db).await?)
}
