//! The ticks that wake the periodic tasks of the process.
//!
//! The only user of tokio-cron-scheduler. A tick carries no data and does no work; the task that it wakes has an owner
//! and reads the database. Never runs users' schedules, whose times are rows.
//!
//! The scheduler goes by the wall clock and is silent after the clock has been set back, until the old time is reached
//! again. It is then replaced.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};
use tokio_util::sync::CancellationToken;
use tracing::{instrument::WithSubscriber as _, subscriber::NoSubscriber};

/// Time without a tick after which the scheduler is replaced. One of its jobs ticks each second.
const SILENCE: Duration = Duration::from_secs(10);

/// How often a job ticks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tick {
    Second,
    /// Each 10 seconds.
    TenSeconds,
    /// Each hour, at a minute at which few other programs start their work.
    Hour,
}

impl Tick {
    /// As a cron expression, seconds first.
    const fn schedule(self) -> &'static str {
        match self {
            Self::Second => "* * * * * *",
            Self::TenSeconds => "*/10 * * * * *",
            Self::Hour => "0 17 * * * *",
        }
    }
}

#[derive(Default)]
pub(super) struct Ticks {
    jobs: Vec<(Tick, TickCallback)>,
}

type TickCallback = Arc<dyn Fn() + Send + Sync>;

impl Ticks {
    /// Adds a job that calls `wake`, which must not block, at each tick.
    pub(super) fn with(mut self, tick: Tick, wake: impl Fn() + Send + Sync + 'static) -> Self {
        self.jobs.push((tick, Arc::new(wake)));
        self
    }

    /// Adds a job that notifies a task, and returns what the task waits for.
    pub(super) fn notify(&mut self, tick: Tick) -> Arc<Notify> {
        let ticked = Arc::new(Notify::new());
        let wake = Arc::clone(&ticked);
        self.jobs.push((tick, Arc::new(move || wake.notify_one())));
        ticked
    }

    /// Runs until `drain` fires.
    pub(super) async fn run(self, drain: CancellationToken) {
        loop {
            let has_ticked = Arc::new(AtomicBool::new(true));
            // Its log has a line for each job that is added.
            let mut scheduler = match self.start(&has_ticked).with_subscriber(NoSubscriber::new()).await {
                Ok(scheduler) => Some(scheduler),
                // Not fatal: it is tried again below.
                Err(error) => {
                    tracing::error!(%error, "the ticks could not be started");
                    None
                }
            };
            while has_ticked.swap(false, Ordering::Relaxed) {
                tokio::select! {
                    () = drain.cancelled() => {
                        stop(&mut scheduler).await;
                        return;
                    }
                    () = tokio::time::sleep(SILENCE) => {}
                }
            }
            tracing::warn!("there was no tick for 10 seconds; the scheduler is started again");
            stop(&mut scheduler).await;
        }
    }

    async fn start(&self, has_ticked: &Arc<AtomicBool>) -> Result<JobScheduler, JobSchedulerError> {
        let mut scheduler = JobScheduler::new().await?;
        scheduler.init().await?;
        let has_ticked = Arc::clone(has_ticked);
        let noting: TickCallback = Arc::new(move || has_ticked.store(true, Ordering::Relaxed));
        for (tick, wake) in self.jobs.iter().chain([&(Tick::Second, noting)]) {
            let wake = Arc::clone(wake);
            scheduler.add(Job::new(tick.schedule(), move |_, _| wake())?).await?;
        }
        scheduler.start().await?;
        Ok(scheduler)
    }
}

async fn stop(scheduler: &mut Option<JobScheduler>) {
    if let Some(scheduler) = scheduler
        && let Err(error) = scheduler.shutdown().await
    {
        tracing::debug!(%error, "the ticks could not be stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_ticks_until_the_drain() {
        let (mut jobs, drain) = (Ticks::default(), CancellationToken::new());
        let ticked = jobs.notify(Tick::Second);
        let (running, stop) = (jobs.run(drain.clone()), drain.clone());
        let watching = async move {
            ticked.notified().await;
            ticked.notified().await;
            stop.cancel();
        };
        tokio::join!(running, watching);
    }
}
