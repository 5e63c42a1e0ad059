//! Workspaces: one folder per job, writable by the sandbox's user, filled before the work starts, read and written by
//! users while it lasts.
//!
//! Everything in a workspace is reached from a handle on its folder, one name at a time and without following a link, so
//! that nothing leads out of it, whatever the container does meanwhile. Never decides who may, or when.

use std::{
    collections::BinaryHeap,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use protocol::{FileEntry, FileKind, JobId, Limits, Unpacked};
use tokio_util::sync::CancellationToken;

use super::{
    Cutoff, FileError, Pack, Room, Staged, Upload, Usage, WorkspacePath,
    folder::{Folder, Look, remove},
    room::usage,
    staging,
    unpack::unpack,
    walk::{Beside, Walk, open},
};
use crate::domain::request::WorkspaceFile;

/// For one walk over a workspace: 2.6 million entries, as many as the default ceiling allows, take about half of it.
const WALK_LIMIT: Duration = Duration::from_secs(20);

/// A workspace could not be made or filled.
#[derive(Debug, thiserror::Error)]
#[error("workspace of job {job}: {what}")]
pub struct WorkspaceError {
    job: JobId,
    what: &'static str,
    #[source]
    source: FileError,
}

impl WorkspaceError {
    /// What went wrong.
    pub fn into_source(self) -> FileError {
        self.source
    }
}

/// One page of a directory.
#[derive(Debug, PartialEq, Eq)]
pub struct Listing {
    /// By name, byte by byte.
    pub entries: Vec<FileEntry>,
    /// The last name, when there are more.
    pub last: Option<OsString>,
}

/// The folder of all workspaces.
#[derive(Debug, Clone)]
pub struct Workspaces {
    root: PathBuf,
}

impl Workspaces {
    /// In `root`.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A job's workspace.
    pub fn folder(&self, job: JobId) -> PathBuf {
        self.root.join(job.to_string())
    }

    /// Whether a job's workspace is there.
    pub fn exists(&self, job: JobId) -> bool {
        self.folder(job).is_dir()
    }

    /// The jobs whose workspaces are there.
    pub fn jobs(&self) -> io::Result<Vec<JobId>> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            other => other?,
        };
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// Makes a job's workspace and puts files into it. Asked again, it only makes what is missing.
    pub fn prepare(&self, job: JobId, files: &[WorkspaceFile]) -> Result<(), WorkspaceError> {
        let fail = |what| move |source| WorkspaceError { job, what, source };
        let top = self.made(job).map_err(fail("cannot make the folder"))?;
        for file in files {
            write(&top, file).map_err(fail("cannot write a file into it"))?;
        }
        Ok(())
    }

    /// What an earlier job left, for the one that goes on from it. Symbolic links and special files stay behind.
    pub fn copy(&self, from: JobId, upload: &mut Upload) -> Result<(), WorkspaceError> {
        let job = upload.job;
        let fail = |what| move |source| WorkspaceError { job, what, source };
        let target = self.made(job).map_err(fail("cannot make the folder"))?;
        match self.top(from) {
            Err(FileError::Missing) => Ok(()),
            Err(error) => Err(fail("cannot open the earlier job's")(error)),
            Ok(source) => copy(source, target, upload).map_err(fail("cannot copy the earlier job's files")),
        }
    }

    /// Removes a job's workspace: of one that was never stored, or that is kept no longer.
    pub fn discard(&self, job: JobId) -> bool {
        let name = OsString::from(job.to_string());
        match Folder::open(&self.root).and_then(|root| remove(&root, &name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(job.id = %job, %error, "cannot remove a workspace");
                false
            }
            _ => true,
        }
    }

    /// Removes what a process left in the middle of receiving it.
    pub fn clear_staging(&self) {
        if let Err(error) = staging::clear(&self.root) {
            tracing::warn!(%error, "cannot remove what an earlier process staged");
        }
    }

    /// A directory's entries after a name, by name. The workspace itself is empty while it is not made yet.
    pub fn list(
        &self,
        job: JobId,
        path: &WorkspacePath,
        after: Option<&OsStr>,
        limit: usize,
    ) -> Result<Listing, FileError> {
        let names = path.names();
        let folder = match self.top(job).and_then(|top| Ok(open(&top, &names)?)) {
            Err(FileError::Missing) if names.is_empty() => return Ok(Listing { entries: vec![], last: None }),
            other => other?,
        };
        // The smallest that follow, and one more to know whether there is a next page: no more is kept of a huge one.
        let mut page = BinaryHeap::with_capacity(limit + 2);
        for name in folder.names()? {
            let name = name?;
            if after.is_none_or(|after| name.as_os_str() > after) {
                page.push(name);
                if page.len() > limit + 1 {
                    page.pop();
                }
            }
        }
        let mut page = page.into_sorted_vec();
        let more = page.len() > limit;
        page.truncate(limit);
        let last = page.last().filter(|_| more).cloned();
        // What vanished meanwhile is not listed.
        let entries = page.iter().filter_map(|name| Some(entry(path.shown(name), &folder.look(name).ok()?))).collect();
        Ok(Listing { entries, last })
    }

    /// A file to read, with what it is.
    pub fn read(&self, job: JobId, path: &WorkspacePath) -> Result<(File, FileEntry), FileError> {
        let (folders, name) = path.split().ok_or(FileError::NotAFile("it is a directory"))?;
        let (file, look) = open(&self.top(job)?, &folders)?.file(name)?;
        Ok((file, entry(path.to_string(), &look)))
    }

    /// A tar of all of it.
    pub fn pack(&self, job: JobId, limits: &Limits, cancelled: &CancellationToken) -> Result<Pack, FileError> {
        match self.top(job) {
            Ok(top) => Pack::of(top, Room::of(limits), &Cutoff::after(WALK_LIMIT, cancelled)),
            // Not made yet: nothing is in it.
            Err(FileError::Missing) => Ok(Pack::nothing()),
            Err(error) => Err(error),
        }
    }

    /// What a job's workspace holds; a workspace that is not made yet holds nothing.
    pub fn usage(&self, job: JobId, limits: &Limits, cutoff: &Cutoff) -> Result<Usage, FileError> {
        match self.top(job) {
            Err(FileError::Missing) => Ok(Usage::default()),
            Err(FileError::NotAFile(_)) => Err(FileError::NotReadable),
            other => usage(other?, Room::of(limits), cutoff),
        }
    }

    /// What is left of a job's room, for an upload in place of the file that is there.
    pub fn room(&self, upload: &Upload, path: Option<&WorkspacePath>) -> Result<Room, FileError> {
        let top = match self.top(upload.job) {
            Err(FileError::Missing) => return Ok(Room::of(&upload.limits)),
            other => other?,
        };
        let replaced = path.and_then(WorkspacePath::split).and_then(|(folders, name)| {
            open(&top, &folders).and_then(|folder| folder.look(name)).ok().filter(|look| look.kind == FileKind::File)
        });
        let room = Room::of(&upload.limits).without(top, &upload.cutoff(WALK_LIMIT))?.ok_or_else(Room::full)?;
        Ok(Room { bytes: room.bytes.saturating_add(replaced.map_or(0, |look| look.taken_bytes)), ..room })
    }

    /// A place to receive something in.
    pub fn stage(&self) -> io::Result<Staged> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        Staged::new(&self.root)
    }

    /// Puts a received file in its place, at once; says whether there was nothing before.
    pub fn put(&self, upload: &Upload, path: &WorkspacePath, staged: &Staged) -> Result<(FileEntry, bool), FileError> {
        let (folders, name) = path.split().ok_or(FileError::NotAFile("it is a directory"))?;
        let (own, content) = staged.content_in();
        let size = own.look(content)?.taken_bytes;
        let mut room = self.room(upload, Some(path))?;
        room.take(size)?;
        room.entries.checked_sub(folders.len() as u64).ok_or_else(Room::full)?;
        let mut folder = self.made(upload.job)?;
        for name in folders {
            folder = folder.made(name)?;
        }
        let before = folder.look(name).ok();
        match before.map(|look| (look.kind, look.mode)) {
            Some((FileKind::Directory, _)) => return Err(FileError::NotAFile("it is a directory")),
            // It stays executable.
            Some((FileKind::File, mode)) => own.set_mode_of(content, mode & 0o777)?,
            _ => {}
        }
        own.rename(content, &folder, name)?;
        Ok((entry(path.to_string(), &folder.look(name)?), before.is_none()))
    }

    /// Unpacks a received tar where nobody looks yet; refuses it whole when one entry must not be.
    pub fn unpack(
        &self,
        upload: &mut Upload,
        mut sent: File,
        gzip: bool,
        staged: &Staged,
    ) -> Result<Unpacked, FileError> {
        io::Seek::rewind(&mut sent)?;
        // Whether it fits beside what is there is known when it is placed: what it replaces makes room.
        unpack(sent, gzip, &staged.tree()?, upload)
    }

    /// Puts an unpacked tar in its place: looks first whether all of it can be there, then moves entry by entry. The first
    /// half is given up when nobody waits; the second, once begun, is not.
    pub fn place(&self, upload: &Upload, staged: &Staged) -> Result<(), FileError> {
        let top = self.made(upload.job)?;
        let mut room = self.room(upload, None)?;
        let mut walk = Walk::of(staged.tree()?, u64::MAX).until(upload.cutoff(WALK_LIMIT));
        let mut beside = Beside::of(top.folder(OsStr::new("."))?);
        while let Some(found) = walk.next()? {
            let there = beside.at(&walk, &found)?.and_then(|folder| folder.look(&found.name).ok());
            match there.map(|look| look.kind == FileKind::Directory) {
                Some(true) if found.look.kind != FileKind::Directory => {
                    return Err(FileError::NotAFile("a directory of the workspace is where the archive has a file"));
                }
                Some(false) if found.look.kind == FileKind::Directory => return Err(FileError::NotADirectory),
                _ => {}
            }
            if let Some(look) = there.filter(|look| look.kind == FileKind::File) {
                room = Room { bytes: room.bytes.saturating_add(look.taken_bytes), ..room };
            }
            if there.is_some() {
                room.entries = room.entries.saturating_add(1);
            }
            room.take(if there.is_some_and(|look| look.kind == FileKind::Directory) {
                0
            } else {
                found.look.taken_bytes
            })?;
        }
        let mut walk = Walk::of(staged.tree()?, u64::MAX);
        let mut beside = Beside::of(top);
        while let Some(found) = walk.next()? {
            let Some(folder) = beside.at(&walk, &found)? else { return Err(FileError::NotADirectory) };
            if found.look.kind == FileKind::Directory {
                let fresh = folder.look(&found.name).is_err();
                let made = folder.made(&found.name)?;
                if fresh {
                    made.set_mode(found.look.mode)?;
                    made.give()?;
                }
            } else if let Some(from) = walk.folder() {
                from.rename(&found.name, folder, &found.name)?;
            }
        }
        Ok(())
    }

    fn top(&self, job: JobId) -> Result<Folder, FileError> {
        Ok(Folder::open(&self.folder(job))?)
    }

    fn made(&self, job: JobId) -> Result<Folder, FileError> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        let top = Folder::open(&self.root)?.made(OsStr::new(&job.to_string()))?;
        // Also when it was there: a process may have died between making it and giving it away.
        top.give()?;
        Ok(top)
    }
}

fn entry(path: String, look: &Look) -> FileEntry {
    FileEntry {
        path,
        kind: look.kind,
        size_bytes: look.size_bytes,
        modified_at: look.modified,
        mode: format!("{:04o}", look.mode),
    }
}

/// One of the files that a job is created with; its path is checked.
fn write(top: &Folder, file: &WorkspaceFile) -> Result<(), FileError> {
    let mut folder = top.folder(OsStr::new("."))?;
    let mut names: Vec<&OsStr> = Path::new(&file.path).iter().collect();
    let Some(name) = names.pop() else { return Err(FileError::Missing) };
    for name in names {
        folder = folder.made(name)?;
    }
    match folder.unlink(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    Ok(folder.new_file(name, 0o644)?.write_all(&file.content)?)
}

fn copy(source: Folder, target: Folder, upload: &mut Upload) -> Result<(), FileError> {
    let room = Room::of(&upload.limits);
    // A job that was evicted left more than it may have; what claims far more than that is holes.
    let mut left = room.bytes.saturating_mul(2);
    let mut walk = Walk::of(source, room.entries.saturating_mul(2));
    let mut beside = Beside::of(target);
    while let Some(found) = walk.next()? {
        let Some(folder) = beside.at(&walk, &found)? else { continue };
        match found.look.kind {
            FileKind::Directory => {
                folder.made(&found.name)?;
            }
            FileKind::File => {
                let Some(from) = walk.folder() else { continue };
                let (mut from, look) = match from.file(&found.name) {
                    Err(FileError::Missing | FileError::NotAFile(_)) => continue,
                    other => other?,
                };
                left = left.checked_sub(look.size_bytes).ok_or_else(Room::full)?;
                upload.take(look.size_bytes)?;
                let mut to = folder.new_file(&found.name, look.mode & 0o777)?;
                io::copy(&mut io::Read::take(&mut from, look.size_bytes), &mut to)?;
            }
            FileKind::Symlink | FileKind::Other => {}
        }
    }
    Ok(())
}
