//! Tells webhooks about jobs that have ended, whatever ended them.
//!
//! Owns the position in the events of the instance, which is in memory: a job that ends while this process is not
//! running is not announced. Nothing waits for a webhook here, and a request that fails is not repeated.

use std::sync::Arc;

use protocol::InstanceEventKind;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{asked::Hooks, event::HookEvent};
use config::HookPoint;
use domain::job::JobRecord;
use store::{InstanceEventFilter, Store, StoreError, StoredInstanceEvent, Topic};

/// Jobs that are announced at the same time. One that takes long delays others only when there are as many.
const MAX_NOTICES: usize = 8;
/// Events that are read at once.
const BATCH: u32 = 200;

/// The task that announces ended jobs.
pub struct JobEndNotices {
    pub hooks: Arc<Hooks>,
    pub store: Store,
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
        let mut after = None;
        let mut notices = JoinSet::new();
        loop {
            match self.read(&mut after).await {
                Ok(jobs) => {
                    for job in jobs {
                        if notices.len() >= MAX_NOTICES {
                            notices.join_next().await;
                        }
                        notices.spawn(announce(Arc::clone(&self.hooks), job));
                    }
                }
                // Not fatal, since the database may be busy: the next event retries.
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "ended jobs could not be read");
                }
            }
            subscription.changed().await;
        }
    }

    /// The jobs that have ended since the last call; none at the first.
    async fn read(&self, after: &mut Option<i64>) -> Result<Vec<JobRecord>, StoreError> {
        let Some(mut position) = *after else {
            *after = Some(self.store.last_cursor().await?);
            return Ok(Vec::new());
        };
        let filter = InstanceEventFilter { kinds: vec![InstanceEventKind::State], ..InstanceEventFilter::default() };
        let mut ended = Vec::new();
        loop {
            let page = self.store.instance_events(&filter, position, BATCH).await?;
            for (job, state) in page.items.iter().filter_map(StoredInstanceEvent::ended_job) {
                // A job whose result is reviewed has completed, and has not ended.
                ended.extend(self.store.job(job).await?.filter(|job| job.state() == state));
            }
            position = page.read_to;
            if !page.has_more() {
                break;
            }
        }
        *after = Some(position);
        Ok(ended)
    }
}

async fn announce(hooks: Arc<Hooks>, job: JobRecord) {
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
