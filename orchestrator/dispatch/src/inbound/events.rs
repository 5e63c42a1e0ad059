//! Fires routines for messages and events: for those that are posted, at once; for those that happen in Gantry, from
//! the pending events.
//!
//! Guarantees that an event fires a limited number of routines, that an event which cannot be handled stops no other,
//! and that the events of a user delay those of no other. What is recorded of a firing is the store's part.

use std::{collections::HashSet, sync::Arc, time::Duration};

use protocol::{RoutineEventId, RoutineId, TriggerType};
use serde_json::{Value, json};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    matchers::{EventContent, MatchError, Round, RoutineMatchers},
    problems::report_problem,
};
use base::clock::Clock;
use domain::routine::problem::AutomationProblem;
use store::{EventAnswer, EventName, Firing, IdempotencyKey, PendingEvent, Store, StoreError, Topic};

use crate::RoutineWaker;

/// Routines that are compared at a time.
const ROUTINES_PER_PAGE: u32 = 200;
/// Routines that one event fires in a round. Further ones are not fired, which is reported.
const MAX_FIRED: usize = 100;
/// Rounds in which an event that waits is compared.
const MAX_ROUNDS: u32 = 12;
/// Users whose events are handled at the same time.
const MAX_USERS: usize = 4;
/// Users that are looked up together, and events of each: more than can be in progress, so that some of them are not.
const USERS_PER_PAGE: u32 = 8;
const EVENTS_PER_USER: u32 = 4;
/// Time between two polls of the pending events if nothing wakes the task.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time after an error before the next poll.
const ERROR_DELAY: Duration = Duration::from_secs(1);

/// A message or an event that arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct InboundEvent {
    /// Whose routines it may fire.
    pub user: String,
    pub name: EventName,
    /// The text of a message as `content`, or the payload of an event of a system.
    pub payload: Value,
    /// Its id, which what it fires shows.
    pub id: String,
    /// Firings by routines that led to it.
    pub depth: u32,
}

/// Fires routines for events that are posted.
pub struct EventHandler {
    pub store: Store,
    pub matchers: Arc<RoutineMatchers>,
    pub waker: RoutineWaker,
    pub clock: Clock,
}

/// An event that could not be handled.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It could not be compared, and has fired nothing.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// The time was up before it was compared with all routines. It has fired nothing.
    #[error("comparing it with the routines takes too long")]
    TimeUp,
}

impl EventHandler {
    /// Fires the user's routines that an event matches, once it was compared with all of them. One that is posted again
    /// with its key fires none.
    pub async fn fire(&self, event: InboundEvent, key: Option<IdempotencyKey>) -> Result<EventAnswer, EventError> {
        let InboundEvent { user, name, payload, id, depth } = event;
        let arrived = Arc::new(EventContent { name, payload });
        let round = self.matchers.in_time(self.compare(&user, &arrived, None)).await?;
        if round.is_cut_off {
            self.report(round.compared_to, AutomationProblem::NotCompared).await;
            return Err(EventError::TimeUp);
        }
        let firings = firings(round, &arrived, &id, depth);
        let answer = self.store.fire_event(id, key, firings, self.clock.now()).await?;
        self.waker.wake_runs();
        Ok(answer)
    }

    /// Compares an event with its user's routines after one of them, in one round.
    async fn compare(
        &self,
        user: &str,
        arrived: &Arc<EventContent>,
        mut after: Option<RoutineId>,
    ) -> Result<Round, EventError> {
        let mut round = Round::default();
        loop {
            let page = self.store.routines_of_event(user, &arrived.name, after, ROUTINES_PER_PAGE).await?;
            self.matchers.compare(user, arrived, page.routines, &mut round).await?;
            after = page.next;
            if after.is_none() || round.is_cut_off || round.matched.len() > MAX_FIRED {
                break;
            }
        }
        for (routine, error) in round.failed.drain(..) {
            self.report(Some(routine), AutomationProblem::ComparisonFailed { message: error.to_string() }).await;
        }
        if let Some((routine, _)) = round.matched.get(MAX_FIRED) {
            self.report(Some(*routine), AutomationProblem::TooManyMatches { max: MAX_FIRED }).await;
            round.matched.truncate(MAX_FIRED);
        }
        Ok(round)
    }

    /// Notifies the owner of a routine. There is none if the time was up before the first one was compared.
    async fn report(&self, routine: Option<RoutineId>, problem: AutomationProblem) {
        if let Some(routine) = routine {
            report_problem(&self.store, &self.clock, routine, problem).await;
        }
    }
}

fn firings(round: Round, arrived: &EventContent, id: &str, depth: u32) -> Vec<Firing> {
    round.matched.into_iter().map(|routine| firing(routine, arrived, id, depth)).collect()
}

/// The firing of a routine, which was compared at a revision.
fn firing((routine, rev): (RoutineId, u64), arrived: &EventContent, id: &str, depth: u32) -> Firing {
    let (trigger, detail, content) = match &arrived.name {
        EventName::Message { channel } => {
            let detail = json!({"event_id": id, "channel": channel, "sender": arrived.payload.get("sender")});
            let mut content = arrived.payload.clone();
            content["channel"] = json!(channel);
            (TriggerType::Event, detail, content)
        }
        EventName::System { source, event_type } => {
            let detail = json!({"event_id": id, "source": source, "event_type": event_type});
            let content = json!({"source": source, "event_type": event_type, "payload": arrived.payload});
            (TriggerType::SystemEvent, detail, content)
        }
    };
    Firing { routine, rev: Some(rev), trigger, detail, payload: Some(content.to_string()), depth }
}

/// The users whose events are being handled.
#[derive(Default)]
struct UsersInProgress {
    tasks: JoinSet<String>,
    users: HashSet<String>,
    /// The user who was started last: users have their turns in order.
    last: String,
}

/// Events that are pending.
impl EventHandler {
    /// Fires routines for them until `drain` fires.
    pub async fn run(self: Arc<Self>, drain: CancellationToken) {
        let mut wakes = self.store.event_notifier().subscribe(Topic::RoutineEvents);
        let mut in_progress = UsersInProgress::default();
        loop {
            let delay = match self.start(&mut in_progress, &drain).await {
                Ok(()) => INTERVAL,
                Err(error) => {
                    warn_of_store(&error);
                    ERROR_DELAY
                }
            };
            tokio::select! {
                () = drain.cancelled() => break,
                () = wakes.changed() => {}
                Some(ended) = in_progress.tasks.join_next() => in_progress.remove(ended),
                () = tokio::time::sleep(delay) => {}
            }
        }
        while let Some(ended) = in_progress.tasks.join_next().await {
            in_progress.remove(ended);
        }
    }

    /// Starts users whose events wait, one after the other, until as many as may be are in progress.
    async fn start(
        self: &Arc<Self>,
        in_progress: &mut UsersInProgress,
        drain: &CancellationToken,
    ) -> Result<(), StoreError> {
        let mut is_from_first = in_progress.last.is_empty();
        while in_progress.users.len() < MAX_USERS {
            let waiting = self.store.pending_events(&in_progress.last, USERS_PER_PAGE, EVENTS_PER_USER).await?;
            let next = waiting
                .chunk_by(|(_, one), (_, other)| one == other)
                .find(|events| events.first().is_some_and(|(_, user)| !in_progress.users.contains(user)));
            match next {
                Some(events) => in_progress.add(Arc::clone(self).handle_user(events.to_vec(), drain.clone()), events),
                None if is_from_first => break,
                None => {
                    in_progress.last.clear();
                    is_from_first = true;
                }
            }
        }
        Ok(())
    }

    /// Handles events of one user in their order.
    async fn handle_user(self: Arc<Self>, events: Vec<(RoutineEventId, String)>, drain: CancellationToken) {
        for (event, user) in events {
            if drain.is_cancelled() {
                return;
            }
            if let Err(error) = self.handle(event, &user).await {
                // Not fatal, since the database may be busy: the events still wait, and the user is not started again
                // at once.
                warn_of_store(&error);
                tokio::select! {
                    () = drain.cancelled() => {}
                    () = tokio::time::sleep(ERROR_DELAY) => {}
                }
                return;
            }
        }
    }

    /// Handles one event. One that makes no sense is logged and discarded.
    async fn handle(&self, id: RoutineEventId, user: &str) -> Result<(), StoreError> {
        let outcome = match self.store.waiting_event(id).await {
            Ok(Some(event)) => self.fire_pending(event).await,
            Ok(None) => return Ok(()),
            Err(error) => Err(error),
        };
        match outcome {
            Err(error) if error.concerns_one_row() => {
                tracing::error!(error = &error as &dyn std::error::Error, user, event = %id, "an event cannot be handled");
                self.store.complete_event(id, Vec::new(), self.clock.now()).await
            }
            outcome => outcome,
        }
    }

    /// Compares an event in one round and fires the routines that match. It waits for another round if the time was up
    /// or the comparison was interrupted.
    async fn fire_pending(&self, event: PendingEvent) -> Result<(), StoreError> {
        let PendingEvent { id, user, name, payload, depth, rounds, compared_to } = event;
        let arrived = Arc::new(EventContent { name, payload });
        let round = match self.compare(&user, &arrived, compared_to).await {
            Ok(round) => round,
            Err(EventError::Store(error)) => return Err(error),
            Err(_) => Round { compared_to, is_cut_off: true, ..Round::default() },
        };
        let (compared_to, is_cut_off) = (round.compared_to, round.is_cut_off);
        let (firings, now) = (firings(round, &arrived, &id.to_string(), depth), self.clock.now());
        if is_cut_off && rounds + 1 < MAX_ROUNDS {
            self.store.postpone_event(id, firings, compared_to, now).await?;
        } else {
            if is_cut_off {
                self.report(compared_to, AutomationProblem::NotCompared).await;
            }
            self.store.complete_event(id, firings, now).await?;
        }
        self.waker.wake_runs();
        Ok(())
    }
}

impl UsersInProgress {
    fn add(&mut self, work: impl Future<Output = ()> + Send + 'static, events: &[(RoutineEventId, String)]) {
        let Some((_, user)) = events.first().cloned() else { return };
        self.last.clone_from(&user);
        self.users.insert(user.clone());
        self.tasks.spawn(async move {
            work.await;
            user
        });
    }

    fn remove(&mut self, ended: Result<String, JoinError>) {
        match ended {
            Ok(user) => drop(self.users.remove(&user)),
            // A defect ends the process, as it would without tasks of users.
            Err(error) => {
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

fn warn_of_store(error: &StoreError) {
    tracing::warn!(error = error as &dyn std::error::Error, "events of routines could not be read");
}

#[cfg(test)]
mod tests;
