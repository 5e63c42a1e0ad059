//! Provisional workspaces: created for jobs that are not stored yet, and marked as such, so that what a process or a
//! request left behind is found and removed.
//!
//! The sweep never removes a workspace without a mark: a directory that no job's row refers to may belong to someone
//! else.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use protocol::JobId;

use super::Workspaces;
use store::Store;

/// Suffix of a mark, an empty file beside the workspace.
const MARK_SUFFIX: &str = ".provisional";
/// Only the orchestrator may enter the directory of all workspaces.
const ROOT_MODE: u32 = 0o700;

impl Workspaces {
    /// Marks the workspace of a job that is not stored yet. Call it before the workspace is created.
    pub fn mark_provisional(&self, job: JobId) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(ROOT_MODE).create(self.root())?;
        fs::write(mark(self.root(), job), "")
    }

    /// Removes the mark: the job is stored. A failure is logged; the next sweep finds the job's row and retries.
    pub fn confirm_provisional(&self, job: JobId) {
        if let Err(error) = fs::remove_file(mark(self.root(), job))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(job.id = %job, %error, "cannot remove the mark of a provisional workspace");
        }
    }

    /// Removes the workspace of a job that will not be stored, if there is one.
    pub fn discard_provisional(&self, job: JobId) {
        self.remove(job);
        // After the workspace: if the process dies in between, the next one finds the mark.
        self.confirm_provisional(job);
    }

    /// Removes provisional workspaces that were marked at least `min_age` ago and whose job is not stored. At the start
    /// `min_age` is zero, since every mark is an earlier process's; later it exceeds the duration of any request. A
    /// failure is logged.
    pub async fn remove_abandoned(&self, store: &Store, min_age: Duration) {
        let marked = self.marked(min_age).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the workspaces");
            vec![]
        });
        for job in marked {
            match store.job(job).await {
                Ok(Some(_)) => self.confirm_provisional(job),
                Ok(None) => self.discard_provisional(job),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(job.id = %job, error, "cannot load the job of a provisional workspace");
                }
            }
        }
    }

    /// The jobs whose workspaces were marked at least `min_age` ago.
    fn marked(&self, min_age: Duration) -> io::Result<Vec<JobId>> {
        let entries = match fs::read_dir(self.root()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            other => other?,
        };
        let job = |name: &str| name.strip_suffix(MARK_SUFFIX)?.parse().ok();
        let marked_at = |entry: &fs::DirEntry| entry.metadata().and_then(|metadata| metadata.modified());
        // The file system's clock is the system's. A time in the future counts as old.
        let age = |entry: &fs::DirEntry| marked_at(entry).ok().and_then(|at: SystemTime| at.elapsed().ok());
        let is_due = |entry: &fs::DirEntry| age(entry).is_none_or(|age| age >= min_age);
        Ok(entries.flatten().filter(is_due).filter_map(|entry| job(entry.file_name().to_str()?)).collect())
    }
}

fn mark(root: &Path, job: JobId) -> PathBuf {
    root.join(format!("{job}{MARK_SUFFIX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn abandoned_workspaces_are_removed_and_those_of_requests_in_progress_stay() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}", root.path().join("gantry.db").display())).await.unwrap();
        let workspaces = Workspaces::new(root.path().join("workspaces"));
        let (abandoned, in_progress) = (JobId::generate(), JobId::generate());
        for job in [abandoned, in_progress] {
            workspaces.mark_provisional(job).unwrap();
            workspaces.create(job, &[]).unwrap();
        }
        let hour = Duration::from_hours(1);
        let old = fs::File::open(mark(workspaces.root(), abandoned)).unwrap();
        old.set_modified(old.metadata().unwrap().modified().unwrap() - 2 * hour).unwrap();
        workspaces.remove_abandoned(&store, hour).await;
        assert_eq!((workspaces.exists(abandoned), workspaces.exists(in_progress)), (false, true));
        workspaces.remove_abandoned(&store, Duration::ZERO).await;
        assert!(!workspaces.exists(in_progress), "at the start all of them are removed");
        store.close().await;
    }

    #[test]
    fn a_confirmed_workspace_is_no_longer_marked_and_a_discarded_one_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let workspaces = Workspaces::new(root.path().to_owned());
        let (stored, refused) = (JobId::generate(), JobId::generate());
        for job in [stored, refused] {
            workspaces.mark_provisional(job).unwrap();
            workspaces.create(job, &[]).unwrap();
        }
        workspaces.confirm_provisional(stored);
        workspaces.discard_provisional(refused);
        assert_eq!((workspaces.exists(stored), workspaces.exists(refused)), (true, false));
        assert_eq!(workspaces.marked(Duration::ZERO).unwrap(), []);
    }
}
