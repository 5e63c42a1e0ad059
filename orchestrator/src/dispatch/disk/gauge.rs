//! Measures workspaces of running jobs: by a walk, and by what is open in the container without a name.
//!
//! Each measure has a thread of its own and a deadline, so that no job's tree holds up another's. Never ends a job.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use protocol::{JobId, Limits};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    Violation,
    open_files::{Depth, unlinked_bytes},
    verdict::Finding,
};
use crate::{
    domain::job::JobRecord,
    engine::Engine,
    store::RunningJob,
    workspace::{Cutoff, FileError, Workspaces},
};

/// For a measure while the job works; a tree of 100,000 files takes a tenth of it.
const MEASURE_LIMIT: Duration = Duration::from_millis(700);
/// For one with the container paused: 2.6 million entries, as many as the default ceiling allows, on a busy machine. Less than a
/// worker's lease, which runs out meanwhile.
const PAUSED_LIMIT: Duration = Duration::from_secs(20);
/// What failed with the container paused is tried again for so long.
const PAUSED_PATIENCE: Duration = Duration::from_secs(3);
const PAUSED_RETRY: Duration = Duration::from_millis(250);
/// Coarser than the file system's times: what has just been written has settled after it.
const SETTLES_WITHIN: Duration = Duration::from_millis(25);
/// A container that cannot be thawed is tried again so often.
const UNPAUSE_TRIES: u32 = 10;

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// The regular look.
    Quick,
    /// Free space fell, or the job says that it is done.
    Thorough,
    /// Nothing moves.
    Paused,
}

/// A measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Measure {
    pub(super) bytes: u64,
    pub(super) finding: Finding,
}

impl Measure {
    fn none(finding: Finding) -> Self {
        Self { bytes: 0, finding }
    }
}

/// Takes measures; clones are the same one.
#[derive(Clone)]
pub struct DiskGauge {
    workspaces: Workspaces,
    engine: Arc<dyn Engine>,
    /// First processes of containers by name.
    processes: Arc<Mutex<HashMap<String, u32>>>,
}

impl DiskGauge {
    /// Of these workspaces, with the engine that runs the containers.
    pub fn new(workspaces: Workspaces, engine: Arc<dyn Engine>) -> Self {
        Self { workspaces, engine, processes: Arc::default() }
    }

    /// Whether a job that says it is done holds more than it may; none when it does not. Measured while the container is
    /// still there, and paused where that leaves a doubt.
    pub async fn check_completed(&self, job: &JobRecord) -> Option<Violation> {
        let job = RunningJob::of(job);
        for settles in [true, false] {
            match self.measure(&job, Effort::Thorough).await.finding {
                Finding::Within => return None,
                Finding::Unsettled if settles => tokio::time::sleep(SETTLES_WITHIN).await,
                _ => break,
            }
        }
        self.measure_paused(&job).await.err()
    }

    /// Measures with the container paused: it goes on when it may, and stays paused when it is to end.
    pub(super) async fn measure_paused(&self, job: &RunningJob) -> Result<(), Violation> {
        let begun = Instant::now();
        loop {
            self.pause(job).await;
            let Measure { bytes, finding } = self.measure(job, Effort::Paused).await;
            if finding.may_pass() && begun.elapsed() < PAUSED_PATIENCE {
                tokio::time::sleep(PAUSED_RETRY).await;
                continue;
            }
            let Some(message) = finding.violation(&job.limits) else {
                self.unpause(job).await;
                return Ok(());
            };
            tracing::info!(job.id = %job.id, bytes, ?finding, took = ?begun.elapsed(), "over the disk limit");
            return Err(Violation { bytes, message });
        }
    }

    /// Takes a measure.
    pub(super) async fn measure(&self, job: &RunningJob, effort: Effort) -> Measure {
        let process = self.process(job).await;
        let (workspaces, id, limits) = (self.workspaces.clone(), job.id, job.limits);
        let measured = on_own_thread(move || measure(&workspaces, id, &limits, process, effort)).await;
        measured.unwrap_or_else(|| Measure::none(Finding::Failed("no thread can be started".to_owned())))
    }

    /// The container goes on; tried again where the engine fails.
    pub(super) async fn unpause(&self, job: &RunningJob) {
        let Some(container) = &job.container else { return };
        for _ in 0..UNPAUSE_TRIES {
            match self.engine.unpause(container).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(job.id = %job.id, container, %error, "a paused container cannot be thawed yet");
                }
            }
            tokio::time::sleep(PAUSED_RETRY).await;
        }
        tracing::error!(job.id = %job.id, container, "a container stays paused: thaw it with docker unpause");
    }

    /// What is known of a container that has ended.
    pub(super) fn forget(&self, job: &RunningJob) {
        if let Some(container) = &job.container {
            self.known().remove(container);
        }
    }

    async fn pause(&self, job: &RunningJob) {
        let Some(container) = &job.container else { return };
        // Not every runtime can, and an engine that hangs must not keep the limit from being held.
        if let Err(error) = self.engine.pause(container).await {
            tracing::warn!(job.id = %job.id, container, %error, "measured without a pause");
        }
    }

    async fn process(&self, job: &RunningJob) -> Option<u32> {
        let container = job.container.as_ref()?;
        let known = self.known().get(container).copied();
        if known.is_some() {
            return known;
        }
        let process = self.engine.pid(container).await.ok()??;
        self.known().insert(container.clone(), process);
        Some(process)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Not on the runtime's shared threads, which requests may have taken all of; none when the system has no thread left.
async fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    let started = std::thread::Builder::new().name("disk-measure".to_owned()).spawn(move || {
        // A draining process does not wait.
        let _ = done.send(work());
    });
    started.ok()?;
    result.await.ok()
}

fn measure(workspaces: &Workspaces, job: JobId, limits: &Limits, process: Option<u32>, effort: Effort) -> Measure {
    let limit = if effort == Effort::Paused { PAUSED_LIMIT } else { MEASURE_LIMIT };
    let cutoff = Cutoff::after(limit, &CancellationToken::new());
    let usage = match workspaces.usage(job, limits, &cutoff) {
        Ok(usage) => usage,
        Err(error) => return Measure::none(failed(&error)),
    };
    let depth = if effort == Effort::Quick { Depth::Processes } else { Depth::ThreadsAndMappings };
    let unlinked = process.map(|process| unlinked_bytes(process, &workspaces.path(job), depth, &cutoff));
    let (unlinked, unseen) = match unlinked {
        None | Some(Ok(None)) => (0, None),
        Some(Ok(Some(bytes))) => (bytes, None),
        Some(Err(error)) => (0, Some(failed(&error))),
    };
    let bytes = usage.bytes.saturating_add(unlinked);
    let finding = if usage.exceeds_walk_limits {
        Finding::BeyondCounting
    } else if bytes > limits.disk_mb.saturating_mul(1024 * 1024) {
        Finding::Over
    } else if let Some(unseen) = unseen {
        unseen
    } else if usage.has_missed_entries {
        Finding::Moved
    } else if usage.has_changed {
        Finding::Unsettled
    } else {
        Finding::Within
    };
    Measure { bytes, finding }
}

fn failed(error: &FileError) -> Finding {
    match error {
        FileError::TimedOut => Finding::Slow,
        FileError::PermissionDenied => Finding::NotReadable,
        // The workspace itself is being made or removed.
        FileError::NotFound => Finding::Moved,
        FileError::Io(cause) => Finding::Failed(cause.to_string()),
        other => Finding::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use protocol::InstanceId;

    use super::*;
    use crate::engine::{Docker, DockerSettings};

    async fn found(make: impl FnOnce(&Path)) -> Finding {
        let root = tempfile::tempdir().unwrap();
        let (workspaces, id) = (Workspaces::new(root.path().to_owned()), JobId::generate());
        workspaces.create(id, &[]).unwrap();
        make(&workspaces.path(id));
        let limits = Limits { disk_mb: 1, ..Limits::default() };
        let job = RunningJob { id, limits, container: None };
        // A job without a container has nothing to ask an engine for.
        let engine = Docker::connect(DockerSettings {
            host: None,
            instance_id: InstanceId::generate(),
            image: String::new(),
            runtime: None,
            run_dir: root.path().to_owned(),
            inet_datagrams: false,
        });
        DiskGauge::new(workspaces, Arc::new(engine)).measure(&job, Effort::Paused).await.finding
    }

    fn is_within(finding: &Finding) -> bool {
        matches!(finding, Finding::Within | Finding::Unsettled)
    }

    #[tokio::test]
    async fn the_sum_counts_and_not_the_single_file() {
        let write = |folder: &Path, files: usize| {
            for index in 0..files {
                fs::create_dir_all(folder.join("a/b")).unwrap();
                fs::write(folder.join(format!("a/b/{index}")), vec![1; 300 * 1024]).unwrap();
            }
        };
        assert!(is_within(&found(|folder| write(folder, 3)).await));
        assert_eq!(found(|folder| write(folder, 4)).await, Finding::Over);
    }

    #[tokio::test]
    async fn empty_files_count_too() {
        // One for each 4 KiB.
        let touch = |folder: &Path, files: u64| {
            for index in 0..files {
                fs::write(folder.join(index.to_string()), "").unwrap();
            }
        };
        assert!(is_within(&found(|folder| touch(folder, 256)).await));
        assert_eq!(found(|folder| touch(folder, 257)).await, Finding::BeyondCounting);
    }

    #[tokio::test]
    async fn a_hole_in_a_file_and_a_link_out_of_the_workspace_take_no_room() {
        let finding = found(|folder| {
            fs::File::create(folder.join("sparse")).unwrap().set_len(1 << 40).unwrap();
            symlink("/usr", folder.join("out")).unwrap();
        });
        assert!(is_within(&finding.await));
    }

    #[tokio::test]
    async fn what_is_too_deep_to_be_counted_is_over() {
        let finding = found(|folder| fs::create_dir_all(folder.join("d/".repeat(129))).unwrap());
        assert_eq!(finding.await, Finding::BeyondCounting);
    }

    #[tokio::test]
    async fn what_cannot_be_measured_is_never_within() {
        // As an exhausted process would fail, and as one that is not root would.
        for (error, finding) in [
            (
                FileError::Io(std::io::Error::from_raw_os_error(24)),
                Finding::Failed("Too many open files (os error 24)".to_owned()),
            ),
            (FileError::TimedOut, Finding::Slow),
            (FileError::PermissionDenied, Finding::NotReadable),
            (FileError::NotFound, Finding::Moved),
        ] {
            assert_eq!(failed(&error), finding);
            assert!(finding.violation(&Limits::default()).is_some());
        }
    }
}
