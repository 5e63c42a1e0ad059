//! How a heartbeat ends: its lines, its reply, its failures.

use chrono::{DateTime, Utc};
use protocol::{ChatContent, MAIN_THREAD, NotificationKind, ThreadId, ThreadState};

use super::{
    super::{NewMessage, system_lines},
    MAX_DUE_ENTRIES, TITLE,
};
use crate::{
    NewNotification, Store, StoreError, TurnError, TurnKey, calls::model_calls::forget_answers, chat, notifications,
    sqlite::write_tx::WriteTx,
};
use domain::{chat::ThreadRef, heartbeat::FAILURES_TO_NOTIFY};

/// Title of the notification of failures.
const FAILED: &str = "Heartbeats fail";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeartbeatEnd {
    Replied(HeartbeatReply),
    /// It was stopped by its user.
    Stopped,
    Failed(TurnError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeartbeatReply {
    /// There is nothing to report.
    Silent,
    /// The user is to read this.
    Text(String),
}

impl Store {
    /// Ends a heartbeat. The lines that a failed one has taken wait again. False: its thread is gone.
    pub async fn finish_heartbeat(
        &self,
        user: &str,
        key: TurnKey,
        end: HeartbeatEnd,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let user = user.to_owned();
        self.write(transaction!(|tx| finish(tx, &user, key, end, now).await)).await
    }
}

async fn finish(
    tx: &mut WriteTx,
    user: &str,
    key: TurnKey,
    end: HeartbeatEnd,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let is_current = chat::is_current(tx, key).await?;
    let Some(failures) = record(tx, user, key, matches!(end, HeartbeatEnd::Failed(_)), now).await? else {
        return Ok(false);
    };
    if !is_current {
        return Ok(false);
    }
    match end {
        HeartbeatEnd::Replied(reply) => {
            post(tx, user, key, reply, now).await?;
            system_lines::settle(tx, key, true, now).await?;
        }
        HeartbeatEnd::Stopped => {
            let content = ChatContent::notice("Stopped.".to_owned());
            chat::append(tx, key.thread, NewMessage { content, turn: Some(key.turn), due: false, at: now }).await?;
            system_lines::settle(tx, key, false, now).await?;
        }
        HeartbeatEnd::Failed(TurnError { reason, message, drops_lines }) => {
            // The model reads them no more; the user can.
            if drops_lines
                && !system_lines::taken(tx, key).await?.is_empty()
                && let Some(main) = main_thread(tx, user, now).await?
            {
                system_lines::show(tx, key, main, false, now).await?;
                chat::trim(tx, main).await?;
            }
            if failures == i64::from(FAILURES_TO_NOTIFY) {
                let text = format!("The last {failures} heartbeats failed; the last one with: {message} ({reason})");
                let notice = NewNotification::new(user, NotificationKind::HeartbeatFailed, FAILED.to_owned(), text);
                notifications::insert(tx, notice, now).await?;
            }
            let content = ChatContent::Error { reason, content: message };
            chat::append(tx, key.thread, NewMessage { content, turn: Some(key.turn), due: false, at: now }).await?;
            system_lines::settle(tx, key, drops_lines, now).await?;
        }
    }
    close_thread(tx, key, now).await?;
    Ok(true)
}

/// Notes that the heartbeat is over, and returns the failures in a row. `None`: it is no longer in progress.
async fn record(
    tx: &mut WriteTx,
    user: &str,
    key: TurnKey,
    has_failed: bool,
    now: DateTime<Utc>,
) -> Result<Option<i64>, StoreError> {
    // What was asked for while it was in progress is not done by it, and stays.
    let failures = sqlx::query_scalar(
        "UPDATE heartbeats SET rev = rev + 1, check_at = $4, since = started_at, \
         failures = CASE WHEN $5 THEN failures + 1 ELSE 0 END, thread_id = NULL, turn = NULL, started_at = NULL \
         WHERE user_id = $1 AND thread_id = $2 AND turn = $3 RETURNING failures",
    )
    .bind(user)
    .bind(key.thread)
    .bind(i64::from(key.turn))
    .bind(now)
    .bind(has_failed)
    .fetch_optional(&mut tx.db)
    .await?;
    tx.after_commit(|committed| committed.notifier.heartbeats.notify_one());
    Ok(failures)
}

/// The main thread of a user. `None`: there is none, and the user has the maximum number of threads.
async fn main_thread(tx: &mut WriteTx, user: &str, now: DateTime<Utc>) -> Result<Option<ThreadId>, StoreError> {
    let main = match chat::find(&mut tx.db, user, &ThreadRef::main()).await? {
        Some(found) => Some(found),
        None => chat::create(tx, user, Some(MAIN_THREAD), now).await?,
    };
    Ok(main.map(|main| main.thread.id))
}

/// Posts what the heartbeat has read and said in the main session, where the model reads it with the next message.
async fn post(
    tx: &mut WriteTx,
    user: &str,
    key: TurnKey,
    reply: HeartbeatReply,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if reply != HeartbeatReply::Silent || !system_lines::taken(tx, key).await?.is_empty() {
        // Without one, the notification has the reply.
        if let Some(main) = main_thread(tx, user, now).await? {
            system_lines::show(tx, key, main, true, now).await?;
            if let HeartbeatReply::Text(text) = &reply {
                let content = ChatContent::Assistant { content: text.clone() };
                chat::append(tx, main, NewMessage { content, turn: None, due: true, at: now }).await?;
            }
            limit_due(tx, main).await?;
            chat::trim(tx, main).await?;
        }
    }
    match reply {
        HeartbeatReply::Silent => Ok(()),
        HeartbeatReply::Text(text) => {
            let notice = NewNotification::new(user, NotificationKind::Heartbeat, TITLE.to_owned(), text);
            notifications::insert(tx, notice, now).await
        }
    }
}

/// The model of a user who is away for long reads only the newest entries.
async fn limit_due(tx: &mut WriteTx, thread: ThreadId) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE chat_messages SET due = FALSE WHERE thread_id = $1 AND due AND turn IS NULL \
         AND seq <= (SELECT last_seq FROM chat_threads WHERE id = $1) - $2",
    )
    .bind(thread)
    .bind(MAX_DUE_ENTRIES)
    .execute(&mut tx.db)
    .await?;
    Ok(())
}

/// Ends the turn of the thread, whose entries no model reads again.
async fn close_thread(tx: &mut WriteTx, key: TurnKey, now: DateTime<Utc>) -> Result<(), StoreError> {
    sqlx::query("UPDATE chat_messages SET due = FALSE WHERE thread_id = $1 AND due AND turn = $2")
        .bind(key.thread)
        .bind(i64::from(key.turn))
        .execute(&mut tx.db)
        .await?;
    forget_answers(&mut tx.db, key.thread).await?;
    chat::trim(tx, key.thread).await?;
    chat::set_state(tx, key.thread, ThreadState::Idle, now).await?;
    tx.after_commit(|committed| committed.notifier.chats.notify_one());
    Ok(())
}
