//! A handle on one folder: what is done in it is done by a name, and no link is ever followed.
//!
//! The container that shares a workspace is hostile and swaps what it likes at any moment; a handle stays on the folder
//! that was opened, and a name has no slash in it. Never takes a path, but to begin with.

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

/// The sandbox's user and group (contract: sandbox, Posture).
const SANDBOX_ID: u32 = 10_001;
/// Blocks as `stat` counts them.
const BLOCK_BYTES: u64 = 512;
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

/// What `stat` tells of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) kind: FileKind,
    pub(super) size_bytes: u64,
    /// On disk; holes take nothing.
    pub(super) taken_bytes: u64,
    pub(super) modified: DateTime<Utc>,
    /// Permissions alone.
    pub(super) mode: u32,
}

impl Look {
    fn of(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            _ => FileKind::Other,
        };
        let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        Self {
            kind,
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            taken_bytes: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES),
            // A time that no calendar has is the agent's joke.
            modified: DateTime::from_timestamp(stat.st_mtime, nanos).unwrap_or_default(),
            mode: stat.st_mode & 0o7777,
        }
    }
}

impl Folder {
    /// The one of ours that everything else is opened from.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::openat(CWD, path, FOLDER, Mode::empty())?))
    }

    /// A folder in it.
    pub(super) fn folder(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(rustix::fs::openat(&self.0, name, FOLDER, Mode::empty())?))
    }

    /// A folder below it by its path, in one system call; no link on the way is followed and nothing leads out of it.
    pub(super) fn folder_at(&self, path: &Path) -> io::Result<Self> {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&self.0, path, FOLDER, Mode::empty(), beneath) {
            Ok(folder) => Ok(Self(folder)),
            // A link on the way is not a directory, as without openat2.
            Err(Errno::LOOP) => Err(io::ErrorKind::NotADirectory.into()),
            // A kernel or a sandbox without it.
            Err(Errno::NOSYS | Errno::PERM) => {
                path.iter().try_fold(self.folder(OsStr::new("."))?, |folder, name| folder.folder(name))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// When it last changed, such as by an entry that was added or taken away: the one time that nobody can set.
    pub(super) fn changed(&self) -> io::Result<DateTime<Utc>> {
        let stat = rustix::fs::fstat(&self.0)?;
        Ok(DateTime::from_timestamp(stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or(0)).unwrap_or_default())
    }

    /// The next names in it, as many as fit into `buffer`; none at the end. Each call goes on where the last one ended.
    pub(super) fn some_names(&self, buffer: &mut [MaybeUninit<u8>]) -> io::Result<VecDeque<OsString>> {
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

    /// A folder in it, made when there is nothing of this name.
    pub(super) fn made(&self, name: &OsStr) -> io::Result<Self> {
        match rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let made = self.folder(name)?;
                give(&made.0)?;
                Ok(made)
            }
            Err(Errno::EXIST) => self.folder(name),
            Err(error) => Err(error.into()),
        }
    }

    /// A regular file in it, to be read, as it is once it is open. Opening waits for nobody: a FIFO is let go at once.
    pub(super) fn file(&self, name: &OsStr) -> Result<(File, Look), FileError> {
        regular(self.look(name)?)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            // Swapped for a link or a socket since.
            Err(Errno::LOOP | Errno::NXIO) => return Err(FileError::NotAFile("it is not a regular file")),
            // The job holds a lease on it.
            Err(Errno::AGAIN) => return Err(FileError::NotAFile("the job does not let it be opened")),
            other => other?,
        };
        let look = Look::of(&rustix::fs::fstat(&opened)?);
        regular(look)?;
        Ok((File::from(opened), look))
    }

    /// A new file in it, to be written, the sandbox's user's own.
    pub(super) fn new_file(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(0o600))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        give(&file)?;
        Ok(File::from(file))
    }

    /// What is under a name; of a link, the link.
    pub(super) fn look(&self, name: &OsStr) -> io::Result<Look> {
        Ok(Look::of(&rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Where a link says it points.
    pub(super) fn target(&self, name: &OsStr) -> io::Result<OsString> {
        Ok(OsString::from_vec(rustix::fs::readlinkat(&self.0, name, Vec::new())?.into_bytes()))
    }

    /// A new link in it.
    pub(super) fn link_to(&self, name: &OsStr, target: &OsStr) -> io::Result<()> {
        rustix::fs::symlinkat(target, &self.0, name)?;
        let ids = (Some(Uid::from_raw(SANDBOX_ID)), Some(Gid::from_raw(SANDBOX_ID)));
        match rustix::fs::chownat(&self.0, name, ids.0, ids.1, AtFlags::SYMLINK_NOFOLLOW) {
            // Whose a link is matters to nobody.
            Err(Errno::PERM) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A second name for a file.
    pub(super) fn second_name(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.0, name, &to.0, new, AtFlags::empty())?)
    }

    /// Moves an entry, over what is there but for folders.
    pub(super) fn rename(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, name, &to.0, new)?)
    }

    /// Removes what is not a folder.
    pub(super) fn unlink(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Removes an empty folder.
    pub(super) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// The permissions of a file of ours in it.
    pub(super) fn set_mode_of(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        give(&file)
    }

    /// Its permissions.
    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.0, Mode::from_raw_mode(mode))?)
    }

    /// To the sandbox's user.
    pub(super) fn give(&self) -> io::Result<()> {
        give(&self.0)
    }

    /// The names in it, in no order, as long as they come.
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
}

fn regular(look: Look) -> Result<(), FileError> {
    match look.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(FileError::NotAFile("it is a directory")),
        FileKind::Symlink => Err(FileError::NotAFile("it is a symbolic link; links are not followed")),
        FileKind::Other => Err(FileError::NotAFile("it is not a regular file")),
    }
}

/// To the sandbox's user; where we may not give things away (not root), open to all below a folder that is not.
fn give(what: &impl AsFd) -> io::Result<()> {
    match rustix::fs::fchown(what, Some(Uid::from_raw(SANDBOX_ID)), Some(Gid::from_raw(SANDBOX_ID))) {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let look = Look::of(&rustix::fs::fstat(what)?);
    let open = if look.kind == FileKind::Directory { 0o777 } else { look.mode | 0o666 };
    Ok(rustix::fs::fchmod(what, Mode::from_raw_mode(open))?)
}

/// Removes an entry with all that is below it, however deep that goes: what is deep is moved up first, so that no more
/// than three folders are ever open.
pub(super) fn remove(parent: &Folder, name: &OsStr) -> io::Result<()> {
    match parent.unlink(name) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
        other => return other,
    }
    let top = parent.folder(name)?;
    let mut moved = 0_u64;
    loop {
        let mut left = false;
        for entry in top.names()? {
            let entry = entry?;
            if let Some(folder) = emptied(&top, &entry)? {
                left = true;
                for below in folder.names()? {
                    let below = below?;
                    if emptied(&folder, &below)?.is_some() {
                        move_up(&folder, &below, &top, &mut moved)?;
                    }
                }
                top.remove_empty(&entry)?;
            }
        }
        if !left {
            break;
        }
    }
    parent.remove_empty(name)
}

/// Moves a folder up under the next name that is free; what is there may be of any name.
fn move_up(folder: &Folder, name: &OsStr, top: &Folder, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        match folder.rename(name, top, &OsString::from(format!(".removing-{moved}"))) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotADirectory | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) => {}
            other => return other,
        }
    }
}

/// Removes an entry unless it is a folder with something in it, which it gives.
fn emptied(folder: &Folder, name: &OsStr) -> io::Result<Option<Folder>> {
    match folder.unlink(name) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
        other => return other.map(|()| None),
    }
    match folder.remove_empty(name) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => folder.folder(name).map(Some),
        other => other.map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_tree_is_removed_whatever_its_names_and_depth_and_nothing_beside_it() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("kept"), "").unwrap();
        let tree = root.path().join("tree");
        fs::create_dir_all(tree.join(".removing-1/x/.removing-3/y")).unwrap();
        fs::write(tree.join(".removing-2"), "").unwrap();
        fs::create_dir_all(tree.join("a/".repeat(1500))).unwrap();
        fs::create_dir_all(tree.join("b/c/d")).unwrap();
        symlink(root.path(), tree.join("b/c/up")).unwrap();
        remove(&Folder::open(root.path()).unwrap(), "tree".as_ref()).unwrap();
        let left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
    }

    #[test]
    fn a_link_is_no_folder_and_no_file() {
        let root = tempfile::tempdir().unwrap();
        symlink("/etc", root.path().join("etc")).unwrap();
        symlink("/etc/passwd", root.path().join("passwd")).unwrap();
        let folder = Folder::open(root.path()).unwrap();
        assert_eq!(folder.folder("etc".as_ref()).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(folder.made("etc".as_ref()).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert!(matches!(folder.file("passwd".as_ref()), Err(FileError::NotAFile(_))));
        assert!(folder.new_file("passwd".as_ref(), 0o644).is_err());
    }
}
