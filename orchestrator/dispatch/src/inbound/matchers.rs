//! Compares what arrived with triggers, on threads that may block.
//!
//! Owns the compiled triggers, by revision, and how much of the machine comparing may take: one thread for each user,
//! four in total, users by turns, and a limit of time for each event. The time that a user waits for a turn does not
//! count, but a request does not wait without limit. Fires nothing.

use std::{collections::BTreeMap, sync::Arc, time::Duration, vec};

use base::{clock::Clock, per_user_semaphore::PerUserSemaphore};
use domain::routine::{
    expression::{EvaluationError, Input},
    matching::{InvalidMatcher, MatchInput, Matcher},
};
use parking_lot::Mutex;
use protocol::{RoutineId, RoutineTrigger};
use serde_json::Value;
use store::{EventName, EventRoutine};

use super::compiled_triggers::CompiledTriggers;

/// Comparisons at the same time, of all users.
const MAX_COMPARISONS: usize = 4;
/// Time after which the comparison of an event waits for its next turn. Conditions in it may exceed it by their own
/// limit of time.
const TURN: Duration = Duration::from_millis(250);
/// Time for comparing one event with the routines of a user in a round.
const ROUND_TIME_LIMIT: Duration = Duration::from_secs(5);
/// Time for which a request waits for its comparison: less than the 30 s after which many clients give up.
const MAX_WAIT: Duration = Duration::from_secs(25);
/// Memory of the compiled triggers that are kept. Most take some KiB.
const MAX_COMPILED_BYTES: usize = 64 * 1024 * 1024;
/// What some senders write before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A comparison without a result.
#[derive(Debug, thiserror::Error)]
pub enum MatchError {
    /// The stored trigger is invalid.
    #[error("the trigger is invalid: {0}")]
    Trigger(#[from] InvalidMatcher),
    /// The condition or the pattern could not be computed.
    #[error("the condition could not be computed: {0}")]
    Condition(#[from] EvaluationError),
    /// The task that compares ended early.
    #[error("the comparison was interrupted")]
    Interrupted,
    /// What the user's earlier requests compare takes too long.
    #[error("earlier messages, events and deliveries are still being compared")]
    Busy,
}

/// The content of a message or an event, as it is compared.
#[derive(Debug)]
pub(super) struct EventContent {
    pub(super) name: EventName,
    pub(super) payload: Value,
}

/// What a round of comparisons of an event has found.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The routines that match, each with the revision that was compared.
    pub(super) matched: Vec<(RoutineId, u64)>,
    /// Those that could not be compared. They do not match.
    pub(super) failed: Vec<(RoutineId, MatchError)>,
    /// The last one that was compared.
    pub(super) compared_to: Option<RoutineId>,
    /// Whether the time was up before the last one.
    pub(super) is_cut_off: bool,
    /// The time that comparing took.
    pub(super) used: Duration,
}

/// Compares what arrived with triggers.
pub struct RoutineMatchers {
    compiled: Arc<Compiled>,
    permits: PerUserSemaphore,
    round_time_limit: Duration,
    max_wait: Duration,
    clock: Clock,
}

struct Compiled(Mutex<CompiledTriggers>);

impl Compiled {
    /// The compiled trigger; `None` if it is of a kind that nothing is compared with.
    fn get(&self, routine: RoutineId, rev: u64, trigger: &RoutineTrigger) -> Result<Option<Arc<Matcher>>, MatchError> {
        let known = self.0.lock().get(routine, rev);
        if known.is_some() {
            return Ok(known);
        }
        let Some(matcher) = Matcher::compile(trigger)?.map(Arc::new) else { return Ok(None) };
        self.0.lock().insert(routine, rev, Arc::clone(&matcher));
        Ok(Some(matcher))
    }

    fn matches(&self, routine: &EventRoutine, input: MatchInput<'_>) -> Result<bool, MatchError> {
        let matcher = self.get(routine.id, routine.rev, &routine.trigger)?;
        Ok(matcher.map_or(Ok(false), |matcher| matcher.matches(input))?)
    }
}

#[cfg(test)]
impl RoutineMatchers {
    /// Takes the user's turn, as a comparison that computes.
    pub(super) async fn hold(&self, user: &str) -> base::per_user_semaphore::Permit {
        self.permits.acquire(user).await.unwrap()
    }

    /// Matchers whose rounds end after one routine.
    pub(super) fn without_time(clock: Clock) -> Self {
        Self { round_time_limit: Duration::ZERO, ..Self::new(clock) }
    }

    /// Matchers for which a request waits three seconds.
    pub(super) fn impatient(clock: Clock) -> Self {
        Self { max_wait: Duration::from_secs(3), ..Self::new(clock) }
    }
}

impl RoutineMatchers {
    pub fn new(clock: Clock) -> Self {
        Self {
            compiled: Arc::new(Compiled(Mutex::new(CompiledTriggers::new(MAX_COMPILED_BYTES)))),
            permits: PerUserSemaphore::new(MAX_COMPARISONS, 1),
            round_time_limit: ROUND_TIME_LIMIT,
            max_wait: MAX_WAIT,
            clock,
        }
    }

    /// The result of a comparison that a request waits for.
    pub(super) async fn in_time<T, E: From<MatchError>>(
        &self,
        comparison: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::time::timeout(self.max_wait, comparison).await.unwrap_or_else(|_| Err(MatchError::Busy.into()))
    }

    /// Compares an event with further routines of its user, until the time of the round is up, but with at least one.
    pub(super) async fn compare(
        &self,
        user: &str,
        arrived: &Arc<EventContent>,
        routines: Vec<EventRoutine>,
        round: &mut Round,
    ) -> Result<(), MatchError> {
        let mut rest = routines.into_iter();
        while rest.len() > 0 {
            let left = self.round_time_limit.saturating_sub(round.used);
            if left.is_zero() && round.compared_to.is_some() {
                round.is_cut_off = true;
                break;
            }
            let permit = self.permits.acquire(user).await.map_err(|_| MatchError::Interrupted)?;
            let (compiled, arrived, clock) = (Arc::clone(&self.compiled), Arc::clone(arrived), self.clock.clone());
            let mut turn = std::mem::take(round);
            let compared = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                let since = clock.monotonic();
                let is_over = || clock.monotonic().saturating_sub(since) >= left.min(TURN);
                compare_until(is_over, &compiled, &arrived, &mut rest, &mut turn);
                turn.used += clock.monotonic().saturating_sub(since);
                (rest, turn)
            });
            (rest, *round) = compared.await.map_err(|_| MatchError::Interrupted)?;
        }
        Ok(())
    }

    /// Whether the condition of a webhook is true of a delivery. A body that is not JSON is a string.
    pub(super) async fn condition_matches(
        &self,
        (user, routine, rev): (&str, RoutineId, u64),
        trigger: RoutineTrigger,
        headers: BTreeMap<String, String>,
        body: bytes::Bytes,
    ) -> Result<bool, MatchError> {
        let permit = self.permits.acquire(user).await.map_err(|_| MatchError::Interrupted)?;
        let compiled = Arc::clone(&self.compiled);
        let evaluated = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let matcher = compiled.get(routine, rev, &trigger)?;
            let Some(Matcher::Webhook { condition: Some(condition) }) = matcher.as_deref() else { return Ok(true) };
            let json = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&body);
            let payload = serde_json::from_slice(json)
                .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&body).into_owned()));
            Ok(condition.evaluate(Input { payload: &payload, headers: &headers })?)
        });
        evaluated.await.map_err(|_| MatchError::Interrupted)?
    }
}

fn compare_until(
    is_over: impl Fn() -> bool,
    compiled: &Compiled,
    arrived: &EventContent,
    rest: &mut vec::IntoIter<EventRoutine>,
    round: &mut Round,
) {
    let input = match &arrived.name {
        EventName::Message { channel } => MatchInput::Message {
            channel: channel.as_deref(),
            content: arrived.payload.get("content").and_then(Value::as_str).unwrap_or_default(),
        },
        EventName::System { source, event_type } => {
            MatchInput::System { source, event_type, payload: &arrived.payload }
        }
    };
    for routine in rest {
        match compiled.matches(&routine, input) {
            Ok(true) => round.matched.push((routine.id, routine.rev)),
            Ok(false) => {}
            Err(error) => round.failed.push((routine.id, error)),
        }
        round.compared_to = Some(routine.id);
        if is_over() {
            return;
        }
    }
}
