//! Deliveries of webhooks: whether one is new, its firing, and the log.
//!
//! Guarantees that a delivery which was answered uses up its id for [`ID_LIFETIME`], in the transaction that fires its
//! routine, and that a routine's log is bounded. Knows neither signatures nor conditions.

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{
    DeliveryId, DeliveryVerdict, RoutineId, RoutineTrigger, RunId, RunReason, WebhookDelivery, WebhookTrigger,
};
use sqlx::{Executor, FromRow, Sqlite};
use uuid::Uuid;

use super::{
    super::{
        Store, StoreError,
        accepted::{self, Accepted, Scope},
        sqlite::{
            inconsistent_rows::Keyed,
            key_walk::KeyWalk,
            rows::{RowRef, count},
            write_tx::WriteTx,
        },
    },
    automation,
    firings::firing::{FireOutcome, Firing, fire_in},
};
use base::failpoint;

/// How long the id of a delivery, and the body of one whose id is not signed, are kept.
const ID_LIFETIME: TimeDelta = TimeDelta::hours(72);
/// Entries of a routine's log: of deliveries that anyone can cause who knows the path, and of the others. So a flood of those
/// pushes out none of these.
const MAX_LOGGED: u32 = 200;
/// How long an entry of the log is kept at most.
const LOG_LIFETIME: TimeDelta = TimeDelta::days(90);
/// Rows that one transaction deletes, so that other writes do not wait long.
const ROWS_PER_BATCH: i64 = 1_000;

/// The routine of a webhook path.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookTarget {
    pub routine: RoutineId,
    pub user: String,
    pub rev: u64,
    /// Whether it fires.
    pub is_enabled: bool,
    pub trigger: WebhookTrigger,
}

/// What a later delivery is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryDigests {
    /// The SHA-256 of the id, in hexadecimal.
    pub id: String,
    /// The SHA-256 of the body, in hexadecimal, if the id is not part of what is signed.
    pub body: Option<String>,
}

/// A delivery that arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct NewDelivery {
    pub routine: RoutineId,
    /// The id that the sender gave it, as the log shows it.
    pub display_id: String,
    /// What it is compared with.
    pub digests: DeliveryDigests,
    /// What it fires; `None` if the routine's condition is not true of it.
    pub firing: Option<Firing>,
}

/// The outcome of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// The outcome of its firing. Of `Changed` and `NotFound` nothing was recorded.
    Decided(FireOutcome),
    /// The routine's condition is not true of it.
    NotMatched,
    /// It was answered before.
    Duplicate(Option<RunId>),
    /// There were too many deliveries. Nothing was recorded.
    TooMany,
}

impl Delivered {
    /// The entry of the log: the verdict, the HTTP status and the run. `None`: no log has it.
    pub const fn logged(self) -> Option<(DeliveryVerdict, u16, Option<RunId>)> {
        Some(match self {
            Self::NotMatched => (DeliveryVerdict::NotMatched, 200, None),
            Self::Duplicate(run) => (DeliveryVerdict::Duplicate, 200, run),
            Self::TooMany => return None,
            Self::Decided(outcome) => match outcome {
                FireOutcome::Fired(run) => (DeliveryVerdict::Accepted, 202, Some(run)),
                FireOutcome::Skipped { run, reason: RunReason::Duplicate } => {
                    (DeliveryVerdict::Duplicate, 200, Some(run))
                }
                FireOutcome::Skipped { run, .. } => (DeliveryVerdict::Skipped, 409, Some(run)),
                FireOutcome::Disabled | FireOutcome::AutomationDisabled => (DeliveryVerdict::Disabled, 409, None),
                FireOutcome::NotFound | FireOutcome::Changed => return None,
            },
        })
    }

    /// Whether its id is used up. What is answered 409 can be delivered again.
    const fn consumes_id(self) -> bool {
        matches!(self, Self::Decided(FireOutcome::Fired(_)) | Self::NotMatched)
    }
}

/// A delivery that is refused before its routine is asked, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedDelivery {
    pub routine: RoutineId,
    /// The id that the sender gave it, as the log shows it.
    pub display_id: String,
    pub verdict: DeliveryVerdict,
    pub status: u16,
}

impl Store {
    /// The routine whose trigger has this path.
    pub async fn webhook_target(&self, path: &str) -> Result<Option<WebhookTarget>, StoreError> {
        let row: Option<(Uuid, String, i64, bool, String)> =
            sqlx::query_as("SELECT id, user_id, rev, enabled, trigger FROM routines WHERE webhook_path = $1")
                .bind(path)
                .fetch_optional(&self.read)
                .await?;
        let Some((id, user, rev, is_enabled, trigger)) = row else { return Ok(None) };
        let row = RowRef { table: "routines", id };
        let RoutineTrigger::Webhook(trigger) = row.json("trigger", &trigger)? else {
            return Err(row.invalid("trigger"));
        };
        Ok(Some(WebhookTarget { routine: RoutineId::from_uuid(id), user, rev: count(rev), is_enabled, trigger }))
    }

    pub async fn routine_owner(&self, routine: RoutineId) -> Result<Option<String>, StoreError> {
        let owner = sqlx::query_scalar("SELECT user_id FROM routines WHERE id = $1").bind(routine);
        Ok(owner.fetch_optional(&self.read).await?)
    }

    /// What is known of a delivery before its condition is computed: it was answered before, or its routine does not
    /// fire.
    pub async fn known_delivery(
        &self,
        target: &WebhookTarget,
        digests: &DeliveryDigests,
        now: DateTime<Utc>,
    ) -> Result<Option<Delivered>, StoreError> {
        if let Some(run) = find(&self.read, target.routine, digests, now).await? {
            return Ok(Some(Delivered::Duplicate(run)));
        }
        if !target.is_enabled {
            return Ok(Some(Delivered::Decided(FireOutcome::Disabled)));
        }
        let is_off = !automation::load(&self.read).await?.is_on;
        Ok(is_off.then_some(Delivered::Decided(FireOutcome::AutomationDisabled)))
    }

    /// Records a delivery and fires its routine, in one transaction. `admit` is asked about one that was not answered
    /// before.
    pub async fn deliver(
        &self,
        delivery: NewDelivery,
        admit: impl FnOnce() -> bool + Send + 'static,
        now: DateTime<Utc>,
    ) -> Result<Delivered, StoreError> {
        let delivered = self
            .write(transaction!(|tx| {
                let NewDelivery { routine, digests, .. } = &delivery;
                let known = find(&mut tx.db, *routine, digests, now).await?;
                if known.is_none() && !admit() {
                    return Ok(Delivered::TooMany);
                }
                record(tx, delivery, known, now).await
            }))
            .await?;
        failpoint::reach("routine.after_fire");
        Ok(delivered)
    }

    /// Logs a delivery that was decided without being recorded.
    pub async fn log_delivery(&self, refused: RefusedDelivery, now: DateTime<Utc>) -> Result<(), StoreError> {
        self.write(transaction!(|tx| {
            log(tx, refused.routine, &refused.display_id, (refused.verdict, refused.status, None), now).await
        }))
        .await
    }

    /// The log of a routine: the newest first, before an entry, at most `MAX_LOGGED` of each sort in all.
    pub async fn webhook_deliveries(
        &self,
        routine: RoutineId,
        before: Option<DeliveryId>,
        limit: u32,
    ) -> Result<Vec<(DeliveryId, Option<WebhookDelivery>)>, StoreError> {
        let rows: Vec<Keyed<DeliveryRow, DeliveryId>> = sqlx::query_as(
            "SELECT id, received_at, delivery_id, verdict, status, run_id FROM (SELECT * FROM webhook_deliveries \
             WHERE routine_id = $1 ORDER BY id DESC LIMIT $4) WHERE $2 IS NULL OR id < $2 ORDER BY id DESC LIMIT $3",
        )
        .bind(routine)
        .bind(before)
        .bind(i64::from(limit))
        .bind(2 * i64::from(MAX_LOGGED))
        .fetch_all(&self.read)
        .await?;
        self.inconsistent.read_page(rows, DeliveryRow::into_delivery)
    }

    /// Deletes a batch of old entries, and one of each routine that is gone. Returns how many.
    pub(crate) async fn trim_webhook_deliveries(&self, now: DateTime<Utc>) -> Result<u64, StoreError> {
        let expired = "DELETE FROM webhook_deliveries WHERE id IN \
             (SELECT id FROM webhook_deliveries WHERE received_at < $1 ORDER BY received_at LIMIT $2)";
        let mut trimmed = self.delete_batch(expired, now - LOG_LIFETIME).await?;
        let without_routine = KeyWalk {
            table: "webhook_deliveries",
            key: "routine_id",
            condition: "NOT EXISTS (SELECT 1 FROM routines WHERE routines.id = keys.key)".to_owned(),
        };
        let orphaned: Vec<Uuid> = self.keys(&without_routine, Uuid::nil()).await?;
        for routine in orphaned {
            let all = "DELETE FROM webhook_deliveries WHERE id IN \
                 (SELECT id FROM webhook_deliveries WHERE routine_id = $1 LIMIT $2)";
            trimmed += self.delete_batch(all, routine).await?;
        }
        Ok(trimmed)
    }
}

/// Fires the routine of a delivery that is not `known`, and logs it.
#[expect(clippy::option_option, reason = "a known delivery may have fired no run")]
async fn record(
    tx: &mut WriteTx,
    delivery: NewDelivery,
    known: Option<Option<RunId>>,
    now: DateTime<Utc>,
) -> Result<Delivered, StoreError> {
    let NewDelivery { routine, display_id, digests, firing } = delivery;
    let delivered = match (known, firing) {
        (Some(run), _) => Delivered::Duplicate(run),
        (None, None) => Delivered::NotMatched,
        (None, Some(firing)) => Delivered::Decided(fire_in(tx, firing, now).await?),
    };
    if let Some(entry @ (_, _, run)) = delivered.logged() {
        log(tx, routine, &display_id, entry, now).await?;
        if delivered.consumes_id() {
            for key in digests.keys() {
                let answered = Accepted { run_id: run, ..Accepted::default() };
                accepted::insert(&mut tx.db, (Scope::Delivery(routine), &key), answered, now, ID_LIFETIME).await?;
            }
        }
    }
    Ok(delivered)
}

/// The delivery that was answered before, as the run that it fired.
async fn find<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    routine: RoutineId,
    digests: &DeliveryDigests,
    now: DateTime<Utc>,
) -> Result<Option<Option<RunId>>, StoreError> {
    let keys: Vec<String> = digests.keys().collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let known = accepted::find(db, Scope::Delivery(routine), &keys, None, now).await?;
    Ok(known.map(|known| known.run_id))
}

impl DeliveryDigests {
    /// The keys of what was accepted.
    fn keys(&self) -> impl Iterator<Item = String> {
        let body = self.body.as_ref().map(|digest| format!("body:{digest}"));
        [Some(format!("id:{}", self.id)), body].into_iter().flatten()
    }
}

/// Adds an entry to the log of a routine, which keeps the newest ones of its sort.
async fn log(
    tx: &mut WriteTx,
    routine: RoutineId,
    display_id: &str,
    (verdict, status, run): (DeliveryVerdict, u16, Option<RunId>),
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO webhook_deliveries (id, routine_id, received_at, delivery_id, verdict, status, run_id) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(*DeliveryId::generate().as_uuid())
    .bind(routine)
    .bind(now)
    .bind(display_id)
    .bind(verdict.as_str())
    .bind(i64::from(status))
    .bind(run)
    .execute(&mut tx.db)
    .await?;
    sqlx::query(
        "DELETE FROM webhook_deliveries WHERE id IN \
         (SELECT id FROM webhook_deliveries WHERE routine_id = $1 AND (verdict IN ('unauthorized', 'too_large', 'rate_limited')) = $4 \
         ORDER BY id DESC LIMIT $2 OFFSET $3)",
    )
    .bind(routine)
    .bind(ROWS_PER_BATCH)
    .bind(i64::from(MAX_LOGGED))
    .bind(matches!(verdict, DeliveryVerdict::Unauthorized | DeliveryVerdict::TooLarge | DeliveryVerdict::RateLimited))
    .execute(&mut tx.db)
    .await?;
    Ok(())
}

#[derive(FromRow)]
struct DeliveryRow {
    id: Uuid,
    received_at: DateTime<Utc>,
    delivery_id: String,
    verdict: String,
    status: i64,
    run_id: Option<RunId>,
}

impl DeliveryRow {
    fn into_delivery(self) -> Result<WebhookDelivery, StoreError> {
        let row = RowRef { table: "webhook_deliveries", id: self.id };
        Ok(WebhookDelivery {
            at: self.received_at,
            id: self.delivery_id,
            verdict: row.known("verdict", DeliveryVerdict::parse(&self.verdict))?,
            status: row.number("status", self.status)?,
            run_id: self.run_id,
        })
    }
}
