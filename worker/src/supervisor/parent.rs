//! The worker's side of supervisors: the registry of running calls, reaping, and ending the processes of calls.
//!
//! This is the only module that waits for children: process 1 must reap every dead child, and a second waiter would
//! consume exit statuses. Never signals a process that is not a descendant.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait},
};
use tokio::{
    net::UnixStream,
    signal::unix::{SignalKind, signal},
};

use super::{
    process_tree::{Process, end, live_processes, with_descendants},
    report::{ExitStatus, Reports, SupervisorReport},
};

/// The running program, even if its file is unreadable or has been replaced.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";
/// Children reaped in one go before the task yields.
const REAP_BATCH: usize = 256;

/// A command that runs `program` under a supervisor. The caller must not redirect its standard error.
pub(crate) fn supervised_command(program: &str) -> Command {
    let mut command = Command::new(OWN_PROGRAM);
    command.args(["run", "--", program]);
    command
}

/// The supervisors of one session.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Locked while a supervisor is started, while processes are ended and while children are reaped. A child is
    /// therefore never reaped before it is registered, and no pid is reused while it is about to be signalled.
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    by_supervisor: HashMap<i32, Call>,
    /// True if a supervisor could not become a subreaper: this process may then have adopted background processes.
    may_have_orphans: bool,
}

/// A call whose supervisor has not been reaped yet.
#[derive(Debug)]
struct Call {
    /// The call has its result; processes that are still running are background processes.
    has_returned: bool,
    facts: Arc<CallFacts>,
}

/// Facts about a call, which outlive its supervisor.
#[derive(Debug, Default)]
struct CallFacts {
    /// Another call ran at the same time.
    overlapped: AtomicBool,
    /// The call had most of the container's processes when the pids limit was reached.
    exhausted_pids: AtomicBool,
}

/// The processes of one call. Dropping this kills all of them unless [`CallProcesses::detach`] was called.
#[derive(Debug)]
pub(crate) struct CallProcesses {
    processes: Arc<Processes>,
    facts: Arc<CallFacts>,
    supervisor: i32,
    reports: Reports,
    is_detached: bool,
}

impl CallProcesses {
    /// Waits until the command has started. Returns the error of the system call if it could not be started.
    pub(crate) async fn started(&mut self) -> io::Result<()> {
        match self.reports.next().await? {
            SupervisorReport::Started { is_subreaper } => {
                if !is_subreaper {
                    self.processes.expect_orphans();
                }
                Ok(())
            }
            SupervisorReport::NotStarted { errno } => Err(io::Error::from_raw_os_error(errno)),
            SupervisorReport::Ended(_) => Err(unexpected_report()),
        }
    }

    /// Waits for the command to exit. Cancel safe. Must not be called again once it has returned. Fails if the
    /// supervisor was killed.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        match self.reports.next().await? {
            SupervisorReport::Ended(status) => Ok(status),
            SupervisorReport::Started { .. } | SupervisorReport::NotStarted { .. } => Err(unexpected_report()),
        }
    }

    /// Whether this call had most of the container's processes when the pids limit was reached.
    pub(crate) fn exhausted_pids(&self) -> bool {
        self.facts.exhausted_pids.load(Ordering::Relaxed)
    }

    /// Whether no other call ran at the same time.
    pub(crate) fn ran_alone(&self) -> bool {
        !self.facts.overlapped.load(Ordering::Relaxed)
    }

    /// Whether no other call has processes.
    pub(crate) fn is_only_call(&self) -> bool {
        self.processes.calls.lock().by_supervisor.values().all(|call| Arc::ptr_eq(&call.facts, &self.facts))
    }

    /// Marks the call as returned and lets its background processes continue.
    pub(crate) fn detach(mut self) {
        self.is_detached = true;
        if let Some(call) = self.processes.calls.lock().get_mut(&self) {
            call.has_returned = true;
        }
    }

    /// Kills every process of the call. Blocks for as long as [`end`] does.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for CallProcesses {
    fn drop(&mut self) {
        if !self.is_detached {
            self.processes.end_call(self);
        }
    }
}

fn unexpected_report() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected report from the supervisor")
}

impl Processes {
    /// An empty registry. Makes this process the subreaper of its descendants; process 1 already is.
    pub(crate) fn new() -> Self {
        if !getpid().is_init()
            && let Err(error) = set_child_subreaper(Some(getpid()))
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot become a subreaper: a process that leaves both its parent and its session outlives the job"
            );
        }
        Self::default()
    }

    /// Starts a [`supervised_command`] whose directory, environment, standard input and output are already set.
    pub(crate) fn start(self: &Arc<Self>, mut command: Command) -> io::Result<CallProcesses> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let reports = Reports::new(UnixStream::from_std(ours)?);
        command.stderr(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
        let mut calls = self.calls.lock();
        let supervisor = i32::try_from(command.spawn()?.id()).map_err(io::Error::other)?;
        let facts = calls.add(supervisor);
        Ok(CallProcesses { processes: Arc::clone(self), facts, supervisor, reports, is_detached: false })
    }

    /// Kills every process of every call. Blocks for as long as [`end`] does.
    pub(crate) fn end_all(&self) {
        let calls = self.calls.lock();
        let own = own_pid();
        let supervisors: Vec<_> = calls.by_supervisor.keys().copied().collect();
        end(&supervisors, |all| {
            with_descendants(all, |process| process.parent == own || calls.by_supervisor.contains_key(&process.session))
        });
        drop(calls);
        self.reap_all();
    }

    /// Kills the background processes of calls that have returned. Blocks for as long as [`end`] does.
    pub(crate) fn end_background_processes(&self) {
        let mut calls = self.calls.lock();
        let left: Vec<_> =
            calls.by_supervisor.iter().filter(|(_, call)| call.has_returned).map(|(pid, _)| *pid).collect();
        for supervisor in left {
            calls.end_supervised(supervisor);
        }
        drop(calls);
        self.reap_all();
    }

    /// Whether a call is still running.
    pub(crate) fn other_calls_running(&self) -> bool {
        self.calls.lock().by_supervisor.values().any(|call| !call.has_returned)
    }

    /// Attributes a reached pids limit to a call: the only call, or the call with the most processes if it has at least
    /// a quarter of `limit`. Otherwise no call is responsible. The background processes of a call that has returned are
    /// killed at once.
    pub(crate) fn attribute_pids_exhaustion(&self, limit: u32) {
        let mut calls = self.calls.lock();
        let all = live_processes();
        let count = |supervisor: i32| with_descendants(&all, |process| is_below(process, supervisor)).len();
        let counts: Vec<_> = calls.by_supervisor.keys().map(|supervisor| (count(*supervisor), *supervisor)).collect();
        let Some(&(count, supervisor)) = counts.iter().max() else { return };
        if counts.len() > 1 && count < limit as usize / 4 {
            return;
        }
        let Some(call) = calls.by_supervisor.get(&supervisor) else { return };
        if call.has_returned {
            calls.end_supervised(supervisor);
        } else {
            call.facts.exhausted_pids.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a running call is responsible for the reached pids limit.
    pub(crate) fn any_call_exhausted_pids(&self) -> bool {
        self.calls.lock().by_supervisor.values().any(|call| call.facts.exhausted_pids.load(Ordering::Relaxed))
    }

    /// Reaps dead children for as long as the session runs.
    pub(crate) async fn reap_children(&self) -> io::Result<Infallible> {
        let mut child_signals = signal(SignalKind::child())?;
        loop {
            while self.reap() {
                tokio::task::yield_now().await;
            }
            child_signals.recv().await;
        }
    }

    fn end_call(&self, call: &CallProcesses) {
        let mut calls = self.calls.lock();
        if calls.get_mut(call).is_none() {
            return;
        }
        calls.end_supervised(call.supervisor);
        drop(calls);
        // Zombies count against the pids limit.
        self.reap_all();
    }

    fn expect_orphans(&self) {
        let mut calls = self.calls.lock();
        if !calls.may_have_orphans {
            calls.may_have_orphans = true;
            tracing::warn!(
                "the kernel refuses PR_SET_CHILD_SUBREAPER: when a call ends, only descendants that share a parent chain or \
                 a session with its command are killed; others run until the job ends"
            );
        }
    }

    fn reap_all(&self) {
        while self.reap() {}
    }

    /// Reaps up to [`REAP_BATCH`] dead children. Returns whether there may be more.
    fn reap(&self) -> bool {
        let mut calls = self.calls.lock();
        for _ in 0..REAP_BATCH {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let supervisor = pid.as_raw_nonzero().get();
                    // A supervisor exits by itself only after its last descendant. If it was killed, this process has
                    // adopted its descendants.
                    if calls.by_supervisor.remove(&supervisor).is_some() && status.exit_status() != Some(0) {
                        tracing::warn!("a supervisor was killed; killing the processes of its call");
                        calls.end_supervised(supervisor);
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return false,
            }
        }
        true
    }
}

impl Calls {
    fn add(&mut self, supervisor: i32) -> Arc<CallFacts> {
        let facts = Arc::new(CallFacts::default());
        for running in self.by_supervisor.values().filter(|call| !call.has_returned) {
            running.facts.overlapped.store(true, Ordering::Relaxed);
            facts.overlapped.store(true, Ordering::Relaxed);
        }
        self.by_supervisor.insert(supervisor, Call { has_returned: false, facts: Arc::clone(&facts) });
        facts
    }

    /// The call, unless its supervisor has been reaped: its pid may then belong to another call's supervisor.
    fn get_mut(&mut self, call: &CallProcesses) -> Option<&mut Call> {
        self.by_supervisor.get_mut(&call.supervisor).filter(|found| Arc::ptr_eq(&found.facts, &call.facts))
    }

    /// Whether a process was orphaned by a killed supervisor: this process adopted it, and a live supervisor would have
    /// adopted its own descendants.
    fn is_orphan(&self, process: &Process) -> bool {
        !self.may_have_orphans && process.parent == own_pid() && !self.by_supervisor.contains_key(&process.pid)
    }

    /// Kills the descendants of a supervisor and then the supervisor itself, which its command may have stopped.
    fn end_supervised(&mut self, supervisor: i32) {
        end(&[supervisor], |all| {
            with_descendants(all, |process| is_below(process, supervisor) || self.is_orphan(process))
        });
        if self.by_supervisor.remove(&supervisor).is_some()
            && let Some(pid) = Pid::from_raw(supervisor)
        {
            // It has most likely exited by itself. Its pid cannot be reused before it is reaped.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Whether a process is a child of this supervisor or in its session. A session id is not reused while it has members.
const fn is_below(process: &Process, supervisor: i32) -> bool {
    process.pid != supervisor && (process.parent == supervisor || process.session == supervisor)
}

fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
}
