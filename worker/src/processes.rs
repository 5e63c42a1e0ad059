//! The processes that tool calls leave behind, found in `/proc` and ended.
//!
//! A command can leave its process group, its session and its parent (`setsid`, double fork), but not what it was born
//! with: each call's processes carry a mark in their environment. In a container the worker also adopts orphans, so
//! that one which wiped its environment is still its child. Owns the finding, the ending and the reaping. Never touches
//! a process that is not a descendant and does not carry this session's mark.

use std::{
    collections::HashSet,
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use protocol::CallId;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// The variable that marks a call's processes.
pub(crate) const MARK: &str = "GANTRY_CALL";
/// Stopping them first keeps a fork bomb from forking ahead of the scan; one that cannot be stopped is killed anyway.
const STOP_ROUNDS: u32 = 8;
const KILL_MILLISECONDS: u64 = 600;
const PAUSE_MILLISECONDS: u64 = 2;

/// Who becomes the parent of a process whose own has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Orphans {
    /// This process: it has asked the kernel to be their reaper, and starts nothing but tool calls.
    Adopted,
    /// Somebody else: a test's process must not adopt what other tests start.
    #[cfg(test)]
    Elsewhere,
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
    /// The direct children that are waited for elsewhere. Held while one is started and while some are ended, so that
    /// a child between fork and exec is never taken for an orphan.
    waited_for: Mutex<HashSet<i32>>,
}

/// One call's mark, and its first process.
#[derive(Debug, Clone)]
pub(crate) struct CallProcesses {
    mark: String,
    first: i32,
}

impl Processes {
    /// For a session that has started nothing yet.
    pub(crate) fn new(orphans: Orphans) -> Self {
        Self { session: CallId::generate().0, orphans, waited_for: Mutex::new(HashSet::new()) }
    }

    /// Starts a call's first process, which `spawn` does with the mark it is given.
    pub(crate) fn start<C, E>(&self, spawn: impl FnOnce(&str) -> Result<(C, i32), E>) -> Result<(C, CallProcesses), E> {
        let mark = format!("{}.{}", self.session, CallId::generate());
        let mut waited_for = self.waited_for();
        let (child, first) = spawn(&mark)?;
        waited_for.insert(first);
        Ok((child, CallProcesses { mark, first }))
    }

    /// The call's first process has been waited for.
    pub(crate) fn collected(&self, call: &CallProcesses) {
        self.waited_for().remove(&call.first);
    }

    /// Ends every process of one call, wherever it went. Blocks, for [`KILL_MILLISECONDS`] at most.
    pub(crate) fn end_call(&self, call: &CallProcesses) {
        let waited_for = self.waited_for();
        end(|| self.of_call(call, &waited_for));
    }

    /// Ends every process of every call. Blocks likewise.
    pub(crate) fn end_all(&self) {
        let _waited_for = self.waited_for();
        let me = getpid().as_raw_nonzero().get();
        end(|| {
            let all = alive();
            let seeds = all.iter().filter(|process| mark_of(process.pid).is_some_and(|mark| self.is_ours(&mark)));
            let mut found: HashSet<i32> = seeds.map(|process| process.pid).collect();
            if self.orphans == Orphans::Adopted {
                found.extend(all.iter().filter(|process| process.parent == me).map(|process| process.pid));
            }
            with_descendants(&all, found)
        });
    }

    /// Collects the dead among adopted orphans.
    pub(crate) fn reap_orphans(&self) {
        if self.orphans != Orphans::Adopted {
            return;
        }
        let waited_for = self.waited_for();
        let me = getpid().as_raw_nonzero().get();
        for process in scan() {
            if process.parent == me && process.state == b'Z' && !waited_for.contains(&process.pid) {
                // Gone already is as good.
                let _ = waitpid(Pid::from_raw(process.pid), WaitOptions::NOHANG);
            }
        }
    }

    fn of_call(&self, call: &CallProcesses, waited_for: &HashSet<i32>) -> Vec<Process> {
        let me = getpid().as_raw_nonzero().get();
        let all = alive();
        let belongs = |process: &&Process| {
            if process.group == call.first {
                return true;
            }
            match mark_of(process.pid) {
                Some(mark) => mark == call.mark,
                // An adopted orphan that wiped its environment names no call: it goes with the first that is ended.
                None => self.orphans == Orphans::Adopted && process.parent == me && !waited_for.contains(&process.pid),
            }
        };
        let found = all.iter().filter(belongs).map(|process| process.pid).collect();
        with_descendants(&all, found)
    }

    fn is_ours(&self, mark: &str) -> bool {
        mark.starts_with(&self.session)
    }

    fn waited_for(&self) -> MutexGuard<'_, HashSet<i32>> {
        self.waited_for.lock().unwrap_or_else(PoisonError::into_inner)
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
