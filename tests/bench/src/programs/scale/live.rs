//! Jobs at work: each has a container of the stand-in engine, and a simulated worker with its session on its socket.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{interval, sleep},
};

use crate::{
    Failure,
    simulated_worker::{PendingWorker, SimulatedWorker},
    stack::Stack,
};

/// Jobs that are created before their workers are attached, which is within their start timeout.
const GROUP: u32 = 50;
/// Time between two events of a job.
const EVENT_INTERVAL: Duration = Duration::from_secs(5);

/// The workers. They stop when it is dropped.
#[derive(Default)]
pub(super) struct LiveJobs {
    workers: Vec<Arc<Mutex<SimulatedWorker>>>,
    at_work: JoinSet<()>,
}

impl LiveJobs {
    /// Creates jobs and attaches their workers, which do nothing yet.
    pub(super) async fn start(&mut self, stack: &Stack, jobs: u32) -> Result<(), Failure> {
        for group in 0..jobs.div_ceil(GROUP) {
            let mut pending = Vec::new();
            for _ in 0..GROUP.min(jobs - group * GROUP) {
                pending.push(PendingWorker::of(stack.create("bench: live", None).await?));
            }
            for job in pending {
                self.workers.push(Arc::new(Mutex::new(job.attach(stack).await?)));
            }
        }
        Ok(())
    }

    /// Has each worker send an event every five seconds.
    pub(super) fn work(&mut self) {
        let count = u32::try_from(self.workers.len()).unwrap_or(u32::MAX);
        for (worker, number) in self.workers.iter().zip(0..) {
            let worker = Arc::clone(worker);
            self.at_work.spawn(async move {
                sleep(EVENT_INTERVAL * number / count).await;
                let mut events = interval(EVENT_INTERVAL);
                loop {
                    events.tick().await;
                    // The next one repeats it.
                    let _ = worker.lock().await.send(1).await;
                }
            });
        }
    }

    /// Ends that.
    pub(super) fn pause(&mut self) {
        self.at_work.abort_all();
        self.at_work = JoinSet::new();
    }
}
