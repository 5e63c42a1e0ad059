//! The processes that tool calls start: their start, their end, and the reaping of everything that dies.
//!
//! A command can leave its process group, its session and its parent (`setsid`, double fork). Three things find its
//! processes all the same: the process group of the call's first process, a mark in the environment, and, since orphans
//! become children of this process, parentage. A process may change its own environment, so a mark that is not of this
//! session counts as no mark. This is the only module that waits for children; nothing else in the worker may, because
//! process 1 has to collect every dead child and a second waiter would take statuses away. Never touches a process that
//! is not a descendant.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    fs, io,
    process::Child,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use protocol::CallId;
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// The variable that marks a call's processes.
pub(crate) const MARK: &str = "GANTRY_CALL";
/// Stopping them first keeps a fork bomb from forking ahead of the scan; one that cannot be stopped is killed anyway.
const STOP_ROUNDS: u32 = 8;
const KILL_MILLISECONDS: u64 = 600;
const PAUSE_MILLISECONDS: u64 = 2;
/// Children collected before other work gets its turn.
const REAP_BATCH: usize = 256;

/// Who becomes the parent of a process whose own has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Orphans {
    /// This process, which starts nothing but tool calls.
    Adopted,
    /// Another process: a test's process must not adopt what other tests start.
    #[cfg(test)]
    Elsewhere,
}

/// Makes this process the parent of its orphaned descendants, which process 1 is without asking.
pub(crate) fn adopt_orphans() -> io::Result<Orphans> {
    if !getpid().is_init() {
        set_child_subreaper(Some(getpid()))?;
    }
    Ok(Orphans::Adopted)
}

/// One line of `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    state: u8,
}

/// Everything that the tool calls of one session have started.
#[derive(Debug)]
pub(crate) struct Processes {
    session: String,
    orphans: Orphans,
    /// Held while a process is started, while some are ended and while the dead are collected, so that a child is never
    /// collected before it is registered.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The calls' first processes that have not been collected yet, and where their status goes.
    leaders: HashMap<i32, oneshot::Sender<WaitStatus>>,
    /// The marks of this session's calls, ended ones included: what such a call left in the background has one.
    marks: HashSet<String>,
}

/// The processes of one call. Dropping this ends all of them; [`CallProcesses::keep`] does not.
#[derive(Debug)]
pub(crate) struct CallProcesses {
    processes: Arc<Processes>,
    mark: String,
    leader: i32,
    exited: oneshot::Receiver<WaitStatus>,
    kept: bool,
}

impl CallProcesses {
    /// The process id of the first one. It may have ended.
    pub(crate) const fn leader(&self) -> i32 {
        self.leader
    }

    /// Waits for the first process to end. To be called until it returns, and not after.
    pub(crate) async fn wait(&mut self) -> io::Result<WaitStatus> {
        (&mut self.exited).await.map_err(|_| io::Error::other("its status is lost"))
    }

    /// Lets what runs in the background run on.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }

    /// Ends every process of the call, wherever it went. Blocks, for [`KILL_MILLISECONDS`] at most.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for CallProcesses {
    fn drop(&mut self) {
        if !self.kept {
            self.processes.end_call(&self.mark, self.leader);
        }
    }
}

impl Processes {
    /// For a session that has started nothing yet.
    pub(crate) fn new(orphans: Orphans) -> Self {
        Self { session: CallId::generate().0, orphans, state: Mutex::default() }
    }

    /// Starts a call's first process, which `spawn` does with the mark it is given, in a process group of its own.
    pub(crate) fn start(self: &Arc<Self>, spawn: impl FnOnce(&str) -> io::Result<Child>) -> io::Result<CallProcesses> {
        let mark = format!("{}.{}", self.session, CallId::generate());
        let mut state = self.state();
        let leader = i32::try_from(spawn(&mark)?.id()).map_err(io::Error::other)?;
        let (tell, exited) = oneshot::channel();
        state.leaders.insert(leader, tell);
        state.marks.insert(mark.clone());
        Ok(CallProcesses { processes: Arc::clone(self), mark, leader, exited, kept: false })
    }

    /// Ends every process of every call. Blocks likewise.
    pub(crate) fn end_all(&self) {
        let state = self.state();
        let me = getpid().as_raw_nonzero().get();
        end(|| {
            let all = alive();
            let is_ours = |process: &&Process| {
                state.leaders.contains_key(&process.group)
                    || (self.orphans == Orphans::Adopted && process.parent == me)
                    || mark_of(process.pid).is_some_and(|mark| mark.starts_with(&self.session))
            };
            let found = all.iter().filter(is_ours).map(|process| process.pid).collect();
            with_descendants(&all, found)
        });
        drop(state);
        while self.reap() {}
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

    fn end_call(&self, mark: &str, leader: i32) {
        let state = self.state();
        end(|| self.of_call(mark, leader, &state));
        drop(state);
        // Until they are collected they count against the limit of processes.
        while self.reap() {}
    }

    /// Collects up to [`REAP_BATCH`] dead children. Whether there may be more.
    fn reap(&self) -> bool {
        let mut state = self.state();
        match self.orphans {
            Orphans::Adopted => {
                for _ in 0..REAP_BATCH {
                    match wait(WaitOptions::NOHANG) {
                        Ok(Some((pid, status))) => state.collected(pid, status),
                        Err(Errno::INTR) => {}
                        Ok(None) | Err(_) => return false,
                    }
                }
                true
            }
            #[cfg(test)]
            Orphans::Elsewhere => {
                let leaders: Vec<_> = state.leaders.keys().copied().filter_map(Pid::from_raw).collect();
                for leader in leaders {
                    if let Ok(Some((pid, status))) = rustix::process::waitpid(Some(leader), WaitOptions::NOHANG) {
                        state.collected(pid, status);
                    }
                }
                false
            }
        }
    }

    fn of_call(&self, mark: &str, leader: i32, state: &State) -> Vec<Process> {
        let me = getpid().as_raw_nonzero().get();
        let all = alive();
        let belongs = |process: &&Process| {
            if process.group == leader {
                return true;
            }
            match mark_of(process.pid) {
                Some(found) if state.marks.contains(&found) => found == mark,
                // An adopted orphan that changed its environment names no call: it goes with the first that is ended.
                _ => {
                    self.orphans == Orphans::Adopted
                        && process.parent == me
                        && !state.leaders.contains_key(&process.pid)
                }
            }
        };
        let found = all.iter().filter(belongs).map(|process| process.pid).collect();
        with_descendants(&all, found)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn collected(&mut self, pid: Pid, status: WaitStatus) {
        if let Some(tell) = self.leaders.remove(&pid.as_raw_nonzero().get()) {
            // A call that was dropped does not ask.
            let _ = tell.send(status);
        }
    }
}

/// Stops, then kills what `find` finds until it finds nothing.
fn end(find: impl Fn() -> Vec<Process>) {
    let deadline = Instant::now() + Duration::from_millis(KILL_MILLISECONDS);
    let mut round = 0;
    loop {
        let found = find();
        if found.is_empty() {
            return;
        }
        if Instant::now() > deadline {
            tracing::warn!(left = found.len(), "processes of a call could not be ended");
            return;
        }
        let running = found.iter().filter(|process| process.state != b'T').count();
        let signal = if round < STOP_ROUNDS && running > 0 { Signal::STOP } else { Signal::KILL };
        for pid in found.iter().filter_map(|process| Pid::from_raw(process.pid)) {
            // It may have ended since it was seen.
            let _ = kill_process(pid, signal);
        }
        round += 1;
        if signal == Signal::KILL {
            std::thread::sleep(Duration::from_millis(PAUSE_MILLISECONDS));
        }
    }
}

fn with_descendants(all: &[Process], mut found: HashSet<i32>) -> Vec<Process> {
    loop {
        let before = found.len();
        found.extend(
            all.iter().filter(|process| found.contains(&process.parent)).map(|process| process.pid).collect::<Vec<_>>(),
        );
        if found.len() == before {
            return all.iter().filter(|process| found.contains(&process.pid)).copied().collect();
        }
    }
}

fn alive() -> Vec<Process> {
    let mut all = scan();
    all.retain(|process| !matches!(process.state, b'Z' | b'X'));
    all
}

fn scan() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            parse_stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
        })
        .collect()
}

/// The fields after the command's name, which may itself hold spaces and parentheses.
fn parse_stat(pid: i32, stat: &str) -> Option<Process> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, group, state })
}

fn mark_of(pid: i32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_cannot_forge_the_fields() {
        let stat = "42 (a) S 1 (b)) R 7 9 9 0 -1 4194304 1 0";
        assert_eq!(parse_stat(42, stat), Some(Process { pid: 42, parent: 7, group: 9, state: b'R' }));
        assert_eq!(parse_stat(42, "42 no name"), None);
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let process = |pid, parent| Process { pid, parent, group: pid, state: b'S' };
        let all = [process(5, 4), process(4, 3), process(3, 1), process(9, 1)];
        let found = with_descendants(&all, HashSet::from([3]));
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [5, 4, 3]);
    }
}
