//! Decides about webhook deliveries: signature, repetition, rate, condition, firing.
//!
//! Owns the order of these checks and the rate of each webhook. A delivery that is not signed is known to nothing but
//! the signature's check and the log. What a delivery does is recorded by the store, in one transaction.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::{DeliveryVerdict, RoutineId, RoutineTrigger, TriggerType};
use secrecy::ExposeSecret as _;
use serde_json::json;

use super::{
    matchers::{MatchError, RoutineMatchers},
    problems::report_problem,
};
use base::{clock::Clock, digest::sha256_hex};
use domain::routine::{
    problem::AutomationProblem,
    secret::RoutineSecret,
    signature::{SignatureError, SignatureHeaders, Verified, verify},
};
use secrets::{SecretError, Secrets};
use store::{Delivered, DeliveryDigests, Firing, NewDelivery, RefusedDelivery, Store, StoreError, WebhookTarget};

use crate::RoutineWaker;

/// Deliveries of one webhook in [`WINDOW`].
const MAX_PER_WINDOW: usize = 60;
const WINDOW: Duration = Duration::from_mins(1);
/// Refused and repeated deliveries of one webhook that are logged in a window: anyone can send them.
const MAX_LOGGED_PER_WINDOW: usize = 60;
/// From this number of webhooks on, windows without recent deliveries are removed.
const PRUNE_THRESHOLD: usize = 1_024;
/// Larger bodies are hashed off the runtime's threads.
const MAX_INLINE_BYTES: usize = 128 * 1024;
/// Headers that no condition sees.
const HIDDEN_HEADERS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];
/// Longest id in the log.
const MAX_SHOWN_ID_BYTES: usize = 256;

/// A delivery as it arrived.
#[derive(Debug, Clone)]
pub struct WebhookRequest {
    /// The headers, with names in lower case. Values of one name are joined by commas.
    pub headers: BTreeMap<String, String>,
    pub body: Bytes,
}

/// The outcome of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookAnswer {
    /// The store's decision.
    Decided(Delivered),
    /// The condition could not be computed.
    WhereFailed,
}

/// A delivery that is refused.
#[derive(Debug, thiserror::Error)]
pub enum WebhookRefused {
    #[error("the webhook has no secret")]
    NoSecret,
    /// The signature is absent or wrong.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error("more than {MAX_PER_WINDOW} deliveries a minute")]
    TooMany {
        /// When the next one is accepted.
        retry_after: Duration,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The secret could not be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The comparison ended early.
    #[error(transparent)]
    Match(MatchError),
}

/// Decides about deliveries.
pub struct WebhookHandler {
    store: Store,
    secrets: Arc<Secrets>,
    matchers: Arc<RoutineMatchers>,
    waker: RoutineWaker,
    clock: Clock,
    accepted: Arc<SlidingWindows>,
    logged: SlidingWindows,
}

impl WebhookHandler {
    /// Assembles the parts.
    pub fn new(
        store: Store,
        secrets: Arc<Secrets>,
        matchers: Arc<RoutineMatchers>,
        waker: RoutineWaker,
        clock: Clock,
    ) -> Self {
        let (accepted, logged) =
            (Arc::new(SlidingWindows::of(MAX_PER_WINDOW)), SlidingWindows::of(MAX_LOGGED_PER_WINDOW));
        Self { store, secrets, matchers, waker, clock, accepted, logged }
    }

    /// The routine of a path.
    pub async fn target(&self, path: &str) -> Result<Option<WebhookTarget>, StoreError> {
        self.store.webhook_target(path).await
    }

    /// Logs a delivery whose body is too large.
    pub async fn log_too_large(&self, target: &WebhookTarget, headers: &BTreeMap<String, String>) {
        self.log(target, claimed_id(headers), DeliveryVerdict::TooLarge, 413).await;
    }

    /// Decides about a delivery.
    pub async fn receive(
        &self,
        target: &WebhookTarget,
        request: WebhookRequest,
    ) -> Result<WebhookAnswer, WebhookRefused> {
        let verified = match self.verified(target, &request).await {
            Err(WebhookRefused::Signature(error)) => {
                self.log(target, claimed_id(&request.headers), DeliveryVerdict::Unauthorized, 401).await;
                return Err(error.into());
            }
            verified => verified?,
        };
        let Identified { display_id, digests } = identify(&verified, &request.body);
        let now = self.clock.now();
        if let Some(known) = self.store.known_delivery(target, &digests, now).await? {
            self.log_decided(target, display_id, known).await;
            return Ok(WebhookAnswer::Decided(known));
        }
        self.store.ensure_user_storage(&target.user).await?;
        // Counted before its condition is computed: otherwise deliveries at the same time, and those whose condition
        // fails, would compute without limit.
        let has_condition = target.trigger.r#where.is_some();
        if has_condition && let Err(retry_after) = self.accepted.take(target.routine, self.clock.monotonic()) {
            return Err(self.too_many(target, display_id, retry_after).await);
        }
        let condition_matches = match self.condition_matches(target, &request).await {
            Ok(condition_matches) => condition_matches,
            Err(error @ (MatchError::Interrupted | MatchError::Busy)) => return Err(WebhookRefused::Match(error)),
            Err(error) => {
                let problem = AutomationProblem::ComparisonFailed { message: error.to_string() };
                report_problem(&self.store, &self.clock, target.routine, problem).await;
                self.log(target, display_id, DeliveryVerdict::WhereFailed, 200).await;
                return Ok(WebhookAnswer::WhereFailed);
            }
        };
        let firing = condition_matches.then(|| firing(target, &request, &display_id));
        let delivery = NewDelivery { routine: target.routine, display_id: display_id.clone(), digests, firing };
        let (accepted, routine, monotonic) = (Arc::clone(&self.accepted), target.routine, self.clock.monotonic());
        // Without a condition, copies of a delivery that arrive at the same time are counted once.
        let admit = move || has_condition || accepted.take(routine, monotonic).is_ok();
        match self.store.deliver(delivery, admit, now).await? {
            Delivered::TooMany => {
                let retry_after = self.accepted.wait(target.routine, self.clock.monotonic()).unwrap_or_default();
                Err(self.too_many(target, display_id, retry_after).await)
            }
            delivered => {
                self.waker.wake_runs();
                Ok(WebhookAnswer::Decided(delivered))
            }
        }
    }

    async fn verified(&self, target: &WebhookTarget, request: &WebhookRequest) -> Result<Verified, WebhookRefused> {
        let name = RoutineSecret::Webhook.name(target.routine);
        let secret = self.secrets.get(&target.user, &name).await?.ok_or(WebhookRefused::NoSecret)?;
        let (request, now) = (request.clone(), self.clock.now());
        let is_small = request.body.len() <= MAX_INLINE_BYTES;
        let check = move || verify(secret.expose_secret(), &signature_headers(&request.headers), &request.body, now);
        if is_small {
            return Ok(check()?);
        }
        let checked = tokio::task::spawn_blocking(check).await;
        Ok(checked.map_err(|_| WebhookRefused::Match(MatchError::Interrupted))??)
    }

    async fn condition_matches(&self, target: &WebhookTarget, request: &WebhookRequest) -> Result<bool, MatchError> {
        if target.trigger.r#where.is_none() {
            return Ok(true);
        }
        let mut headers = request.headers.clone();
        headers.retain(|name, _| !HIDDEN_HEADERS.contains(&name.as_str()));
        let trigger = RoutineTrigger::Webhook(target.trigger.clone());
        let of = (target.user.as_str(), target.routine, target.rev);
        self.matchers.in_time(self.matchers.condition_matches(of, trigger, headers, request.body.clone())).await
    }

    async fn too_many(&self, target: &WebhookTarget, display_id: String, retry_after: Duration) -> WebhookRefused {
        self.log(target, display_id, DeliveryVerdict::RateLimited, 429).await;
        WebhookRefused::TooMany { retry_after }
    }

    async fn log_decided(&self, target: &WebhookTarget, display_id: String, delivered: Delivered) {
        if let Some((verdict, status, _)) = delivered.logged() {
            self.log(target, display_id, verdict, status).await;
        }
    }

    /// Logs a delivery that is not recorded otherwise, unless too many were logged. An error is not the sender's.
    async fn log(&self, target: &WebhookTarget, display_id: String, verdict: DeliveryVerdict, status: u16) {
        if self.logged.take(target.routine, self.clock.monotonic()).is_err() {
            return;
        }
        let refused = RefusedDelivery { routine: target.routine, display_id, verdict, status };
        if let Err(error) = self.store.log_delivery(refused, self.clock.now()).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "a webhook delivery could not be logged");
        }
    }
}

/// What identifies a delivery.
struct Identified {
    display_id: String,
    digests: DeliveryDigests,
}

/// The body identifies a delivery without an id, and one whose id could be changed.
fn identify(verified: &Verified, body: &[u8]) -> Identified {
    let of_body = (!verified.is_id_signed || verified.id.is_none()).then(|| sha256_hex(body));
    let display_id = match (&verified.id, &of_body) {
        (Some(id), _) => id.clone(),
        (None, Some(digest)) => format!("sha256:{digest}"),
        (None, None) => String::new(),
    };
    // An id that is not signed must not make a signed one known.
    let origin = if verified.is_id_signed { "signed" } else { "unsigned" };
    let digests = DeliveryDigests { id: sha256_hex(format!("{origin}:{display_id}").as_bytes()), body: of_body };
    Identified { display_id, digests }
}

fn firing(target: &WebhookTarget, request: &WebhookRequest, display_id: &str) -> Firing {
    let event =
        ["x-github-event", "x-gitlab-event", "x-gantry-event"].iter().find_map(|name| request.headers.get(*name));
    Firing {
        routine: target.routine,
        rev: Some(target.rev),
        trigger: TriggerType::Webhook,
        detail: json!({
            "delivery_id": display_id,
            "event": event,
            "content_type": request.headers.get("content-type"),
        }),
        payload: Some(String::from_utf8_lossy(&request.body).into_owned()),
        depth: 0,
    }
}

fn signature_headers(headers: &BTreeMap<String, String>) -> SignatureHeaders<'_> {
    let get = |name: &str| headers.get(name).map(String::as_str);
    // Svix, which wrote the standard, has names of its brand for the same three.
    let [id, timestamp, signature] = if headers.contains_key("webhook-signature") {
        ["webhook-id", "webhook-timestamp", "webhook-signature"]
    } else {
        ["svix-id", "svix-timestamp", "svix-signature"]
    };
    SignatureHeaders {
        webhook_id: get(id),
        webhook_timestamp: get(timestamp),
        webhook_signature: get(signature),
        // Bitbucket; GitHub sends SHA-1 there, beside the other one.
        hub_signature: get("x-hub-signature-256").or_else(|| get("x-hub-signature")),
        github_delivery: get("x-github-delivery"),
        // Stripe signs the same bytes in the same form.
        gantry_signature: get("x-gantry-signature").or_else(|| get("stripe-signature")),
        gantry_delivery: get("x-gantry-delivery"),
    }
}

/// The id that a delivery claims to have, for the log.
fn claimed_id(headers: &BTreeMap<String, String>) -> String {
    let known = signature_headers(headers);
    let id = known.webhook_id.or(known.github_delivery).or(known.gantry_delivery).unwrap_or("unknown");
    id.chars().take(MAX_SHOWN_ID_BYTES).collect()
}

/// Deliveries of each webhook in the last [`WINDOW`].
struct SlidingWindows {
    max: usize,
    routines: Mutex<HashMap<RoutineId, VecDeque<Duration>>>,
}

impl SlidingWindows {
    fn of(max: usize) -> Self {
        Self { max, routines: Mutex::default() }
    }

    /// Counts a delivery, or says how long to wait.
    fn take(&self, routine: RoutineId, now: Duration) -> Result<(), Duration> {
        let mut routines = self.routines.lock();
        if routines.len() >= PRUNE_THRESHOLD {
            routines.retain(|_, times| times.back().is_some_and(|last| *last + WINDOW > now));
        }
        let times = routines.entry(routine).or_default();
        while times.front().is_some_and(|first| *first + WINDOW <= now) {
            times.pop_front();
        }
        if times.len() >= self.max {
            return Err(times.front().map_or(WINDOW, |first| (*first + WINDOW).saturating_sub(now)));
        }
        times.push_back(now);
        Ok(())
    }

    /// How long to wait until a delivery is counted; `None` if it would be counted now.
    fn wait(&self, routine: RoutineId, now: Duration) -> Option<Duration> {
        let routines = self.routines.lock();
        let times = routines.get(&routine)?;
        let first = times.len().checked_sub(self.max).and_then(|index| times.get(index))?;
        (*first + WINDOW).checked_sub(now).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_gets_60_deliveries_in_any_minute() {
        let (windows, routine) = (SlidingWindows::of(60), RoutineId::generate());
        let at = Duration::from_secs;
        for second in 0..60 {
            assert_eq!(windows.take(routine, at(second / 2)), Ok(()));
        }
        assert_eq!(windows.take(routine, at(40)), Err(at(20)));
        assert_eq!(windows.wait(routine, at(40)), Some(at(20)));
        assert_eq!(windows.take(RoutineId::generate(), at(40)), Ok(()), "another webhook has its own");
        assert_eq!(windows.wait(routine, at(60)), None);
        assert_eq!(windows.take(routine, at(60)), Ok(()));
        assert_eq!(windows.take(routine, at(60)), Ok(()));
        assert_eq!(windows.take(routine, at(60)), Err(at(1)));
    }

    #[test]
    fn the_body_identifies_what_has_no_signed_id() {
        let verified = |id: Option<&str>, is_id_signed| Verified {
            scheme: domain::routine::signature::Scheme::Hub,
            id: id.map(str::to_owned),
            is_id_signed,
        };
        let signed = identify(&verified(Some("a"), true), b"body").digests;
        let unsigned = identify(&verified(Some("a"), false), b"body").digests;
        let other_id = identify(&verified(Some("b"), false), b"body").digests;
        let without = identify(&verified(None, false), b"body").digests;
        assert_ne!(signed.id, unsigned.id, "an id that is not signed makes no signed one known");
        assert_eq!(signed.body, None);
        assert_ne!(unsigned.id, other_id.id);
        assert_eq!((&unsigned.body, &other_id.body), (&without.body, &without.body));
    }
}
