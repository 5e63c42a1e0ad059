//! A depth-first walk over a folder tree that another process may change at the same time.
//!
//! A folder is opened by its name from the handle of the folder above it: a constant number of system calls per folder,
//! whatever its depth. At most [`MAX_DEPTH`] handles are open and one batch of names per handle is in memory. Never
//! follows a link, never reads a file, and never takes what vanished for what was not there: it says that it missed
//! something.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    path::PathBuf,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use protocol::FileKind;
use tokio_util::sync::CancellationToken;

use super::{
    FileError,
    folder::{Folder, Look},
};
use crate::domain::request::MAX_PATH_DEPTH;

/// Folders within folders, far beyond what package managers and compilers make (`npm` and `cargo` stay under 40), and as
/// many descriptors at most for one walk. What is deeper is refused.
const MAX_DEPTH: usize = MAX_PATH_DEPTH;
/// Names are read in batches of this size; with [`MAX_DEPTH`] it bounds the memory of a walk (some 10 MiB).
const BATCH_BYTES: usize = 16 * 1024;
/// Entries between two looks at the clock: less than 1 ms of work.
const ENTRIES_PER_CHECK: u32 = 256;

/// When work on a tree is given up.
#[derive(Debug, Clone, Default)]
pub struct Cutoff {
    /// It has taken too long.
    pub deadline: Option<Instant>,
    /// Nobody waits for the result any more.
    pub cancelled: CancellationToken,
}

impl Cutoff {
    /// After this time from now, or when nobody waits any more.
    pub fn after(limit: Duration, cancelled: &CancellationToken) -> Self {
        Self { deadline: Some(Instant::now() + limit), cancelled: cancelled.clone() }
    }

    /// An error once it is time to give up.
    pub fn check(&self) -> Result<(), FileError> {
        if self.cancelled.is_cancelled() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(FileError::TooSlow);
        }
        Ok(())
    }
}

/// One entry.
#[derive(Debug)]
pub(super) struct Found {
    /// Of the folder that it is in; the top is 0.
    pub(super) depth: usize,
    pub(super) name: OsString,
    pub(super) look: Look,
}

/// An open folder on the way from the top to the current one.
struct Level {
    folder: Folder,
    name: OsString,
    batch: VecDeque<OsString>,
    is_read: bool,
}

/// The walk.
pub(super) struct Walk {
    levels: Vec<Level>,
    /// A folder that was given and is entered next.
    next: Option<OsString>,
    entries_left: u64,
    cutoff: Cutoff,
    until_check: u32,
    buffer: Vec<MaybeUninit<u8>>,
    has_missed: bool,
    settled_since: Option<DateTime<Utc>>,
    has_changed: bool,
}

impl Walk {
    /// Of at most `entries`; more is an error, as is what is too deep.
    pub(super) fn of(top: Folder, entries: u64) -> Self {
        Self {
            levels: vec![Level::new(top, OsString::new())],
            next: None,
            entries_left: entries,
            cutoff: Cutoff::default(),
            until_check: ENTRIES_PER_CHECK,
            buffer: vec![MaybeUninit::uninit(); BATCH_BYTES],
            has_missed: false,
            settled_since: None,
            has_changed: false,
        }
    }

    /// Gives up there.
    pub(super) fn until(self, cutoff: Cutoff) -> Self {
        Self { cutoff, ..self }
    }

    /// Gives up there from now on.
    pub(super) fn give_up_at(&mut self, cutoff: Cutoff) {
        self.cutoff = cutoff;
    }

    /// Also finds out whether entries were added to or taken from a folder since `start` and before it was read.
    pub(super) fn noting_changes_since(self, start: DateTime<Utc>) -> Self {
        Self { settled_since: Some(start), ..self }
    }

    /// The next entry; a folder before what is in it.
    pub(super) fn next(&mut self) -> Result<Option<Found>, FileError> {
        loop {
            self.check()?;
            if let Some(name) = self.next.take() {
                self.enter(name)?;
            }
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            let name = match level.next_name(&mut self.buffer) {
                Ok(Some(name)) => name,
                Ok(None) => {
                    self.leave()?;
                    continue;
                }
                // The folder itself was removed while it was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.has_missed = true;
                    self.levels.pop();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let look = match level.folder.look(&name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.has_missed = true;
                    continue;
                }
                other => other?,
            };
            let Some(left) = self.entries_left.checked_sub(1) else {
                return Err(FileError::TooLarge("the workspace holds too many entries".to_owned()));
            };
            self.entries_left = left;
            if look.kind == FileKind::Directory {
                if self.levels.len() > MAX_DEPTH {
                    return Err(FileError::TooLarge(format!("the workspace is deeper than {MAX_DEPTH} folders")));
                }
                self.next = Some(name.clone());
            }
            return Ok(Some(Found { depth: self.levels.len() - 1, name, look }));
        }
    }

    /// The folder of the entry that was given last.
    pub(super) fn folder(&self) -> Option<&Folder> {
        self.levels.last().map(|level| &level.folder)
    }

    /// The name of that folder; empty at the top.
    pub(super) fn folder_name(&self) -> &OsStr {
        self.levels.last().map_or(OsStr::new(""), |level| &level.name)
    }

    /// The path of that folder from the top.
    pub(super) fn path(&self) -> PathBuf {
        self.levels.iter().skip(1).map(|level| level.name.as_os_str()).collect()
    }

    /// Whether something was not where it had been read: what was found may not be all there is.
    pub(super) const fn has_missed(&self) -> bool {
        self.has_missed
    }

    /// Whether a folder changed before it had been read to its end: something may have been moved past the walk.
    pub(super) const fn has_changed(&self) -> bool {
        self.has_changed
    }

    fn check(&mut self) -> Result<(), FileError> {
        self.until_check -= 1;
        if self.until_check == 0 {
            self.until_check = ENTRIES_PER_CHECK;
            self.cutoff.check()?;
        }
        Ok(())
    }

    fn enter(&mut self, name: OsString) -> Result<(), FileError> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        match level.folder.folder(&name) {
            Ok(folder) => self.levels.push(Level::new(folder, name)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                self.has_missed = true;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        if let (Some(level), Some(start)) = (self.levels.pop(), self.settled_since) {
            self.has_changed |= level.folder.changed()? >= start;
        }
        Ok(())
    }
}

impl Level {
    fn new(folder: Folder, name: OsString) -> Self {
        Self { folder, name, batch: VecDeque::new(), is_read: false }
    }

    fn next_name(&mut self, buffer: &mut [MaybeUninit<u8>]) -> io::Result<Option<OsString>> {
        if self.batch.is_empty() && !self.is_read {
            self.batch = self.folder.some_names(buffer)?;
            self.is_read = self.batch.is_empty();
        }
        Ok(self.batch.pop_front())
    }
}

/// The folders of one tree at the paths where the walk of another is.
pub(super) struct Beside {
    levels: Vec<Option<Folder>>,
}

impl Beside {
    pub(super) fn of(top: Folder) -> Self {
        Self { levels: vec![Some(top)] }
    }

    /// The folder at the path of the entry that the walk has just given; none when it is not there. To be called for each
    /// entry: the handles on the way are kept.
    pub(super) fn at(&mut self, walk: &Walk, found: &Found) -> Result<Option<&Folder>, FileError> {
        self.levels.truncate(found.depth + 1);
        if self.levels.len() == found.depth {
            let folder = match self.levels.last() {
                Some(Some(above)) => match above.folder(walk.folder_name()) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    other => Some(other?),
                },
                _ => None,
            };
            self.levels.push(folder);
        }
        Ok(self.levels.last().and_then(Option::as_ref))
    }
}

/// The folder that names lead to, one after the other.
pub(super) fn open(top: &Folder, names: &[&OsStr]) -> io::Result<Folder> {
    let mut folder = top.folder(OsStr::new("."))?;
    for name in names {
        folder = folder.folder(name)?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests;
