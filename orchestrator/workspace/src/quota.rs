//! How much a workspace may hold, in bytes and entries, and how much of it is used.

use chrono::TimeDelta;
use protocol::Limits;

use super::{
    Cutoff, FileError,
    dir::{Dir, walk::Walk},
};
use base::clock::Clock;

const MB: u64 = 1024 * 1024;
/// One entry per 4 KiB of `limits.disk_mb`: the block size of common file systems, so that empty files cost as much of
/// the limit as they cost on disk.
const ENTRIES_PER_MB: u64 = 256;
/// Margin for the granularity of file timestamps: the kernel takes them at its tick, at most 10 ms apart.
const TIMESTAMP_GRANULARITY: TimeDelta = TimeDelta::milliseconds(20);

/// A number of bytes and entries, either a job's whole quota or what remains of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of file content.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

impl Quota {
    /// A job's whole quota.
    pub fn from_limits(limits: &Limits) -> Self {
        Self { bytes: limits.disk_mb.saturating_mul(MB), entries: limits.disk_mb.saturating_mul(ENTRIES_PER_MB) }
    }

    /// The quota that remains beside the content of `dir`; none if that is over the quota or exceeds a limit of the
    /// walk.
    pub(super) fn minus_usage(self, dir: Dir, cutoff: &Cutoff) -> Result<Option<Self>, FileError> {
        let usage = DiskUsage::measure(dir, self, cutoff)?;
        let bytes = self.bytes.checked_sub(usage.bytes).filter(|_| !usage.exceeds_walk_limits);
        Ok(bytes.map(|bytes| Self { bytes, entries: self.entries.saturating_sub(usage.entries) }))
    }

    /// Reserves one entry with its content.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<(), FileError> {
        let (Some(bytes), Some(entries)) = (self.bytes.checked_sub(bytes), self.entries.checked_sub(1)) else {
            return Err(Self::exceeded());
        };
        *self = Self { bytes, entries };
        Ok(())
    }

    /// Returns the content of an entry that is about to be replaced.
    pub(super) fn release_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The error for content beyond the quota.
    pub fn exceeded() -> FileError {
        FileError::TooLarge("does not fit into what remains of limits.disk_mb".to_owned())
    }
}

/// The usage of a directory tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Allocated on disk, by files, directories and links; a file with two hard links counts twice.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
    /// The tree has more entries than the quota or is too deep to walk; the rest is not counted.
    pub exceeds_walk_limits: bool,
    /// An entry vanished between being listed and being read: the count may be too low.
    pub has_missed_entries: bool,
    /// A directory changed while the tree was measured: an entry may have been moved past the walk.
    pub has_changed: bool,
}

impl DiskUsage {
    /// Measures a directory tree. Counts on after `quota.bytes` is exceeded, since the caller ranks jobs by how much
    /// they are over; past the cutoff it then returns what was counted so far.
    pub(super) fn measure(dir: Dir, quota: Quota, cutoff: &Cutoff) -> Result<Self, FileError> {
        // Compared with timestamps of the file system, so always the system's clock.
        let start = Clock::system().now() - TIMESTAMP_GRANULARITY;
        let mut usage = Self::default();
        let mut walk = Walk::new(dir, quota.entries).with_cutoff(cutoff.clone()).detecting_changes_since(start);
        loop {
            match walk.next_entry() {
                Ok(Some(entry)) => {
                    usage.bytes = usage.bytes.saturating_add(entry.metadata.allocated_bytes);
                    usage.entries += 1;
                }
                Ok(None) => break,
                Err(FileError::TooLarge(_)) => {
                    usage.exceeds_walk_limits = true;
                    break;
                }
                Err(FileError::TimedOut) if usage.bytes > quota.bytes => break,
                Err(FileError::NotAFile(_)) => return Err(FileError::PermissionDenied),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { has_missed_entries: walk.has_missed_entries, has_changed: walk.has_changed, ..usage })
    }
}
