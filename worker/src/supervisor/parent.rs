//! The worker's side of supervisors: which calls there are, reaping, and ending the processes of a call or of all.
//!
//! This is the only module that waits for children; nothing else in the worker may, because process 1 has to collect
//! every dead child and a second waiter would take statuses away. Never signals a process that is not a descendant.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

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

/// This program, also where its file cannot be read and where another one took its place.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";
/// Children collected before other work gets its turn.
const REAP_BATCH: usize = 256;

/// A command line that runs `program` under a supervisor. Standard error is the caller's to leave alone.
pub(crate) fn supervised_command(program: &str) -> Command {
    let mut command = Command::new(OWN_PROGRAM);
    command.args(["run", "--", program]);
    command
}

/// The supervisors of one session.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Held while a supervisor is started, while processes are ended and while the dead are collected, so that a child is
    /// never collected before it is registered and no pid that is about to be signalled becomes free.
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    by_supervisor: HashMap<i32, Call>,
    /// Some supervisor is no subreaper, so this process may have adopted what such a call left in the background.
    orphans_may_be_kept: bool,
}

/// A call whose supervisor has not been collected yet.
#[derive(Debug)]
struct Call {
    /// It has its result; what still runs was left in the background.
    has_returned: bool,
    facts: Arc<CallFacts>,
}

/// What is known of a call, also once its supervisor has been collected.
#[derive(Debug, Default)]
struct CallFacts {
    /// Other calls ran at the same time.
    ran_beside_others: AtomicBool,
    /// It took up most of the container's processes when there were no more.
    exhausted_pids: AtomicBool,
}

/// The processes of one call. Dropping this ends all of them; [`CallProcesses::keep`] does not.
#[derive(Debug)]
pub(crate) struct CallProcesses {
    processes: Arc<Processes>,
    facts: Arc<CallFacts>,
    supervisor: i32,
    reports: Reports,
    is_kept: bool,
}

impl CallProcesses {
    /// Waits until the command runs. The error is the system's when it cannot be started.
    pub(crate) async fn started(&mut self) -> io::Result<()> {
        match self.reports.next().await? {
            SupervisorReport::Started { is_subreaper } => {
                if !is_subreaper {
                    self.processes.keep_orphans();
                }
                Ok(())
            }
            SupervisorReport::NotStarted { errno } => Err(io::Error::from_raw_os_error(errno)),
            SupervisorReport::Ended(_) => Err(unexpected_report()),
        }
    }

    /// Waits for the command to end. Cancel safe; to be called until it returns, and not after. An error when the
    /// supervisor was killed.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        match self.reports.next().await? {
            SupervisorReport::Ended(status) => Ok(status),
            SupervisorReport::Started { .. } | SupervisorReport::NotStarted { .. } => Err(unexpected_report()),
        }
    }

    /// Whether it took up most of the container's processes when there were no more.
    pub(crate) fn exhausted_pids(&self) -> bool {
        self.facts.exhausted_pids.load(Ordering::Relaxed)
    }

    /// Whether no other call has run at the same time.
    pub(crate) fn ran_alone(&self) -> bool {
        !self.facts.ran_beside_others.load(Ordering::Relaxed)
    }

    /// Whether no other call has a process.
    pub(crate) fn is_only_one(&self) -> bool {
        self.processes.calls().by_supervisor.values().all(|call| Arc::ptr_eq(&call.facts, &self.facts))
    }

    /// Lets what runs in the background run on.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
        if let Some(call) = self.processes.calls().get_mut(&self) {
            call.has_returned = true;
        }
    }

    /// Ends every process of the call, wherever it went. Blocks for as long as [`end`] does.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for CallProcesses {
    fn drop(&mut self) {
        if !self.is_kept {
            self.processes.end_call(self);
        }
    }
}

fn unexpected_report() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the supervisor's report makes no sense")
}

impl Processes {
    /// For a session that has started nothing yet. Makes this process the parent of its orphaned descendants, which
    /// process 1 is without asking.
    pub(crate) fn new() -> Self {
        if !getpid().is_init()
            && let Err(error) = set_child_subreaper(Some(getpid()))
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "this process cannot adopt orphans: a process that leaves both its parent and its session outlives its job"
            );
        }
        Self::default()
    }

    /// Starts a supervisor: a [`supervised_command`] with its folder, environment and standard input and output.
    pub(crate) fn start(self: &Arc<Self>, mut command: Command) -> io::Result<CallProcesses> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let reports = Reports::new(UnixStream::from_std(ours)?);
        command.stderr(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
        let mut calls = self.calls();
        let supervisor = i32::try_from(command.spawn()?.id()).map_err(io::Error::other)?;
        let facts = calls.add(supervisor);
        Ok(CallProcesses { processes: Arc::clone(self), facts, supervisor, reports, is_kept: false })
    }

    /// Ends every process of every call. Blocks likewise.
    pub(crate) fn end_all(&self) {
        let calls = self.calls();
        let own = own_pid();
        end(|all| {
            with_descendants(all, |process| process.parent == own || calls.by_supervisor.contains_key(&process.session))
        });
        drop(calls);
        self.reap_all();
    }

    /// Ends what calls that have returned left in the background. Blocks likewise.
    pub(crate) fn end_left_behind(&self) {
        let mut calls = self.calls();
        let left: Vec<_> =
            calls.by_supervisor.iter().filter(|(_, call)| call.has_returned).map(|(pid, _)| *pid).collect();
        for supervisor in left {
            calls.end_one(supervisor);
        }
        drop(calls);
        self.reap_all();
    }

    /// Whether a call other than this one has no result yet.
    pub(crate) fn others_run(&self) -> bool {
        self.calls().by_supervisor.values().any(|call| !call.has_returned)
    }

    /// Finds the call that takes up the container's processes, to be called when there are no more. It is the only one
    /// there is, or the one with the most processes if those are a quarter of `limit` at least; else there is none. One
    /// that has returned is ended at once, as nobody waits for what it left.
    pub(crate) fn blame_for_pids(&self, limit: u32) {
        let mut calls = self.calls();
        let all = live_processes();
        let count = |supervisor: i32| with_descendants(&all, |process| is_below(process, supervisor)).len();
        let counts: Vec<_> = calls.by_supervisor.keys().map(|supervisor| (count(*supervisor), *supervisor)).collect();
        let Some(&(count, supervisor)) = counts.iter().max() else { return };
        if counts.len() > 1 && count < limit as usize / 4 {
            return;
        }
        let Some(call) = calls.by_supervisor.get(&supervisor) else { return };
        if call.has_returned {
            calls.end_one(supervisor);
        } else {
            call.facts.exhausted_pids.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a running call was found to take up the container's processes.
    pub(crate) fn any_exhausted_pids(&self) -> bool {
        self.calls().by_supervisor.values().any(|call| call.facts.exhausted_pids.load(Ordering::Relaxed))
    }

    /// Collects the dead, for as long as the session lives.
    pub(crate) async fn collect_dead(&self) -> io::Result<Infallible> {
        let mut deaths = signal(SignalKind::child())?;
        loop {
            while self.reap() {
                tokio::task::yield_now().await;
            }
            deaths.recv().await;
        }
    }

    fn end_call(&self, call: &CallProcesses) {
        let mut calls = self.calls();
        if calls.get_mut(call).is_none() {
            return;
        }
        calls.end_one(call.supervisor);
        drop(calls);
        // Until they are collected they count against the limit of processes.
        self.reap_all();
    }

    fn keep_orphans(&self) {
        let mut calls = self.calls();
        if !calls.orphans_may_be_kept {
            calls.orphans_may_be_kept = true;
            tracing::warn!(
                "the kernel refuses PR_SET_CHILD_SUBREAPER: the end of a call ends the descendants of its command that are \
                 still connected to it by their parents or by their session; others live until the job ends"
            );
        }
    }

    fn reap_all(&self) {
        while self.reap() {}
    }

    /// Collects up to [`REAP_BATCH`] dead children. Whether there may be more.
    fn reap(&self) -> bool {
        let mut calls = self.calls();
        for _ in 0..REAP_BATCH {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let supervisor = pid.as_raw_nonzero().get();
                    // A supervisor exits when nothing is left below it. One that was killed leaves its processes here.
                    if calls.by_supervisor.remove(&supervisor).is_some() && status.exit_status() != Some(0) {
                        tracing::warn!("a supervisor was killed; the processes of its call are ended");
                        calls.end_one(supervisor);
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return false,
            }
        }
        true
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    fn add(&mut self, supervisor: i32) -> Arc<CallFacts> {
        let facts = Arc::new(CallFacts::default());
        for running in self.by_supervisor.values().filter(|call| !call.has_returned) {
            running.facts.ran_beside_others.store(true, Ordering::Relaxed);
            facts.ran_beside_others.store(true, Ordering::Relaxed);
        }
        self.by_supervisor.insert(supervisor, Call { has_returned: false, facts: Arc::clone(&facts) });
        facts
    }

    /// The call, unless its supervisor has been collected. Another call's supervisor may have the same pid then.
    fn get_mut(&mut self, call: &CallProcesses) -> Option<&mut Call> {
        self.by_supervisor.get_mut(&call.supervisor).filter(|found| Arc::ptr_eq(&found.facts, &call.facts))
    }

    /// Whether a process is an orphan of a supervisor that was killed: whatever this process has adopted, since a
    /// supervisor that lives adopts its own.
    fn is_orphan(&self, process: &Process) -> bool {
        !self.orphans_may_be_kept && process.parent == own_pid() && !self.by_supervisor.contains_key(&process.pid)
    }

    /// Ends the descendants of a supervisor, and then the supervisor itself, whatever its command has done to it.
    fn end_one(&mut self, supervisor: i32) {
        end(|all| with_descendants(all, |process| is_below(process, supervisor) || self.is_orphan(process)));
        if self.by_supervisor.remove(&supervisor).is_some()
            && let Some(pid) = Pid::from_raw(supervisor)
        {
            // It has most likely exited by itself; until it is collected, its pid is its own.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Whether a process is directly below this supervisor. A session's number stays taken while it has members.
const fn is_below(process: &Process, supervisor: i32) -> bool {
    process.pid != supervisor && (process.parent == supervisor || process.session == supervisor)
}

fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
}
