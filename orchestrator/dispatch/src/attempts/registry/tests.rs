//! The registry as a stand-in for reads of the database: which attempts are live, and what their liveness is.

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::{super::attempt::StopCause, *};
use base::clock::ManualClock;
use domain::job::sample;

const ATTEMPT: u32 = 1;

struct Scene {
    clock: ManualClock,
    registry: Arc<AttemptRegistry>,
}

impl Scene {
    fn new() -> Self {
        let clock = ManualClock::at("2026-11-22T12:00:00Z".parse::<DateTime<Utc>>().unwrap());
        let registry = AttemptRegistry::new(Clock::Manual(clock.clone()), TaskTracker::new());
        Self { clock, registry }
    }

    fn running(&self, attempt: u32) -> JobRecord {
        let mut job = sample::job(JobState::InProgress);
        (job.attempt, job.started_at) = (attempt, Some(Clock::Manual(self.clock.clone()).now()));
        job
    }

    fn now(&self) -> Duration {
        Clock::Manual(self.clock.clone()).monotonic()
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    fn reconcile(&self, jobs: &[JobRecord]) -> HashMap<JobId, Liveness> {
        self.registry.reconcile(jobs, &HashSet::new(), self.now())
    }

    fn liveness(&self, job: &JobRecord) -> Liveness {
        self.reconcile(std::slice::from_ref(job))[&job.id]
    }
}

fn next(job: &JobRecord, change: impl FnOnce(&mut JobRecord)) -> JobRecord {
    let mut job = job.clone();
    job.rev += 1;
    change(&mut job);
    job
}

#[test]
fn a_call_before_the_first_reconciliation_is_in_flight() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    let call = scene.registry.observe(&job).unwrap().start_call();
    scene.pass(200);
    assert_eq!(scene.liveness(&job).since_progress, Duration::ZERO);
    scene.pass(200);
    let found = scene.liveness(&job);
    assert_eq!(
        (found.since_progress, found.job_age, found.attempt_age),
        (Duration::ZERO, Duration::from_secs(400), Duration::from_secs(400))
    );
    drop(call);
    scene.pass(7);
    assert_eq!(scene.liveness(&job).since_progress, Duration::from_secs(7));
}

#[test]
fn an_attempt_of_an_earlier_process_is_registered_from_its_row_with_a_fresh_period() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    scene.pass(1_000);
    let found = scene.liveness(&job);
    assert_eq!((found.since_contact, found.job_age), (Duration::ZERO, Duration::from_secs(1_000)));
    assert!(scene.registry.live(job.id).is_some());
}

#[test]
fn an_outdated_list_does_not_affect_a_newer_attempt() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    scene.liveness(&job);
    scene.pass(10);
    let newer = next(&job, |job| job.attempt = 2);
    let call = scene.registry.observe(&newer).unwrap().start_call();
    scene.pass(400);
    assert!(scene.reconcile(std::slice::from_ref(&job)).is_empty(), "the row in the list is older than the attempt");
    let found = scene.liveness(&newer);
    assert_eq!(
        (found.since_progress, found.attempt_age, found.job_age),
        (Duration::ZERO, Duration::from_secs(400), Duration::from_secs(410))
    );
    drop(call);
}

#[test]
fn a_call_of_an_older_attempt_does_not_count_for_the_newer_one() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    let old = scene.registry.observe(&job).unwrap();
    let newer = next(&job, |job| job.attempt = 2);
    let attempt = scene.registry.observe(&newer).unwrap();
    let call = attempt.start_call();
    drop(old.start_call());
    scene.pass(400);
    assert_eq!(scene.liveness(&newer).since_progress, Duration::ZERO);
    assert_eq!(old.stop_cause(), Some(StopCause::Ended));
    assert!(Arc::ptr_eq(old.limits(), attempt.limits()), "attempts of a job share its limits");
    drop(call);
}

#[test]
fn a_list_without_the_new_job_drops_no_attempt() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    let read_at = scene.now();
    scene.registry.observe(&job);
    scene.registry.reconcile(&[], &HashSet::new(), read_at);
    assert!(scene.registry.live(job.id).is_some());
    scene.pass(1);
    scene.reconcile(&[]);
    assert!(scene.registry.attempts.lock().is_empty(), "a job that is not open has no live attempt");
}

#[test]
fn an_ended_attempt_is_not_revived_by_an_older_record() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    let attempt = scene.registry.observe(&job).unwrap();
    let ended = next(&job, |job| job.stage = sample::job(JobState::Completed).stage);
    assert!(scene.registry.observe(&ended).is_none());
    assert!(!attempt.is_live());
    assert!(scene.registry.observe(&job).is_none());
    assert!(scene.reconcile(std::slice::from_ref(&job)).is_empty());
}

#[test]
fn an_attempt_stays_while_its_socket_is_served() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    let attempt = scene.registry.observe(&job).unwrap();
    let stop = CancellationToken::new();
    attempt.set_listener("gantry-job".to_owned(), stop.clone());
    scene.registry.observe(&next(&job, |job| job.stage = sample::job(JobState::Completed).stage));
    scene.reconcile(&[]);
    assert_eq!(scene.registry.served_containers(), HashSet::from(["gantry-job".to_owned()]));
    scene.registry.stop_listener("another");
    assert!(!stop.is_cancelled());
    scene.registry.stop_listener("gantry-job");
    assert!(stop.is_cancelled());
    scene.reconcile(&[]);
    assert!(scene.registry.attempts.lock().is_empty());
}

#[tokio::test]
async fn a_cancel_stops_the_calls_of_the_attempt_without_a_read() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    let attempt = scene.registry.observe(&job).unwrap();
    let observe = scene.registry.observer();
    let mut stopped = Box::pin(attempt.stopped());
    assert!(futures_util::poll!(&mut stopped).is_pending());
    let cancelled = job.clone().request_cancel(sample::now(), None).unwrap().job;
    observe(JobChange::Transitioned(&cancelled));
    assert_eq!(stopped.await, StopCause::Cancelled);
    assert!(attempt.is_live(), "its worker may still report");
}

#[tokio::test]
async fn a_poll_is_woken_by_prompts_and_transitions_only() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    let attempt = scene.registry.observe(&job).unwrap();
    let observe = scene.registry.observer();
    let mut changes = attempt.subscribe();
    attempt.record_progress();
    assert!(futures_util::poll!(Box::pin(changes.changed())).is_pending());
    observe(JobChange::PromptAdded(job.id));
    changes.changed().await;
    observe(JobChange::Transitioned(&next(&job, |job| job.stage = sample::job(JobState::Stuck).stage)));
    changes.changed().await;
}

#[test]
fn a_violation_belongs_to_the_live_attempt() {
    let scene = Scene::new();
    let job = scene.running(ATTEMPT);
    let violation = Violation { bytes: 1, message: "too much".to_owned() };
    let mark = |attempt| scene.registry.mark_over_quota(AttemptKey { job: job.id, attempt }, &violation);
    assert!(!mark(ATTEMPT), "an attempt that is not registered cannot be marked");
    scene.registry.observe(&job);
    assert!(mark(ATTEMPT));
    assert_eq!(scene.registry.over_quota_jobs(), HashSet::from([job.id]));
    scene.registry.observe(&next(&job, |job| job.attempt = 2));
    assert!(scene.registry.over_quota_jobs().is_empty());
    assert!(!mark(ATTEMPT), "a late measurement of an earlier attempt concerns no other");
    assert!(scene.registry.over_quota_jobs().is_empty());
}
