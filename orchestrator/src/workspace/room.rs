//! How much a workspace may hold, in bytes and entries, and how much of that is left.

use protocol::{FileKind, Limits};

use super::{FileError, folder::Folder, walk::Walk};

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
    pub(super) fn without(self, folder: Folder) -> Result<Option<Self>, FileError> {
        let mut left = self;
        let mut walk = Walk::of(folder, self.entries);
        loop {
            let found = match walk.next() {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(Some(left)),
                Err(FileError::TooLarge(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            match left.bytes.checked_sub(found.look.taken_bytes) {
                Some(bytes) => left = Self { bytes, entries: left.entries.saturating_sub(1) },
                None => return Ok(None),
            }
        }
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

/// What a folder's files claim to hold, holes too; an error when it is more than `most` or cannot be walked.
pub(super) fn claimed(folder: Folder, most: Room) -> Result<(), FileError> {
    let mut walk = Walk::of(folder, most.entries);
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
