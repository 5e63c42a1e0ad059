//! Measures workspaces of running jobs: by a walk, and by the deleted files that the container still holds open.
//!
//! Each measurement runs on a separate thread with a deadline, so that one job's tree hardly delays another's, and few
//! run at once and with a low priority, so that the threads of the server keep their share of the CPU. Never ends a job.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use protocol::{JobId, Limits};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Violation,
    open_files::{Depth, unlinked_bytes},
    verdict::Finding,
};
use domain::job::JobRecord;
use engine::Engine;
use store::RunningJob;
use workspace::{Cutoff, FileError, Workspaces};

/// Timeout of a measurement while the job runs; a tree of 100,000 files takes a tenth of it.
const MEASURE_TIMEOUT: Duration = Duration::from_millis(700);
/// Measurements of running jobs at once. All jobs are measured when the free space drops.
const MAX_AT_ONCE: usize = 8;
/// Niceness of the threads that measure: such a thread gets a tenth of the CPU time of one that serves requests.
const NICENESS: i32 = 10;
/// Timeout with the container paused: enough for 2.6 million entries, the most at the default ceiling, on a busy
/// machine. Shorter than a worker's lease, which is not renewed meanwhile.
const PAUSED_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a measurement that fails with the container paused is retried.
const PAUSED_RETRY_LIMIT: Duration = Duration::from_secs(3);
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Longer than the granularity of file timestamps, so that a workspace in which nothing is written any more is settled.
const SETTLE_TIME: Duration = Duration::from_millis(25);
/// Attempts to unpause a container.
const UNPAUSE_TRIES: u32 = 10;

/// How thorough a measurement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// A measurement at the regular interval.
    Quick,
    /// A measurement after a drop of the free space, or when the job reports success.
    Thorough,
    /// A measurement with the container paused.
    Paused,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Measurement {
    pub(super) bytes: u64,
    pub(super) finding: Finding,
}

impl Measurement {
    fn incomplete(finding: Finding) -> Self {
        Self { bytes: 0, finding }
    }
}

/// Measures workspaces. Clones share what they know of the containers.
#[derive(Clone)]
pub struct WorkspaceMeasurer {
    workspaces: Workspaces,
    engine: Arc<dyn Engine>,
    containers: Arc<Mutex<HashMap<String, Arc<MeasuredContainer>>>>,
    permits: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct MeasuredContainer {
    /// Host PID of the first process.
    pid: OnceLock<u32>,
    /// Held while it is paused: otherwise one measurement would unpause it during another.
    paused: tokio::sync::Mutex<()>,
}

impl WorkspaceMeasurer {
    /// Measures these workspaces, with the engine that runs the containers.
    pub fn new(workspaces: Workspaces, engine: Arc<dyn Engine>) -> Self {
        Self { workspaces, engine, containers: Arc::default(), permits: Arc::new(Semaphore::new(MAX_AT_ONCE)) }
    }

    /// Measures the workspace of a job that reports success, while its container still exists. The container is paused
    /// if the result is not certain, and stays paused if the limit is exceeded. Must not be cancelled.
    pub async fn check_completed(&self, job: &JobRecord) -> Option<Violation> {
        let job = RunningJob::of(job);
        for may_settle in [true, false] {
            match self.measure(&job, Effort::Thorough).await.finding {
                Finding::Within => return None,
                Finding::Unsettled if may_settle => tokio::time::sleep(SETTLE_TIME).await,
                _ => break,
            }
        }
        self.measure_paused(&job).await.err()
    }

    /// Measures with the container paused. It is unpaused if the job may continue, and stays paused if it is to end.
    /// Must not be cancelled: the container would stay paused.
    pub(super) async fn measure_paused(&self, job: &RunningJob) -> Result<(), Violation> {
        let container = self.container(job);
        let _paused = match &container {
            Some(container) => Some(container.paused.lock().await),
            None => None,
        };
        let started_at = Instant::now();
        loop {
            self.pause(job).await;
            let Measurement { bytes, finding } = self.measure(job, Effort::Paused).await;
            if finding.is_transient() && started_at.elapsed() < PAUSED_RETRY_LIMIT {
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
            let Some(message) = finding.violation(&job.limits) else {
                self.unpause(job).await;
                return Ok(());
            };
            tracing::info!(job.id = %job.id, bytes, ?finding, took = ?started_at.elapsed(), "over the disk limit");
            return Err(Violation { bytes, message });
        }
    }

    /// Measures once.
    pub(super) async fn measure(&self, job: &RunningJob, effort: Effort) -> Measurement {
        let pid = self.pid(job).await;
        // Not with the container paused: that may take longer, and the job waits.
        let _permit = if effort == Effort::Paused { None } else { self.permits.acquire().await.ok() };
        let (workspaces, id, limits) = (self.workspaces.clone(), job.id, job.limits);
        let measured = run_on_new_thread(move || measure(&workspaces, id, &limits, pid, effort)).await;
        measured.unwrap_or_else(|| Measurement::incomplete(Finding::Failed("cannot start a thread".to_owned())))
    }

    /// Unpauses the container, with retries.
    pub(super) async fn unpause(&self, job: &RunningJob) {
        let Some(container) = &job.container else { return };
        for _ in 0..UNPAUSE_TRIES {
            match self.engine.unpause(container).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(job.id = %job.id, container, %error, "cannot unpause a container yet");
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
        tracing::error!(job.id = %job.id, container, "a container stays paused: use docker unpause");
    }

    /// Removes what is known of a job's container.
    pub(super) fn forget(&self, job: &RunningJob) {
        if let Some(container) = &job.container {
            self.containers.lock().remove(container);
        }
    }

    async fn pause(&self, job: &RunningJob) {
        let Some(container) = &job.container else { return };
        // Not fatal: not every runtime can pause, and the limit must be enforced even if the engine hangs.
        if let Err(error) = self.engine.pause(container).await {
            tracing::warn!(job.id = %job.id, container, %error, "cannot pause the container; measuring it while it runs");
        }
    }

    async fn pid(&self, job: &RunningJob) -> Option<u32> {
        let container = self.container(job)?;
        if let Some(pid) = container.pid.get() {
            return Some(*pid);
        }
        let pid = self.engine.pid(job.container.as_ref()?).await.ok()??;
        Some(*container.pid.get_or_init(|| pid))
    }

    fn container(&self, job: &RunningJob) -> Option<Arc<MeasuredContainer>> {
        let name = job.container.as_ref()?;
        Some(Arc::clone(self.containers.lock().entry(name.clone()).or_default()))
    }
}

/// Runs on a new thread: the runtime's blocking threads may all be busy with requests. None if no thread can be
/// started.
async fn run_on_new_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    let started = std::thread::Builder::new().name("disk-measure".to_owned()).spawn(move || {
        // Linux has a priority for each thread. One that cannot be lowered still measures.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        // The receiver may be gone when the process drains.
        let _ = done.send(work());
    });
    started.ok()?;
    result.await.ok()
}

fn measure(workspaces: &Workspaces, job: JobId, limits: &Limits, pid: Option<u32>, effort: Effort) -> Measurement {
    let limit = if effort == Effort::Paused { PAUSED_TIMEOUT } else { MEASURE_TIMEOUT };
    let cutoff = Cutoff::after(limit, &CancellationToken::new());
    let usage = match workspaces.usage(job, limits, &cutoff) {
        Ok(usage) => usage,
        Err(error) => return Measurement::incomplete(failed(&error)),
    };
    let depth = if effort == Effort::Quick { Depth::Processes } else { Depth::ThreadsAndMappings };
    let unlinked = pid.map(|pid| unlinked_bytes(pid, &workspaces.path(job), depth, &cutoff));
    let (unlinked, failure) = match unlinked {
        None | Some(Ok(None)) => (0, None),
        Some(Ok(Some(bytes))) => (bytes, None),
        Some(Err(error)) => (0, Some(failed(&error))),
    };
    let bytes = usage.bytes.saturating_add(unlinked);
    let finding = if usage.exceeds_walk_limits {
        Finding::OverWalkLimits
    } else if bytes > limits.disk_mb * 1024 * 1024 {
        Finding::Over
    } else if let Some(failure) = failure {
        failure
    } else if usage.has_missed_entries {
        Finding::Moved
    } else if usage.has_changed {
        Finding::Unsettled
    } else {
        Finding::Within
    };
    Measurement { bytes, finding }
}

fn failed(error: &FileError) -> Finding {
    match error {
        FileError::TimedOut => Finding::Slow,
        FileError::PermissionDenied => Finding::NotReadable,
        // The workspace itself is being created or removed.
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
    use engine::{Docker, DockerSettings};

    async fn measured(fill: impl FnOnce(&Path)) -> Finding {
        let root = tempfile::tempdir().unwrap();
        let (workspaces, id) = (Workspaces::new(root.path().to_owned()), JobId::generate());
        workspaces.create(id, &[]).unwrap();
        fill(&workspaces.path(id));
        let limits = Limits { disk_mb: 1, ..Limits::default() };
        let job = RunningJob { id, attempt: 1, limits, container: None };
        // Without a container the engine is not used.
        let engine = Docker::connect(DockerSettings {
            host: None,
            instance_id: InstanceId::generate(),
            image: String::new(),
            runtime: None,
            run_dir: root.path().to_owned(),
            inet_datagrams: false,
        });
        WorkspaceMeasurer::new(workspaces, Arc::new(engine)).measure(&job, Effort::Paused).await.finding
    }

    fn is_within(finding: &Finding) -> bool {
        matches!(finding, Finding::Within | Finding::Unsettled)
    }

    #[tokio::test]
    async fn the_sum_of_all_files_is_limited() {
        let write = |workspace: &Path, files: usize| {
            for index in 0..files {
                fs::create_dir_all(workspace.join("a/b")).unwrap();
                fs::write(workspace.join(format!("a/b/{index}")), vec![1; 300 * 1024]).unwrap();
            }
        };
        assert!(is_within(&measured(|workspace| write(workspace, 3)).await));
        assert_eq!(measured(|workspace| write(workspace, 4)).await, Finding::Over);
    }

    #[tokio::test]
    async fn empty_files_count() {
        // One for each 4 KiB.
        let touch = |workspace: &Path, files: u64| {
            for index in 0..files {
                fs::write(workspace.join(index.to_string()), "").unwrap();
            }
        };
        assert!(is_within(&measured(|workspace| touch(workspace, 256)).await));
        assert_eq!(measured(|workspace| touch(workspace, 257)).await, Finding::OverWalkLimits);
    }

    #[tokio::test]
    async fn holes_and_links_out_of_the_workspace_do_not_count() {
        let finding = measured(|workspace| {
            fs::File::create(workspace.join("sparse")).unwrap().set_len(1 << 40).unwrap();
            symlink("/usr", workspace.join("out")).unwrap();
        });
        assert!(is_within(&finding.await));
    }

    #[tokio::test]
    async fn a_tree_deeper_than_the_walk_limit_is_over() {
        let finding = measured(|workspace| fs::create_dir_all(workspace.join("d/".repeat(129))).unwrap());
        assert_eq!(finding.await, Finding::OverWalkLimits);
    }

    #[tokio::test]
    async fn a_failed_measurement_is_never_within_the_limit() {
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
