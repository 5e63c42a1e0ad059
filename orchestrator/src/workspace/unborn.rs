//! Workspaces that are made for jobs which are not stored yet, marked, so that the next process knows what to do with them
//! should this one die in between.
//!
//! Never touches a folder that is not marked: it may be somebody else's.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
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
        self.remove(job);
        // Last: a process that dies before leaves it to the next.
        self.born(job);
    }

    /// What was begun at least `age` ago for jobs that were not stored goes: at the start all of it, since it is another
    /// process's; later what a request left behind. A failure is logged, and harms nobody.
    pub async fn clear_unborn(&self, store: &Store, age: Duration) {
        let announced = self.announced(age).unwrap_or_else(|error| {
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

    fn announced(&self, age: Duration) -> io::Result<Vec<JobId>> {
        let entries = match fs::read_dir(self.root()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            other => other?,
        };
        let job = |name: &str| name.strip_suffix(UNBORN)?.parse().ok();
        // By the file system's time, which is the system's. A mark of the future is as old as any.
        let made = |entry: &fs::DirEntry| entry.metadata().and_then(|facts| facts.modified());
        let is_due = |entry: &fs::DirEntry| {
            made(entry).ok().and_then(|made: SystemTime| made.elapsed().ok()).is_none_or(|since| since >= age)
        };
        Ok(entries.flatten().filter(is_due).filter_map(|entry| job(entry.file_name().to_str()?)).collect())
    }
}

fn mark(root: &Path, job: JobId) -> PathBuf {
    root.join(format!("{job}{UNBORN}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_request_left_goes_once_it_is_old_and_what_is_being_made_stays() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}", root.path().join("gantry.db").display())).await.unwrap();
        let workspaces = Workspaces::new(root.path().join("workspaces"));
        let (left, fresh) = (JobId::generate(), JobId::generate());
        for job in [left, fresh] {
            workspaces.announce(job).unwrap();
            workspaces.create(job, &[]).unwrap();
        }
        let hour = Duration::from_hours(1);
        let old = fs::File::open(mark(workspaces.root(), left)).unwrap();
        old.set_modified(old.metadata().unwrap().modified().unwrap() - 2 * hour).unwrap();
        workspaces.clear_unborn(&store, hour).await;
        assert_eq!((workspaces.exists(left), workspaces.exists(fresh)), (false, true));
        workspaces.clear_unborn(&store, Duration::ZERO).await;
        assert!(!workspaces.exists(fresh), "at the start all of it goes");
        store.close().await;
    }
}
