//! Posts of notifications to webhooks: those that wait, claimed by one process at a time, and their outcomes.
//!
//! Guarantees that a post is recorded before it is made: one without a known outcome has the status `unknown` and is
//! never made again. A notification is accepted at most once, and each user has a limited number of posts that wait.

use chrono::{DateTime, Utc};
use protocol::{
    DeliveryId, DeliveryStatus, Notification, NotificationDelivery, NotificationId, NotificationKind, RoutineId,
};
use sqlx::FromRow;
use uuid::Uuid;

use super::find;
use crate::{
    Store, StoreError, Topic,
    sqlite::{
        by_turns::users_with,
        inconsistent_rows::Row,
        rows::{RowRef, column, text},
        write_tx::WriteTx,
    },
};

/// Posts of one user that wait. Further ones fail at once.
const MAX_PENDING_PER_USER: i64 = 1_000;
/// Why a post fails that exceeds the limit.
const TOO_MANY: &str = "too many notifications wait to be posted";

/// The first posts of each user that are due.
const DUE: &str = concat!(
    users_with!("notification_deliveries", "status = 'pending'"),
    "SELECT d.id, d.user_id, d.host FROM users CROSS JOIN notification_deliveries AS d ON d.id IN ( \
     SELECT id FROM notification_deliveries WHERE user_id = users.user_id AND status = 'pending' AND next_attempt_at <= $1 \
     AND host NOT IN (SELECT value FROM json_each($2)) ORDER BY next_attempt_at LIMIT $3) ORDER BY d.next_attempt_at, d.id"
);

/// A post that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueDelivery {
    pub id: DeliveryId,
    pub user: String,
    /// The server, with its port if the URL names one.
    pub host: String,
}

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
    /// Posts that are due, the longest due first: at most `per_user` of each user, and none to the servers in `except`.
    pub async fn due_notification_posts(
        &self,
        except: &[String],
        per_user: usize,
        now: DateTime<Utc>,
    ) -> Result<Vec<DueDelivery>, StoreError> {
        let rows: Vec<(Uuid, String, String)> = sqlx::query_as(DUE)
            .bind(now)
            .bind(text(&except)?)
            .bind(column(per_user as u64))
            .fetch_all(&self.read)
            .await?;
        let due = |(id, user, host)| DueDelivery { id: DeliveryId::from_uuid(id), user, host };
        Ok(rows.into_iter().map(due).collect())
    }

    /// Claims posts that are due, and reads what they post in the same transaction: a read that fails leaves all of them
    /// due. Those that no longer are due, and those that cannot be read, are left out.
    pub async fn claim_notification_deliveries(
        &self,
        process: Uuid,
        posts: &[DueDelivery],
        now: DateTime<Utc>,
    ) -> Result<Vec<ClaimedDelivery>, StoreError> {
        let ids = text(&posts.iter().map(|post| post.id).collect::<Vec<_>>())?;
        let claimed = self
            .write(transaction!(|tx| {
                let rows: Vec<Row<ClaimedRow>> = sqlx::query_as(
                    "UPDATE notification_deliveries SET claimed_by = $1, attempts = attempts + 1, last_attempt_at = $2, \
                     next_attempt_at = NULL WHERE id IN (SELECT unhex(value, '-') FROM json_each($3)) AND status = 'pending' \
                     AND next_attempt_at <= $2 RETURNING id, notification_id, routine_id, user_id, url, attempts",
                )
                .bind(process)
                .bind(now)
                .bind(ids)
                .fetch_all(&mut tx.db)
                .await?;
                let mut claimed = Vec::with_capacity(rows.len());
                for row in rows {
                    match claimed_post(tx, row).await {
                        Err(error) if !error.concerns_one_row() => return Err(error),
                        post => claimed.push(post),
                    }
                }
                Ok(claimed)
            }))
            .await?;
        let mut posts = Vec::with_capacity(claimed.len());
        for post in claimed {
            // One that makes no sense stays claimed, and so becomes `unknown` at the next start.
            posts.extend(self.inconsistent.skip(post)?);
        }
        Ok(posts)
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

    /// When the next post after those that are due is due.
    pub async fn next_notification_post(&self, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, StoreError> {
        let next = sqlx::query_scalar(
            "SELECT next_attempt_at FROM notification_deliveries WHERE status = 'pending' AND next_attempt_at > $1 \
             ORDER BY next_attempt_at LIMIT 1",
        );
        Ok(next.bind(now).fetch_optional(&self.read).await?)
    }

    /// The deliveries of notifications, for their list.
    pub(crate) async fn deliveries_of(
        &self,
        notifications: &[Uuid],
    ) -> Result<Vec<(Uuid, NotificationDelivery)>, StoreError> {
        let rows: Vec<Row<DeliveryRow>> = sqlx::query_as(
            "SELECT d.id, notification_id, url, status, attempts, last_attempt_at, next_attempt_at, response_status, error \
             FROM json_each($1) AS j CROSS JOIN notification_deliveries AS d ON notification_id = unhex(j.value, '-') ORDER BY d.id",
        )
        .bind(text(&notifications)?)
        .fetch_all(&self.read)
        .await?;
        self.inconsistent.read_each(rows, DeliveryRow::into_delivery)
    }
}

/// Has a notification posted, in the transaction that stores it.
pub(crate) async fn insert(
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

async fn claimed_post(tx: &mut WriteTx, row: Row<ClaimedRow>) -> Result<ClaimedDelivery, StoreError> {
    let row = row.get()?;
    let row_ref = RowRef { table: "notification_deliveries", id: row.id };
    let found = find(&mut tx.db, NotificationId::from_uuid(row.notification_id)).await?;
    let mut notification = row_ref.known("notification_id", found)?;
    // The list of notifications has the beginning of a result.
    if matches!(notification.kind, NotificationKind::RunAttention | NotificationKind::RunOk) {
        let result: Option<Option<String>> = sqlx::query_scalar("SELECT result FROM routine_runs WHERE id = $1")
            .bind(notification.run_id)
            .fetch_optional(&mut tx.db)
            .await?;
        if let Some(whole) = result.flatten() {
            notification.text = whole;
        }
    }
    Ok(ClaimedDelivery {
        id: DeliveryId::from_uuid(row.id),
        routine: RoutineId::from_uuid(row.routine_id),
        user: row.user_id,
        url: row.url,
        attempt: row_ref.number("attempts", row.attempts)?,
        notification,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::tests::{plan, raw};

    #[rstest]
    #[case("https://Hooks.Example/a/b", "hooks.example")]
    #[case("http://127.0.0.1:8080", "127.0.0.1:8080")]
    #[case("https://[::1]:8443/hook?x=/y#z", "[::1]:8443")]
    #[case("https://hooks.example?token=a/b", "hooks.example")]
    #[case("https://hooks.example#a", "hooks.example")]
    #[case("https://hooks.example\\a", "hooks.example")]
    #[tokio::test]
    async fn the_host_of_a_post_is_the_server_of_its_url(#[case] url: &str, #[case] host: &str) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let insert = "INSERT INTO notification_deliveries (id, notification_id, routine_id, user_id, url, status, created_at) \
                      VALUES (x'01', x'02', x'03', 'ada', $1, 'pending', '') RETURNING host";
        let mut db = raw(&directory).await;
        sqlx::query("PRAGMA foreign_keys = OFF").execute(&mut db).await.unwrap();
        let found: String = sqlx::query_scalar(insert).bind(url).fetch_one(&mut db).await.unwrap();
        assert_eq!(found, host);
        store.close().await;
    }

    #[tokio::test]
    async fn due_posts_are_found_by_the_users_who_have_some() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let steps = plan(&store, DUE).await;
        let by_user = |step: &&String| step.contains("COVERING INDEX notification_deliveries_by_user");
        assert_eq!(steps.iter().filter(by_user).count(), 2, "each next user: {steps:#?}");
        let of_a_user = "USING INDEX notification_deliveries_by_user (user_id=? AND next_attempt_at<?)";
        assert!(steps.iter().any(|step| step.contains(of_a_user)), "{steps:#?}");
        let walks = |step: &&String| step.starts_with("SCAN") && step.contains("deliveries");
        assert_eq!(steps.iter().find(walks), None, "{steps:#?}");
        store.close().await;
    }
}
