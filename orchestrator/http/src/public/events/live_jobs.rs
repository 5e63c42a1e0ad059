//! What jobs do between their transitions, for a stream: read when something of its user has changed, at most once in 2 s.
//!
//! Owns which jobs are sent. Never stores anything: who misses it reads the job.

use std::{collections::HashMap, time::Duration};

use axum::response::sse::Event as Sse;
use base::clock::Clock;
use protocol::{InstanceEventKind, JobId};
use serde::Serialize;
use serde_json::value::RawValue;
use store::{JobAtWork, Store, StoreError};
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(2);

/// The jobs at work of a user, or of all.
pub(super) struct LiveJobs {
    store: Store,
    clock: Clock,
    /// `None` for all users.
    user: Option<String>,
    /// The jobs at work as they were sent: the number of the newest event of each.
    sent: HashMap<JobId, i64>,
    /// Something of the user has changed since they were read.
    has_changed: bool,
    next_at: Instant,
}

/// Serialized like `protocol::LiveJobEvent`. Its data is passed on as rendered.
#[derive(Serialize)]
struct Live<'a> {
    v: u8,
    at: chrono::DateTime<chrono::Utc>,
    user_id: &'a str,
    job_id: JobId,
    kind: InstanceEventKind,
    data: &'a RawValue,
}

impl LiveJobs {
    pub(super) fn new(store: Store, clock: Clock, user: Option<String>) -> Self {
        Self { store, clock, user, sent: HashMap::new(), has_changed: false, next_at: Instant::now() }
    }

    pub(super) const fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// When to read next; `None` while nothing has changed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.has_changed.then_some(self.next_at)
    }

    pub(super) fn is_due(&self) -> bool {
        self.due().is_some_and(|due| due <= Instant::now())
    }

    /// The jobs that have changed, and the cursor that they are as of.
    pub(super) async fn read(&mut self) -> Result<Option<(i64, Vec<Sse>)>, StoreError> {
        self.has_changed = false;
        self.next_at = Instant::now() + INTERVAL;
        let jobs = self.store.jobs_at_work(self.user.as_deref()).await?;
        let as_of = jobs.first().map(|job| job.as_of);
        let messages = jobs.iter().filter(|job| self.sent.get(&job.id) != Some(&job.last_seq));
        let messages = messages.filter_map(|job| self.message(job)).collect();
        self.sent = jobs.iter().map(|job| (job.id, job.last_seq)).collect();
        Ok(as_of.map(|as_of| (as_of, messages)))
    }

    /// A message without an id. None of a row that makes no sense, which lists leave out as well.
    fn message(&self, job: &JobAtWork) -> Option<Sse> {
        let kind = InstanceEventKind::Job;
        let live = Live {
            v: 1,
            at: self.clock.now(),
            user_id: &job.user_id,
            job_id: job.id,
            kind,
            data: serde_json::from_str(&job.json).ok()?,
        };
        Some(Sse::default().event(kind.as_str()).data(serde_json::to_string(&live).ok()?))
    }
}
