//! Unpacks a downloaded archive into a directory.
//!
//! Every entry is reached from a handle on that directory, one name at a time and without following links, so nothing is
//! written outside of it, whatever the archive contains: a link may name anything, and no later entry gets through it.
//! Never sets a setuid, setgid or sticky bit.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, Read},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Component, Path},
};

use protocol::limits::MAX_PATH_DEPTH;
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use tar::{Archive, Entry, EntryType};

use crate::job::archive::ArchiveCounts;

const PERMISSION_BITS: u32 = 0o777;
const DEFAULT_MODE: u32 = 0o644;
/// The mode of a directory until it is complete.
const NEW_DIR_MODE: u32 = 0o755;
/// The mode of a file until it is complete.
const NEW_FILE_MODE: u32 = 0o600;
const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const FILE_FLAGS: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Unpacks an archive into a directory, which is created. Nothing is written outside of it.
pub(crate) fn unpack_directory(archive: impl Read, target: &Path) -> io::Result<ArchiveCounts> {
    fs::create_dir_all(target)?;
    let mut tree = Tree { top: fs::File::open(target)?.into(), open: Vec::new() };
    let mut counts = ArchiveCounts::default();
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        match unpack(&mut tree, &path, &mut entry) {
            Ok(Some(size)) => {
                counts.entries += 1;
                counts.size_bytes = counts.size_bytes.saturating_add(size);
            }
            Ok(None) => counts.skipped += 1,
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
    tree.leave(0)?;
    Ok(counts)
}

/// Unpacks an entry and returns the size of its content; none if the directory has no place for it.
fn unpack(tree: &mut Tree, path: &Path, entry: &mut Entry<'_, impl Read>) -> io::Result<Option<u64>> {
    let Some(names) = names(path) else { return Ok(None) };
    let mode = Mode::from_raw_mode(entry.header().mode().unwrap_or(DEFAULT_MODE) & PERMISSION_BITS);
    let unpacked = match entry.header().entry_type() {
        EntryType::Regular => tree.write_file(&names, mode, entry),
        EntryType::Directory => tree.create_dir(&names, mode),
        EntryType::Symlink => {
            let Some(target) = entry.link_name_bytes() else { return Ok(None) };
            tree.symlink(&names, OsStr::from_bytes(&target))
        }
        _ => return Ok(None),
    };
    match unpacked {
        Ok(size) => Ok(Some(size)),
        // An earlier entry is a link or a file where this one needs a directory, or a directory in its place.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The components of a path that leads to something below the directory; none for another path.
fn names(path: &Path) -> Option<Vec<&OsStr>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    // A directory at the maximum depth has files.
    Some(names).filter(|names| (1..=MAX_PATH_DEPTH + 1).contains(&names.len()))
}

/// The directory that an archive is unpacked into.
struct Tree {
    top: OwnedFd,
    /// The directories from below the top to the one that has the last entry.
    open: Vec<OpenDir>,
}

struct OpenDir {
    name: OsString,
    dir: OwnedFd,
    /// Set when the directory is left, since it may forbid what is still to be written.
    mode: Option<Mode>,
}

impl Tree {
    /// Opens a directory, and creates it and those above it if they do not exist.
    fn enter(&mut self, names: &[&OsStr]) -> io::Result<&OwnedFd> {
        let common = self.open.iter().zip(names).take_while(|(open, name)| open.name == **name).count();
        self.leave(common)?;
        for name in &names[common..] {
            let dir = create_or_open_dir(self.current(), name)?;
            self.open.push(OpenDir { name: name.to_os_string(), dir, mode: None });
        }
        Ok(self.current())
    }

    /// Completes all open directories but the first `remaining`.
    fn leave(&mut self, remaining: usize) -> io::Result<()> {
        while self.open.len() > remaining {
            if let Some(OpenDir { dir, mode: Some(mode), .. }) = self.open.pop() {
                rustix::fs::fchmod(dir, mode)?;
            }
        }
        Ok(())
    }

    fn current(&self) -> &OwnedFd {
        self.open.last().map_or(&self.top, |open| &open.dir)
    }

    /// Opens the directory of an entry in which no other entry has its name any more: the last one wins.
    fn place<'a>(&mut self, names: &[&'a OsStr]) -> io::Result<(&OwnedFd, &'a OsStr)> {
        let (name, parents) = names.split_last().ok_or(io::ErrorKind::NotFound)?;
        let parent = self.enter(parents)?;
        match rustix::fs::unlinkat(parent, *name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((parent, *name)),
            Err(error) => Err(error.into()),
        }
    }

    fn create_dir(&mut self, names: &[&OsStr], mode: Mode) -> io::Result<u64> {
        self.enter(names)?;
        if let Some(open) = self.open.last_mut() {
            open.mode = Some(mode);
        }
        Ok(0)
    }

    fn write_file(&mut self, names: &[&OsStr], mode: Mode, content: &mut Entry<'_, impl Read>) -> io::Result<u64> {
        let (parent, name) = self.place(names)?;
        let mut file =
            fs::File::from(rustix::fs::openat(parent, name, FILE_FLAGS, Mode::from_raw_mode(NEW_FILE_MODE))?);
        let size = io::copy(content, &mut file)?;
        if size < content.size() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        rustix::fs::fchmod(file, mode)?;
        Ok(size)
    }

    fn symlink(&mut self, names: &[&OsStr], target: &OsStr) -> io::Result<u64> {
        let (parent, name) = self.place(names)?;
        rustix::fs::symlinkat(target, parent, name)?;
        Ok(0)
    }
}

fn create_or_open_dir(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(NEW_DIR_MODE)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    match rustix::fs::openat(parent, name, DIR_FLAGS, Mode::empty()) {
        // A link; some systems report it so.
        Err(Errno::LOOP) => Err(io::ErrorKind::NotADirectory.into()),
        other => Ok(other?),
    }
}
