//! The directory of all workspaces: one subdirectory per job, writable by the sandbox's user.
//!
//! Owns the creation, copying, measurement and removal of whole workspaces. Everything in a workspace is reached from a
//! handle on its directory, one name at a time and without following links, so nothing leads out of it, whatever the
//! container does at the same time. Never decides who may access it, or when.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use protocol::{FileKind, JobId, Limits};

use super::{
    Cutoff, DiskUsage, FileError, PERMISSION_BITS, Quota, StagingDir, Upload,
    dir::{
        Dir,
        remove_tree::remove_tree,
        walk::{CounterpartDir, Walk},
    },
    sparse_copy::copy_sparse,
    uploads::staging,
};
use domain::request::WorkspaceFile;

/// Only the orchestrator may enter the directory of all workspaces.
const ROOT_MODE: u32 = 0o700;
/// A copy takes at most this many times the quota: an evicted job left more than its quota.
const COPY_FACTOR: u64 = 2;

/// A workspace could not be created or filled.
#[derive(Debug, thiserror::Error)]
#[error("workspace of job {job}: {action}")]
pub struct WorkspaceError {
    job: JobId,
    action: &'static str,
    #[source]
    source: FileError,
}

impl WorkspaceError {
    /// The underlying error.
    pub fn into_source(self) -> FileError {
        self.source
    }
}

/// The directory of all workspaces. Clones share it.
#[derive(Debug, Clone)]
pub struct Workspaces {
    root: PathBuf,
    next_staging_dir: Arc<AtomicU64>,
}

impl Workspaces {
    /// Workspaces below `root`, which is created with the first of them.
    pub fn new(root: PathBuf) -> Self {
        Self { root, next_staging_dir: Arc::default() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a job's workspace, whether or not it exists.
    pub fn path(&self, job: JobId) -> PathBuf {
        self.root.join(job.to_string())
    }

    /// Whether a job's workspace exists.
    pub fn exists(&self, job: JobId) -> bool {
        self.path(job).is_dir()
    }

    /// The jobs whose workspaces exist.
    pub fn jobs(&self) -> io::Result<Vec<JobId>> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            other => other?,
        };
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// Creates a job's workspace with files in it. Idempotent.
    pub fn create(&self, job: JobId, files: &[WorkspaceFile]) -> Result<(), WorkspaceError> {
        let fail = |action| move |source| WorkspaceError { job, action, source };
        let top = self.create_or_open(job).map_err(fail("cannot create the directory"))?;
        for file in files {
            write_file(&top, file).map_err(fail("cannot write a file"))?;
        }
        Ok(())
    }

    /// Creates the workspace of the upload's job from an earlier job's files. Links stay links, holes stay holes, and
    /// special files are left out. An earlier job without a workspace leaves it empty.
    pub fn copy_from(&self, source: JobId, upload: &mut Upload) -> Result<(), WorkspaceError> {
        let job = upload.job;
        let fail = |action| move |source| WorkspaceError { job, action, source };
        let target = self.create_or_open(job).map_err(fail("cannot create the directory"))?;
        match self.open(source) {
            Err(FileError::NotFound) => Ok(()),
            Err(error) => Err(fail("cannot open the earlier job's workspace")(error)),
            Ok(source) => copy_tree(source, target, upload).map_err(fail("cannot copy the earlier job's files")),
        }
    }

    /// Removes a job's workspace and its baseline if they exist. A failure is logged; false then.
    pub fn remove(&self, job: JobId) -> bool {
        let name = OsString::from(job.to_string());
        let removed = match Dir::open(&self.root).and_then(|root| remove_tree(&root, &name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        match removed.and_then(|()| self.remove_baseline(job)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(job.id = %job, %error, "cannot remove a workspace");
                false
            }
            _ => true,
        }
    }

    /// The usage of a job's workspace; zero if it does not exist yet.
    pub fn usage(&self, job: JobId, limits: &Limits, cutoff: &Cutoff) -> Result<DiskUsage, FileError> {
        match self.open(job) {
            Err(FileError::NotFound) => Ok(DiskUsage::default()),
            Err(FileError::NotAFile(_)) => Err(FileError::PermissionDenied),
            other => DiskUsage::measure(other?, Quota::from_limits(limits), cutoff),
        }
    }

    /// Creates a staging directory for a request.
    pub fn stage(&self) -> io::Result<StagingDir> {
        self.create_root()?;
        StagingDir::create(&self.root, &self.next_staging_dir)
    }

    /// Removes the staging directories of an earlier process. A failure is logged.
    pub fn remove_staging_dirs(&self) {
        if let Err(error) = staging::remove_all(&self.root) {
            tracing::warn!(%error, "cannot remove the staging directories of an earlier process");
        }
    }

    pub(super) fn open(&self, job: JobId) -> Result<Dir, FileError> {
        Ok(Dir::open(&self.path(job))?)
    }

    pub(super) fn create_or_open(&self, job: JobId) -> Result<Dir, FileError> {
        self.create_root()?;
        let top = Dir::open(&self.root)?.create_or_open_dir(OsStr::new(&job.to_string()))?;
        // Also for an existing one: a process may have died between creating it and changing its owner.
        top.chown_to_sandbox()?;
        Ok(top)
    }

    fn create_root(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(ROOT_MODE).create(&self.root)
    }
}

/// Writes a file of a create request; its path has been checked.
fn write_file(top: &Dir, file: &WorkspaceFile) -> Result<(), FileError> {
    let mut names: Vec<&OsStr> = Path::new(&file.path).iter().collect();
    let Some(name) = names.pop() else { return Err(FileError::NotFound) };
    let parent = names.into_iter().try_fold(top.reopen()?, |dir, name| dir.create_or_open_dir(name))?;
    match parent.unlink(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    Ok(parent.create_file(name, file.mode.bits())?.write_all(&file.content)?)
}

fn copy_tree(source: Dir, target: Dir, upload: &mut Upload) -> Result<(), FileError> {
    let quota = Quota::from_limits(&upload.limits);
    let mut remaining_bytes = quota.bytes.saturating_mul(COPY_FACTOR);
    let mut walk = Walk::new(source, quota.entries.saturating_mul(COPY_FACTOR));
    let mut counterpart = CounterpartDir::new(target);
    while let Some(entry) = walk.next_entry()? {
        let Some(to) = counterpart.of(&walk, &entry)? else { continue };
        match entry.metadata.kind {
            FileKind::Directory => {
                to.create_or_open_dir(&entry.name)?;
            }
            FileKind::File => {
                let Some(from) = walk.current_dir() else { continue };
                let (source, metadata) = match from.open_file(&entry.name) {
                    // Removed or replaced since it was listed.
                    Err(FileError::NotFound | FileError::NotAFile(_)) => continue,
                    other => other?,
                };
                let copy = to.create_file(&entry.name, metadata.mode & PERMISSION_BITS)?;
                copy_sparse(&source, &copy, metadata.size_bytes, |bytes| {
                    remaining_bytes = remaining_bytes.checked_sub(bytes).ok_or_else(Quota::exceeded)?;
                    upload.count_written(bytes)
                })?;
            }
            FileKind::Symlink => {
                let Some(from) = walk.current_dir() else { continue };
                match from.read_link(&entry.name) {
                    // Removed or replaced since it was listed.
                    Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {}
                    target => to.symlink(&entry.name, &target?)?,
                }
            }
            FileKind::Other => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
