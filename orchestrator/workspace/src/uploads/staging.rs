//! Staging directories: an upload is received and unpacked in one, beside the workspaces on the same file system and
//! out of every container's sight, before it is moved into its workspace.
//!
//! A staging directory is removed when it is dropped; those of a process that was killed are removed at the next start.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::dir::{Dir, remove_tree::remove_tree};

const STAGING_ROOT: &str = ".staging";
const BODY_FILE: &str = "content";
const TREE_DIR: &str = "tree";
/// Only the orchestrator may enter a staging directory.
const PRIVATE_DIR_MODE: u32 = 0o700;
/// The mode of a new file in a workspace.
const NEW_FILE_MODE: u32 = 0o644;

/// The staging directory of one request.
#[derive(Debug)]
pub struct StagingDir {
    root: Dir,
    name: OsString,
    dir: Dir,
}

impl StagingDir {
    /// Creates one with an unused number from `next` as its name, below the directory of all workspaces.
    pub(crate) fn create(workspaces: &Path, next: &AtomicU64) -> io::Result<Self> {
        let path = workspaces.join(STAGING_ROOT);
        fs::DirBuilder::new().recursive(true).mode(PRIVATE_DIR_MODE).create(&path)?;
        let root = Dir::open(&path)?;
        loop {
            let name = OsString::from(next.fetch_add(1, Ordering::Relaxed).to_string());
            match fs::DirBuilder::new().mode(PRIVATE_DIR_MODE).create(path.join(&name)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => {
                    other?;
                    let dir = root.open_dir(&name)?;
                    return Ok(Self { root, name, dir });
                }
            }
        }
    }

    /// Creates the file that receives the request's body.
    pub fn create_body_file(&self) -> io::Result<File> {
        self.dir.create_file(OsStr::new(BODY_FILE), NEW_FILE_MODE)
    }

    /// The directory and name of the received file.
    pub(crate) fn body_file(&self) -> (&Dir, &OsStr) {
        (&self.dir, OsStr::new(BODY_FILE))
    }

    /// The directory that an archive is unpacked into, created on first use.
    pub(crate) fn tree(&self) -> io::Result<Dir> {
        self.dir.create_or_open_dir(OsStr::new(TREE_DIR))
    }
}

impl Drop for StagingDir {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.root, &self.name) {
            tracing::warn!(%error, "cannot remove a staging directory; the next start retries");
        }
    }
}

/// Removes the staging directories of an earlier process.
pub(crate) fn remove_all(workspaces: &Path) -> io::Result<()> {
    match Dir::open(workspaces).and_then(|root| remove_tree(&root, OsStr::new(STAGING_ROOT))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
