//! Workspaces that are made for jobs which are not stored yet, marked, so that the next process knows what to do with them
//! should this one die in between.
//!
//! Never touches a folder that is not marked: it may be somebody else's.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use protocol::JobId;

use super::Workspaces;
use crate::store::Store;

/// Ends the name of the mark, which is beside the workspace.
const UNBORN: &str = ".unborn";

impl Workspaces {
    /// A workspace is about to be made for a job that is not stored yet.
    pub fn announce(&self, job: JobId) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.root())?;
        fs::write(mark(self.root(), job), "")
    }

    /// The job is stored.
    pub fn born(&self, job: JobId) {
        if let Err(error) = fs::remove_file(mark(self.root(), job))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(job.id = %job, %error, "cannot remove the mark of a workspace");
        }
    }

    /// The job was not stored, and will not be.
    pub fn stillborn(&self, job: JobId) {
        self.discard(job);
        // Last: a process that dies before leaves it to the next.
        self.born(job);
    }

    /// What the last process began to make for jobs that it did not come to store goes. A failure is told, and harms nobody.
    pub async fn clear_unborn(&self, store: &Store) {
        let announced = self.announced().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the workspaces");
            vec![]
        });
        for job in announced {
            match store.job(job).await {
                Ok(Some(_)) => self.born(job),
                Ok(None) => self.stillborn(job),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(job.id = %job, error, "a workspace's job cannot be looked for");
                }
            }
        }
    }

    fn announced(&self) -> io::Result<Vec<JobId>> {
        let entries = match fs::read_dir(self.root()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            other => other?,
        };
        let job = |name: &str| name.strip_suffix(UNBORN)?.parse().ok();
        Ok(entries.flatten().filter_map(|entry| job(entry.file_name().to_str()?)).collect())
    }
}

fn mark(root: &Path, job: JobId) -> PathBuf {
    root.join(format!("{job}{UNBORN}"))
}
