//! Posts notifications to the webhooks of routines: signed by Standard Webhooks, tried again, and recorded.
//!
//! Owns when a post is tried again: only if the receiver certainly did not accept it, because it was not reached or
//! answered so. All attempts of a notification have the same `webhook-id`. A post that was sent and not answered, and
//! one that the process does not survive, is `unknown`, and not repeated. Which posts are next is decided by
//! `slots`.

use std::{collections::HashMap, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    destinations::{NotificationDestinations, SendError},
    slots::{MAX_POSTS_PER_USER, PostSlots},
};
use base::clock::Clock;
use domain::routine::{
    secret::RoutineSecret,
    signature::{standard_key, standard_signature},
};
use egress::OutboundRequest;
use secrets::Secrets;
use store::{ClaimedDelivery, DeliveryOutcome, DueDelivery, Store, StoreError, Topic};

/// Time for one post: longer than the look-up of its name and the connection may take, so that one whose time is up was
/// sent.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A post without an answer that took this long has timed out: its server may let further ones wait as well.
const SLOW: Duration = Duration::from_secs(5);
/// Seconds between the attempts of a post: eight in about 28 hours, as Standard Webhooks recommends.
const DELAYS_SECONDS: [u32; 7] = [5, 300, 1_800, 7_200, 18_000, 36_000, 36_000];
/// A delay is up to a tenth longer, so that posts which failed together are not repeated together.
const JITTER: f64 = 0.1;
/// Time between two polls if nothing wakes the task.
const MAX_SLEEP: Duration = Duration::from_secs(30);
/// Time after an error of the database.
const ERROR_DELAY: Duration = Duration::from_secs(1);
/// Longest error in the log of deliveries.
const MAX_ERROR_CHARS: usize = 300;
/// The receiver does not want any more.
const GONE: u16 = 410;

/// Posts notifications.
pub struct NotificationSender {
    pub store: Store,
    /// The keys of the signatures.
    pub secrets: Arc<Secrets>,
    /// Where they may go.
    pub destinations: NotificationDestinations,
    pub clock: Clock,
    pub process: Uuid,
}

/// The slot of a post, given back on drop.
struct PostSlot {
    slots: Arc<Mutex<PostSlots>>,
    clock: Clock,
    post: DueDelivery,
    /// Whether the post has timed out, once it was made.
    timed_out: Option<bool>,
}

impl Drop for PostSlot {
    fn drop(&mut self) {
        self.slots.lock().give_back(&self.post, self.timed_out, self.clock.monotonic());
    }
}

impl NotificationSender {
    /// Runs until `drain` fires.
    pub async fn run(self, drain: CancellationToken) {
        let this = Arc::new(self);
        let mut wakes = this.store.event_notifier().subscribe(Topic::NotificationSender);
        while let Err(error) = this.store.give_up_interrupted_deliveries(this.process).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the deliveries of notifications could not be read"
            );
            tokio::select! {
                () = drain.cancelled() => return,
                () = tokio::time::sleep(ERROR_DELAY) => {}
            }
        }
        let (slots, mut posts) = (Arc::default(), JoinSet::new());
        loop {
            let until = match this.start(&slots, &mut posts).await {
                Ok(until) => until,
                Err(error) => {
                    // Not fatal, since the database may be busy: what is due stays due.
                    tracing::warn!(error = &error as &dyn std::error::Error, "notifications could not be posted");
                    this.clock.monotonic() + ERROR_DELAY
                }
            };
            tokio::select! {
                () = drain.cancelled() => break,
                () = wakes.changed() => {}
                Some(_) = posts.join_next() => {}
                () = this.clock.sleep_until(until) => {}
            }
        }
        // Those that are not recorded before the process ends are `unknown`.
        while posts.join_next().await.is_some() {}
    }

    /// Starts posts that are due. Returns until when, by monotonic time, to wait for further ones.
    async fn start(
        self: &Arc<Self>,
        slots: &Arc<Mutex<PostSlots>>,
        posts: &mut JoinSet<()>,
    ) -> Result<Duration, StoreError> {
        let (now, monotonic) = (self.clock.now(), self.clock.monotonic());
        let full = slots.lock().full_hosts(monotonic);
        let due = self.store.due_notification_posts(&full, MAX_POSTS_PER_USER, now).await?;
        let taken = slots.lock().take(due, monotonic);
        if taken.is_empty() {
            // What is due and has no slot waits for a post to end.
            let next = self.store.next_notification_post(now).await?;
            let latest = monotonic + MAX_SLEEP;
            return Ok(next.map_or(latest, |next| self.clock.monotonic_at(next).min(latest)));
        }
        let slot = |post: &DueDelivery| PostSlot {
            slots: Arc::clone(slots),
            clock: self.clock.clone(),
            post: post.clone(),
            timed_out: None,
        };
        let mut taken_slots: HashMap<_, _> = taken.iter().map(|post| (post.id, slot(post))).collect();
        for post in self.store.claim_notification_deliveries(self.process, &taken, now).await? {
            let Some(slot) = taken_slots.remove(&post.id) else { continue };
            let this = Arc::clone(self);
            posts.spawn(async move { this.make(post, slot).await });
        }
        // Further ones may be due.
        Ok(monotonic)
    }

    /// Makes one attempt, and records its outcome.
    async fn make(&self, post: ClaimedDelivery, mut slot: PostSlot) {
        let began = self.clock.monotonic();
        let (attempted, is_over) = match tokio::time::timeout(TIMEOUT, self.attempt(&post)).await {
            Ok(attempted) => (attempted, self.clock.monotonic().saturating_sub(began) >= SLOW),
            Err(_) => (Err(SendError::NoAnswer(format!("no answer within {} s", TIMEOUT.as_secs()))), true),
        };
        slot.timed_out = Some(is_over && matches!(attempted, Err(SendError::NotSent(_) | SendError::NoAnswer(_))));
        let outcome = outcome(attempted, post.attempt, self.clock.now(), rand::random());
        match &outcome {
            DeliveryOutcome::Failed { status, error } => {
                tracing::warn!(user = post.user, routine.id = %post.routine, status, error, "a notification could not be posted");
            }
            DeliveryOutcome::Unknown { error } => {
                tracing::warn!(user = post.user, routine.id = %post.routine, error, "a notification was posted without an answer");
            }
            DeliveryOutcome::Delivered { .. } | DeliveryOutcome::Retry { .. } => {}
        }
        if let Err(error) = self.store.end_notification_post(post.id, self.process, outcome).await {
            // It stays claimed, and is `unknown` after the next start.
            tracing::error!(error = &error as &dyn std::error::Error, "the outcome of a post could not be recorded");
        }
    }

    /// Returns the status of the answer.
    async fn attempt(&self, post: &ClaimedDelivery) -> Result<u16, SendError> {
        let name = RoutineSecret::Notify.name(post.routine);
        let secret = match self.secrets.get(&post.user, &name).await {
            Ok(Some(secret)) => secret,
            Ok(None) => {
                let message = "the routine or its webhook_secret does not exist any more";
                return Err(SendError::Refused(message.to_owned()));
            }
            Err(error) => return Err(SendError::NotSent(format!("the secret cannot be read: {error}"))),
        };
        let request = signed(post, &standard_key(secret.expose_secret()), self.clock.now());
        self.destinations.send(&request.map_err(SendError::Refused)?).await
    }
}

fn signed(post: &ClaimedDelivery, key: &[u8], now: DateTime<Utc>) -> Result<OutboundRequest, String> {
    let body = json!({
        "type": format!("notification.{}", post.notification.kind),
        "timestamp": post.notification.created_at,
        "data": post.notification,
    });
    let body = body.to_string().into_bytes();
    let (id, timestamp) = (post.id.to_string(), now.timestamp().to_string());
    let signature = standard_signature(key, &id, &timestamp, &body);
    let mut request = OutboundRequest::new("POST", &post.url).map_err(|error| error.to_string())?;
    for (name, value) in [("webhook-id", &id), ("webhook-timestamp", &timestamp), ("webhook-signature", &signature)] {
        request.header(name, value).map_err(|error| error.to_string())?;
    }
    request.set_body(body, "application/json");
    Ok(request)
}

/// What follows an attempt. `jitter` is from 0 to 1.
fn outcome(attempted: Result<u16, SendError>, attempt: u32, now: DateTime<Utc>, jitter: f64) -> DeliveryOutcome {
    let (status, error) = match attempted {
        Ok(status) if (200..300).contains(&status) => return DeliveryOutcome::Delivered { status },
        Ok(GONE) => {
            return DeliveryOutcome::Failed { status: Some(GONE), error: "the receiver answered 410 Gone".to_owned() };
        }
        Ok(status) => (Some(status), format!("the receiver answered {status}")),
        Err(SendError::NotSent(error)) => (None, error),
        Err(SendError::NoAnswer(error)) => return DeliveryOutcome::Unknown { error: shortened(&error) },
        Err(SendError::Refused(error)) => return DeliveryOutcome::Failed { status: None, error: shortened(&error) },
    };
    let error = shortened(&error);
    let delay = usize::try_from(attempt.saturating_sub(1)).ok().and_then(|index| DELAYS_SECONDS.get(index));
    let Some(seconds) = delay else { return DeliveryOutcome::Failed { status, error } };
    let delay = Duration::from_secs(u64::from(*seconds)).mul_f64(1.0 + JITTER * jitter);
    DeliveryOutcome::Retry { at: now + TimeDelta::from_std(delay).unwrap_or_default(), status, error }
}

fn shortened(error: &str) -> String {
    error.chars().take(MAX_ERROR_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_is_tried_eight_times_within_28_hours() {
        let (start, mut now) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH);
        for attempt in 1..8 {
            match outcome(Ok(503), attempt, now, 0.0) {
                DeliveryOutcome::Retry { at, status: Some(503), .. } => now = at,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((now - start).num_minutes(), 27 * 60 + 35);
        let failed = outcome(Ok(503), 8, now, 0.0);
        assert_eq!(
            failed,
            DeliveryOutcome::Failed { status: Some(503), error: "the receiver answered 503".to_owned() }
        );
    }

    #[test]
    fn a_post_that_cannot_succeed_is_not_tried_again() {
        let gone = outcome(Ok(410), 1, DateTime::UNIX_EPOCH, 0.0);
        assert!(matches!(gone, DeliveryOutcome::Failed { status: Some(410), .. }));
        let refused = outcome(Err(SendError::Refused("not allowed".to_owned())), 1, DateTime::UNIX_EPOCH, 0.0);
        assert!(matches!(refused, DeliveryOutcome::Failed { status: None, .. }));
        let unknown =
            outcome(Err(SendError::NoAnswer("the connection was lost".to_owned())), 1, DateTime::UNIX_EPOCH, 0.0);
        assert!(matches!(unknown, DeliveryOutcome::Unknown { .. }));
        let accepted = outcome(Ok(204), 8, DateTime::UNIX_EPOCH, 0.0);
        assert_eq!(accepted, DeliveryOutcome::Delivered { status: 204 });
    }
}
