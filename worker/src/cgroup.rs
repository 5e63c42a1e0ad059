//! Counters of the container's cgroup: how often its limits were reached.
//!
//! Reads the files of cgroup v1 and v2. Never writes to them and never fails: the counter of an unreadable file is 0.

use std::{fs, path::PathBuf};

use protocol::{AgentEvent, LimitName, Limits};

/// A limit of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerLimit {
    /// The number of processes.
    Pids,
    /// Memory: the kernel killed a process.
    Memory,
}

impl ContainerLimit {
    /// The event for the journal, with the limit's value.
    pub(crate) fn event(self, limits: &Limits) -> AgentEvent {
        match self {
            Self::Pids => AgentEvent::Limit { limit: LimitName::Pids, value: limits.pids.into() },
            Self::Memory => AgentEvent::Limit { limit: LimitName::Memory, value: limits.memory_mb.into() },
        }
    }
}

/// How often each limit was reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pids: u64,
    memory: u64,
}

impl Counters {
    /// The limits that were reached since `before`.
    pub(crate) fn since(self, before: Self) -> impl Iterator<Item = ContainerLimit> {
        let pids = (self.pids > before.pids).then_some(ContainerLimit::Pids);
        let memory = (self.memory > before.memory).then_some(ContainerLimit::Memory);
        pids.into_iter().chain(memory)
    }

    /// Copies one limit's counter from `now`.
    pub(crate) const fn advance(&mut self, limit: ContainerLimit, now: Self) {
        match limit {
            ContainerLimit::Pids => self.pids = now.pids,
            ContainerLimit::Memory => self.memory = now.memory,
        }
    }
}

/// The cgroup file system.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    root: PathBuf,
}

impl Cgroup {
    /// The file system at `root`; `/sys/fs/cgroup` in a container.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Reads the counters.
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            pids: self.first_of(&["pids/pids.events", "pids.events"], "max"),
            memory: self.first_of(&["memory/memory.oom_control", "memory.events"], "oom_kill"),
        }
    }

    fn first_of(&self, files: &[&str], key: &str) -> u64 {
        files
            .iter()
            .find_map(|file| fs::read_to_string(self.root.join(file)).ok())
            .and_then(|text| {
                text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
            })
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::v1("pids/pids.events", "max 3\n", Counters { pids: 3, memory: 0 })]
    #[case::v1("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", Counters { pids: 0, memory: 2 })]
    #[case::v2("pids.events", "max 1\n", Counters { pids: 1, memory: 0 })]
    #[case::v2("memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill 4\noom_group_kill 0\n", Counters { pids: 0, memory: 4 })]
    #[case::garbage("pids.events", "max lots\n", Counters::default())]
    fn counters_are_read_from_both_cgroup_versions(#[case] file: &str, #[case] text: &str, #[case] expected: Counters) {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        assert_eq!(Cgroup::at(root.path()).counters(), expected);
    }

    #[test]
    fn only_increased_counters_count() {
        let before = Counters { pids: 2, memory: 1 };
        let hit = |pids, memory| Counters { pids, memory }.since(before).collect::<Vec<_>>();
        assert_eq!(hit(2, 1), []);
        assert_eq!(hit(2, 2), [ContainerLimit::Memory]);
        assert_eq!(hit(5, 3), [ContainerLimit::Pids, ContainerLimit::Memory]);
    }
}
