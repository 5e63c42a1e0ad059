//! Posts of notifications to webhooks: those that wait, claimed by one process at a time, and their outcomes.
//!
//! Guarantees that a post is recorded before it is made: one without a known outcome has the status `unknown` and is
//! never made again. A notification is accepted at most once, and each user has a limited number of posts that wait.

use chrono::{DateTime, Utc};
use protocol::{DeliveryId, DeliveryStatus, Notification, NotificationDelivery, NotificationId, RoutineId};
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    Store, StoreError, Topic,
    rows::{RowRef, text},
    write_tx::WriteTx,
};

/// Posts of one user that wait. Further ones fail at once.
const MAX_PENDING_PER_USER: i64 = 1_000;
/// Why a post fails that exceeds the limit.
const TOO_MANY: &str = "too many notifications wait to be posted";

/// A post that this process makes.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedDelivery {
    /// Its id, which is the same for all attempts.
    pub id: DeliveryId,
    /// The routine that names the webhook.
    pub routine: RoutineId,
    pub user: String,
    pub url: String,
    /// Attempts, with this one.
    pub attempt: u32,
    pub notification: Notification,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver accepted it.
    Delivered { status: u16 },
    /// It was not accepted, and is tried again.
    Retry {
        at: DateTime<Utc>,
        /// The HTTP status, if there was an answer.
        status: Option<u16>,
        /// What went wrong.
        error: String,
    },
    /// It was sent and not answered: it may have been accepted, and is not tried again.
    Unknown {
        /// What went wrong.
        error: String,
    },
    /// It was not accepted, and is not tried again.
    Failed {
        /// The HTTP status, if there was an answer.
        status: Option<u16>,
        /// What went wrong.
        error: String,
    },
}

impl Store {
    /// Claims posts that are due, at most `per_user` of each user, the longest due first.
    pub async fn claim_notification_deliveries(
        &self,
        process: Uuid,
        (max, per_user): (u32, u32),
        now: DateTime<Utc>,
    ) -> Result<Vec<ClaimedDelivery>, StoreError> {
        let claimed: Vec<ClaimedRow> = self
            .write(transaction!(|tx| {
                // A user's number of posts in progress counts as well.
                let rows = sqlx::query_as(
                    "UPDATE notification_deliveries SET claimed_by = $1, attempts = attempts + 1, last_attempt_at = $2, \
                     next_attempt_at = NULL WHERE id IN (SELECT id FROM (SELECT id, user_id, next_attempt_at, \
                     ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY next_attempt_at, id) AS place \
                     FROM notification_deliveries WHERE status = 'pending' AND next_attempt_at <= $2) AS due \
                     WHERE place <= $4 AND place + (SELECT COUNT(*) FROM notification_deliveries AS claimed \
                     WHERE claimed.user_id = due.user_id AND claimed.claimed_by IS NOT NULL) <= $4 \
                     ORDER BY next_attempt_at LIMIT $3) \
                     RETURNING id, notification_id, routine_id, user_id, url, attempts",
                )
                .bind(process)
                .bind(now)
                .bind(i64::from(max))
                .bind(i64::from(per_user))
                .fetch_all(&mut tx.db)
                .await?;
                Ok(rows)
            }))
            .await?;
        let mut posts = Vec::with_capacity(claimed.len());
        for row in claimed {
            match self.post_of(&row).await {
                Ok(post) => posts.push(post),
                // Isolated: it stays claimed, and so becomes `unknown` at the next start.
                Err(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "a notification cannot be posted");
                }
            }
        }
        Ok(posts)
    }

    async fn post_of(&self, row: &ClaimedRow) -> Result<ClaimedDelivery, StoreError> {
        let row_ref = RowRef { table: "notification_deliveries", id: row.id };
        let found = self.notification(NotificationId::from_uuid(row.notification_id)).await?;
        Ok(ClaimedDelivery {
            id: DeliveryId::from_uuid(row.id),
            routine: RoutineId::from_uuid(row.routine_id),
            user: row.user_id.clone(),
            url: row.url.clone(),
            attempt: row_ref.number("attempts", row.attempts)?,
            notification: row_ref.known("notification_id", found)?,
        })
    }

    /// Records the outcome of an attempt. False: another process has given it up meanwhile.
    pub async fn end_notification_post(
        &self,
        post: DeliveryId,
        process: Uuid,
        outcome: DeliveryOutcome,
    ) -> Result<bool, StoreError> {
        let (state, next, status, error) = match outcome {
            DeliveryOutcome::Delivered { status } => (DeliveryStatus::Delivered, None, Some(status), None),
            DeliveryOutcome::Retry { at, status, error } => (DeliveryStatus::Pending, Some(at), status, Some(error)),
            DeliveryOutcome::Unknown { error } => (DeliveryStatus::Unknown, None, None, Some(error)),
            DeliveryOutcome::Failed { status, error } => (DeliveryStatus::Failed, None, status, Some(error)),
        };
        self.write_one(transaction!(|tx| {
            let updated = sqlx::query(
                "UPDATE notification_deliveries SET status = $3, next_attempt_at = $4, response_status = $5, error = $6, \
                 claimed_by = NULL WHERE id = $1 AND claimed_by = $2",
            )
            .bind(post)
            .bind(process)
            .bind(state.as_str())
            .bind(next)
            .bind(status.map(i64::from))
            .bind(error)
            .execute(&mut tx.db)
            .await?;
            Ok(updated.rows_affected() > 0)
        }))
        .await
    }

    /// Sets the posts that other processes have left behind to `unknown`: the receiver may have got them. Returns how many.
    pub async fn give_up_interrupted_deliveries(&self, process: Uuid) -> Result<u64, StoreError> {
        self.write_one(transaction!(|tx| {
            let given_up = sqlx::query(
                "UPDATE notification_deliveries SET status = 'unknown', claimed_by = NULL, \
                 error = 'the orchestrator stopped during the post' WHERE claimed_by IS NOT NULL AND claimed_by <> $1",
            )
            .bind(process);
            Ok(given_up.execute(&mut tx.db).await?.rows_affected())
        }))
        .await
    }

    /// When the next post is due.
    pub async fn next_notification_post(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let next = sqlx::query_scalar(
            "SELECT next_attempt_at FROM notification_deliveries WHERE status = 'pending' AND next_attempt_at IS NOT NULL \
             ORDER BY next_attempt_at LIMIT 1",
        );
        Ok(next.fetch_optional(&self.read).await?)
    }

    /// The deliveries of notifications, for their list.
    pub(super) async fn deliveries_of(
        &self,
        notifications: &[Uuid],
    ) -> Result<Vec<(Uuid, NotificationDelivery)>, StoreError> {
        let ids: Vec<String> = notifications.iter().map(|id| id.simple().to_string()).collect();
        let rows: Vec<DeliveryRow> = sqlx::query_as(
            "SELECT d.id, notification_id, url, status, attempts, last_attempt_at, next_attempt_at, response_status, error \
             FROM json_each($1) AS j CROSS JOIN notification_deliveries AS d ON notification_id = unhex(j.value) ORDER BY d.id",
        )
        .bind(text(&ids)?)
        .fetch_all(&self.read)
        .await?;
        rows.into_iter().map(DeliveryRow::into_delivery).collect()
    }
}

/// Has a notification posted, in the transaction that stores it.
pub(super) async fn insert(
    tx: &mut WriteTx,
    notification: NotificationId,
    (routine, user): (RoutineId, &str),
    url: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let pending: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM notification_deliveries WHERE user_id = $1 AND status = 'pending'")
            .bind(user)
            .fetch_one(&mut tx.db)
            .await?;
    let is_accepted = pending < MAX_PENDING_PER_USER;
    let status = if is_accepted { DeliveryStatus::Pending } else { DeliveryStatus::Failed };
    sqlx::query(
        "INSERT INTO notification_deliveries (id, notification_id, routine_id, user_id, url, status, next_attempt_at, error, \
         created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(*DeliveryId::generate().as_uuid())
    .bind(notification)
    .bind(routine)
    .bind(user)
    .bind(url)
    .bind(status.as_str())
    .bind(is_accepted.then_some(now))
    .bind((!is_accepted).then_some(TOO_MANY))
    .bind(now)
    .execute(&mut tx.db)
    .await?;
    tx.notify(Topic::NotificationSender);
    Ok(())
}

#[derive(FromRow)]
struct ClaimedRow {
    id: Uuid,
    notification_id: Uuid,
    routine_id: Uuid,
    user_id: String,
    url: String,
    attempts: i64,
}

#[derive(FromRow)]
struct DeliveryRow {
    id: Uuid,
    notification_id: Uuid,
    url: String,
    status: String,
    attempts: i64,
    last_attempt_at: Option<DateTime<Utc>>,
    next_attempt_at: Option<DateTime<Utc>>,
    response_status: Option<i64>,
    error: Option<String>,
}

impl DeliveryRow {
    fn into_delivery(self) -> Result<(Uuid, NotificationDelivery), StoreError> {
        let row = RowRef { table: "notification_deliveries", id: self.id };
        // A query or a password may be a credential.
        let url = self.url.split(['?', '#']).next().unwrap_or_default();
        let delivery = NotificationDelivery {
            url: url.to_owned(),
            status: row.known("status", DeliveryStatus::parse(&self.status))?,
            attempts: row.number("attempts", self.attempts)?,
            last_attempt_at: self.last_attempt_at,
            next_attempt_at: self.next_attempt_at,
            response_status: self.response_status.map(|status| row.number("response_status", status)).transpose()?,
            error: self.error,
        };
        Ok((self.notification_id, delivery))
    }
}
