//! Uploads in progress: one per job, with staging space reserved before bytes are written, up to a limit per user and
//! in all.
//!
//! Owns the reservations. Never touches a file.

pub(crate) mod staging;
pub(crate) mod unpack;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use protocol::{JobId, Limits};
use tokio_util::sync::CancellationToken;

use super::{Cutoff, FileError, FreeSpace};

const MB: u64 = 1024 * 1024;
/// Staging space of all uploads: two users at their limit, and some for others.
const MAX_STAGED_BYTES: u64 = 48 * 1024 * MB;
/// Staging space of one user's uploads: the largest archive at the default ceiling (`limits.disk_mb` 10,240), both
/// packed and unpacked.
const MAX_STAGED_BYTES_PER_USER: u64 = 22 * 1024 * MB;
/// Reserved at a time for a body of unknown length.
const RESERVATION_STEP_BYTES: u64 = 16 * MB;

/// The uploads in progress. Clones share them.
#[derive(Debug, Clone)]
pub struct UploadRegistry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    free_space: FreeSpace,
    state: Mutex<Reservations>,
}

#[derive(Debug, Default)]
struct Reservations {
    reserved_bytes: u64,
    /// The part of `reserved_bytes` that is on disk already, and so no longer free.
    written_bytes: u64,
    reserved_bytes_by_user: HashMap<String, u64>,
    jobs: HashSet<JobId>,
}

/// An upload in progress. Dropping it releases its reservation.
#[derive(Debug)]
pub struct Upload {
    registry: UploadRegistry,
    user: String,
    /// The job whose workspace it goes to.
    pub(super) job: JobId,
    pub(super) limits: Limits,
    reserved_bytes: u64,
    written_bytes: u64,
    cancelled: CancellationToken,
}

impl UploadRegistry {
    /// A registry without uploads, for staging on the file system of `free_space`.
    pub fn new(free_space: FreeSpace) -> Self {
        Self(Arc::new(Inner { free_space, state: Mutex::default() }))
    }

    /// Fails with [`FileError::NoSpace`] while the disk has no more than what is kept free: no upload is accepted, and no
    /// job starts.
    pub fn ensure_space(&self) -> Result<(), FileError> {
        self.0.free_space.ensure_available(0)
    }

    /// Begins an upload by `user` into `job`. Work for it ends with [`FileError::TimedOut`] once `cancelled` fires.
    pub fn begin(
        &self,
        user: &str,
        job: JobId,
        limits: Limits,
        cancelled: CancellationToken,
    ) -> Result<Upload, FileError> {
        self.ensure_space()?;
        if !self.0.state.lock().jobs.insert(job) {
            return Err(FileError::UploadInProgress);
        }
        let (registry, user) = (self.clone(), user.to_owned());
        Ok(Upload { registry, user, job, limits, reserved_bytes: 0, written_bytes: 0, cancelled })
    }

    fn reserve(&self, user: &str, bytes: u64) -> Result<(), FileError> {
        let mut state = self.0.state.lock();
        let reserved_by_user = state.reserved_bytes_by_user.get(user).copied().unwrap_or_default();
        if reserved_by_user.saturating_add(bytes) > MAX_STAGED_BYTES_PER_USER {
            return Err(FileError::StagingFull("your uploads in progress use all of your staging space"));
        }
        if state.reserved_bytes.saturating_add(bytes) > MAX_STAGED_BYTES {
            return Err(FileError::StagingFull("uploads in progress use all of the staging space"));
        }
        let unwritten = state.reserved_bytes.saturating_sub(state.written_bytes);
        self.0.free_space.ensure_available(unwritten.saturating_add(bytes))?;
        state.reserved_bytes += bytes;
        *state.reserved_bytes_by_user.entry(user.to_owned()).or_default() += bytes;
        Ok(())
    }
}

impl Upload {
    /// The job whose workspace it goes to.
    pub const fn job(&self) -> JobId {
        self.job
    }

    /// Reserves `bytes` more.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), FileError> {
        self.registry.reserve(&self.user, bytes)?;
        self.reserved_bytes += bytes;
        Ok(())
    }

    /// Counts `bytes` that are about to be written against the reservation, and extends it if they exceed it.
    pub fn count_written(&mut self, bytes: u64) -> Result<(), FileError> {
        let written = self.written_bytes.saturating_add(bytes);
        if written > self.reserved_bytes {
            self.reserve((written - self.reserved_bytes).max(RESERVATION_STEP_BYTES))?;
        }
        self.written_bytes = written;
        self.registry.0.state.lock().written_bytes += bytes;
        Ok(())
    }

    /// The cutoff of one step of the upload that begins now.
    pub(super) fn cutoff(&self, limit: Duration) -> Cutoff {
        Cutoff::after(limit, &self.cancelled)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut state = self.registry.0.state.lock();
        state.jobs.remove(&self.job);
        state.reserved_bytes = state.reserved_bytes.saturating_sub(self.reserved_bytes);
        state.written_bytes = state.written_bytes.saturating_sub(self.written_bytes);
        if let Entry::Occupied(mut reserved) = state.reserved_bytes_by_user.entry(self.user.clone()) {
            *reserved.get_mut() = reserved.get().saturating_sub(self.reserved_bytes);
            if *reserved.get() == 0 {
                reserved.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskSpace;

    const GB: u64 = 1024 * MB;

    fn uploads(free_bytes: u64) -> UploadRegistry {
        let space = DiskSpace { total_bytes: 1000 * GB, free_bytes, free_inodes: 1000 };
        UploadRegistry::new(FreeSpace::new("/".into(), Some(0)).with_reader(Arc::new(move |_| Ok(space))))
    }

    fn begin(uploads: &UploadRegistry, user: &str, job: JobId) -> Result<Upload, FileError> {
        uploads.begin(user, job, Limits::default(), CancellationToken::new())
    }

    #[test]
    fn a_job_has_one_upload_at_a_time() {
        let (uploads, job) = (uploads(100 * GB), JobId::generate());
        let first = begin(&uploads, "ada", job).unwrap();
        assert!(matches!(begin(&uploads, "ada", job), Err(FileError::UploadInProgress)));
        begin(&uploads, "ada", JobId::generate()).unwrap();
        drop(first);
        begin(&uploads, "ada", job).unwrap();
    }

    #[test]
    fn staging_space_is_limited_per_user_and_in_all() {
        let uploads = uploads(1000 * GB);
        let mut first = begin(&uploads, "ada", JobId::generate()).unwrap();
        first.reserve(20 * GB).unwrap();
        let mut second = begin(&uploads, "ada", JobId::generate()).unwrap();
        assert!(matches!(second.reserve(3 * GB), Err(FileError::StagingFull(_))));
        let mut other = begin(&uploads, "bob", JobId::generate()).unwrap();
        other.reserve(20 * GB).unwrap();
        let mut third = begin(&uploads, "cyd", JobId::generate()).unwrap();
        assert!(matches!(third.reserve(9 * GB), Err(FileError::StagingFull(_))), "the limit for all uploads");
        drop(other);
        third.reserve(9 * GB).unwrap();
        drop(first);
        second.reserve(3 * GB).unwrap();
    }

    #[test]
    fn unwritten_reservations_are_not_free_space() {
        let uploads = uploads(10 * GB);
        let mut first = begin(&uploads, "ada", JobId::generate()).unwrap();
        first.reserve(8 * GB).unwrap();
        let mut second = begin(&uploads, "bob", JobId::generate()).unwrap();
        assert!(matches!(second.reserve(3 * GB), Err(FileError::NoSpace(_))));
        // Written bytes are in the file system's own count.
        first.count_written(8 * GB).unwrap();
        second.reserve(3 * GB).unwrap();
    }

    #[test]
    fn a_body_of_unknown_length_reserves_in_steps() {
        let uploads = uploads(GB);
        let mut upload = begin(&uploads, "ada", JobId::generate()).unwrap();
        let chunk = 8 * MB;
        let written = (0..1000).take_while(|_| upload.count_written(chunk).is_ok()).count() as u64;
        assert!(written > 0 && upload.reserved_bytes >= written * chunk);
        drop(upload);
        assert_eq!(uploads.0.state.lock().reserved_bytes, 0);
        assert_eq!(uploads.0.state.lock().written_bytes, 0);
        assert!(uploads.0.state.lock().reserved_bytes_by_user.is_empty() && uploads.0.state.lock().jobs.is_empty());
    }
}
