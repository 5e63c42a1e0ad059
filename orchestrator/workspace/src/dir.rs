//! A directory handle: entries are named relative to an open directory, and no symbolic link is ever followed.
//!
//! The container that shares a workspace is hostile and may rename or replace any entry at any moment. A handle stays
//! on the directory that was opened, and an entry is addressed by a single name without a slash. Only [`Dir::open`]
//! takes a path, and only to one of the orchestrator's own directories.

pub(crate) mod cutoff;
pub(crate) mod remove_tree;
pub(crate) mod walk;

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::Path,
};

use chrono::{DateTime, Utc};
use protocol::FileKind;
use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RawDir, ResolveFlags, Stat, Uid},
    io::Errno,
};

use super::FileError;

/// User and group id of the sandbox.
pub(super) const SANDBOX_ID: u32 = 10_001;
/// The unit of `st_blocks`, in bytes (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;
/// Permission bits with setuid, setgid and sticky.
const MODE_BITS: u32 = 0o7777;
const NEW_DIR_MODE: u32 = 0o755;
/// The mode of a file until its final mode is set.
const PRIVATE_FILE_MODE: u32 = 0o600;
const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(super) struct Dir(OwnedFd);

/// Metadata of an entry, from `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Metadata {
    pub(super) kind: FileKind,
    /// Apparent size; holes included.
    pub(super) size_bytes: u64,
    /// Allocated on disk; holes excluded.
    pub(super) allocated_bytes: u64,
    /// The epoch when the file's time is out of range.
    pub(super) modified_at: DateTime<Utc>,
    /// Permission bits with setuid, setgid and sticky; no file type.
    pub(super) mode: u32,
}

impl From<&Stat> for Metadata {
    fn from(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            _ => FileKind::Other,
        };
        Self {
            kind,
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            allocated_bytes: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES),
            modified_at: timestamp(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            mode: stat.st_mode & MODE_BITS,
        }
    }
}

impl Dir {
    /// Opens one of the orchestrator's own directories by path.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::openat(CWD, path, DIR_FLAGS, Mode::empty())?))
    }

    /// A second handle on the same directory, with its own read position.
    pub(super) fn reopen(&self) -> io::Result<Self> {
        self.open_dir(OsStr::new("."))
    }

    /// Opens a subdirectory.
    pub(super) fn open_dir(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(rustix::fs::openat(&self.0, name, DIR_FLAGS, Mode::empty())?))
    }

    /// Opens a directory below this one by its relative path, in one system call. A symbolic link on the way is
    /// [`io::ErrorKind::NotADirectory`], and nothing leads out of this directory.
    pub(super) fn open_dir_beneath(&self, path: &Path) -> io::Result<Self> {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&self.0, path, DIR_FLAGS, Mode::empty(), beneath) {
            Ok(dir) => Ok(Self(dir)),
            Err(Errno::LOOP) => Err(io::ErrorKind::NotADirectory.into()),
            // The kernel or its seccomp profile has no openat2.
            Err(Errno::NOSYS | Errno::PERM) => self.open_descendant(path.iter()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the directory that `names` lead to, one component at a time.
    pub(super) fn open_descendant<'a>(&self, names: impl IntoIterator<Item = &'a OsStr>) -> io::Result<Self> {
        names.into_iter().try_fold(self.reopen()?, |dir, name| dir.open_dir(name))
    }

    /// Opens a subdirectory, creating it for the sandbox's user if no entry has this name.
    pub(super) fn create_or_open_dir(&self, name: &OsStr) -> io::Result<Self> {
        match rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(NEW_DIR_MODE)) {
            Ok(()) => {
                let dir = self.open_dir(name)?;
                chown_to_sandbox(&dir.0)?;
                Ok(dir)
            }
            Err(Errno::EXIST) => self.open_dir(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a regular file for reading, with its metadata after opening. Never blocks on a FIFO or a device.
    pub(super) fn open_file(&self, name: &OsStr) -> Result<(File, Metadata), FileError> {
        ensure_regular_file(self.metadata(name)?)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            // Replaced by a link or a socket after the check above.
            Err(Errno::LOOP | Errno::NXIO) => return Err(FileError::NotAFile("the path is not a regular file")),
            // The job holds a file lease (fcntl F_SETLEASE) on it.
            Err(Errno::AGAIN) => return Err(FileError::NotAFile("the file is locked by the job")),
            other => other?,
        };
        let metadata = Metadata::from(&rustix::fs::fstat(&fd)?);
        ensure_regular_file(metadata)?;
        Ok((File::from(fd), metadata))
    }

    /// Creates a file owned by the sandbox's user; fails if an entry has this name.
    pub(super) fn create_file(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(PRIVATE_FILE_MODE))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        chown_to_sandbox(&file)?;
        Ok(File::from(file))
    }

    /// An entry's metadata; of a symbolic link, the link's own.
    pub(super) fn metadata(&self, name: &OsStr) -> io::Result<Metadata> {
        Ok(Metadata::from(&rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// This directory's change time (`st_ctime`): set by the kernel whenever an entry is added, removed or renamed, and
    /// unlike the modification time not settable by anyone.
    pub(super) fn changed_at(&self) -> io::Result<DateTime<Utc>> {
        let stat = rustix::fs::fstat(&self.0)?;
        Ok(timestamp(stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or(0)))
    }

    /// The target of a symbolic link.
    pub(super) fn read_link(&self, name: &OsStr) -> io::Result<OsString> {
        Ok(OsString::from_vec(rustix::fs::readlinkat(&self.0, name, Vec::new())?.into_bytes()))
    }

    /// Creates a symbolic link.
    pub(super) fn symlink(&self, name: &OsStr, target: &OsStr) -> io::Result<()> {
        rustix::fs::symlinkat(target, &self.0, name)?;
        let (user, group) = (Uid::from_raw(SANDBOX_ID), Gid::from_raw(SANDBOX_ID));
        match rustix::fs::chownat(&self.0, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW) {
            // EPERM is ignored: the owner of a symbolic link has no effect.
            Err(Errno::PERM) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds a hard link `new` in `to` for the file `name`.
    pub(super) fn hard_link(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.0, name, &to.0, new, AtFlags::empty())?)
    }

    /// Moves an entry to `new` in `to`, replacing what is there unless it is a directory that is not empty.
    pub(super) fn rename(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, name, &to.0, new)?)
    }

    /// Removes an entry that is not a directory.
    pub(super) fn unlink(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Removes an empty subdirectory.
    pub(super) fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Sets the mode of a file, which then belongs to the sandbox's user.
    pub(super) fn set_file_mode(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        chown_to_sandbox(&file)
    }

    /// Sets this directory's mode.
    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.0, Mode::from_raw_mode(mode))?)
    }

    /// Gives this directory to the sandbox's user.
    pub(super) fn chown_to_sandbox(&self) -> io::Result<()> {
        chown_to_sandbox(&self.0)
    }

    /// All names in this directory, in no particular order.
    pub(super) fn names(&self) -> io::Result<impl Iterator<Item = io::Result<OsString>> + use<>> {
        let mut reader = rustix::fs::Dir::read_from(&self.0)?;
        Ok(std::iter::from_fn(move || {
            loop {
                match reader.read()? {
                    Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                    Ok(entry) => return Some(Ok(OsString::from_vec(entry.file_name().to_bytes().to_vec()))),
                    Err(error) => return Some(Err(error.into())),
                }
            }
        }))
    }

    /// The next batch of names, as many as fit into `buffer`; empty at the end. Each call continues where the last one
    /// stopped.
    pub(super) fn read_batch(&self, buffer: &mut [MaybeUninit<u8>]) -> io::Result<VecDeque<OsString>> {
        let mut names = VecDeque::new();
        let mut reader = RawDir::new(&self.0, buffer);
        while let Some(entry) = reader.next() {
            let name = entry?.file_name().to_bytes().to_vec();
            if !matches!(name.as_slice(), b"." | b"..") {
                names.push_back(OsString::from_vec(name));
            }
            if reader.is_buffer_empty() && !names.is_empty() {
                break;
            }
        }
        Ok(names)
    }
}

/// The epoch when the time is out of range: a file's owner may set any time.
pub(super) fn timestamp(seconds: i64, nanoseconds: u32) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, nanoseconds).unwrap_or_default()
}

fn ensure_regular_file(metadata: Metadata) -> Result<(), FileError> {
    match metadata.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(FileError::NotAFile("the path is a directory")),
        FileKind::Symlink => Err(FileError::NotAFile("the path is a symbolic link; links are not followed")),
        FileKind::Other => Err(FileError::NotAFile("the path is not a regular file")),
    }
}

/// Gives a file or directory to the sandbox's user. Without root that is not allowed: then the entry is opened to all
/// users instead, below a workspace root that other users of the host cannot enter.
fn chown_to_sandbox(entry: &impl AsFd) -> io::Result<()> {
    match rustix::fs::fchown(entry, Some(Uid::from_raw(SANDBOX_ID)), Some(Gid::from_raw(SANDBOX_ID))) {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let metadata = Metadata::from(&rustix::fs::fstat(entry)?);
    let mode = if metadata.kind == FileKind::Directory { 0o777 } else { metadata.mode | 0o666 };
    Ok(rustix::fs::fchmod(entry, Mode::from_raw_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn symbolic_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        symlink("/etc", root.path().join("etc")).unwrap();
        symlink("/etc/passwd", root.path().join("passwd")).unwrap();
        let dir = Dir::open(root.path()).unwrap();
        assert_eq!(dir.open_dir("etc".as_ref()).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(dir.create_or_open_dir("etc".as_ref()).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert!(matches!(dir.open_file("passwd".as_ref()), Err(FileError::NotAFile(_))));
        assert!(dir.create_file("passwd".as_ref(), 0o644).is_err());
    }
}
