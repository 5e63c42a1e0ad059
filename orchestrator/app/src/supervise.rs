//! Runs the tasks of a built [`App`], and drains it.
//!
//! Owns every long-lived task. Crash-only: a task that ends before the drain ends the process, and the next process
//! resumes from the database.

use std::{collections::HashMap, future::Future, time::Duration};

use tokio::{
    net::TcpListener,
    task::{Id, JoinSet},
};
use tokio_util::sync::CancellationToken;

use super::{App, ControlLoops, PublicServer, ServeError, listeners, ticks::Tick};

/// Time for requests and container actions to finish once the drain fires. With the three timeouts below and the 250 ms
/// that the program has for its blocking threads this stays under the 10 s after which `docker stop` kills; what is cut
/// off is harmless, since the next process finds it in the database.
const TASK_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for model calls in flight to be recorded and for submissions to end.
const REQUEST_TASK_DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for requests on the workers' sockets to finish after that.
const SOCKET_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the database to close. What remains to be written is repeated at the next start.
const STORE_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

impl App {
    /// Serves until the drain fires and completes, or a task ends unexpectedly.
    pub async fn run(mut self, listener: TcpListener) -> Result<(), ServeError> {
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, "listening");
        }
        let mut tasks = Tasks::new(self.drain);
        let PublicServer { router, server } = self.public_server;
        tasks.spawn("public API", |drain| server.serve(listener, router, drain));
        if let Some(dedicated) = self.metrics_server {
            tasks.spawn("metrics server", |drain| dedicated.server.serve(dedicated.listener, dedicated.router, drain));
        }
        tasks.spawn("metrics upkeep", |drain| listeners::run_metrics_upkeep(self.metrics, drain));
        let retention_tick = self.ticks.notify(Tick::Hour);
        tasks.spawn("retention sweep", |drain| self.retention.run(retention_tick, drain));
        tasks.spawn("MCP connections", |drain| self.mcp.run(drain));
        tasks.spawn("notices of ended jobs", |drain| self.job_end_notices.run(drain));
        let readiness_tick = self.ticks.notify(Tick::Second);
        tasks.spawn("readiness watch", |drain| self.readiness_watch.run(readiness_tick, drain));
        let gate_tick = self.ticks.notify(Tick::Second);
        tasks.spawn("gate expiry", |drain| self.gate_expiry.run(gate_tick, drain));
        tasks.spawn("ticks", |drain| self.ticks.run(drain));
        tasks.spawn("pending events", |drain| self.pending_events.run(drain));
        tasks.spawn("notification sender", |drain| self.notification_sender.run(drain));
        let ControlLoops { prober, dispatcher, engine_watch, database_watch, disk_sweep } = self.control;
        tasks.spawn("sandbox prober", |drain| prober.run(drain));
        tasks.spawn("disk sweep", |drain| disk_sweep.run(drain));
        tasks.spawn("dispatcher", |drain| dispatcher.run(drain));
        tasks.spawn("engine watch", |drain| engine_watch.run(drain));
        tasks.spawn("database watch", |drain| database_watch.run(drain));
        tasks.spawn("chat engine", |drain| self.chat_engine.run(drain));
        tasks.spawn("routine scheduler", |drain| self.routine_scheduler.run(drain));
        tasks.spawn("runner of routines", |drain| self.runner.run(drain));
        tasks.spawn("heartbeats", |drain| self.heartbeats.run(drain));
        let store = self.store.clone();
        tasks.spawn("database writer", |drain| async move {
            // Continues after the drain, until the store is closed.
            tokio::select! {
                () = store.writer_ended() => {}
                () = drain.cancelled() => {}
            }
        });
        let result = tasks.supervise().await;
        self.request_tasks.close();
        if tokio::time::timeout(REQUEST_TASK_DRAIN_TIMEOUT, self.request_tasks.wait()).await.is_err() {
            tracing::warn!("drain timeout: model calls or submissions were still in progress");
        }
        if tokio::time::timeout(SOCKET_DRAIN_TIMEOUT, self.worker_listeners.stop()).await.is_err() {
            tracing::warn!("drain timeout: worker requests were still in flight");
        }
        if tokio::time::timeout(STORE_CLOSE_TIMEOUT, self.store.close()).await.is_err() {
            tracing::warn!("drain timeout: the database was still busy");
        }
        result
    }
}

/// Named tasks that run until the drain.
struct Tasks {
    set: JoinSet<()>,
    names: HashMap<Id, &'static str>,
    drain: CancellationToken,
}

impl Tasks {
    fn new(drain: CancellationToken) -> Self {
        Self { set: JoinSet::new(), names: HashMap::new(), drain }
    }

    fn spawn<F>(&mut self, name: &'static str, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let handle = self.set.spawn(task(self.drain.clone()));
        self.names.insert(handle.id(), name);
    }

    /// Waits until all tasks have ended, or for [`TASK_DRAIN_TIMEOUT`] after the drain fired. A task that ends earlier,
    /// or panics, fires the drain; the first such task is the error.
    async fn supervise(mut self) -> Result<(), ServeError> {
        let mut result = Ok(());
        let drain = self.drain.clone();
        let timeout = async {
            drain.cancelled().await;
            tokio::time::sleep(TASK_DRAIN_TIMEOUT).await;
        };
        tokio::pin!(timeout);
        loop {
            let ended = tokio::select! {
                ended = self.set.join_next_with_id() => ended,
                () = &mut timeout => {
                    tracing::warn!("drain timeout: requests or container actions were still in progress");
                    break;
                }
            };
            let Some(ended) = ended else { break };
            let (id, reason) = match ended {
                Ok((id, ())) if drain.is_cancelled() => {
                    tracing::debug!(task = self.name(id), "drained");
                    continue;
                }
                Ok((id, ())) => (id, "it returned".to_owned()),
                Err(error) => (error.id(), error.to_string()),
            };
            let task = self.name(id);
            tracing::error!(task, reason, "a task ended unexpectedly");
            drain.cancel();
            result = result.and(Err(ServeError::TaskEnded { task, reason }));
        }
        result
    }

    fn name(&self, id: Id) -> &'static str {
        self.names.get(&id).copied().unwrap_or("unknown")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn until_drained(drain: CancellationToken) {
        drain.cancelled().await;
    }

    #[tokio::test]
    async fn a_drain_lets_every_task_end() {
        let drain = CancellationToken::new();
        let mut tasks = Tasks::new(drain.clone());
        tasks.spawn("first", until_drained);
        tasks.spawn("second", until_drained);
        drain.cancel();
        tasks.supervise().await.unwrap();
    }

    #[tokio::test]
    async fn a_task_that_ends_early_or_panics_drains_the_others_and_is_named() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("other", until_drained);
        tasks.spawn("returning", async |_| {});
        assert_eq!(
            tasks.supervise().await.unwrap_err().to_string(),
            "the task \"returning\" ended unexpectedly: it returned"
        );
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("other", until_drained);
        tasks.spawn("panicking", async |_| panic!("on purpose"));
        let error = tasks.supervise().await.unwrap_err().to_string();
        assert!(error.contains("panicking") && error.contains("on purpose"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_is_left_behind_after_the_timeout() {
        let drain = CancellationToken::new();
        let mut tasks = Tasks::new(drain.clone());
        tasks.spawn("hanging", |_| std::future::pending());
        drain.cancel();
        tasks.supervise().await.unwrap();
    }
}
