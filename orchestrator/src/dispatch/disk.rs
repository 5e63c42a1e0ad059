//! How full the workspaces of running jobs are: a sweep of bytes and inodes every second, over which a job is evicted.
//!
//! `fsize` bounds one file; this bounds their sum. Only measures; evicting is the dispatcher's.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use protocol::{JobId, JobState};
use tokio_util::sync::CancellationToken;

use super::{Wake, Workspaces};
use crate::store::{Store, StoreError};

/// Between sweeps (contract: sandbox, Posture).
const EVERY: Duration = Duration::from_secs(1);
/// Blocks as `stat` counts them.
const BLOCK_BYTES: u64 = 512;
/// One file for each 4 KiB of the limit: a file system's own block, so that empty files cannot outrun the bytes.
const INODES_PER_MB: u64 = 256;
const MB: u64 = 1024 * 1024;
/// Folders within folders; what is deeper is as good as full, since nothing else walks it either.
const MAX_DEPTH: usize = 512;

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
    pub async fn run(self, drain: CancellationToken) -> Result<(), StoreError> {
        loop {
            tokio::select! {
                () = drain.cancelled() => return Ok(()),
                () = tokio::time::sleep(EVERY) => {}
            }
            let running = self.store.unfinished().await?;
            let folders: Vec<(JobId, u64, PathBuf)> = running
                .iter()
                .filter(|job| matches!(job.state, JobState::InProgress | JobState::Stuck))
                .map(|job| (job.id, job.limits.disk_mb, self.workspaces.folder(job.id)))
                .collect();
            let measured = tokio::task::spawn_blocking(move || {
                let over = folders.into_iter().filter(|(_, disk_mb, folder)| is_over(folder, *disk_mb));
                over.map(|(job, ..)| job).collect::<HashSet<_>>()
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

/// Whether a folder holds more than `disk_mb`, or more files than that allows. Stops counting once it does.
fn is_over(folder: &Path, disk_mb: u64) -> bool {
    let mut left = Left { bytes: disk_mb.saturating_mul(MB), inodes: disk_mb.saturating_mul(INODES_PER_MB) };
    !left.take_folder(folder, 0)
}

struct Left {
    bytes: u64,
    inodes: u64,
}

impl Left {
    /// False once nothing is left. What vanishes while it is looked at counts nothing.
    fn take_folder(&mut self, folder: &Path, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return false;
        }
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            // Fail closed: a folder that cannot be looked into (we are not root) may hold anything.
            Err(error) => return error.kind() != io::ErrorKind::PermissionDenied,
        };
        for entry in entries.flatten() {
            // Of the link itself: what it points at is elsewhere.
            let Ok(metadata) = entry.metadata() else { continue };
            let (Some(inodes), Some(bytes)) =
                (self.inodes.checked_sub(1), self.bytes.checked_sub(metadata.blocks().saturating_mul(BLOCK_BYTES)))
            else {
                return false;
            };
            (self.inodes, self.bytes) = (inodes, bytes);
            if metadata.is_dir() && !self.take_folder(&entry.path(), depth + 1) {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn filled(make: impl FnOnce(&Path)) -> bool {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path());
        is_over(folder.path(), 1)
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
        let touch = |folder: &Path, files: u64| {
            for index in 0..files {
                fs::write(folder.join(index.to_string()), "").unwrap();
            }
        };
        assert!(!filled(|folder| touch(folder, INODES_PER_MB)));
        assert!(filled(|folder| touch(folder, INODES_PER_MB + 1)));
    }

    #[test]
    fn a_hole_in_a_file_and_a_link_out_of_the_workspace_take_no_room() {
        assert!(!filled(|folder| {
            fs::File::create(folder.join("sparse")).unwrap().set_len(1 << 40).unwrap();
            symlink("/usr", folder.join("out")).unwrap();
        }));
    }
}
