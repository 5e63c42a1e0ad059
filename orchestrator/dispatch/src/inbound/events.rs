//! Fires routines for messages and events: for those that are posted, at once; for those that happen in Gantry, from
//! the pending events.
//!
//! Guarantees that an event fires a limited number of routines, that an event which cannot be handled stops no other,
//! and that the events of a user delay those of no other. What is recorded of a firing is the store's part.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{RoutineEventId, RoutineId, TriggerType};
use serde_json::{Value, json};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::matchers::{EventContent, MatchError, RoutineMatchers};
use base::clock::Clock;
use store::{EventAnswer, EventName, Firing, IdempotencyKey, PendingEvent, Store, StoreError, Topic};

use crate::RoutineWaker;

/// Routines that are compared at a time.
const ROUTINES_PER_PAGE: u32 = 200;
/// Routines that one event fires. Further ones are not fired, which is logged.
const MAX_FIRED: usize = 100;
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
    store: Store,
    matchers: Arc<RoutineMatchers>,
    waker: RoutineWaker,
    clock: Clock,
}

/// An event that could not be handled.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It could not be compared.
    #[error(transparent)]
    Match(#[from] MatchError),
}

impl EventHandler {
    /// Assembles the parts.
    pub const fn new(store: Store, matchers: Arc<RoutineMatchers>, waker: RoutineWaker, clock: Clock) -> Self {
        Self { store, matchers, waker, clock }
    }

    /// Fires the user's routines that an event matches. One that is posted again with its key fires none.
    pub async fn fire(&self, event: InboundEvent, key: Option<IdempotencyKey>) -> Result<EventAnswer, EventError> {
        let id = event.id.clone();
        let firings = self.firings(event).await?;
        let answer = self.store.fire_event(id, key, firings, self.clock.now()).await?;
        self.waker.wake_runs();
        Ok(answer)
    }

    /// The firings of the routines that an event matches.
    async fn firings(&self, event: InboundEvent) -> Result<Vec<Firing>, EventError> {
        let InboundEvent { user, name, payload, id, depth } = event;
        let (since, arrived) = (Instant::now(), Arc::new(EventContent { name, payload }));
        let (mut matched, mut after, mut is_cut_off) = (Vec::new(), None, false);
        loop {
            let page = self.store.routines_of_event(&user, &arrived.name, after, ROUTINES_PER_PAGE).await?;
            let compared = self.matchers.compare(&user, &arrived, page.routines, since).await?;
            matched.extend(compared.matched);
            is_cut_off |= compared.is_cut_off;
            after = page.next;
            if after.is_none() || is_cut_off || matched.len() > MAX_FIRED {
                break;
            }
        }
        if is_cut_off || matched.len() > MAX_FIRED {
            tracing::warn!(
                user,
                matched = matched.len(),
                is_cut_off,
                "an event matches more routines than it may fire"
            );
            matched.truncate(MAX_FIRED);
        }
        Ok(matched.into_iter().map(|routine| firing(routine, &arrived, &id, depth)).collect())
    }
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

/// Fires routines for events that are pending.
#[derive(Clone)]
pub struct PendingEventWorker {
    pub handler: Arc<EventHandler>,
}

/// The users whose events are being handled.
#[derive(Default)]
struct UsersInProgress {
    tasks: JoinSet<String>,
    users: HashSet<String>,
    /// The user who was started last: users have their turns in order.
    last: String,
}

impl PendingEventWorker {
    /// Runs until `drain` fires.
    pub async fn run(self, drain: CancellationToken) {
        let mut wakes = self.handler.store.event_notifier().subscribe(Topic::RoutineEvents);
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
    async fn start(&self, in_progress: &mut UsersInProgress, drain: &CancellationToken) -> Result<(), StoreError> {
        let mut is_from_first = in_progress.last.is_empty();
        while in_progress.users.len() < MAX_USERS {
            let waiting = self.handler.store.pending_events(&in_progress.last, USERS_PER_PAGE, EVENTS_PER_USER).await?;
            let next = waiting
                .chunk_by(|(_, one), (_, other)| one == other)
                .find(|events| events.first().is_some_and(|(_, user)| !in_progress.users.contains(user)));
            match next {
                Some(events) => in_progress.add(self.clone().handle_user(events.to_vec(), drain.clone()), events),
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
    async fn handle_user(self, events: Vec<(RoutineEventId, String)>, drain: CancellationToken) {
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

    /// Handles one event. One that cannot be handled is logged and discarded.
    async fn handle(&self, id: RoutineEventId, user: &str) -> Result<(), StoreError> {
        let outcome = match self.handler.store.waiting_event(id).await {
            Ok(Some(event)) => self.fire(event).await,
            Ok(None) => return Ok(()),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(EventError::Store(error)) if !matches!(error, StoreError::Inconsistent { .. }) => Err(error),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, user, event = %id, "an event cannot be handled");
                self.handler.store.complete_event(id, Vec::new(), self.handler.clock.now()).await
            }
        }
    }

    async fn fire(&self, event: PendingEvent) -> Result<(), EventError> {
        let PendingEvent { id, user, name, payload, depth } = event;
        let firings = self.handler.firings(InboundEvent { user, name, payload, id: id.to_string(), depth }).await?;
        self.handler.store.complete_event(id, firings, self.handler.clock.now()).await?;
        self.handler.waker.wake_runs();
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
mod tests {
    use super::*;

    /// Waits until this many events of a user wait.
    async fn until_waiting(store: &Store, user: &str, count: usize) {
        let wait = async {
            loop {
                let waiting = store.pending_events("", USERS_PER_PAGE, EVENTS_PER_USER).await.unwrap();
                if waiting.iter().filter(|(_, of)| of == user).count() == count {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), wait).await.expect("the events are handled");
    }

    #[tokio::test]
    async fn a_user_whose_conditions_are_slow_delays_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let insert = "INSERT INTO routine_events (id, user_id, kind, source, event_type, payload, depth, created_at) \
                      SELECT randomblob(16), u.column1, 'system', 's', 't', '{}', 0, '1970-01-01T00:00:00+00:00' \
                      FROM (VALUES ('ada'), ('bob'), ('carol'), ('dan'), ('eve'), ('frank')) AS u, \
                      (VALUES (0), (1), (2), (3), (4), (5))";
        store.execute(insert).await.unwrap();
        let matchers = Arc::new(RoutineMatchers::default());
        let slow = matchers.hold("ada").await;
        let handler = EventHandler::new(store.clone(), Arc::clone(&matchers), RoutineWaker::default(), Clock::system());
        let (worker, drain) = (PendingEventWorker { handler: Arc::new(handler) }, CancellationToken::new());
        let stop = drain.clone();
        let observe = async {
            for user in ["bob", "carol", "dan", "eve", "frank"] {
                until_waiting(&store, user, 0).await;
            }
            until_waiting(&store, "ada", EVENTS_PER_USER as usize).await;
            drop(slow);
            until_waiting(&store, "ada", 0).await;
            stop.cancel();
        };
        tokio::join!(worker.run(drain), observe);
        store.close().await;
    }
}
