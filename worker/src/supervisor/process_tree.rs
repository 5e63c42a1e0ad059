//! Lists processes from `/proc` and kills sets of them.
//!
//! The caller decides which processes belong to a call.

use std::{
    collections::HashSet,
    fs,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};

/// Upper bound of the phase in which processes are stopped before they are killed. A stopped fork bomb cannot reuse the
/// pids that killing some of its processes frees.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);
/// Killed processes are not waited for any longer than this: they may be in uninterruptible sleep.
const END_TIMEOUT: Duration = Duration::from_millis(600);
/// Delay between two checks of killed processes.
const KILL_PAUSE: Duration = Duration::from_millis(2);
/// Time for which the children of supervisors are signalled after each listing of `/proc`: several generations of the
/// fastest chain of forks.
const CHILD_SCAN_TIME: Duration = Duration::from_millis(5);

/// A process that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) session: i32,
    /// In clock ticks since boot. The pid and the start time together identify a process.
    start_time: u64,
}

/// All processes that have not ended.
pub(super) fn live_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| live_process(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

fn live_process(pid: i32) -> Option<Process> {
    parse_stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns `None` for a process that has ended. The second field, the command name, may contain spaces and parentheses.
fn parse_stat(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    // proc(5) counts from 1, and the state is its field 3.
    let number = |field: usize| fields.get(field - 3)?.parse::<i64>().ok();
    let state = *fields.first()?.as_bytes().first()?;
    // A process whose main thread has exited is listed as a zombie while its other threads run.
    let has_ended = matches!(state, b'Z' | b'X') && number(20)? <= 1;
    (!has_ended).then_some(Process {
        pid,
        parent: number(4)?.try_into().ok()?,
        session: number(6)?.try_into().ok()?,
        start_time: number(22)?.try_into().ok()?,
    })
}

/// The processes for which `is_root` holds, and all their descendants.
pub(super) fn with_descendants(all: &[Process], is_root: impl Fn(&Process) -> bool) -> Vec<Process> {
    let mut pids: HashSet<i32> = all.iter().filter(|process| is_root(process)).map(|process| process.pid).collect();
    loop {
        let before = pids.len();
        let children: Vec<_> = all.iter().filter(|process| pids.contains(&process.parent)).collect();
        pids.extend(children.into_iter().map(|process| process.pid));
        if pids.len() == before {
            return all.iter().filter(|process| pids.contains(&process.pid)).copied().collect();
        }
    }
}

/// Stops, then kills the processes that `select` returns and the children of `parents`. Ends when all `parents` have
/// exited and `select` returned nothing twice in a row: one listing of `/proc` may miss a process that was created
/// while it was read, and a subreaper among `parents` exits only after its last descendant. Blocks for little more than
/// [`END_TIMEOUT`] at most.
pub(super) fn end(parents: &[i32], select: impl Fn(&[Process]) -> Vec<Process>) {
    let started_at = Instant::now();
    let mut stopped = HashSet::new();
    let mut empty_rounds = 0;
    while empty_rounds < 2 {
        let found = select(&live_processes());
        let is_past_deadline = started_at.elapsed() > END_TIMEOUT;
        if is_past_deadline && !(found.is_empty() && empty_rounds > 0) {
            for process in &found {
                send(process, Signal::KILL);
            }
            tracing::warn!(found = found.len(), "processes of a tool call may still be running");
            return;
        }
        // Killing starts only after a listing without new processes: stopped processes do not fork.
        let unseen: Vec<_> = found.iter().filter(|process| stopped.insert((process.pid, process.start_time))).collect();
        let (signal, targets) = if !unseen.is_empty() && started_at.elapsed() < STOP_TIMEOUT {
            (Signal::STOP, unseen)
        } else {
            (Signal::KILL, found.iter().collect())
        };
        for process in targets {
            send(process, signal);
        }
        let is_any_parent_alive = signal_children(parents, signal);
        if found.is_empty() && !is_any_parent_alive {
            empty_rounds += 1;
        } else if signal == Signal::KILL {
            empty_rounds = 0;
            std::thread::sleep(KILL_PAUSE);
        }
    }
}

/// Signals the children of `parents` for [`CHILD_SCAN_TIME`] or until all `parents` have exited, and returns whether
/// one is alive. In a chain of processes that each start the next one and exit, none lives long enough to be found by a
/// listing of all of `/proc`; the list of one process's children is read in microseconds.
fn signal_children(parents: &[i32], signal: Signal) -> bool {
    let started_at = Instant::now();
    loop {
        let alive: Vec<_> = parents.iter().filter_map(|parent| live_process(*parent)).collect();
        if alive.is_empty() || started_at.elapsed() > CHILD_SCAN_TIME {
            return !alive.is_empty();
        }
        // The command may have stopped its supervisor, which must reap to exit.
        for parent in &alive {
            send(parent, Signal::CONT);
        }
        let children = alive.iter().flat_map(|parent| children(parent.pid)).filter_map(live_process);
        children.filter(|child| parents.contains(&child.parent)).for_each(|child| send(&child, signal));
    }
}

/// The children of a process, zombies included. Empty if the kernel does not list them (`CONFIG_PROC_CHILDREN`).
fn children(parent: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Signals a process unless it has ended since it was listed: its pid may have been reused.
fn send(process: &Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => {
            if live_process(process.pid).is_some_and(|now| now.start_time == process.start_time) {
                // ESRCH if it has just ended.
                let _ = pidfd_send_signal(handle, signal);
            }
        }
        Err(Errno::SRCH) => {}
        // The kernel has no pidfds (gVisor), or no file descriptor is left.
        Err(_) => {
            let _ = kill_process(pid, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn stat(name: &str, state: char, threads: u32) -> String {
        format!("42 ({name}) {state} 7 9 8 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 {threads} 0 1234 1 1")
    }

    #[test]
    fn a_command_name_cannot_forge_the_fields() {
        let expected = Process { pid: 42, parent: 7, session: 8, start_time: 1234 };
        assert_eq!(parse_stat(42, &stat("a) S 1 (b)", 'R', 1)), Some(expected));
        assert_eq!(parse_stat(42, "42 no name"), None);
        assert_eq!(parse_stat(42, "42 (short) R 7 9"), None);
    }

    #[rstest]
    #[case::running('R', 1, true)]
    #[case::stopped('T', 1, true)]
    #[case::zombie('Z', 1, false)]
    #[case::dead('X', 0, false)]
    #[case::only_the_main_thread_has_ended('Z', 2, true)]
    fn a_process_has_ended_when_all_its_threads_have(#[case] state: char, #[case] threads: u32, #[case] lives: bool) {
        assert_eq!(parse_stat(42, &stat("a", state, threads)).is_some(), lives);
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let process = |pid, parent| Process { pid, parent, session: 1, start_time: 0 };
        let all = [process(5, 4), process(4, 3), process(3, 1), process(9, 1)];
        let found = with_descendants(&all, |process| process.pid == 3);
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [5, 4, 3]);
    }
}
