//! File descriptors: the process's limit, and how it is divided.
//!
//! Owns the shares. Never opens anything.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Upper bound of the limit that is used; more connections are never served.
const UNLIMITED: u64 = 1 << 20;
/// Connections that each worker socket must have: twice what a worker keeps open.
const MIN_WORKER_SHARE: usize = 8;
/// Connections to other hosts for all jobs together, where the descriptors suffice. Each has two descriptors.
const MAX_TUNNELS: usize = 1_024;
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
    /// Connections of all worker sockets together, without those that became tunnels.
    pub workers: usize,
    /// Tunnels of all jobs together, from the workers' half.
    pub tunnels: usize,
    /// Connections of one worker socket.
    pub worker_share: usize,
    /// Connections of the public listener.
    pub public: usize,
}

/// The limit on open files is too low for the jobs that may run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "max_parallel_jobs = {max_parallel_jobs} needs a limit of {} open files ({MIN_WORKER_SHARE} for each job, from half of \
     the limit); the limit is {limit}, enough for {} jobs",
    .max_parallel_jobs * MIN_WORKER_SHARE * 2,
    .limit / 2 / MIN_WORKER_SHARE
)]
pub struct TooFewDescriptors {
    max_parallel_jobs: usize,
    limit: usize,
}

impl Descriptors {
    /// The shares of the current limit.
    pub fn in_force(max_parallel_jobs: u32) -> Result<Self, TooFewDescriptors> {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED), max_parallel_jobs as usize)
    }

    fn of(limit: u64, max_parallel_jobs: usize) -> Result<Self, TooFewDescriptors> {
        let limit = usize::try_from(limit.min(UNLIMITED)).unwrap_or(usize::MAX);
        if limit / 2 / max_parallel_jobs < MIN_WORKER_SHARE {
            return Err(TooFewDescriptors { max_parallel_jobs, limit });
        }
        // At most half of what the sockets can do without, so that a tunnel never takes a session's descriptor.
        let tunnels = ((limit / 2 - max_parallel_jobs * MIN_WORKER_SHARE) / 4).min(MAX_TUNNELS);
        let workers = limit / 2 - 2 * tunnels;
        let worker_share = workers / max_parallel_jobs;
        Ok(Self { workers, tunnels, worker_share, public: (limit / 4).max(MIN_PUBLIC_SHARE) })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::usual(20_000, 5, Ok(Descriptors { workers: 7_952, tunnels: 1_024, worker_share: 1_590, public: 5_000 }))]
    #[case::small(1_024, 5, Ok(Descriptors { workers: 276, tunnels: 118, worker_share: 55, public: 256 }))]
    #[case::just_enough(1_024, 64, Ok(Descriptors { workers: 512, tunnels: 0, worker_share: 8, public: 256 }))]
    #[case::one_job_too_many(1_024, 65, Err(TooFewDescriptors { max_parallel_jobs: 65, limit: 1_024 }))]
    #[case::tiny(16, 1, Ok(Descriptors { workers: 8, tunnels: 0, worker_share: 8, public: 16 }))]
    #[case::unlimited(u64::MAX, 1, Ok(Descriptors { workers: 522_240, tunnels: 1_024, worker_share: 522_240, public: 1 << 18 }))]
    fn are_shared_out(
        #[case] limit: u64,
        #[case] jobs: usize,
        #[case] expected: Result<Descriptors, TooFewDescriptors>,
    ) {
        assert_eq!(Descriptors::of(limit, jobs), expected);
    }

    #[test]
    fn too_few_say_what_they_are_enough_for() {
        let error = TooFewDescriptors { max_parallel_jobs: 1_000, limit: 1_024 };
        assert_eq!(
            error.to_string(),
            "max_parallel_jobs = 1000 needs a limit of 16000 open files (8 for each job, from half of the limit); the limit \
             is 1024, enough for 64 jobs"
        );
    }
}
