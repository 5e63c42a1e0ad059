//! The container's limits that tool calls run into: noticed, attributed to a call, recorded, and explained to the model.
//!
//! The kernel counts for the container as a whole, so a counter that rose says nothing of which call it was. Memory
//! is held against a call that failed or that ran alone; processes against the call that has most of them.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use agent::Journal;
use protocol::Limits;

use crate::{
    cgroup::{Cgroup, ContainerLimit, Counters},
    journal::EventQueue,
    supervisor::{CallProcesses, ExitStatus, Processes},
};

/// How soon the processes are counted when there are no more: a fork bomb that is over cannot be distinguished from its siblings.
const WATCH_PERIOD: Duration = Duration::from_millis(100);

/// Notices hit limits.
pub(crate) struct LimitMonitor {
    cgroup: Cgroup,
    limits: Limits,
    journal: EventQueue,
    processes: Arc<Processes>,
    seen: Mutex<Seen>,
}

struct Seen {
    /// Up to here the processes were counted.
    examined: Counters,
    /// Up to here there is an event.
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
    /// Held against the call.
    is_to_blame: bool,
}

impl LimitMonitor {
    /// A monitor for a session that has started nothing yet.
    pub(crate) fn new(cgroup: Cgroup, limits: Limits, journal: EventQueue, processes: Arc<Processes>) -> Self {
        let now = cgroup.counters();
        Self { cgroup, limits, journal, processes, seen: Mutex::new(Seen { examined: now, recorded: now }) }
    }

    /// The counters now, to be compared when the call has ended.
    pub(crate) fn counters(&self) -> Counters {
        self.cgroup.counters()
    }

    /// The limit of processes.
    pub(crate) const fn max_pids(&self) -> u32 {
        self.limits.pids
    }

    /// Attributes what is hit as it happens, for as long as a call runs.
    pub(crate) async fn watch(&self) -> Infallible {
        loop {
            tokio::time::sleep(WATCH_PERIOD).await;
            self.examine();
        }
    }

    /// The limits that were hit since `before`, when the call has ended or is about to be ended. `status` is that of its
    /// command, if that has ended by itself.
    pub(crate) fn hit_by(&self, call: &CallProcesses, before: Counters, status: Option<ExitStatus>) -> HitLimits {
        let now = self.examine();
        let mut seen = self.seen();
        let mut result = HitLimits::default();
        for limit in now.since(before) {
            let is_to_blame = match limit {
                ContainerLimit::Pids => call.exhausted_pids() || (call.ran_alone() && call.is_only_one()),
                ContainerLimit::Memory => call.ran_alone() || !status.is_some_and(ExitStatus::is_success),
            };
            // What another call is to blame for is recorded when that one ends.
            let is_others = limit == ContainerLimit::Pids && !is_to_blame && self.processes.any_exhausted_pids();
            if now.since(seen.recorded).any(|unrecorded| unrecorded == limit) && !is_others {
                seen.recorded.advance(limit, now);
                result.unrecorded.push(limit);
            }
            result.hits.push(Hit { limit, is_to_blame });
        }
        result
    }

    /// Records an event for each limit that has none yet. May wait for the journal to have room.
    pub(crate) async fn record(&self, hit: &HitLimits) {
        for limit in &hit.unrecorded {
            // A closed journal means that the session is over, which the loop learns from it.
            let _ = self.journal.record(limit.event(&self.limits)).await;
        }
    }

    /// Records that no process could be started.
    pub(crate) async fn record_no_process(&self) {
        self.examine();
        self.seen().recorded.advance(ContainerLimit::Pids, self.cgroup.counters());
        let _ = self.journal.record(ContainerLimit::Pids.event(&self.limits)).await;
    }

    /// The notes for the model, one line for each limit.
    pub(crate) fn notes(&self, hit: &HitLimits) -> String {
        hit.hits.iter().map(|hit| self.note(hit) + "\n").collect()
    }

    fn note(&self, hit: &Hit) -> String {
        let Limits { pids, memory_mb, .. } = self.limits;
        match hit {
            Hit { limit: ContainerLimit::Pids, is_to_blame: true } => {
                format!("[the sandbox's limit of {pids} processes was reached; every process of this call was killed]")
            }
            Hit { limit: ContainerLimit::Pids, is_to_blame: false } => format!(
                "[the sandbox's limit of {pids} processes was reached while this ran; starting a process may have failed]"
            ),
            Hit { limit: ContainerLimit::Memory, .. } => {
                format!(
                    "[the sandbox's limit of {memory_mb} MB of memory was reached; the kernel killed a process of it]"
                )
            }
        }
    }

    fn examine(&self) -> Counters {
        let now = self.cgroup.counters();
        let no_more_pids = now.since(self.seen().examined).any(|limit| limit == ContainerLimit::Pids);
        self.seen().examined = now;
        if no_more_pids {
            self.processes.blame_for_pids(self.limits.pids);
        }
        now
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HitLimits {
    /// Whether the call is to blame for any of them, and so has failed.
    pub(crate) fn is_to_blame(&self) -> bool {
        self.hits.iter().any(|hit| hit.is_to_blame)
    }

    /// Whether the call is to blame for the container having run out of processes, and so must lose all of its own.
    pub(crate) fn must_end(&self) -> bool {
        self.hits.iter().any(|hit| hit.is_to_blame && hit.limit == ContainerLimit::Pids)
    }
}
