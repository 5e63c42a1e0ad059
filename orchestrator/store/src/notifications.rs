//! Notifications of users: stored, listed, marked as read, and deleted after a time.

pub(crate) mod deliveries;

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{
    AuditOutcome, GateId, InstanceEventData, JobId, Notification, NotificationDelivery, NotificationId,
    NotificationKind, RoutineId, RunId, ThreadId,
};
use sqlx::{AssertSqlSafe, FromRow, QueryBuilder, Sqlite, SqliteConnection, SqliteExecutor};
use uuid::Uuid;

use super::{
    AuditEntry, Store, StoreError,
    access::audit,
    events::instance_events::{self, NewInstanceEvent},
    sqlite::{
        inconsistent_rows::Keyed,
        key_walk::KeyWalk,
        list_walks::ListWalks,
        rows::{RowRef, count},
        write_tx::WriteTx,
    },
};

/// How long a notification is kept.
const LIFETIME: TimeDelta = TimeDelta::days(90);
/// Notifications of one user beyond which the oldest are deleted early: ten times what a person reads in 90 days.
const MAX_PER_USER: i64 = 10_000;

/// Unread notifications that are counted; no page shows a larger number.
const MAX_COUNTED: i64 = 1_000;

/// A notification that is about to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNotification {
    /// The user who gets it.
    pub user: String,
    /// Why it is sent.
    pub kind: NotificationKind,
    /// One line; `None` for the title of `job`.
    pub title: Option<String>,
    pub text: String,
    /// The routine that it is about.
    pub routine: Option<RoutineId>,
    pub job: Option<JobId>,
    /// The run that it is about.
    pub run: Option<RunId>,
    /// The job's tool call that sends it: a call that is repeated after a crash sends no second one.
    pub call_id: Option<String>,
    /// Where else to deliver it; `None` for the user's default.
    pub channel: Option<String>,
}

impl NewNotification {
    /// One that is about no object, for the user's default channel.
    pub(crate) fn new(user: &str, kind: NotificationKind, title: String, text: String) -> Self {
        Self {
            user: user.to_owned(),
            kind,
            title: Some(title),
            text,
            routine: None,
            job: None,
            run: None,
            call_id: None,
            channel: None,
        }
    }
}

/// Which notifications to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotificationFilter {
    /// The user who got them.
    pub user: String,
    /// Only those that are not marked as read.
    pub unread: bool,
    /// Only those whose id begins or ends with these lower-case hexadecimal digits.
    pub id_part: Option<String>,
    /// Only those older than this one.
    pub before: Option<NotificationId>,
    /// Maximum number of notifications.
    pub limit: u32,
}

/// The outcome of marking a notification as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkedRead {
    /// It is marked, now or before.
    Done(Box<Notification>),
    /// It does not exist.
    NotFound,
    /// It is another user's.
    NotOwner,
}

/// The columns of [`NotificationRow`], for SELECT.
macro_rules! columns {
    () => {
        "id, user_id, kind, title, text, routine_id, run_id, job_id, channel, created_at, read_at, \
         (SELECT thread_id FROM gates WHERE gates.id = notifications.id) AS thread_id"
    };
}

impl Store {
    /// Stores a notification. One of a tool call is stored once for each call id, which is unique among the job's
    /// attempts.
    pub async fn notify(&self, notification: NewNotification, now: DateTime<Utc>) -> Result<(), StoreError> {
        self.write(transaction!(|tx| insert(tx, notification, now).await)).await
    }

    /// A user's notifications, newest first, each with its id.
    pub async fn notifications(
        &self,
        filter: &NotificationFilter,
    ) -> Result<Vec<(NotificationId, Option<Notification>)>, StoreError> {
        let walks = ListWalks {
            select: concat!("SELECT ", columns!(), " FROM notifications"),
            by_id_end: "notifications_by_id_end",
            id_part: filter.id_part.as_deref(),
            before: filter.before.map(|before| *before.as_uuid()),
            ..ListWalks::default()
        };
        let mut query = QueryBuilder::<Sqlite>::new("");
        walks.push(&mut query, filter.limit, |query| {
            query.push(" AND user_id = ").push_bind(filter.user.clone());
            if filter.unread {
                query.push(" AND read_at IS NULL");
            }
        });
        let rows: Vec<Keyed<NotificationRow, NotificationId>> = query.build_query_as().fetch_all(&self.read).await?;
        let mut notifications = self.inconsistent.read_page(rows, NotificationRow::into_notification)?;
        let ids: Vec<Uuid> = notifications.iter().map(|(id, _)| *id.as_uuid()).collect();
        let mut deliveries: HashMap<Uuid, Vec<NotificationDelivery>> = HashMap::new();
        for (notification, delivery) in self.deliveries_of(&ids).await? {
            deliveries.entry(notification).or_default().push(delivery);
        }
        for (id, notification) in &mut notifications {
            if let (Some(one), Some(deliveries)) = (notification, deliveries.remove(id.as_uuid())) {
                one.deliveries = deliveries;
            }
        }
        Ok(notifications)
    }

    /// Marks a user's notification as read. One that is read already is unchanged.
    pub async fn mark_notification_read(
        &self,
        user: &str,
        id: NotificationId,
        entry: &AuditEntry,
    ) -> Result<MarkedRead, StoreError> {
        let (user, entry) = (user.to_owned(), entry.clone());
        self.write(transaction!(|tx| {
            let row: Option<NotificationRow> =
                sqlx::query_as(concat!("SELECT ", columns!(), " FROM notifications WHERE id = $1"))
                    .bind(id)
                    .fetch_optional(&mut tx.db)
                    .await?;
            let Some(row) = row else { return Ok(MarkedRead::NotFound) };
            if row.user_id != user {
                return Ok(MarkedRead::NotOwner);
            }
            let notification = row.into_notification()?;
            if notification.read_at.is_some() {
                return Ok(MarkedRead::Done(notification.into()));
            }
            sqlx::query("UPDATE notifications SET read_at = $2 WHERE id = $1")
                .bind(id)
                .bind(entry.at)
                .execute(&mut tx.db)
                .await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
            append_read(tx, &user, (Some(id), None), entry.at).await?;
            Ok(MarkedRead::Done(Notification { read_at: Some(entry.at), ..notification }.into()))
        }))
        .await
    }

    /// Marks a user's notifications as read, up to one of them. Returns how many there were.
    pub async fn mark_notifications_read(
        &self,
        user: &str,
        up_to: NotificationId,
        entry: &AuditEntry,
    ) -> Result<u64, StoreError> {
        let (user, entry) = (user.to_owned(), entry.clone());
        self.write(transaction!(|tx| {
            // A user has at most `MAX_PER_USER` and those since the last sweep.
            let read = sqlx::query(
                "UPDATE notifications SET read_at = $3 WHERE user_id = $1 AND read_at IS NULL AND id <= $2",
            );
            let read = read.bind(&user).bind(up_to).bind(entry.at).execute(&mut tx.db).await?.rows_affected();
            if read > 0 {
                audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
                append_read(tx, &user, (None, Some(up_to)), entry.at).await?;
            }
            Ok(read)
        }))
        .await
    }

    /// How many notifications of a user are unread, at most 1,000.
    pub async fn unread_notifications(&self, user: &str) -> Result<u64, StoreError> {
        unread_count(&self.read, user).await
    }

    /// Deletes some old notifications, then of the oldest of users who have too many. Returns how many.
    pub(super) async fn trim_notifications(&self, now: DateTime<Utc>) -> Result<u64, StoreError> {
        let expired = "DELETE FROM notifications WHERE id IN \
             (SELECT id FROM notifications WHERE created_at < $1 ORDER BY created_at LIMIT $2)";
        let mut trimmed = self.delete_batch(expired, now - LIFETIME).await?;
        if trimmed > 0 {
            return Ok(trimmed);
        }
        let users = self.keys(&KeyWalk::over("notifications", "user_id", MAX_PER_USER), String::new()).await?;
        let oldest = format!(
            "DELETE FROM notifications WHERE id IN (SELECT id FROM notifications WHERE user_id = $1 \
             ORDER BY id DESC LIMIT $2 OFFSET {MAX_PER_USER})"
        );
        for user in users {
            trimmed += self.delete_batch(AssertSqlSafe(oldest.clone()), user).await?;
        }
        Ok(trimmed)
    }
}

/// Stores a notification, and its event, in the transaction of what it tells.
pub(super) async fn insert(
    tx: &mut WriteTx,
    notification: NewNotification,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    insert_as(tx, NotificationId::generate(), notification, now).await
}

/// Marks a notification as read whose subject no longer waits, in the transaction that ends it.
pub(super) async fn settle(tx: &mut WriteTx, id: NotificationId, at: DateTime<Utc>) -> Result<(), StoreError> {
    sqlx::query("UPDATE notifications SET read_at = $2 WHERE id = $1 AND read_at IS NULL")
        .bind(id)
        .bind(at)
        .execute(&mut tx.db)
        .await?;
    Ok(())
}

/// Tells the user's clients that notifications are read, in the transaction that marks them.
async fn append_read(
    tx: &mut WriteTx,
    user: &str,
    (notification_id, up_to): (Option<NotificationId>, Option<NotificationId>),
    at: DateTime<Utc>,
) -> Result<(), StoreError> {
    let unread_count = unread_count(&mut tx.db, user).await?;
    let event = InstanceEventData::NotificationsRead { notification_id, up_to, unread_count };
    instance_events::append(tx, user, at, &event).await?;
    Ok(())
}

async fn unread_count(db: impl SqliteExecutor<'_>, user: &str) -> Result<u64, StoreError> {
    let unread: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM (SELECT 1 FROM notifications WHERE user_id = $1 AND read_at IS NULL LIMIT $2)",
    )
    .bind(user)
    .bind(MAX_COUNTED)
    .fetch_one(db)
    .await?;
    Ok(count(unread))
}

/// Like [`insert`], with this id.
pub(super) async fn insert_as(
    tx: &mut WriteTx,
    id: NotificationId,
    notification: NewNotification,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    insert_all(tx, vec![(id, notification)], now).await
}

/// Like [`insert_as`], for several.
pub(super) async fn insert_all(
    tx: &mut WriteTx,
    notifications: Vec<(NotificationId, NewNotification)>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if notifications.is_empty() {
        return Ok(());
    }
    let is_one = notifications.len() == 1;
    let mut insert = QueryBuilder::<Sqlite>::new(
        "INSERT INTO notifications (id, user_id, kind, text, job_id, run_id, call, channel, created_at, routine_id, title) ",
    );
    insert.push_values(notifications, |mut row, (id, new)| {
        row.push_bind(id)
            .push_bind(new.user)
            .push_bind(new.kind.as_str())
            .push_bind(new.text)
            .push_bind(new.job)
            .push_bind(new.run)
            .push_bind(new.call_id)
            .push_bind(new.channel)
            .push_bind(now)
            .push_bind(new.routine)
            .push("COALESCE(")
            .push_bind_unseparated(new.title)
            .push_unseparated(", (SELECT title FROM jobs WHERE id = ")
            .push_bind_unseparated(new.job)
            .push_unseparated("), '')");
    });
    insert.push(concat!(" ON CONFLICT DO NOTHING RETURNING ", columns!()));
    let stored: Vec<NotificationRow> = insert.build_query_as().persistent(is_one).fetch_all(&mut tx.db).await?;
    let mut events = Vec::with_capacity(stored.len());
    for row in stored {
        let user = row.user_id.clone();
        events
            .push(NewInstanceEvent { user, data: InstanceEventData::Notification(Box::new(row.into_notification()?)) });
    }
    instance_events::append_all(tx, now, &events).await
}

#[derive(FromRow)]
struct NotificationRow {
    id: Uuid,
    user_id: String,
    kind: String,
    title: String,
    text: String,
    routine_id: Option<RoutineId>,
    run_id: Option<RunId>,
    job_id: Option<JobId>,
    channel: Option<String>,
    created_at: DateTime<Utc>,
    read_at: Option<DateTime<Utc>>,
    thread_id: Option<ThreadId>,
}

impl NotificationRow {
    fn into_notification(self) -> Result<Notification, StoreError> {
        let row_ref = RowRef { table: "notifications", id: self.id };
        Ok(Notification {
            id: NotificationId::from_uuid(self.id),
            kind: row_ref.known("kind", NotificationKind::parse(&self.kind))?,
            title: self.title,
            text: self.text,
            routine_id: self.routine_id,
            run_id: self.run_id,
            job_id: self.job_id,
            // It has the id of its gate.
            gate_id: self.thread_id.map(|_| GateId::from_uuid(self.id)),
            thread_id: self.thread_id,
            channel: self.channel,
            created_at: self.created_at,
            read_at: self.read_at,
            deliveries: vec![],
        })
    }
}

/// A notification, without its deliveries.
async fn find(db: &mut SqliteConnection, id: NotificationId) -> Result<Option<Notification>, StoreError> {
    let row: Option<NotificationRow> =
        sqlx::query_as(concat!("SELECT ", columns!(), " FROM notifications WHERE id = $1"))
            .bind(id)
            .fetch_optional(db)
            .await?;
    row.map(NotificationRow::into_notification).transpose()
}

#[cfg(test)]
mod tests;
