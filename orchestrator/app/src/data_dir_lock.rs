//! Exclusive locks on the data directory and the run directory: one orchestrator at a time.
//!
//! File locks, which the kernel releases when the process ends; never database rows.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::fs::{Mode, OFlags};

/// File in the data directory; contains the process id of its holder.
const LOCK_FILE: &str = "gantry.lock";
/// Attempts to take a lock: [`is_in_use`] holds it for some microseconds, which must not make a start fail.
const LOCK_TRIES: u32 = 5;
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(20);
/// Only the orchestrator's user may enter its directories.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Permissions of the group and of others.
const OTHERS_BITS: u32 = 0o077;

/// The locks, held until it is dropped.
#[derive(Debug)]
pub(super) struct DataDirLock {
    _data_dir: File,
    _run_dir: File,
}

/// One of the directories could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another orchestrator holds the lock.
    #[error(
        "{dir} is in use by another orchestrator (process {holder}); stop it, or set {setting} to another directory"
    )]
    Locked {
        dir: PathBuf,
        /// The setting that chooses it.
        setting: &'static str,
        /// The holder's process id, or `unknown`.
        holder: String,
    },
    /// The directory cannot be created or written.
    #[error("{dir} cannot be used; set {setting} to a directory that this user may write to")]
    Io {
        dir: PathBuf,
        /// The setting that chooses it.
        setting: &'static str,
        #[source]
        source: io::Error,
    },
}

impl DataDirLock {
    /// Creates the directories if needed and locks them. Existing directories keep their mode.
    pub(super) fn acquire(data_dir: &Path, run_dir: &Path) -> Result<Self, LockError> {
        Ok(Self { _data_dir: lock_data_dir(data_dir)?, _run_dir: lock_run_dir(run_dir)? })
    }
}

/// Whether an orchestrator runs on this data directory. Takes a shared lock for a moment; an orchestrator that starts
/// at that moment tries again (`LOCK_TRIES`). The process id in the file is not used: in a container it is usually 1.
pub fn is_in_use(data_dir: &Path) -> bool {
    let file = File::open(data_dir.join(LOCK_FILE));
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn lock_data_dir(path: &Path) -> Result<File, LockError> {
    let dir = LockedDir { path, setting: "GANTRY_DATA_DIR" };
    let io_error = |source| dir.io_error(source);
    dir.create()?;
    let file = open_lock_file(&path.join(LOCK_FILE)).map_err(io_error)?;
    let mut file = dir.lock(file, |file| {
        let mut holder = String::new();
        // Best effort: the holder may not have written its process id yet.
        let _ = file.read_to_string(&mut holder);
        holder
    })?;
    create_private_dir(&path.join("logs")).map_err(io_error)?;
    file.set_len(0).map_err(io_error)?;
    writeln!(file, "{}", std::process::id()).map_err(io_error)?;
    Ok(file)
}

/// The run directory contains run directories of containers and nothing else, so the directory itself is locked.
fn lock_run_dir(path: &Path) -> Result<File, LockError> {
    let dir = LockedDir { path, setting: "GANTRY_RUN_DIR" };
    dir.create()?;
    dir.lock(File::open(path).map_err(|error| dir.io_error(error))?, |_| String::new())
}

/// Never follows a symbolic link: another user with write access to an existing data directory could otherwise make the
/// orchestrator truncate any file.
fn open_lock_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(FILE_MODE))?))
}

/// Creates a directory inside the data directory that is private to its owner, and makes an existing one private.
fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)?;
    let is_open_to_others = fs::metadata(path)?.permissions().mode() & OTHERS_BITS > 0;
    if is_open_to_others { fs::set_permissions(path, fs::Permissions::from_mode(DIR_MODE)) } else { Ok(()) }
}

/// A directory to lock, and the setting that chooses it.
#[derive(Clone, Copy)]
struct LockedDir<'a> {
    path: &'a Path,
    setting: &'static str,
}

impl LockedDir<'_> {
    fn create(self) -> Result<(), LockError> {
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(self.path).map_err(|error| self.io_error(error))
    }

    /// Locks a file that represents the directory; `read_holder` tells who holds it if that fails.
    fn lock(self, mut file: File, read_holder: impl FnOnce(&mut File) -> String) -> Result<File, LockError> {
        let mut locked = file.try_lock();
        for _ in 1..LOCK_TRIES {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            thread::sleep(LOCK_RETRY_DELAY);
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let holder = read_holder(&mut file);
                let holder = if holder.trim().is_empty() { "unknown".to_owned() } else { holder.trim().to_owned() };
                Err(LockError::Locked { dir: self.path.to_owned(), setting: self.setting, holder })
            }
            Err(TryLockError::Error(source)) => Err(self.io_error(source)),
        }
    }

    fn io_error(self, source: io::Error) -> LockError {
        LockError::Io { dir: self.path.to_owned(), setting: self.setting, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_has_one_holder() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let first = DataDirLock::acquire(&path("a"), &path("run")).unwrap();
        let error =
            |data: &str, run: &str| DataDirLock::acquire(&path(data), &path(run)).map(drop).unwrap_err().to_string();
        let process = std::process::id().to_string();
        let (data, run) = (error("a", "other"), error("b", "run"));
        assert!(data.contains(&process) && data.contains("set GANTRY_DATA_DIR"), "{data}");
        assert!(run.contains("set GANTRY_RUN_DIR"), "{run}");
        assert_eq!(fs::read_dir(path("run")).unwrap().count(), 0, "the run directory contains no lock file");
        assert!(is_in_use(&path("a")) && !is_in_use(&path("nowhere")));
        fs::create_dir(path("stale")).unwrap();
        // As an orchestrator in a container leaves it.
        fs::write(path("stale").join(LOCK_FILE), "1\n").unwrap();
        assert!(!is_in_use(&path("stale")));
        drop(first);
        DataDirLock::acquire(&path("b"), &path("run")).unwrap();
    }

    #[test]
    fn a_lock_file_that_is_a_symbolic_link_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (data_dir, other) = (root.path().join("data"), root.path().join("other"));
        fs::create_dir(&data_dir).unwrap();
        fs::write(&other, "someone's file").unwrap();
        std::os::unix::fs::symlink(&other, data_dir.join(LOCK_FILE)).unwrap();
        let locked = DataDirLock::acquire(&data_dir, &root.path().join("run"));
        assert!(matches!(locked, Err(LockError::Io { .. })), "{locked:?}");
        assert_eq!(fs::read_to_string(&other).unwrap(), "someone's file");
    }
}
