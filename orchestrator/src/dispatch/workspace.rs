//! Workspaces: one folder per job, writable by the sandbox's user, filled before the work starts.
//!
//! Writes only through a handle on the folder, so that no path or link leads out of it.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use cap_std::{ambient_authority, fs::Dir};
use protocol::JobId;

use crate::domain::request::WorkspaceFile;

/// The sandbox's user and group (contract: sandbox, Posture).
const SANDBOX_ID: u32 = 10_001;

/// A workspace could not be made or filled.
#[derive(Debug, thiserror::Error)]
#[error("workspace of job {job}: {what}")]
pub struct WorkspaceError {
    job: JobId,
    what: &'static str,
    #[source]
    source: io::Error,
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

    /// A job's workspace.
    pub fn folder(&self, job: JobId) -> PathBuf {
        self.root.join(job.to_string())
    }

    /// Makes a job's workspace and puts files into it. Asked again, it only makes what is missing.
    pub fn prepare(&self, job: JobId, files: &[WorkspaceFile]) -> Result<(), WorkspaceError> {
        let fail = |what| move |source| WorkspaceError { job, what, source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root).map_err(fail("cannot make the root"))?;
        let folder = self.folder(job);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder).map_err(fail("cannot make the folder"))?;
        give(&folder).map_err(fail("cannot hand it to the sandbox's user"))?;
        if files.is_empty() {
            return Ok(());
        }
        let dir = Dir::open_ambient_dir(&folder, ambient_authority()).map_err(fail("cannot open it"))?;
        for file in files {
            let path = Path::new(&file.path);
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                dir.create_dir_all(parent).map_err(fail("cannot make a folder in it"))?;
            }
            dir.write(path, &file.content).map_err(fail("cannot write a file into it"))?;
            // Everything on the way, so that the agent can change it.
            for ancestor in path.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()) {
                give(&folder.join(ancestor)).map_err(fail("cannot hand a file to the sandbox's user"))?;
            }
        }
        Ok(())
    }

    /// What an earlier job left, for the one that goes on from it. Symbolic links and special files stay behind.
    pub fn copy(&self, from: JobId, to: JobId) -> Result<(), WorkspaceError> {
        self.prepare(to, &[])?;
        let fail = |source| WorkspaceError { job: to, what: "cannot copy the earlier job's files", source };
        let source = match Dir::open_ambient_dir(self.folder(from), ambient_authority()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(fail)?,
        };
        let folder = self.folder(to);
        let target = Dir::open_ambient_dir(&folder, ambient_authority()).map_err(fail)?;
        copy_tree(&source, &target, &folder).map_err(fail)
    }

    /// Removes a job's workspace: a job that was never stored.
    pub fn discard(&self, job: JobId) {
        if let Err(error) = fs::remove_dir_all(self.folder(job))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(job.id = %job, %error, "cannot remove a workspace");
        }
    }
}

fn copy_tree(source: &Dir, target: &Dir, folder: &Path) -> io::Result<()> {
    for entry in source.entries()? {
        let entry = entry?;
        let (kind, name) = (entry.file_type()?, entry.file_name());
        let path = folder.join(&name);
        if kind.is_dir() {
            target.create_dir_all(&name)?;
            give(&path)?;
            copy_tree(&entry.open_dir()?, &target.open_dir(&name)?, &path)?;
        } else if kind.is_file() {
            source.copy(&name, target, &name)?;
            give(&path)?;
        }
    }
    Ok(())
}

/// To the sandbox's user; where we may not give things away (not root), open to all below a folder that is not.
fn give(path: &Path) -> io::Result<()> {
    let Err(error) = chown(path, Some(SANDBOX_ID), Some(SANDBOX_ID)) else { return Ok(()) };
    if error.kind() != io::ErrorKind::PermissionDenied {
        return Err(error);
    }
    let metadata = fs::metadata(path)?;
    let open = if metadata.is_dir() { 0o777 } else { metadata.permissions().mode() | 0o666 };
    fs::set_permissions(path, fs::Permissions::from_mode(open))
}
