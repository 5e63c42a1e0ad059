//! How much a workspace may hold, in bytes and entries, and how much of that is left.

use chrono::TimeDelta;
use protocol::{FileKind, Limits};

use super::{
    FileError,
    folder::Folder,
    walk::{Cutoff, Walk},
};
use crate::clock::Clock;

const MB: u64 = 1024 * 1024;
/// One entry for each 4 KiB of the limit: a file system's own block, so that empty files cannot outrun the bytes.
const ENTRIES_PER_MB: u64 = 256;

/// Room in a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// For content.
    pub bytes: u64,
    /// For files, directories and links.
    pub entries: u64,
}

impl Room {
    /// All that a job is given.
    pub fn of(limits: &Limits) -> Self {
        Self { bytes: limits.disk_mb.saturating_mul(MB), entries: limits.disk_mb.saturating_mul(ENTRIES_PER_MB) }
    }

    /// Without what is in a folder; none when that is more, or deeper than anything walks.
    pub(super) fn without(self, folder: Folder, cutoff: &Cutoff) -> Result<Option<Self>, FileError> {
        let usage = usage(folder, self, cutoff)?;
        let bytes = self.bytes.checked_sub(usage.bytes).filter(|_| !usage.is_beyond_counting);
        Ok(bytes.map(|bytes| Self { bytes, entries: self.entries.saturating_sub(usage.entries) }))
    }

    /// Takes one entry with its content; says what is missing.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), FileError> {
        let (Some(bytes), Some(entries)) = (self.bytes.checked_sub(bytes), self.entries.checked_sub(1)) else {
            return Err(Self::full());
        };
        *self = Self { bytes, entries };
        Ok(())
    }

    /// Nothing more fits.
    pub fn full() -> FileError {
        FileError::TooLarge("it does not fit into what is left of limits.disk_mb".to_owned())
    }
}

/// What a folder holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// On disk, of files, directories and links; a file with two names counts twice.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
    /// It has more entries than the room allows, or is too deep: the rest was not counted.
    pub is_beyond_counting: bool,
    /// Something was not where it had been read.
    pub has_missed: bool,
    /// A folder changed while it was counted: something may have been moved past the count.
    pub has_changed: bool,
}

/// Coarser than the clock that file systems take their times from (a tick of the kernel, at most 10 ms).
const TIMESTAMP_GRAIN: TimeDelta = TimeDelta::milliseconds(20);

/// Counts what is in a folder, to the end also beyond the room's bytes: how much too much it is decides who goes first.
pub(super) fn usage(folder: Folder, room: Room, cutoff: &Cutoff) -> Result<Usage, FileError> {
    // The file system's own time, whatever clock the rest is given.
    let start = Clock::system().now() - TIMESTAMP_GRAIN;
    let mut usage = Usage::default();
    let mut walk = Walk::of(folder, room.entries).until(cutoff.clone()).noting_changes_since(start);
    loop {
        match walk.next() {
            Ok(Some(found)) => {
                usage.bytes = usage.bytes.saturating_add(found.look.taken_bytes);
                usage.entries += 1;
            }
            Ok(None) => break,
            Err(FileError::TooLarge(_)) => {
                usage.is_beyond_counting = true;
                break;
            }
            // Enough is known.
            Err(FileError::TooSlow) if usage.bytes > room.bytes => break,
            Err(FileError::NotAFile(_)) => return Err(FileError::NotReadable),
            Err(error) => return Err(error),
        }
    }
    Ok(Usage { has_missed: walk.has_missed(), has_changed: walk.has_changed(), ..usage })
}

/// What a folder's files claim to hold, holes too; an error when it is more than `most` or cannot be walked.
pub(super) fn claimed(folder: Folder, most: Room, cutoff: &Cutoff) -> Result<(), FileError> {
    let mut walk = Walk::of(folder, most.entries).until(cutoff.clone());
    let mut left = most.bytes;
    while let Some(found) = walk.next()? {
        if found.look.kind == FileKind::File {
            left = left.checked_sub(found.look.size_bytes).ok_or_else(|| {
                FileError::TooLarge(
                    "the files claim far more than the workspace holds (holes?); read them one by one".to_owned(),
                )
            })?;
        }
    }
    Ok(())
}
