//! The free space of the file system that holds the workspaces, and the floor under it.
//!
//! Below the floor nothing starts and nothing is received: the database is often on the same file system. Never caches:
//! each question is one `statvfs`.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::FileError;

const MB: u64 = 1024 * 1024;
/// The floor: this much, or [`FLOOR_PERCENT`] of the file system where that is more (contract: sandbox, Posture).
const FLOOR_BYTES: u64 = 2 * 1024 * MB;
const FLOOR_PERCENT: u64 = 5;

/// A file system's space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// In all.
    pub total_bytes: u64,
    /// Free for this process.
    pub free_bytes: u64,
    /// Files that can still be made; `u64::MAX` where the file system has no such limit.
    pub free_inodes: u64,
}

/// Asks a file system; a test may bring its own answer.
pub type ReadSpace = Arc<dyn Fn(&Path) -> io::Result<Space> + Send + Sync>;

/// The space of the file system that holds the workspaces.
#[derive(Clone)]
pub struct FreeSpace {
    root: PathBuf,
    /// Set by the operator; by size when left out.
    floor_bytes: Option<u64>,
    read: ReadSpace,
}

impl fmt::Debug for FreeSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreeSpace")
            .field("root", &self.root)
            .field("floor_bytes", &self.floor_bytes)
            .finish_non_exhaustive()
    }
}

impl FreeSpace {
    /// Of the file system that holds `root` (or will, once it is made).
    pub fn new(root: PathBuf, floor_mb: Option<u64>) -> Self {
        Self { root, floor_bytes: floor_mb.map(|mb| mb.saturating_mul(MB)), read: Arc::new(statvfs) }
    }

    /// With another answer than the system's.
    #[must_use]
    pub fn reading(self, read: ReadSpace) -> Self {
        Self { read, ..self }
    }

    /// What there is now.
    pub fn look(&self) -> io::Result<Space> {
        (self.read)(&self.root)
    }

    /// How much of it must stay free.
    pub fn floor_bytes(&self, space: Space) -> u64 {
        self.floor_bytes.unwrap_or_else(|| FLOOR_BYTES.max(space.total_bytes / 100 * FLOOR_PERCENT))
    }

    /// Whether `wanted_bytes` more can be written without coming below the floor. A file system that does not answer
    /// has no room.
    pub fn check(&self, wanted_bytes: u64) -> Result<(), FileError> {
        let space = self.look().map_err(FileError::Io)?;
        let floor = self.floor_bytes(space);
        if space.free_bytes >= floor.saturating_add(wanted_bytes) {
            return Ok(());
        }
        Err(FileError::NoSpace(format!(
            "the server's disk has {} MB free and keeps {} MB of that; try again later, or ask the operator",
            space.free_bytes / MB,
            floor / MB
        )))
    }
}

fn statvfs(root: &Path) -> io::Result<Space> {
    let there = root.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(there)?;
    Ok(Space {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        // btrfs and others count none.
        free_inodes: if stat.f_files == 0 { u64::MAX } else { stat.f_favail },
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::small_disk(20_480, None, 2_048)]
    #[case::large_disk(1_048_576, None, 52_428)]
    #[case::set(1_048_576, Some(10), 10)]
    #[case::none(1_048_576, Some(0), 0)]
    fn the_floor_is_two_gigabytes_or_a_twentieth(#[case] total: u64, #[case] set: Option<u64>, #[case] floor_mb: u64) {
        let space = Space { total_bytes: total * MB, free_bytes: 0, free_inodes: 0 };
        assert_eq!(FreeSpace::new("/".into(), set).floor_bytes(space) / MB, floor_mb);
    }

    #[rstest]
    #[case::above(101, 0, true)]
    #[case::at(100, 0, true)]
    #[case::below(99, 0, false)]
    #[case::above_until_written(150, 51, false)]
    fn what_would_come_below_the_floor_is_refused(#[case] free_mb: u64, #[case] wanted_mb: u64, #[case] fits: bool) {
        let space = Space { total_bytes: 1000 * MB, free_bytes: free_mb * MB, free_inodes: 0 };
        let free = FreeSpace::new("/".into(), Some(100)).reading(Arc::new(move |_| Ok(space)));
        assert_eq!(free.check(wanted_mb * MB).is_ok(), fits);
    }

    #[test]
    fn a_file_system_that_does_not_answer_has_no_room() {
        let free = FreeSpace::new("/".into(), Some(0))
            .reading(Arc::new(|_| Err(io::ErrorKind::StaleNetworkFileHandle.into())));
        assert!(free.check(0).is_err());
    }

    #[test]
    fn a_folder_that_is_not_made_yet_is_on_the_file_system_of_the_one_above() {
        let free = FreeSpace::new("/tmp/not/made/yet".into(), None).look().unwrap();
        assert!(free.total_bytes > 0 && free.free_bytes <= free.total_bytes);
    }
}
