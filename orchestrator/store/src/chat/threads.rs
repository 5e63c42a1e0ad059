//! Threads: found, listed, created, deleted.

use protocol::{InstanceEventData, MessageReceipt, ThreadId, ThreadState};
use sqlx::{Executor, QueryBuilder, Sqlite};

use super::{
    super::{
        AuditEntry, Connection, Store, StoreError,
        access::audit,
        calls::{model_calls::forget_answers, tool_calls},
        events::instance_events,
        sqlite::{inconsistent_rows::Keyed, list_walks::ListWalks, write_tx::WriteTx},
    },
    At, MAX_THREADS_PER_USER, OwnedThread, ThreadCaller, ThreadChange, ThreadFilter,
    rows::{ThreadRow, thread_columns},
};
use domain::chat::ThreadRef;

impl Store {
    /// The thread of this name, with its owner.
    pub async fn chat_thread(&self, user: &str, thread: &ThreadRef) -> Result<Option<OwnedThread>, StoreError> {
        find(&self.read, user, thread).await
    }

    /// A user's threads, newest first, each with its id; `None` for one that cannot be read.
    pub async fn chat_threads(
        &self,
        filter: &ThreadFilter,
    ) -> Result<Vec<(ThreadId, Option<protocol::ChatThread>)>, StoreError> {
        let walks = ListWalks {
            select: concat!("SELECT ", thread_columns!(), " FROM chat_threads"),
            by_id_end: "chat_threads_by_id_end",
            id_part: filter.id_part.as_deref(),
            before: filter.before.map(|before| *before.as_uuid()),
            ..ListWalks::default()
        };
        let mut query = QueryBuilder::<Sqlite>::new("");
        walks.push(&mut query, filter.limit, |query| {
            query.push(" AND user_id = ").push_bind(filter.user.clone());
        });
        let rows: Vec<Keyed<ThreadRow, ThreadId>> = query.build_query_as().fetch_all(&self.read).await?;
        self.inconsistent.read_page(rows, |row| row.into_thread().map(|one| one.thread))
    }

    /// Deletes a thread with its messages, its gates and the events about them. The record of its model and tool calls
    /// stays, without texts.
    pub async fn delete_chat_thread(
        &self,
        caller: &ThreadCaller,
        thread: &ThreadRef,
        entry: &AuditEntry,
    ) -> Result<ThreadChange, StoreError> {
        let (caller, thread, entry) = (caller.clone(), thread.clone(), entry.clone());
        self.write(transaction!(|tx| {
            let found = match find(&mut tx.db, &caller.user, &thread).await? {
                None => return Ok(ThreadChange::Missing),
                Some(found) if caller.sees_all || found.user == caller.user => found.thread,
                Some(_) => return Ok(ThreadChange::NotOwner),
            };
            instance_events::delete_of_thread(tx, found.id).await?;
            tool_calls::forget_texts(tx, found.id).await?;
            sqlx::query("DELETE FROM chat_threads WHERE id = $1").bind(found.id).execute(&mut tx.db).await?;
            forget_answers(&mut tx.db, found.id).await?;
            audit::insert(&mut tx.db, &entry, protocol::AuditOutcome::Done, None).await?;
            Ok(ThreadChange::Done(found.id))
        }))
        .await
    }
}

pub(crate) async fn find<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    user: &str,
    thread: &ThreadRef,
) -> Result<Option<OwnedThread>, StoreError> {
    let row: Option<ThreadRow> = match thread {
        ThreadRef::Id(id) => {
            sqlx::query_as(concat!("SELECT ", thread_columns!(), " FROM chat_threads WHERE id = $1"))
                .bind(id)
                .fetch_optional(db)
                .await?
        }
        ThreadRef::Key(key) => {
            sqlx::query_as(concat!("SELECT ", thread_columns!(), " FROM chat_threads WHERE user_id = $1 AND key = $2"))
                .bind(user)
                .bind(key)
                .fetch_optional(db)
                .await?
        }
    };
    row.map(ThreadRow::into_thread).transpose()
}

/// Creates a thread. `None`: the user has the maximum number of them.
pub(crate) async fn create(
    tx: &mut WriteTx,
    user: &str,
    key: Option<&str>,
    at: At,
) -> Result<Option<OwnedThread>, StoreError> {
    let threads: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM chat_threads WHERE user_id = $1")
        .bind(user)
        .fetch_one(&mut tx.db)
        .await?;
    if threads >= i64::from(MAX_THREADS_PER_USER) {
        return Ok(None);
    }
    let id = ThreadId::generate();
    sqlx::query(
        "INSERT INTO chat_threads (id, user_id, key, title, state, created_at, updated_at) \
         VALUES ($1, $2, $3, '', $4, $5, $5)",
    )
    .bind(id)
    .bind(user)
    .bind(key)
    .bind(ThreadState::Idle.as_str())
    .bind(at)
    .execute(&mut tx.db)
    .await?;
    let thread = protocol::ChatThread {
        id,
        key: key.map(str::to_owned),
        title: String::new(),
        state: ThreadState::Idle,
        created_at: at,
        updated_at: at,
    };
    Ok(Some(OwnedThread { user: user.to_owned(), thread }))
}

/// The receipt of a message that is shown in a new conversation.
pub(super) const fn receipt(thread: ThreadId, message: protocol::MessageId) -> MessageReceipt {
    MessageReceipt { thread_id: thread, message_id: message, waiting_for_gate: false }
}

/// Lets `to` take over the key of `from`.
pub(super) async fn move_key(db: &mut Connection, from: &protocol::ChatThread, to: ThreadId) -> Result<(), StoreError> {
    let Some(key) = &from.key else { return Ok(()) };
    sqlx::query("UPDATE chat_threads SET key = NULL WHERE id = $1").bind(from.id).execute(&mut *db).await?;
    sqlx::query("UPDATE chat_threads SET key = $2 WHERE id = $1").bind(to).bind(key).execute(db).await?;
    Ok(())
}

/// Sets the title of a thread that has none.
pub(super) async fn set_title(db: &mut Connection, thread: ThreadId, title: &str) -> Result<(), StoreError> {
    sqlx::query("UPDATE chat_threads SET title = $2 WHERE id = $1 AND title = ''")
        .bind(thread)
        .bind(title)
        .execute(db)
        .await?;
    Ok(())
}

pub(crate) async fn set_state(
    tx: &mut WriteTx,
    thread: ThreadId,
    state: ThreadState,
    at: At,
) -> Result<(), StoreError> {
    let user: Option<String> =
        sqlx::query_scalar("UPDATE chat_threads SET state = $2, updated_at = $3 WHERE id = $1 RETURNING user_id")
            .bind(thread)
            .bind(state.as_str())
            .bind(at)
            .fetch_optional(&mut tx.db)
            .await?;
    match user {
        Some(user) => publish_state(tx, &user, thread, state, at).await,
        None => Ok(()),
    }
}

/// Appends the event of a new state.
pub(crate) async fn publish_state(
    tx: &mut WriteTx,
    user: &str,
    thread_id: ThreadId,
    state: ThreadState,
    at: At,
) -> Result<(), StoreError> {
    let event = InstanceEventData::ThreadState { thread_id, state };
    instance_events::append(tx, user, at, &event).await?;
    Ok(())
}
