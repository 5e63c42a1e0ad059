//! Compares what arrived with triggers, on threads that may block.
//!
//! Owns the compiled triggers, by revision, and how much of the machine comparing may take: one thread for each user,
//! two in total, and a limit of time for each event. Fires nothing.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use base::per_user_semaphore::PerUserSemaphore;
use domain::routine::{
    expression::{EvaluationError, Input},
    matching::{InvalidMatcher, MatchInput, Matcher},
};
use parking_lot::Mutex;
use protocol::{RoutineId, RoutineTrigger};
use serde_json::Value;
use store::{EventName, EventRoutine};

/// Comparisons at the same time, of all users: conditions may compute for as long as their limit of time.
const MAX_COMPARISONS: usize = 2;
/// Compiled triggers that are kept. Each takes at most a few hundred KiB, and most take a few.
const MAX_COMPILED: usize = 512;
/// Time for comparing one event with all routines of a user.
const EVENT_TIME_LIMIT: Duration = Duration::from_secs(5);

/// A comparison without a result.
#[derive(Debug, thiserror::Error)]
pub enum MatchError {
    /// The stored trigger is invalid.
    #[error("the trigger is invalid: {0}")]
    Trigger(#[from] InvalidMatcher),
    /// The condition could not be computed.
    #[error("the condition could not be computed: {0}")]
    Condition(#[from] EvaluationError),
    /// The task that compares ended early.
    #[error("the comparison was interrupted")]
    Interrupted,
}

/// The content of a message or an event, as it is compared.
#[derive(Debug)]
pub(super) struct EventContent {
    pub(super) name: EventName,
    pub(super) payload: Value,
}

/// The routines of a page that match, and how far the page was compared.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Each with the revision that was compared.
    pub(super) matched: Vec<(RoutineId, u64)>,
    /// Whether the time was up before the end of the page.
    pub(super) is_cut_off: bool,
}

/// Compares what arrived with triggers.
pub struct RoutineMatchers {
    compiled: Arc<Compiled>,
    permits: PerUserSemaphore,
}

impl Default for RoutineMatchers {
    fn default() -> Self {
        Self { compiled: Arc::default(), permits: PerUserSemaphore::new(MAX_COMPARISONS, 1) }
    }
}

/// Compiled triggers by routine, each with the revision that it is of.
#[derive(Default)]
struct Compiled(Mutex<HashMap<RoutineId, (u64, Arc<Matcher>)>>);

impl Compiled {
    /// The compiled trigger; `None` if it is of a kind that nothing is compared with.
    fn get(&self, routine: RoutineId, rev: u64, trigger: &RoutineTrigger) -> Result<Option<Arc<Matcher>>, MatchError> {
        let known = self.0.lock().get(&routine).filter(|(of, _)| *of == rev).map(|(_, matcher)| Arc::clone(matcher));
        if known.is_some() {
            return Ok(known);
        }
        let Some(matcher) = Matcher::compile(trigger)?.map(Arc::new) else { return Ok(None) };
        let mut compiled = self.0.lock();
        if compiled.len() >= MAX_COMPILED {
            compiled.clear();
        }
        compiled.insert(routine, (rev, Arc::clone(&matcher)));
        Ok(Some(matcher))
    }
}

#[cfg(test)]
impl RoutineMatchers {
    /// Takes the user's turn, as a comparison that computes.
    pub(super) async fn hold(&self, user: &str) -> base::per_user_semaphore::Permit {
        self.permits.acquire(user).await.unwrap()
    }
}

impl RoutineMatchers {
    /// Compares an event with routines of its user. One that cannot be compared is logged and does not match. `since`
    /// is when the event was first compared.
    pub(super) async fn compare(
        &self,
        user: &str,
        arrived: &Arc<EventContent>,
        routines: Vec<EventRoutine>,
        since: Instant,
    ) -> Result<Compared, MatchError> {
        let permit = self.permits.acquire(user).await.map_err(|_| MatchError::Interrupted)?;
        let (compiled, arrived) = (Arc::clone(&self.compiled), Arc::clone(arrived));
        let compared = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            compare(&compiled, &arrived, &routines, since)
        });
        compared.await.map_err(|_| MatchError::Interrupted)
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
            let payload = serde_json::from_slice(&body)
                .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&body).into_owned()));
            Ok(condition.evaluate(Input { payload: &payload, headers: &headers })?)
        });
        evaluated.await.map_err(|_| MatchError::Interrupted)?
    }
}

fn compare(compiled: &Compiled, arrived: &EventContent, routines: &[EventRoutine], since: Instant) -> Compared {
    let arrival = match &arrived.name {
        EventName::Message { channel } => MatchInput::Message {
            channel: channel.as_deref(),
            content: arrived.payload.get("content").and_then(Value::as_str).unwrap_or_default(),
        },
        EventName::System { source, event_type } => {
            MatchInput::System { source, event_type, payload: &arrived.payload }
        }
    };
    let mut compared = Compared::default();
    for routine in routines {
        if since.elapsed() > EVENT_TIME_LIMIT {
            return Compared { is_cut_off: true, ..compared };
        }
        let matched = compiled.get(routine.id, routine.rev, &routine.trigger);
        match matched.and_then(|matcher| Ok(matcher.map_or(Ok(false), |matcher| matcher.matches(arrival))?)) {
            Ok(true) => compared.matched.push((routine.id, routine.rev)),
            Ok(false) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, routine.id = %routine.id, "an event cannot be compared with a routine");
            }
        }
    }
    compared
}
