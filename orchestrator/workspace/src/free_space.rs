//! The free space of the file system that holds the workspaces, and the floor that is kept free.
//!
//! Below the floor no job starts and no upload is accepted, since the database is often on the same file system. Never
//! caches: each call is one `statvfs`.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::FileError;

const MB: u64 = 1024 * 1024;
/// The default floor: this much, or [`FLOOR_PERCENT`] of the file system if that is more.
const FLOOR_BYTES: u64 = 2 * 1024 * MB;
const FLOOR_PERCENT: u64 = 5;

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Size of the file system.
    pub total_bytes: u64,
    /// Available to this process's user.
    pub free_bytes: u64,
    /// Files that can still be created; `u64::MAX` if the file system does not limit them.
    pub free_inodes: u64,
}

/// Reads the space of the file system that holds a path. Tests replace it.
pub type ReadDiskSpace = Arc<dyn Fn(&Path) -> io::Result<DiskSpace> + Send + Sync>;

/// Watches the free space of the file system that holds the workspaces.
#[derive(Clone)]
pub struct FreeSpace {
    root: PathBuf,
    /// Set by the operator; none for the default.
    floor_bytes: Option<u64>,
    read: ReadDiskSpace,
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
    /// The free space of the file system that holds `root`, or will hold it once it is created.
    pub fn new(root: PathBuf, floor_mb: Option<u64>) -> Self {
        Self { root, floor_bytes: floor_mb.map(|mb| mb.saturating_mul(MB)), read: Arc::new(statvfs) }
    }

    /// Reads the space with `read` instead of `statvfs`.
    #[must_use]
    pub fn with_reader(self, read: ReadDiskSpace) -> Self {
        Self { read, ..self }
    }

    /// Reads the current space.
    pub fn read(&self) -> io::Result<DiskSpace> {
        (self.read)(&self.root)
    }

    /// How much of `space` must stay free.
    pub fn floor_bytes(&self, space: DiskSpace) -> u64 {
        self.floor_bytes.unwrap_or_else(|| FLOOR_BYTES.max(space.total_bytes / 100 * FLOOR_PERCENT))
    }

    /// Fails with [`FileError::NoSpace`] unless `wanted_bytes` more can be written without going below the floor. Fails
    /// closed if the file system does not answer.
    pub fn ensure_available(&self, wanted_bytes: u64) -> Result<(), FileError> {
        let space = self.read().map_err(FileError::Io)?;
        let floor = self.floor_bytes(space);
        if space.free_bytes >= floor.saturating_add(wanted_bytes) {
            return Ok(());
        }
        Err(FileError::NoSpace(format!(
            "the server's disk has {} MB free and keeps {} MB in reserve; try again later or ask the operator",
            space.free_bytes / MB,
            floor / MB
        )))
    }
}

fn statvfs(root: &Path) -> io::Result<DiskSpace> {
    let existing = root.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(existing)?;
    Ok(DiskSpace {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        // File systems without a fixed number of inodes, such as btrfs, report 0.
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
    fn the_default_floor_is_2_gb_or_5_percent(#[case] total: u64, #[case] set: Option<u64>, #[case] floor_mb: u64) {
        let space = DiskSpace { total_bytes: total * MB, free_bytes: 0, free_inodes: 0 };
        assert_eq!(FreeSpace::new("/".into(), set).floor_bytes(space) / MB, floor_mb);
    }

    #[rstest]
    #[case::above(101, 0, true)]
    #[case::at(100, 0, true)]
    #[case::below(99, 0, false)]
    #[case::above_until_written(150, 51, false)]
    fn writes_below_the_floor_are_refused(#[case] free_mb: u64, #[case] wanted_mb: u64, #[case] fits: bool) {
        let space = DiskSpace { total_bytes: 1000 * MB, free_bytes: free_mb * MB, free_inodes: 0 };
        let free = FreeSpace::new("/".into(), Some(100)).with_reader(Arc::new(move |_| Ok(space)));
        assert_eq!(free.ensure_available(wanted_mb * MB).is_ok(), fits);
    }

    #[test]
    fn a_file_system_that_does_not_answer_fails_closed() {
        let free = FreeSpace::new("/".into(), Some(0))
            .with_reader(Arc::new(|_| Err(io::ErrorKind::StaleNetworkFileHandle.into())));
        assert!(free.ensure_available(0).is_err());
    }

    #[test]
    fn a_missing_directory_is_on_the_file_system_of_its_parent() {
        let free = FreeSpace::new("/tmp/not/created/yet".into(), None).read().unwrap();
        assert!(free.total_bytes > 0 && free.free_bytes <= free.total_bytes);
    }
}
