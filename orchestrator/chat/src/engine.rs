//! The chat engine: works on the messages of threads, one turn of a thread at a time.
//!
//! Owns which threads are worked on at once. The database is the truth: a wake carries no data, and what is to be done
//! is read again. Never decides what a turn does.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use protocol::ThreadId;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::live::LiveEvents;
use base::{
    clock::Clock,
    fair_queue::FairQueue,
    per_user_semaphore::{PerUserSemaphore, Permit},
};
use hooks::Hooks;
use llm::metering::Meter;
use store::{Store, StoreError};
use tools::BuiltinTools;

/// Delay before the database is asked again after it failed.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// Time for turns in progress to end once the process drains; less than the process gives its tasks.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The parts that turns use.
pub struct ChatParts {
    /// Threads, their messages and turns.
    pub store: Store,
    /// Makes the model calls.
    pub meter: Meter,
    pub tools: Arc<BuiltinTools>,
    /// Asked about answers.
    pub hooks: Arc<Hooks>,
    pub clock: Clock,
    /// Takes what is only streamed.
    pub live: LiveEvents,
    /// Turns in progress at once in total. A turn mostly waits for its model.
    pub max_turns: u32,
    /// Turns in progress at once of one user.
    pub max_turns_per_user: u32,
    /// The model of users who have chosen none.
    pub default_model: String,
    /// The models that users may choose.
    pub models: Vec<String>,
    /// How long a model that does not answer is asked again.
    pub outage_patience: Duration,
}

/// Works on the messages of threads.
pub struct ChatEngine {
    pub(super) parts: ChatParts,
    permits: PerUserSemaphore,
    /// Threads with a turn in progress.
    active: Mutex<HashMap<ThreadId, Active>>,
}

/// A turn in progress, as others see it.
struct Active {
    user: String,
    stop: CancellationToken,
}

impl ChatEngine {
    /// An engine that works on nothing yet.
    pub fn new(parts: ChatParts) -> Arc<Self> {
        let permits = PerUserSemaphore::new(parts.max_turns as usize, parts.max_turns_per_user as usize);
        Arc::new(Self { parts, permits, active: Mutex::default() })
    }

    /// What is only streamed.
    pub fn live(&self) -> &LiveEvents {
        &self.parts.live
    }

    /// Stops the turn in progress of a thread. False: there is none.
    pub fn stop(&self, thread: ThreadId) -> bool {
        let active = self.active.lock();
        let turn = active.get(&thread);
        if let Some(turn) = turn {
            turn.stop.cancel();
        }
        turn.is_some()
    }

    /// Stops the turn of a thread that is parked and has not gone on. False: there is none.
    pub(super) async fn stop_parked(&self, thread: ThreadId) -> Result<bool, StoreError> {
        let ChatParts { store, tools, clock, .. } = &self.parts;
        while let Some(turn) = store.waiting_chat_turn(thread).await? {
            let calls = tools.stopped_calls(&turn).await;
            if store.stop_waiting_chat_turn(turn.key, turn.gate, calls, clock.now()).await? {
                return Ok(true);
            }
            // It went on meanwhile, and may be parked again.
        }
        Ok(false)
    }

    /// Works until the drain fires; turns in progress then have a moment to end. The next process ends the others with
    /// an error.
    pub async fn run(self: Arc<Self>, drain: CancellationToken) {
        let notifier = Arc::clone(self.parts.store.event_notifier());
        let mut turns = JoinSet::new();
        while !drain.is_cancelled() {
            let retry = self.start_turns(&mut turns).await.is_err();
            tokio::select! {
                () = notifier.chats.notified() => {}
                Some(_) = turns.join_next() => {}
                () = tokio::time::sleep(STORE_RETRY), if retry => {}
                () = drain.cancelled() => {}
            }
        }
        let all_ended = async { while turns.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, all_ended).await.is_err() {
            tracing::warn!(turns = turns.len(), "drain timeout: chat turns were still in progress");
        }
    }

    /// Starts a turn in each thread that has something to do, as far as there are permits. The user with the fewest
    /// turns in progress is next.
    async fn start_turns(self: &Arc<Self>, turns: &mut JoinSet<()>) -> Result<(), ()> {
        let store = &self.parts.store;
        let runnable = store.runnable_chat_threads(self.parts.max_turns_per_user).await.map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "the threads to work on could not be read");
        })?;
        let mut queue = FairQueue::default();
        {
            let active = self.active.lock();
            active.values().for_each(|turn| queue.begin(&turn.user));
            for (thread, user) in runnable.into_iter().filter(|(thread, _)| !active.contains_key(thread)) {
                queue.push(&user, (), thread);
            }
        }
        while self.permits.available() > 0
            && let Some((user, thread)) = queue.pop()
        {
            // Without a permit of its user the thread waits until another turn has ended.
            let Some(permit) = self.permits.try_acquire(&user) else { continue };
            let active = ActiveTurn::begin(self, thread, user, permit);
            turns.spawn(async move { active.engine.process(active.thread, &active.stop).await });
        }
        Ok(())
    }
}

/// A turn in progress. However its task ends, the thread is no longer active then.
pub(super) struct ActiveTurn {
    pub(super) engine: Arc<ChatEngine>,
    pub(super) thread: ThreadId,
    pub(super) stop: CancellationToken,
    _permit: Permit,
}

impl ActiveTurn {
    pub(super) fn begin(engine: &Arc<ChatEngine>, thread: ThreadId, user: String, permit: Permit) -> Self {
        let stop = CancellationToken::new();
        engine.active.lock().insert(thread, Active { user, stop: stop.clone() });
        Self { engine: Arc::clone(engine), thread, stop, _permit: permit }
    }
}

impl Drop for ActiveTurn {
    fn drop(&mut self) {
        self.engine.active.lock().remove(&self.thread);
    }
}
