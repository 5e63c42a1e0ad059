//! Tells webhooks about jobs that have ended, whatever ended them.
//!
//! Owns the position in the events of the instance, which is in memory: a job that ends while this process is not
//! running is not announced. Nothing waits for a webhook here, and a request that fails is not repeated. A webhook that
//! is too slow loses notices: only the ids of a limited number of jobs wait.

use std::sync::Arc;

use protocol::{InstanceEventKind, JobId, JobState};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{asked::Hooks, event::HookEvent};
use base::fair_queue::FairQueue;
use config::HookPoint;
use domain::job::JobRecord;
use store::{InstanceEventFilter, Store, StoreError, StoredInstanceEvent, Topic};
use telemetry::metrics::Metrics;

/// Jobs that are announced at the same time. One that takes long delays others only when there are as many.
const MAX_NOTICES: usize = 8;
/// Jobs that wait to be announced, and those of one user. Further ones are not announced.
const MAX_WAITING: usize = 1_000;
const MAX_WAITING_PER_USER: usize = 200;
/// Events that are read at once.
const BATCH: u32 = 200;

/// The task that announces ended jobs.
pub struct JobEndNotices {
    pub hooks: Arc<Hooks>,
    pub store: Store,
    pub metrics: Metrics,
}

/// A job that has ended, and the state in which it did.
type Ended = (JobId, JobState);

/// Jobs that wait to be announced, users by turns.
#[derive(Default)]
struct WaitingNotices {
    queue: FairQueue<(), Ended>,
    len: usize,
}

impl WaitingNotices {
    /// False: too many wait.
    fn push(&mut self, user: &str, job: Ended) -> bool {
        let has_room = self.len < MAX_WAITING && self.queue.waiting(user) < MAX_WAITING_PER_USER;
        if has_room {
            self.queue.push(user, (), job);
            self.len += 1;
        }
        has_room
    }

    fn pop(&mut self) -> Option<Ended> {
        let (user, job) = self.queue.pop()?;
        self.queue.finish(&user);
        self.len -= 1;
        Some(job)
    }
}

impl JobEndNotices {
    /// Runs until `drain` fires.
    pub async fn run(self, drain: CancellationToken) {
        if self.hooks.has(HookPoint::JobEnd) {
            tokio::select! {
                () = drain.cancelled() => {}
                () = self.follow() => {}
            }
        } else {
            drain.cancelled().await;
        }
    }

    async fn follow(&self) {
        let mut subscription = self.store.event_notifier().subscribe(Topic::AllUsers);
        let (mut after, mut waiting, mut notices) = (None, WaitingNotices::default(), JoinSet::new());
        loop {
            if let Err(error) = self.read(&mut after, &mut waiting).await {
                // Not fatal, since the database may be busy: the next event retries.
                tracing::warn!(error = &error as &dyn std::error::Error, "ended jobs could not be read");
            }
            loop {
                while notices.len() < MAX_NOTICES
                    && let Some(job) = waiting.pop()
                {
                    notices.spawn(announce(Arc::clone(&self.hooks), self.store.clone(), job));
                }
                tokio::select! {
                    () = subscription.changed() => break,
                    Some(_) = notices.join_next() => {}
                }
            }
        }
    }

    /// Adds the jobs that have ended since the last call; none at the first.
    async fn read(&self, after: &mut Option<i64>, waiting: &mut WaitingNotices) -> Result<(), StoreError> {
        let position = match after {
            Some(position) => position,
            None => after.insert(self.store.last_cursor().await?),
        };
        let filter = InstanceEventFilter { kinds: vec![InstanceEventKind::State], ..InstanceEventFilter::default() };
        let mut dropped = 0_u64;
        let read = loop {
            let page = match self.store.instance_events(&filter, *position, BATCH).await {
                Ok(page) => page,
                Err(error) => break Err(error),
            };
            for event in &page.items {
                let ended = StoredInstanceEvent::ended_job(event);
                if ended.is_some_and(|job| !waiting.push(&event.user_id, job)) {
                    self.metrics.job_end_dropped();
                    dropped += 1;
                }
            }
            *position = page.read_to;
            if !page.has_more() {
                break Ok(());
            }
        };
        if dropped > 0 {
            tracing::warn!(jobs = dropped, "ends of jobs are not announced: too many wait for the webhooks");
        }
        read
    }
}

async fn announce(hooks: Arc<Hooks>, store: Store, (id, state): Ended) {
    let job = match store.job(id).await {
        // A job whose result is reviewed has completed, and has not ended.
        Ok(job) => job.filter(|job| job.state() == state),
        Err(error) => {
            return tracing::warn!(job.id = %id, error = &error as &dyn std::error::Error, "a job's end was not announced");
        }
    };
    let Some(job) = job else { return };
    let event = HookEvent::new(HookPoint::JobEnd, &job.brief.user_id).of(job.id);
    if let Err(error) = hooks.notify(&event, facts(&job)).await {
        tracing::warn!(job.id = %job.id, error = &error as &dyn std::error::Error, "a job's end was not announced");
    }
}

fn facts(job: &JobRecord) -> Value {
    json!({
        "title": job.brief.title,
        "state": job.state(),
        "reason": job.reason(),
        "message": job.message(),
        "text": job.result().and_then(|result| result.text),
        "usage": job.usage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_wait_to_be_announced_are_limited_and_users_take_turns() {
        let mut waiting = WaitingNotices::default();
        let mut push = |user: &str| waiting.push(user, (JobId::generate(), JobState::Completed));
        assert_eq!((0..300).filter(|_| push("ada")).count(), MAX_WAITING_PER_USER);
        assert!(push("bob"));
        let others = (0..9).flat_map(|user| (0..200).map(move |_| format!("user-{user}")));
        assert_eq!(others.filter(|user| push(user)).count(), MAX_WAITING - MAX_WAITING_PER_USER - 1);
        let bobs = (JobId::nil(), JobState::Failed);
        assert!(!waiting.push("bob", bobs), "all places are taken");
        for _ in 0..7 {
            waiting.pop().unwrap();
        }
        assert!(waiting.push("bob", bobs));
        assert_eq!(waiting.len, MAX_WAITING - 6);
        assert_eq!(std::iter::from_fn(|| waiting.pop()).count(), MAX_WAITING - 6);
    }
}
