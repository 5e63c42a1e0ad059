//! What is being received: one upload per job at a time, a share of the staging space per user and a total, reserved
//! before the bytes arrive.
//!
//! Owns the reservations. Never touches a file.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use protocol::{JobId, Limits};
use tokio_util::sync::CancellationToken;

use super::{Cutoff, FileError, FreeSpace};

const MB: u64 = 1024 * 1024;
/// Staged by all uploads together.
const MAX_STAGED_BYTES: u64 = 48 * 1024 * MB;
/// Staged by one user's uploads: the largest archive of the default ceiling (`limits.disk_mb` 10,240), packed and unpacked.
const MAX_STAGED_BYTES_PER_USER: u64 = 22 * 1024 * MB;
/// Reserved ahead for a body whose length is not known.
const STEP_BYTES: u64 = 16 * MB;

/// The uploads under way; clones are the same ones.
#[derive(Debug, Clone)]
pub struct Uploads(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    space: FreeSpace,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reserved_bytes: u64,
    /// Reserved and already on the disk: no longer in its free space.
    written_bytes: u64,
    users: HashMap<String, u64>,
    jobs: HashSet<JobId>,
}

/// One upload. Its reservation ends when it is dropped.
#[derive(Debug)]
pub struct Upload {
    uploads: Uploads,
    user: String,
    /// Into this job's workspace.
    pub(super) job: JobId,
    /// What the job may hold.
    pub(super) limits: Limits,
    reserved_bytes: u64,
    written_bytes: u64,
    cancelled: CancellationToken,
}

impl Uploads {
    /// On a file system with this space.
    pub fn new(space: FreeSpace) -> Self {
        Self(Arc::new(Inner { space, state: Mutex::default() }))
    }

    /// Begins one of `user` into `job`, given up once `cancelled` fires.
    pub fn begin(
        &self,
        user: &str,
        job: JobId,
        limits: Limits,
        cancelled: CancellationToken,
    ) -> Result<Upload, FileError> {
        self.0.space.check(0)?;
        if !self.lock().jobs.insert(job) {
            return Err(FileError::UploadUnderWay);
        }
        let (uploads, user) = (self.clone(), user.to_owned());
        Ok(Upload { uploads, user, job, limits, reserved_bytes: 0, written_bytes: 0, cancelled })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, user: &str, bytes: u64) -> Result<(), FileError> {
        let mut state = self.lock();
        let own = state.users.get(user).copied().unwrap_or_default();
        if own.saturating_add(bytes) > MAX_STAGED_BYTES_PER_USER {
            return Err(FileError::Busy("your uploads under way take all of your staging space"));
        }
        if state.reserved_bytes.saturating_add(bytes) > MAX_STAGED_BYTES {
            return Err(FileError::Busy("the uploads under way take all of the staging space"));
        }
        let unwritten = state.reserved_bytes.saturating_sub(state.written_bytes);
        self.0.space.check(unwritten.saturating_add(bytes))?;
        state.reserved_bytes += bytes;
        *state.users.entry(user.to_owned()).or_default() += bytes;
        Ok(())
    }
}

impl Upload {
    /// Reserves room for so many bytes more.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), FileError> {
        self.uploads.reserve(&self.user, bytes)?;
        self.reserved_bytes += bytes;
        Ok(())
    }

    /// So many bytes have arrived and are about to be written; reserves more where they were not announced.
    pub fn take(&mut self, bytes: u64) -> Result<(), FileError> {
        let written = self.written_bytes.saturating_add(bytes);
        if written > self.reserved_bytes {
            self.reserve((written - self.reserved_bytes).max(STEP_BYTES))?;
        }
        self.written_bytes = written;
        self.uploads.lock().written_bytes += bytes;
        Ok(())
    }

    /// When a step of it is given up.
    pub(super) fn cutoff(&self, limit: Duration) -> Cutoff {
        Cutoff::after(limit, &self.cancelled)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut state = self.uploads.lock();
        state.jobs.remove(&self.job);
        state.reserved_bytes = state.reserved_bytes.saturating_sub(self.reserved_bytes);
        state.written_bytes = state.written_bytes.saturating_sub(self.written_bytes);
        if let Entry::Occupied(mut own) = state.users.entry(self.user.clone()) {
            *own.get_mut() = own.get().saturating_sub(self.reserved_bytes);
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Space;

    const GB: u64 = 1024 * MB;

    fn uploads(free_bytes: u64) -> Uploads {
        let space = Space { total_bytes: 1000 * GB, free_bytes, free_inodes: 1000 };
        Uploads::new(FreeSpace::new("/".into(), Some(0)).reading(Arc::new(move |_| Ok(space))))
    }

    fn begin(uploads: &Uploads, user: &str, job: JobId) -> Result<Upload, FileError> {
        uploads.begin(user, job, Limits::default(), CancellationToken::new())
    }

    #[test]
    fn a_job_has_one_upload_at_a_time() {
        let (uploads, job) = (uploads(100 * GB), JobId::generate());
        let first = begin(&uploads, "ada", job).unwrap();
        assert!(matches!(begin(&uploads, "ada", job), Err(FileError::UploadUnderWay)));
        begin(&uploads, "ada", JobId::generate()).unwrap();
        drop(first);
        begin(&uploads, "ada", job).unwrap();
    }

    #[test]
    fn a_user_has_a_share_and_leaves_the_others_room() {
        let uploads = uploads(1000 * GB);
        let mut adas = begin(&uploads, "ada", JobId::generate()).unwrap();
        adas.reserve(20 * GB).unwrap();
        let mut second = begin(&uploads, "ada", JobId::generate()).unwrap();
        assert!(matches!(second.reserve(3 * GB), Err(FileError::Busy(_))));
        let mut bobs = begin(&uploads, "bob", JobId::generate()).unwrap();
        bobs.reserve(20 * GB).unwrap();
        let mut cyds = begin(&uploads, "cyd", JobId::generate()).unwrap();
        assert!(matches!(cyds.reserve(9 * GB), Err(FileError::Busy(_))), "the total holds for all");
        drop(bobs);
        cyds.reserve(9 * GB).unwrap();
        drop(adas);
        second.reserve(3 * GB).unwrap();
    }

    #[test]
    fn what_is_reserved_and_not_yet_written_is_no_longer_free() {
        let uploads = uploads(10 * GB);
        let mut first = begin(&uploads, "ada", JobId::generate()).unwrap();
        first.reserve(8 * GB).unwrap();
        let mut second = begin(&uploads, "bob", JobId::generate()).unwrap();
        assert!(matches!(second.reserve(3 * GB), Err(FileError::NoSpace(_))));
        // Once it is written, the file system's own count says so.
        first.take(8 * GB).unwrap();
        second.reserve(3 * GB).unwrap();
    }

    #[test]
    fn a_body_of_unknown_length_reserves_as_it_arrives() {
        let uploads = uploads(GB);
        let mut upload = begin(&uploads, "ada", JobId::generate()).unwrap();
        let chunk = 8 * MB;
        let taken = (0..1000).take_while(|_| upload.take(chunk).is_ok()).count() as u64;
        assert!(taken > 0 && upload.reserved_bytes >= taken * chunk);
        drop(upload);
        assert_eq!(uploads.lock().reserved_bytes, 0);
        assert_eq!(uploads.lock().written_bytes, 0);
        assert!(uploads.lock().users.is_empty() && uploads.lock().jobs.is_empty());
    }
}
