//! A depth-first walk over a directory tree that another process may change at the same time.
//!
//! A directory is opened by its name from its parent's handle: a constant number of system calls per directory,
//! whatever its depth. At most [`MAX_DEPTH`] handles are open and one batch of names per handle is in memory. Never
//! follows a link, never reads a file, and never mistakes an entry that vanished for one that did not exist: it reports
//! that entries were missed.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    path::PathBuf,
};

use chrono::{DateTime, Utc};
use protocol::FileKind;

use super::{Dir, Metadata};
use crate::{Cutoff, FileError};
use protocol::limits::MAX_PATH_DEPTH;

/// Nested directories, and thus open descriptors, of one walk; a deeper tree is an error. Package managers and
/// compilers stay far below (`npm` and `cargo` under 40).
const MAX_DEPTH: usize = MAX_PATH_DEPTH;
/// Names are read in batches of this size. With [`MAX_DEPTH`] it bounds a walk's memory to some 10 MiB.
const BATCH_BYTES: usize = 16 * 1024;
/// Entries between two checks of the cutoff: less than 1 ms of work.
const ENTRIES_PER_CHECK: u32 = 256;

/// An entry found by a walk.
#[derive(Debug)]
pub(crate) struct DirEntry {
    /// Depth of the directory that contains it; the top is 0.
    pub(crate) depth: usize,
    pub(crate) name: OsString,
    pub(crate) metadata: Metadata,
}

/// An open directory between the top and the current one.
struct DirNode {
    dir: Dir,
    name: OsString,
    batch: VecDeque<OsString>,
    is_exhausted: bool,
}

/// A walk in progress.
pub(crate) struct Walk {
    /// The path of open directories, the top first.
    stack: Vec<DirNode>,
    /// The directory that was returned last and is entered next.
    pending_dir: Option<OsString>,
    remaining_entries: u64,
    cutoff: Cutoff,
    entries_until_check: u32,
    buffer: Vec<MaybeUninit<u8>>,
    /// Whether an entry vanished between being listed and being read: the walk may have missed others, too.
    pub(crate) has_missed_entries: bool,
    changes_since: Option<DateTime<Utc>>,
    /// Whether a directory changed before it had been read to its end: an entry may have been moved past the walk.
    pub(crate) has_changed: bool,
}

impl Walk {
    /// A walk that fails with [`FileError::TooLarge`] after `max_entries`, and in a tree that is too deep.
    pub(crate) fn new(top: Dir, max_entries: u64) -> Self {
        Self {
            stack: vec![DirNode::new(top, OsString::new())],
            pending_dir: None,
            remaining_entries: max_entries,
            cutoff: Cutoff::default(),
            entries_until_check: ENTRIES_PER_CHECK,
            buffer: vec![MaybeUninit::uninit(); BATCH_BYTES],
            has_missed_entries: false,
            changes_since: None,
            has_changed: false,
        }
    }

    /// Fails with [`FileError::TimedOut`] past this cutoff.
    pub(crate) fn with_cutoff(self, cutoff: Cutoff) -> Self {
        Self { cutoff, ..self }
    }

    /// Replaces the cutoff for the rest of the walk.
    pub(crate) fn set_cutoff(&mut self, cutoff: Cutoff) {
        self.cutoff = cutoff;
    }

    /// Also detects whether entries were added to or removed from a directory between `start` and the end of its
    /// reading.
    pub(crate) fn detecting_changes_since(self, start: DateTime<Utc>) -> Self {
        Self { changes_since: Some(start), ..self }
    }

    /// The next entry; a directory before its content.
    pub(crate) fn next_entry(&mut self) -> Result<Option<DirEntry>, FileError> {
        loop {
            self.check_cutoff()?;
            if let Some(name) = self.pending_dir.take() {
                self.enter(name)?;
            }
            let Some(node) = self.stack.last_mut() else { return Ok(None) };
            let name = match node.next_name(&mut self.buffer) {
                Ok(Some(name)) => name,
                Ok(None) => {
                    self.leave()?;
                    continue;
                }
                // The directory itself was removed while it was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.has_missed_entries = true;
                    self.stack.pop();
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let metadata = match node.dir.metadata(&name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.has_missed_entries = true;
                    continue;
                }
                other => other?,
            };
            self.remaining_entries = self
                .remaining_entries
                .checked_sub(1)
                .ok_or_else(|| FileError::TooLarge("the workspace has too many entries".to_owned()))?;
            if metadata.kind == FileKind::Directory {
                if self.stack.len() > MAX_DEPTH {
                    return Err(FileError::TooLarge(format!(
                        "the workspace has directories nested deeper than {MAX_DEPTH} levels"
                    )));
                }
                self.pending_dir = Some(name.clone());
            }
            return Ok(Some(DirEntry { depth: self.stack.len() - 1, name, metadata }));
        }
    }

    /// The directory that contains the entry returned last.
    pub(crate) fn current_dir(&self) -> Option<&Dir> {
        self.stack.last().map(|node| &node.dir)
    }

    /// The path of that directory, relative to the top.
    pub(crate) fn current_path(&self) -> PathBuf {
        self.stack.iter().skip(1).map(|node| node.name.as_os_str()).collect()
    }

    /// The size of the path of an entry in that directory, relative to the top.
    pub(crate) fn path_bytes(&self, name: &OsStr) -> u64 {
        let parents: usize = self.stack.iter().skip(1).map(|node| node.name.len() + 1).sum();
        (parents + name.len()) as u64
    }

    /// The name of the current directory; empty at the top.
    fn current_name(&self) -> &OsStr {
        self.stack.last().map_or(OsStr::new(""), |node| &node.name)
    }

    fn check_cutoff(&mut self) -> Result<(), FileError> {
        self.entries_until_check -= 1;
        if self.entries_until_check == 0 {
            self.entries_until_check = ENTRIES_PER_CHECK;
            self.cutoff.check()?;
        }
        Ok(())
    }

    fn enter(&mut self, name: OsString) -> Result<(), FileError> {
        let Some(parent) = self.stack.last() else { return Ok(()) };
        match parent.dir.open_dir(&name) {
            Ok(dir) => self.stack.push(DirNode::new(dir, name)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                self.has_missed_entries = true;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        if let (Some(node), Some(start)) = (self.stack.pop(), self.changes_since) {
            self.has_changed |= node.dir.changed_at()? >= start;
        }
        Ok(())
    }
}

impl DirNode {
    fn new(dir: Dir, name: OsString) -> Self {
        Self { dir, name, batch: VecDeque::new(), is_exhausted: false }
    }

    fn next_name(&mut self, buffer: &mut [MaybeUninit<u8>]) -> io::Result<Option<OsString>> {
        if self.batch.is_empty() && !self.is_exhausted {
            self.batch = self.dir.read_batch(buffer)?;
            self.is_exhausted = self.batch.is_empty();
        }
        Ok(self.batch.pop_front())
    }
}

/// The directory of a second tree at the same path as a walk's current directory.
pub(crate) struct CounterpartDir {
    /// The counterparts of the walk's stack; none where the second tree has no such directory.
    stack: Vec<Option<Dir>>,
}

impl CounterpartDir {
    pub(crate) fn new(top: Dir) -> Self {
        Self { stack: vec![Some(top)] }
    }

    /// The counterpart of the directory that contains `entry`; none if the second tree does not have it. Must be called
    /// for each entry that the walk returns, right after it.
    pub(crate) fn of(&mut self, walk: &Walk, entry: &DirEntry) -> Result<Option<&Dir>, FileError> {
        self.stack.truncate(entry.depth + 1);
        if self.stack.len() == entry.depth {
            let dir = match self.stack.last() {
                Some(Some(parent)) => match parent.open_dir(walk.current_name()) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    other => Some(other?),
                },
                _ => None,
            };
            self.stack.push(dir);
        }
        Ok(self.stack.last().and_then(Option::as_ref))
    }
}

#[cfg(test)]
mod tests;
