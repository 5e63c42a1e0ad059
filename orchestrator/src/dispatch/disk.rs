//! How full the workspaces of running jobs are: a sweep of bytes and inodes every second, over which a job is evicted.
//!
//! `fsize` bounds one file; this bounds their sum. Only measures; evicting is the dispatcher's.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use protocol::{JobId, Limits};
use tokio_util::sync::CancellationToken;

use super::Wake;
use crate::{
    store::Store,
    workspace::{FileError, Workspaces},
};

/// Between sweeps (contract: sandbox, Posture).
const EVERY: Duration = Duration::from_secs(1);

/// Jobs whose workspace is over its limit.
#[derive(Debug, Clone, Default)]
pub struct Overfull(Arc<Mutex<HashSet<JobId>>>);

impl Overfull {
    /// As of the last sweep.
    pub fn jobs(&self) -> HashSet<JobId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, jobs: HashSet<JobId>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = jobs;
    }
}

/// The sweep.
pub struct DiskSweep {
    /// Which jobs run, and their limits.
    pub store: Store,
    /// Where they write.
    pub workspaces: Workspaces,
    /// Where the finding goes.
    pub overfull: Overfull,
    /// Rung when there is one.
    pub wake: Wake,
}

impl DiskSweep {
    /// Sweeps until the process drains.
    pub async fn run(self, drain: CancellationToken) {
        loop {
            tokio::select! {
                () = drain.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let running = match self.store.running().await {
                Ok(running) => running,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the disks of running jobs were not measured"
                    );
                    continue;
                }
            };
            let workspaces = self.workspaces.clone();
            let measured = tokio::task::spawn_blocking(move || {
                let over = running.into_iter().filter(|(job, limits)| is_over(&workspaces, *job, limits));
                over.map(|(job, _)| job).collect::<HashSet<_>>()
            });
            // A sweep that panicked found nothing; the next one looks again.
            let over = measured.await.unwrap_or_default();
            let news = !over.is_empty();
            self.overfull.set(over);
            if news {
                self.wake.wake();
            }
        }
    }
}

/// Whether a workspace holds more than its job may have. Stops counting once it does.
fn is_over(workspaces: &Workspaces, job: JobId, limits: &Limits) -> bool {
    match workspaces.room(job, limits, None) {
        Ok(_) => false,
        // Of our own making, and over with the next sweep.
        Err(FileError::Io(error)) => {
            tracing::warn!(job.id = %job, %error, "cannot measure a workspace");
            false
        }
        // Fail closed: a folder that cannot be looked into (we are not root) may hold anything.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::*;

    fn filled(make: impl FnOnce(&Path)) -> bool {
        let root = tempfile::tempdir().unwrap();
        let (workspaces, job) = (Workspaces::new(root.path().to_owned()), JobId::generate());
        workspaces.prepare(job, &[]).unwrap();
        make(&workspaces.folder(job));
        is_over(&workspaces, job, &Limits { disk_mb: 1, ..Limits::default() })
    }

    #[test]
    fn the_sum_counts_and_not_the_single_file() {
        let write = |folder: &Path, files: usize| {
            for index in 0..files {
                fs::create_dir_all(folder.join("a/b")).unwrap();
                fs::write(folder.join(format!("a/b/{index}")), vec![1; 300 * 1024]).unwrap();
            }
        };
        assert!(!filled(|folder| write(folder, 3)));
        assert!(filled(|folder| write(folder, 4)));
    }

    #[test]
    fn empty_files_count_too() {
        // One for each 4 KiB.
        let touch = |folder: &Path, files: u64| {
            for index in 0..files {
                fs::write(folder.join(index.to_string()), "").unwrap();
            }
        };
        assert!(!filled(|folder| touch(folder, 256)));
        assert!(filled(|folder| touch(folder, 257)));
    }

    #[test]
    fn a_hole_in_a_file_and_a_link_out_of_the_workspace_take_no_room() {
        assert!(!filled(|folder| {
            fs::File::create(folder.join("sparse")).unwrap().set_len(1 << 40).unwrap();
            symlink("/usr", folder.join("out")).unwrap();
        }));
    }
    #[test]
    fn what_is_too_deep_to_be_counted_is_over() {
        assert!(filled(|folder| {
            let mut folder =
                rustix::fs::open(folder, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
            for _ in 0..600 {
                rustix::fs::mkdirat(&folder, "d", rustix::fs::Mode::RWXU).unwrap();
                folder =
                    rustix::fs::openat(&folder, "d", rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
            }
        }));
    }
}
