//! File descriptors: the process's limit, and how it is divided.
//!
//! Owns the shares. Never opens anything.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Upper bound of the limit that is used; more connections are never served.
const UNLIMITED: u64 = 1 << 20;
/// Connections of one worker socket, however few descriptors there are.
const MIN_WORKER_SHARE: usize = 8;
/// Connections of the public listener, however few descriptors there are.
const MIN_PUBLIC_SHARE: usize = 16;

/// Raises the soft limit on open files to the hard one. Connections are descriptors, and the usual soft limit of 1,024 is
/// made for programs that use `select`.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}

/// The shares of file descriptors: half for worker sockets, a quarter for the public listener, and a quarter for the engine,
/// the database and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// Connections of all worker sockets together.
    pub workers: usize,
    /// Connections of one worker socket.
    pub worker_share: usize,
    /// Connections of the public listener.
    pub public: usize,
}

impl Descriptors {
    /// The shares of the current limit.
    pub fn in_force(max_parallel_jobs: usize) -> Self {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED), max_parallel_jobs)
    }

    fn of(limit: u64, max_parallel_jobs: usize) -> Self {
        let limit = usize::try_from(limit.min(UNLIMITED)).unwrap_or(usize::MAX);
        let worker_share = (limit / 2 / max_parallel_jobs.max(1)).max(MIN_WORKER_SHARE);
        Self { workers: (limit / 2).max(worker_share), worker_share, public: (limit / 4).max(MIN_PUBLIC_SHARE) }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::usual(20_000, 5, Descriptors { workers: 10_000, worker_share: 2_000, public: 5_000 })]
    #[case::small(1_024, 5, Descriptors { workers: 512, worker_share: 102, public: 256 })]
    #[case::many_jobs(1_024, 200, Descriptors { workers: 512, worker_share: 8, public: 256 })]
    #[case::tiny(8, 5, Descriptors { workers: 8, worker_share: 8, public: 16 })]
    #[case::unlimited(u64::MAX, 1, Descriptors { workers: 1 << 19, worker_share: 1 << 19, public: 1 << 18 })]
    fn are_shared_out(#[case] limit: u64, #[case] jobs: usize, #[case] expected: Descriptors) {
        assert_eq!(Descriptors::of(limit, jobs), expected);
    }
}
