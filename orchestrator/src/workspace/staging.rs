//! Where what is sent waits until it is whole: beside the workspaces, in their file system, out of any container's sight.
//!
//! Never leaves anything: what is dropped is removed.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use super::folder::{Folder, remove};

const FOLDER: &str = ".staging";
const CONTENT: &str = "content";
const TREE: &str = "tree";
/// What a file gets that is new.
const NEW_FILE: u32 = 0o644;

/// A place of its own for one request.
#[derive(Debug)]
pub struct Staged {
    all: Folder,
    name: OsString,
    own: Folder,
}

impl Staged {
    pub(super) fn new(root: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let path = root.join(FOLDER);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let all = Folder::open(&path)?;
        loop {
            let name = OsString::from(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
            match fs::DirBuilder::new().mode(0o700).create(path.join(&name)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => {
                    other?;
                    let own = all.folder(&name)?;
                    return Ok(Self { all, name, own });
                }
            }
        }
    }

    /// A file for the body.
    pub fn content(&self) -> io::Result<File> {
        self.own.new_file(OsStr::new(CONTENT), NEW_FILE)
    }

    pub(super) fn content_in(&self) -> (&Folder, &OsStr) {
        (&self.own, OsStr::new(CONTENT))
    }

    /// A folder to unpack into.
    pub(super) fn tree(&self) -> io::Result<Folder> {
        self.own.made(OsStr::new(TREE))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.all, &self.name) {
            tracing::warn!(%error, "cannot remove what was staged; the next start does");
        }
    }
}

/// Removes what a process left that was killed.
pub(super) fn clear(root: &Path) -> io::Result<()> {
    match Folder::open(root).and_then(|root| remove(&root, OsStr::new(FOLDER))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
