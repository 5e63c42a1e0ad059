//! The container's limits that tool calls reach: detected, attributed to a call, recorded, and reported to the model.
//!
//! The kernel counts per container, so an increased counter does not identify the call. A memory kill is attributed to
//! a call that failed or that ran alone, the pids limit to the call with the most processes.

use std::{convert::Infallible, sync::Arc, time::Duration};

use agent::Journal;
use parking_lot::Mutex;
use protocol::Limits;

use crate::{
    cgroup::{Cgroup, ContainerLimit, Counters},
    journal::EventQueue,
    supervisor::{CallProcesses, ExitStatus, Processes},
};

/// Processes must be counted while the pids limit is exceeded: a fork bomb that has ended can no longer be identified.
const WATCH_PERIOD: Duration = Duration::from_millis(100);

/// Detects reached limits.
pub(crate) struct LimitMonitor {
    cgroup: Cgroup,
    pub(super) limits: Limits,
    journal: EventQueue,
    processes: Arc<Processes>,
    seen: Mutex<Seen>,
}

struct Seen {
    /// The counters at the last attribution.
    examined: Counters,
    /// The counters at the last event.
    recorded: Counters,
}

/// The limits that were hit while a call ran.
#[derive(Debug, Default)]
pub(crate) struct HitLimits {
    hits: Vec<Hit>,
    unrecorded: Vec<ContainerLimit>,
}

#[derive(Debug)]
struct Hit {
    limit: ContainerLimit,
    /// The limit is attributed to this call.
    is_responsible: bool,
}

impl LimitMonitor {
    /// A monitor that starts from the current counters.
    pub(crate) fn new(cgroup: Cgroup, limits: Limits, journal: EventQueue, processes: Arc<Processes>) -> Self {
        let now = cgroup.counters();
        Self { cgroup, limits, journal, processes, seen: Mutex::new(Seen { examined: now, recorded: now }) }
    }

    /// The current counters, for comparison at the end of a call.
    pub(crate) fn counters(&self) -> Counters {
        self.cgroup.counters()
    }

    /// Attributes reached limits while a call runs.
    pub(crate) async fn watch(&self) -> Infallible {
        loop {
            tokio::time::sleep(WATCH_PERIOD).await;
            self.examine();
        }
    }

    /// The limits that were reached since `before`. To be called when the call has ended or is about to be killed.
    /// `status` is the exit status of its command, if it exited by itself.
    pub(crate) fn hit_by(&self, call: &CallProcesses, before: Counters, status: Option<ExitStatus>) -> HitLimits {
        let now = self.examine();
        let mut seen = self.seen.lock();
        let mut result = HitLimits::default();
        for limit in now.since(before) {
            let is_responsible = match limit {
                ContainerLimit::Pids => call.exhausted_pids() || (call.ran_alone() && call.is_only_call()),
                ContainerLimit::Memory => call.ran_alone() || !status.is_some_and(ExitStatus::is_success),
            };
            // A limit that is attributed to another call is recorded when that call ends.
            let is_others =
                limit == ContainerLimit::Pids && !is_responsible && self.processes.any_call_exhausted_pids();
            if now.since(seen.recorded).any(|unrecorded| unrecorded == limit) && !is_others {
                seen.recorded.advance(limit, now);
                result.unrecorded.push(limit);
            }
            result.hits.push(Hit { limit, is_responsible });
        }
        result
    }

    /// Records an event for each limit that has none yet. Waits while the journal is full.
    pub(crate) async fn record(&self, hit: &HitLimits) {
        for limit in &hit.unrecorded {
            // A closed journal means that the session has stopped; the agent loop handles that.
            let _ = self.journal.record(limit.event(&self.limits)).await;
        }
    }

    /// Records that a process could not be started because of the pids limit.
    pub(crate) async fn record_pids_exhausted(&self) {
        self.examine();
        self.seen.lock().recorded.advance(ContainerLimit::Pids, self.cgroup.counters());
        let _ = self.journal.record(ContainerLimit::Pids.event(&self.limits)).await;
    }

    /// The notices for the model, one line for each limit.
    pub(crate) fn notes(&self, hit: &HitLimits) -> String {
        hit.hits.iter().map(|hit| self.note(hit) + "\n").collect()
    }

    fn note(&self, hit: &Hit) -> String {
        let Limits { pids, memory_mb, .. } = self.limits;
        match hit {
            Hit { limit: ContainerLimit::Pids, is_responsible: true } => {
                format!("[the sandbox's limit of {pids} processes was reached; all processes of this call were killed]")
            }
            Hit { limit: ContainerLimit::Pids, is_responsible: false } => format!(
                "[the sandbox's limit of {pids} processes was reached during this call; some processes may not have started]"
            ),
            Hit { limit: ContainerLimit::Memory, .. } => {
                format!("[the sandbox's memory limit of {memory_mb} MB was reached; the kernel killed a process]")
            }
        }
    }

    fn examine(&self) -> Counters {
        let now = self.cgroup.counters();
        let no_more_pids = now.since(self.seen.lock().examined).any(|limit| limit == ContainerLimit::Pids);
        self.seen.lock().examined = now;
        if no_more_pids {
            self.processes.attribute_pids_exhaustion(self.limits.pids);
        }
        now
    }
}

impl HitLimits {
    /// Whether any limit is attributed to the call, which has then failed.
    pub(crate) fn is_responsible(&self) -> bool {
        self.hits.iter().any(|hit| hit.is_responsible)
    }

    /// Whether the pids limit is attributed to the call, whose processes must then be killed.
    pub(crate) fn must_end_call(&self) -> bool {
        self.hits.iter().any(|hit| hit.is_responsible && hit.limit == ContainerLimit::Pids)
    }
}
