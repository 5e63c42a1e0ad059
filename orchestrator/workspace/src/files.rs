//! Access to the files of a workspace on behalf of users: listing, reading, writing, and archives in both directions.
//!
//! What is written is received in a staging directory and moved into the workspace when it is complete. Every write is
//! held to what remains of the job's quota.

use std::{
    collections::BinaryHeap,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use chrono::{DateTime, Utc};
use protocol::{FileEntry, FileKind, JobId, Limits, Unpacked, WorkspacePath};
use tokio_util::sync::CancellationToken;

use super::{
    Cutoff, FileError, PERMISSION_BITS, Quota, StagingDir, TarStream, Upload, Workspaces,
    dir::{
        Dir, Metadata, timestamp,
        walk::{CounterpartDir, Walk},
    },
    uploads::unpack::unpack,
};

/// Timeout of one walk over a workspace: 2.6 million entries, the most at the default ceiling, take about half of it.
const WALK_TIMEOUT: Duration = Duration::from_secs(20);

/// A page of entries: of a directory, or of a search.
#[derive(Debug, PartialEq, Eq)]
pub struct DirPage {
    /// Sorted by the bytes of their names; those of a search by those of their paths.
    pub entries: Vec<FileEntry>,
    /// The name or path after which the next page begins; none on the last page.
    pub next_after: Option<OsString>,
    /// Whether all entries were looked at.
    pub is_complete: bool,
}

impl DirPage {
    pub(super) const EMPTY: Self = Self { entries: Vec::new(), next_after: None, is_complete: true };
}

/// A regular file that is open for reading.
#[derive(Debug)]
pub struct OpenFile {
    /// The file, at its beginning.
    pub file: File,
    /// What was known of it when it was opened.
    pub entry: FileEntry,
    /// Its number in the file system: a file that takes its place has another one.
    pub inode: u64,
    /// When it last changed (`st_ctime`): set by the kernel, and unlike `modified_at` by no one else.
    pub changed_at: DateTime<Utc>,
}

impl Workspaces {
    /// Lists at most `limit` entries of a directory whose names sort after `after`. A workspace that does not exist yet
    /// is empty.
    pub fn list(
        &self,
        job: JobId,
        path: &WorkspacePath,
        after: Option<&OsStr>,
        limit: usize,
    ) -> Result<DirPage, FileError> {
        let dir = match self.open(job).and_then(|top| Ok(open_descendant(&top, path.components())?)) {
            Err(FileError::NotFound) if path.is_root() => return Ok(DirPage::EMPTY),
            other => other?,
        };
        // Keeps the smallest names only, so a huge directory is not held in memory; one more than the page tells
        // whether there is a next one.
        let mut smallest = BinaryHeap::with_capacity(limit + 2);
        for name in dir.names()? {
            let name = name?;
            if after.is_none_or(|after| name.as_os_str() > after) {
                smallest.push(name);
                if smallest.len() > limit + 1 {
                    smallest.pop();
                }
            }
        }
        let mut names = smallest.into_sorted_vec();
        let has_more = names.len() > limit;
        names.truncate(limit);
        let next_after = names.last().filter(|_| has_more).cloned();
        // Entries removed since they were listed are left out.
        let to_entry = |name: &OsString| Some(file_entry(&path.join(name.as_bytes()), &dir.metadata(name).ok()?));
        Ok(DirPage { entries: names.iter().filter_map(to_entry).collect(), next_after, is_complete: true })
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self, job: JobId, path: &WorkspacePath) -> Result<OpenFile, FileError> {
        let (parent, name) = path.split_last().ok_or(FileError::NotAFile("the path is a directory"))?;
        let (file, metadata) = open_descendant(&self.open(job)?, parent)?.open_file(OsStr::from_bytes(name))?;
        let stat = file.metadata()?;
        let changed_at = timestamp(stat.ctime(), u32::try_from(stat.ctime_nsec()).unwrap_or(0));
        Ok(OpenFile { file, entry: file_entry(&path.to_bytes(), &metadata), inode: stat.ino(), changed_at })
    }

    /// A tar archive of a directory of the workspace; of the workspace itself it is empty if it does not exist yet.
    pub fn archive(
        &self,
        job: JobId,
        path: &WorkspacePath,
        limits: &Limits,
        cancelled: &CancellationToken,
    ) -> Result<TarStream, FileError> {
        match self.open(job).and_then(|top| Ok(open_descendant(&top, path.components())?)) {
            Ok(dir) => TarStream::new(dir, Quota::from_limits(limits), &Cutoff::after(WALK_TIMEOUT, cancelled)),
            Err(FileError::NotFound) if path.is_root() => Ok(TarStream::empty()),
            Err(error) => Err(error),
        }
    }

    /// The remaining quota of the job, including the content of the file at `replaced`, if any.
    pub fn remaining_quota(&self, upload: &Upload, replaced: Option<&WorkspacePath>) -> Result<Quota, FileError> {
        let top = match self.open(upload.job) {
            Err(FileError::NotFound) => return Ok(Quota::from_limits(&upload.limits)),
            other => other?,
        };
        let replaced = replaced.and_then(WorkspacePath::split_last).and_then(|(parent, name)| {
            let metadata = open_descendant(&top, parent).and_then(|dir| dir.metadata(OsStr::from_bytes(name))).ok();
            metadata.filter(|metadata| metadata.kind == FileKind::File)
        });
        let cutoff = upload.cutoff(WALK_TIMEOUT);
        let remaining = Quota::from_limits(&upload.limits).minus_usage(top, &cutoff)?;
        let mut remaining = remaining.ok_or_else(Quota::exceeded)?;
        remaining.release_bytes(replaced.map_or(0, |metadata| metadata.allocated_bytes));
        Ok(remaining)
    }

    /// Moves a received file to its path, atomically; true if there was no entry before. A replaced file's mode is
    /// kept.
    pub fn put(
        &self,
        upload: &Upload,
        path: &WorkspacePath,
        staged: &StagingDir,
    ) -> Result<(FileEntry, bool), FileError> {
        let (parent, name) = path.split_last().ok_or(FileError::NotAFile("the path is a directory"))?;
        let name = OsStr::from_bytes(name);
        let (staging, body) = staged.body_file();
        let mut remaining = self.remaining_quota(upload, Some(path))?;
        remaining.reserve(staging.metadata(body)?.allocated_bytes)?;
        remaining.entries.checked_sub(parent.len() as u64).ok_or_else(Quota::exceeded)?;
        let top = self.create_or_open(upload.job)?;
        let dir = parent.iter().try_fold(top, |dir, name| dir.create_or_open_dir(OsStr::from_bytes(name)))?;
        let replaced = dir.metadata(name).ok();
        match replaced.map(|metadata| (metadata.kind, metadata.mode)) {
            Some((FileKind::Directory, _)) => return Err(FileError::NotAFile("the path is a directory")),
            Some((FileKind::File, mode)) => staging.set_file_mode(body, mode & PERMISSION_BITS)?,
            _ => {}
        }
        staging.rename(body, &dir, name)?;
        Ok((file_entry(&path.to_bytes(), &dir.metadata(name)?), replaced.is_none()))
    }

    /// Unpacks a received tar archive in its staging directory; rejects the whole archive if one entry is not
    /// acceptable. Whether it fits beside the existing files is checked by [`Workspaces::install`], since it may
    /// replace some.
    pub fn unpack(
        &self,
        upload: &mut Upload,
        mut archive: File,
        gzip: bool,
        staged: &StagingDir,
    ) -> Result<Unpacked, FileError> {
        io::Seek::rewind(&mut archive)?;
        unpack(archive, gzip, &staged.tree()?, upload)
    }

    /// Moves an unpacked archive into the workspace, entry by entry, after checking that all of it can be moved. The
    /// check stops when the upload is cancelled; the moves, once begun, do not.
    pub fn install(&self, upload: &Upload, staged: &StagingDir) -> Result<(), FileError> {
        let top = self.create_or_open(upload.job)?;
        let remaining = self.remaining_quota(upload, None)?;
        let walk = Walk::new(staged.tree()?, u64::MAX).with_cutoff(upload.cutoff(WALK_TIMEOUT));
        check_installable(walk, top.reopen()?, remaining)?;
        move_entries(Walk::new(staged.tree()?, u64::MAX), top)
    }
}

/// Checks that the entries of a staged tree fit into the remaining quota and replace none of another type.
fn check_installable(mut staged: Walk, top: Dir, mut remaining: Quota) -> Result<(), FileError> {
    let mut counterpart = CounterpartDir::new(top);
    while let Some(entry) = staged.next_entry()? {
        let is_dir = entry.metadata.kind == FileKind::Directory;
        let existing = counterpart.of(&staged, &entry)?.and_then(|dir| dir.metadata(&entry.name).ok());
        let mut added_bytes = entry.metadata.allocated_bytes;
        if let Some(existing) = existing {
            match existing.kind {
                FileKind::Directory if is_dir => added_bytes = 0,
                FileKind::Directory => {
                    return Err(FileError::NotAFile("the workspace has a directory where the archive has a file"));
                }
                _ if is_dir => return Err(FileError::NotADirectory),
                FileKind::File => remaining.release_bytes(existing.allocated_bytes),
                FileKind::Symlink | FileKind::Other => {}
            }
            remaining.entries = remaining.entries.saturating_add(1);
        }
        remaining.reserve(added_bytes)?;
    }
    Ok(())
}

fn move_entries(mut staged: Walk, top: Dir) -> Result<(), FileError> {
    let mut counterpart = CounterpartDir::new(top);
    while let Some(entry) = staged.next_entry()? {
        let Some(to) = counterpart.of(&staged, &entry)? else { return Err(FileError::NotADirectory) };
        if entry.metadata.kind == FileKind::Directory {
            let is_new = to.metadata(&entry.name).is_err();
            let dir = to.create_or_open_dir(&entry.name)?;
            if is_new {
                dir.set_mode(entry.metadata.mode)?;
                dir.chown_to_sandbox()?;
            }
        } else if let Some(from) = staged.current_dir() {
            from.rename(&entry.name, to, &entry.name)?;
        }
    }
    Ok(())
}

pub(super) fn open_descendant(top: &Dir, names: &[Vec<u8>]) -> io::Result<Dir> {
    top.open_descendant(names.iter().map(|name| OsStr::from_bytes(name)))
}

/// A path for users: with replacement characters for what is not UTF-8, and then with its bytes as base64.
pub(super) fn displayed(path: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(path) {
        Ok(path) => (path.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(path).into_owned(), Some(BASE64_STANDARD.encode(path))),
    }
}

pub(super) fn file_entry(path: &[u8], metadata: &Metadata) -> FileEntry {
    let (path, path_bytes) = displayed(path);
    FileEntry {
        path,
        path_bytes,
        kind: metadata.kind,
        size_bytes: metadata.size_bytes,
        modified_at: metadata.modified_at,
        mode: format!("{:04o}", metadata.mode),
    }
}
