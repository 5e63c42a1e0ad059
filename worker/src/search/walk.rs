//! The directory walk: visits every regular file below a directory, ordered by name.
//!
//! Holds a handle on each directory from the start to the current one and opens one path component at a time, so links
//! are not followed and concurrent renames cannot lead outside. Bounded in entries, depth and time. Never opens files:
//! the visitor does.

use std::{
    ffi::{OsStr, OsString},
    ops::ControlFlow,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    time::Instant,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat},
    io::Errno,
};

use super::ignore_rules::IgnoreRules;

/// Directory entries of one walk.
const MAX_ENTRIES: usize = 200_000;
/// Each level holds one file descriptor. A path of `PATH_MAX` bytes has 16 bytes a component at this depth.
const MAX_DEPTH: usize = 256;

/// A regular file, identified by its directory and name.
pub(super) struct FoundFile<'a> {
    /// The directory that contains it.
    pub(super) directory: BorrowedFd<'a>,
    /// Its file name.
    pub(super) name: &'a OsStr,
    /// Its path relative to the start of the walk.
    pub(super) relative_path: &'a Path,
}

/// Whether a walk saw everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Completeness {
    /// Every file was visited.
    pub(super) all_files: bool,
    /// Every rule of every ignore file was applied.
    pub(super) all_rules: bool,
}

/// Visits the files below `start` until the visitor breaks or `deadline` has passed.
pub(super) fn walk(
    start: &OwnedFd,
    deadline: Instant,
    visit: &mut dyn FnMut(&FoundFile<'_>) -> ControlFlow<()>,
) -> Completeness {
    let mut walk = Walk { deadline, seen: 0, complete: true, rules: IgnoreRules::default(), visit };
    if walk.directory(start, Path::new(""), 0).is_break() {
        walk.complete = false;
    }
    Completeness { all_files: walk.complete, all_rules: walk.rules.all_read }
}

struct Walk<'a> {
    deadline: Instant,
    seen: usize,
    complete: bool,
    rules: IgnoreRules,
    visit: &'a mut dyn FnMut(&FoundFile<'_>) -> ControlFlow<()>,
}

struct Entry {
    name: OsString,
    kind: FileType,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &OwnedFd, path: &Path, depth: usize) -> ControlFlow<()> {
        let entries = self.list(directory);
        self.rules.enter(directory.as_fd(), path, entries.iter().map(|entry| entry.name.as_os_str()));
        for Entry { name, kind } in entries {
            if Instant::now() >= self.deadline {
                return ControlFlow::Break(());
            }
            let relative_path = path.join(&name);
            if name == ".git" || self.rules.ignores(&relative_path, kind == FileType::Directory) {
                continue;
            }
            match kind {
                FileType::RegularFile => {
                    (self.visit)(&FoundFile {
                        directory: directory.as_fd(),
                        name: &name,
                        relative_path: &relative_path,
                    })?;
                }
                FileType::Directory if depth >= MAX_DEPTH => self.complete = false,
                FileType::Directory => match open_directory(directory.as_fd(), &name) {
                    Ok(inner) => self.directory(&inner, &relative_path, depth + 1)?,
                    // Removed, replaced by a link, or not readable.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
                    Err(_) => self.complete = false,
                },
                _ => {}
            }
        }
        self.rules.leave();
        if self.seen >= MAX_ENTRIES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The directory's entries ordered by name, up to the walk's limit.
    fn list(&mut self, directory: &OwnedFd) -> Vec<Entry> {
        let mut entries = Vec::new();
        let Ok(listing) = Dir::read_from(directory) else {
            self.complete = false;
            return entries;
        };
        for entry in listing {
            let Ok(entry) = entry else {
                self.complete = false;
                break;
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.seen >= MAX_ENTRIES {
                self.complete = false;
                break;
            }
            self.seen += 1;
            let kind = match entry.file_type() {
                FileType::Unknown => statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            entries.push(Entry { name: OsStr::from_bytes(name.to_bytes()).to_owned(), kind });
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        entries
    }
}

/// Opens a directory without following links.
pub(super) fn open_directory(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// Opens a regular file without following links and without blocking on a pipe.
pub(super) fn open_file(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    if kind == FileType::RegularFile { Ok(file) } else { Err(Errno::INVAL) }
}
