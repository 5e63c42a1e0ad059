//! Actions whose facts are out of date change nothing: the engine here never answers, so one that went on would wait
//! forever.

use agent::BoxFuture;
use protocol::{ContainerInfo, InstanceId, JobState};

use super::*;
use auth::SigningKey;
use domain::job::{AttemptStart, WorkerStart, sample};
use secrets::{KeySource, Secrets};
use store::Transition;

use crate::{DispatcherWaker, test_util::ProbedEngine};

/// Longer than any write to the database takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

async fn executor(root: &std::path::Path) -> ActionExecutor {
    let url = format!("sqlite://{}/gantry.db", root.display());
    let (engine, clock) = (ProbedEngine::with_permits(0), Clock::system());
    let (sandbox, _) = Sandbox::new(Arc::<ProbedEngine>::clone(&engine), clock.clone());
    let attempts = AttemptRegistry::new(clock.clone(), tokio_util::task::TaskTracker::new());
    let serve = Arc::new(|_, _, _| -> BoxFuture<'static, ()> { Box::pin(std::future::ready(())) });
    let store = Store::open(&url).await.unwrap();
    let secrets = Secrets::open(store.clone(), &KeySource::DataDir(root.to_owned())).await.unwrap();
    let detectors = LeakDetectors::new(Arc::new(secrets)).unwrap();
    ActionExecutor {
        store,
        jobs: OpenJobs::new(DispatcherWaker::default()),
        hooks: Arc::new(Hooks::new(&[], &[], detectors.clone(), clock.clone()).unwrap()),
        detectors,
        sandbox: Arc::new(sandbox),
        engine,
        host_runs: HostRuns {
            run: Arc::new(|_| -> BoxFuture<'static, ()> { Box::pin(std::future::ready(())) }),
            waker: DispatcherWaker::default(),
            tasks: tokio_util::task::TaskTracker::new(),
        },
        listeners: Arc::new(WorkerListeners::new(root.join("run"), serve, Arc::clone(&attempts))),
        attempts,
        workspaces: Workspaces::new(root.join("workspaces")),
        tokens: WorkerTokens::new(
            Arc::new(SigningKey::from_secret(b"a test's own secret, at least 32 bytes")),
            InstanceId::generate(),
        ),
        clock,
        metrics: Metrics::default(),
        logs: root.join("logs"),
        lease: Duration::from_secs(15),
    }
}

/// Stores a running job.
async fn running(executor: &ActionExecutor) -> JobRecord {
    let (job, now) = (sample::job(JobState::Pending), executor.clock.now());
    executor.store.create_job(job.clone(), None, None).await.unwrap();
    let start = AttemptStart {
        attempt: 1,
        worker: Some(WorkerStart {
            token_hash: "h".to_owned(),
            lease_expires_at: now,
            container: ContainerInfo { name: "container".to_owned(), ..ContainerInfo::default() },
        }),
    };
    apply(executor, job.id, move |job| job.start(now, start)).await
}

async fn apply(
    executor: &ActionExecutor,
    job: JobId,
    decide: impl FnOnce(JobRecord) -> Result<Step, Refused> + Send + 'static,
) -> JobRecord {
    let applied = executor.store.transition(job, executor.clock.now(), None, decide).await.unwrap();
    let Transition::Applied(job) = applied else { panic!("{applied:?}") };
    *job
}

#[tokio::test]
async fn an_attempt_whose_worker_called_after_the_plan_is_not_ended() {
    let root = tempfile::tempdir().unwrap();
    let executor = executor(root.path()).await;
    let failure = AttemptFailure { reason: JobReason::Stuck, message: "silent".to_owned(), is_retryable: false };
    // One was stuck and makes progress; the worker of the other one has called for the first time.
    let (stuck, silent) = (running(&executor).await, running(&executor).await);
    let stuck = apply(&executor, stuck.id, |job| job.mark_stuck("silent".to_owned())).await;
    apply(&executor, stuck.id, JobRecord::revive).await;
    let now = executor.clock.now();
    executor.store.heartbeat(silent.id, 1, now, now).await.unwrap();
    for planned in [stuck, silent] {
        let before = executor.store.job(planned.id).await.unwrap();
        let action = Action::FailAttempt { job: planned.id, version: planned.version(), failure: failure.clone() };
        tokio::time::timeout(TIMEOUT, executor.execute(action)).await.expect("nothing to be asked of the engine");
        assert_eq!(executor.store.job(planned.id).await.unwrap(), before);
    }
    executor.store.close().await;
}
