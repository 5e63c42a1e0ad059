//! The facts in memory are those of the database after any changes, and are read again where one was missed.

use base::clock::Clock;
use domain::job::{AttemptFailure, AttemptStart, JobRecord, Refused, Step, WorkerStart, sample};
use proptest::prelude::*;
use protocol::{
    CompleteReport, ContainerInfo, JobReason, JobState, Placement, PromptMode, PromptRequest, ReportedOutcome,
};
use store::AuditEntry;
use telemetry::metrics::Metrics;
use tokio_util::task::TaskTracker;

use super::*;

/// A store with the observer of the daemon.
struct Scene {
    store: Store,
    jobs: Arc<OpenJobs>,
    /// What the next read is compared with, in place of being taken over.
    compared: Arc<Mutex<Option<bool>>>,
    /// Changes that are not told.
    lost: Arc<Mutex<u32>>,
    directory: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let jobs = OpenJobs::new(DispatcherWaker::default());
        let attempts = AttemptRegistry::new(Clock::system(), TaskTracker::new());
        let (compared, lost) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(0_u32)));
        let tell = jobs.observer(&attempts);
        let observer: JobObserver = {
            let (jobs, compared, lost) = (Arc::clone(&jobs), Arc::clone(&compared), Arc::clone(&lost));
            Arc::new(move |change| {
                if let (JobChange::Read(read), Some(is_equal)) = (change, compared.lock().as_mut()) {
                    *is_equal = jobs.state.lock().index == JobIndex::new(read);
                    return;
                }
                let mut lost = lost.lock();
                if *lost > 0 {
                    *lost -= 1;
                } else {
                    tell(change);
                }
            })
        };
        let url = format!("sqlite://{}/gantry.db", directory.path().display());
        let store =
            Store::open_observed(&url, store::UserStorageLimit::default(), Metrics::default(), observer).await.unwrap();
        jobs.ensure_read(&store).await.unwrap();
        Self { store, jobs, compared, lost, directory }
    }

    /// Whether the facts in memory are those of the database.
    async fn is_accurate(&self) -> bool {
        *self.compared.lock() = Some(false);
        self.store.read_open_jobs().await.unwrap();
        self.compared.lock().take().unwrap()
    }

    fn is_in_doubt(&self) -> bool {
        !self.jobs.state.lock().is_current
    }

    async fn create(&self, change: impl FnOnce(&mut JobRecord)) -> JobId {
        let mut job = sample::job(JobState::Pending);
        change(&mut job);
        let id = job.id;
        // Refused, or an error, where the parent may have no child or was deleted.
        let _ = self.store.create_job(job, None, None).await;
        id
    }

    async fn apply(&self, job: JobId, decide: impl FnOnce(JobRecord) -> Result<Step, Refused> + Send + 'static) {
        self.store.transition(job, sample::now(), None, decide).await.unwrap();
    }

    async fn attempt_of(&self, job: JobId) -> u32 {
        self.store.job(job).await.unwrap().map_or(0, |job| job.attempt)
    }
}

fn start(attempt: u32, is_on_host: bool) -> AttemptStart {
    let worker = WorkerStart {
        token_hash: "h".to_owned(),
        lease_expires_at: sample::now(),
        container: ContainerInfo { name: format!("container-{attempt}"), ..ContainerInfo::default() },
    };
    AttemptStart { attempt, worker: (!is_on_host).then_some(worker) }
}

fn failure(is_retryable: bool) -> AttemptFailure {
    AttemptFailure { reason: JobReason::WorkerLost, message: "lost".to_owned(), is_retryable }
}

fn report(outcome: ReportedOutcome) -> CompleteReport {
    CompleteReport {
        outcome,
        reason: None,
        message: None,
        text: "t".to_owned(),
        cut: false,
        partial: None,
        iterations: 1,
    }
}

/// One change: which one, of which job, and whichever choice it has.
type Change = (u8, usize, bool);

async fn change(scene: &Scene, jobs: &mut Vec<JobId>, (kind, target, choice): Change) {
    let now = sample::now();
    let parent = jobs.get(target % jobs.len().max(1)).copied();
    let Some(job) = parent.filter(|_| kind > 1) else {
        let parent = parent.filter(|_| kind == 1);
        let created = scene.create(|job| {
            let brief = job.brief_mut();
            brief.user_id = if target.is_multiple_of(2) { "ada" } else { "bob" }.to_owned();
            brief.priority = i32::try_from(target % 3).unwrap_or_default();
            brief.placement = if target.is_multiple_of(5) { Placement::Host } else { Placement::Container };
            brief.review = target.is_multiple_of(7);
            brief.parent_id = parent;
            if choice {
                job.stage = domain::job::Stage::Queued(domain::job::Queued { held: true, ..Default::default() });
            }
        });
        return jobs.push(created.await);
    };
    let attempt = scene.attempt_of(job).await;
    match kind {
        2 => scene.apply(job, JobRecord::release).await,
        3..=6 => {
            scene
                .apply(job, move |job| {
                    let start = start(attempt + 1, job.is_on_host());
                    job.start(now, start)
                })
                .await;
        }
        7 => scene.apply(job, |job| job.mark_stuck("silent".to_owned())).await,
        8 => {
            scene
                .apply(job, move |job| {
                    let start = start(attempt + 1, job.is_on_host());
                    job.start_again(now, start)
                })
                .await;
        }
        9 => drop(scene.store.nudge(job, now, "go on").await.unwrap()),
        10 => scene.apply(job, JobRecord::revive).await,
        11 => scene.apply(job, move |job| job.attempt_failed(now, failure(choice))).await,
        12 => scene.apply(job, move |job| job.request_cancel(now, None)).await,
        13 => scene.apply(job, move |job| job.finish_cancel(now)).await,
        14 => scene.apply(job, move |job| job.cancel_with_parent(now)).await,
        15 => {
            let outcome = if choice { ReportedOutcome::Completed } else { ReportedOutcome::Failed };
            drop(scene.store.complete(job, attempt, now, &report(outcome)).await.unwrap());
        }
        16 => scene.apply(job, move |job| job.accept(now)).await,
        17 => scene.apply(job, move |job| job.fail(now, JobReason::Internal, "broken".to_owned())).await,
        18 => drop(scene.store.heartbeat(job, attempt, now, now).await.unwrap()),
        19 => {
            let container = ContainerInfo {
                name: format!("container-{attempt}"),
                exit_code: choice.then_some(1),
                oom_killed: choice.then_some(true),
                ..ContainerInfo::default()
            };
            let _ = scene.store.set_container(job, attempt, &container).await.unwrap();
        }
        20 => drop(scene.store.delete_job(job, AuditEntry::by_operator("job.delete", now)).await.unwrap()),
        _ => {
            let prompt = PromptRequest { content: "more".to_owned(), mode: PromptMode::Steer, done: choice };
            drop(scene.store.add_prompt(job, now, &prompt, None, None).await.unwrap());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_facts_in_memory_are_those_of_the_database_after_any_changes(
        changes in prop::collection::vec((0..22_u8, 0..40_usize, any::<bool>()), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome: Result<(), TestCaseError> = runtime.block_on(async {
            let scene = Scene::new().await;
            let mut jobs = Vec::new();
            for one in changes {
                change(&scene, &mut jobs, one).await;
                prop_assert!(!scene.is_in_doubt(), "{:?} did not fit", one);
                prop_assert!(scene.is_accurate().await, "after {:?}", one);
            }
            scene.store.close().await;
            Ok(())
        });
        outcome?;
    }
}

#[tokio::test]
async fn a_missed_change_is_noticed_by_the_next_one_and_the_facts_are_read_again() {
    let scene = Scene::new().await;
    let job = scene.create(|_| {}).await;
    let now = sample::now();
    *scene.lost.lock() = 1;
    scene.apply(job, move |job| job.start(now, start(1, false))).await;
    assert!(!scene.is_accurate().await && !scene.is_in_doubt(), "nothing tells of it yet");
    scene.apply(job, |job| job.mark_stuck("silent".to_owned())).await;
    assert!(scene.is_in_doubt());
    scene.jobs.ensure_read(&scene.store).await.unwrap();
    assert!(!scene.is_in_doubt() && scene.is_accurate().await);
    scene.store.close().await;
}

#[tokio::test]
async fn a_change_of_a_job_whose_creation_was_missed_leads_to_a_read() {
    let scene = Scene::new().await;
    *scene.lost.lock() = 1;
    let job = scene.create(|_| {}).await;
    let now = sample::now();
    scene.apply(job, move |job| job.start(now, start(1, false))).await;
    assert!(scene.is_in_doubt());
    scene.jobs.ensure_read(&scene.store).await.unwrap();
    assert!(scene.is_accurate().await);
    scene.store.close().await;
}

#[tokio::test]
async fn a_write_that_may_be_committed_leads_to_a_read() {
    let scene = Scene::new().await;
    scene.jobs.observe(JobChange::Uncertain);
    assert!(scene.is_in_doubt());
    scene.jobs.ensure_read(&scene.store).await.unwrap();
    assert!(!scene.is_in_doubt());
    scene.store.close().await;
}

#[tokio::test]
async fn a_write_of_another_program_leads_to_a_read_if_it_has_changed_an_open_job() {
    let scene = Scene::new().await;
    let watch = DatabaseWatch { store: scene.store.clone() };
    let (mut known, mut checked_at) = (None, Instant::now());
    watch.check(&mut known, &mut checked_at).await.unwrap();
    let first = (known, checked_at);
    let job = scene.create(|_| {}).await;
    watch.check(&mut known, &mut checked_at).await.unwrap();
    assert_eq!((known, checked_at), first, "its own writes are told");

    let url = format!("sqlite://{}/gantry.db", scene.directory.path().display());
    let other = Store::open_existing(&url).await.unwrap();
    for (write, is_noticed) in [
        ("CREATE TABLE notes (content TEXT)", false),
        ("UPDATE jobs SET rev = rev + 1", true),
        ("UPDATE jobs SET state = 'failed', finished_at = created_at", true),
    ] {
        other.execute(write).await.unwrap();
        watch.check(&mut known, &mut checked_at).await.unwrap();
        assert_eq!(scene.is_in_doubt(), is_noticed, "{write}");
        scene.jobs.ensure_read(&scene.store).await.unwrap();
        assert!(scene.is_accurate().await, "{write}");
    }
    assert_ne!((known, checked_at), first);
    assert!(!scene.jobs.keeps_attempt(job, 0));
    other.close().await;
    scene.store.close().await;
}
