//! The registry as a stand-in for reads of the database: which attempts are live, and what is known of each.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::{super::attempt::AttemptStopCause, *};
use base::clock::ManualClock;
use domain::job::sample;

use crate::{DispatcherWaker, Liveness};

const ATTEMPT: u32 = 1;

struct Scene {
    clock: ManualClock,
    registry: Arc<AttemptRegistry>,
    open: Arc<OpenJobs>,
}

impl Scene {
    fn new() -> Self {
        let clock = ManualClock::at("2026-11-22T12:00:00Z".parse::<DateTime<Utc>>().unwrap());
        let registry = AttemptRegistry::new(Clock::Manual(clock.clone()), TaskTracker::new());
        Self { clock, registry, open: OpenJobs::new(DispatcherWaker::default()) }
    }

    /// A running job, as its start is observed.
    fn running(&self) -> JobRecord {
        let mut job = sample::job(JobState::InProgress);
        (job.attempt, job.started_at) = (ATTEMPT, Some(Clock::Manual(self.clock.clone()).now()));
        self.observe(JobChange::Created(&job));
        job
    }

    fn observe(&self, change: JobChange<'_>) {
        self.open.observer(&self.registry)(change);
    }

    /// A transition, as it is observed.
    fn next(&self, job: &JobRecord, change: impl FnOnce(&mut JobRecord)) -> JobRecord {
        let mut next = job.clone();
        next.rev += 1;
        change(&mut next);
        self.observe(JobChange::Transitioned { from: job.rev, job: &next });
        next
    }

    fn end(&self, job: &JobRecord) -> JobRecord {
        self.next(job, |job| job.stage = sample::job(JobState::Completed).stage)
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    fn drop_ended(&self) {
        self.registry.drop_ended(&self.open);
    }

    fn facts(&self, job: &JobRecord) -> AttemptFacts {
        self.registry.facts().remove(&AttemptKey { job: job.id, attempt: job.attempt }).unwrap()
    }

    fn liveness(&self, job: &JobRecord) -> Liveness {
        self.facts(job).liveness
    }

    fn is_empty(&self) -> bool {
        self.registry.attempts.lock().is_empty()
    }
}

#[test]
fn a_call_is_in_flight_from_the_start_of_its_attempt() {
    let scene = Scene::new();
    let job = scene.running();
    let call = scene.registry.live(job.id).unwrap().start_call();
    scene.pass(400);
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
    let started_at = Some(Clock::Manual(scene.clock.clone()).now());
    let job = JobRecord { attempt: ATTEMPT, started_at, ..sample::job(JobState::InProgress) };
    scene.pass(1_000);
    assert!(scene.registry.observe(&job).is_some());
    let found = scene.liveness(&job);
    assert_eq!((found.since_contact, found.job_age), (Duration::ZERO, Duration::from_secs(1_000)));
}

#[test]
fn an_outdated_row_does_not_affect_a_newer_attempt() {
    let scene = Scene::new();
    let job = scene.running();
    scene.pass(10);
    let newer = scene.next(&job, |job| job.attempt = 2);
    let call = scene.registry.live(job.id).unwrap().start_call();
    scene.pass(400);
    assert!(scene.registry.observe(&job).is_none(), "the row is older than the attempt");
    scene.drop_ended();
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
    let job = scene.running();
    let old = scene.registry.live(job.id).unwrap();
    let newer = scene.next(&job, |job| job.attempt = 2);
    let attempt = scene.registry.live(job.id).unwrap();
    let call = attempt.start_call();
    drop(old.start_call());
    scene.pass(400);
    assert_eq!(scene.liveness(&newer).since_progress, Duration::ZERO);
    assert_eq!(old.stop_cause(), Some(AttemptStopCause::Ended));
    assert!(Arc::ptr_eq(old.limits(), attempt.limits()), "attempts of a job share its limits");
    drop(call);
}

#[test]
fn an_attempt_that_is_over_is_kept_until_the_next_one_of_its_job() {
    let scene = Scene::new();
    let job = scene.running();
    let queued = scene.next(&job, |job| job.stage = sample::job(JobState::Pending).stage);
    scene.drop_ended();
    assert!(!scene.is_empty(), "the next attempt shares its limits");
    let again = scene.next(&queued, |job| (job.attempt, job.stage) = (2, sample::job(JobState::InProgress).stage));
    scene.drop_ended();
    assert_eq!(scene.registry.attempts.lock().len(), 1);
    scene.end(&again);
    scene.drop_ended();
    assert!(scene.is_empty(), "a job that is not open has no live attempt");
}

#[test]
fn an_ended_attempt_is_not_revived_by_an_older_record() {
    let scene = Scene::new();
    let job = scene.running();
    let attempt = scene.registry.live(job.id).unwrap();
    scene.end(&job);
    assert!(!attempt.is_live() && scene.registry.live(job.id).is_none());
    assert!(scene.registry.observe(&job).is_none());
}

#[test]
fn an_attempt_stays_while_its_socket_is_served() {
    let scene = Scene::new();
    let job = scene.running();
    let attempt = scene.registry.live(job.id).unwrap();
    let stop = CancellationToken::new();
    attempt.set_listener("gantry-job", stop.clone());
    scene.end(&job);
    scene.drop_ended();
    assert_eq!(scene.facts(&job).served_container.as_deref(), Some("gantry-job"));
    scene.registry.stop_listener("another");
    assert!(!stop.is_cancelled());
    scene.registry.stop_listener("gantry-job");
    assert!(stop.is_cancelled());
    scene.drop_ended();
    assert!(scene.is_empty());
}

#[tokio::test]
async fn a_cancel_stops_the_calls_of_the_attempt_without_a_read() {
    let scene = Scene::new();
    let job = scene.running();
    let attempt = scene.registry.live(job.id).unwrap();
    let mut stopped = Box::pin(attempt.stopped());
    assert!(futures_util::poll!(&mut stopped).is_pending());
    let cancelled = job.clone().request_cancel(sample::now(), None).unwrap().job;
    scene.observe(JobChange::Transitioned { from: job.rev, job: &cancelled });
    assert_eq!(stopped.await, AttemptStopCause::Cancelled);
    assert!(attempt.is_live(), "its worker may still report");
}

#[tokio::test]
async fn a_poll_is_woken_by_prompts_and_transitions_only() {
    let scene = Scene::new();
    let job = scene.running();
    let attempt = scene.registry.live(job.id).unwrap();
    let mut changes = attempt.subscribe();
    attempt.record_progress();
    assert!(futures_util::poll!(Box::pin(changes.changed())).is_pending());
    scene.observe(JobChange::PromptAdded(job.id));
    changes.changed().await;
    scene.next(&job, |job| job.stage = sample::job(JobState::Stuck).stage);
    changes.changed().await;
}

#[tokio::test]
async fn a_newer_poll_supersedes_the_one_before_it() {
    let scene = Scene::new();
    let attempt = scene.registry.live(scene.running().id).unwrap();
    let (first, second) = (attempt.begin_poll(), attempt.begin_poll());
    first.cancelled().await;
    assert!(!second.is_cancelled());
}

#[test]
fn a_violation_belongs_to_the_live_attempt() {
    let scene = Scene::new();
    let violation = Violation { bytes: 1, message: "too much".to_owned() };
    let mark =
        |job: &JobRecord| scene.registry.mark_over_quota(AttemptKey { job: job.id, attempt: ATTEMPT }, &violation);
    assert!(!mark(&sample::job(JobState::InProgress)), "an attempt that is not registered cannot be marked");
    let job = scene.running();
    assert!(mark(&job));
    assert_eq!(scene.facts(&job).over_quota_bytes, Some(1));
    let newer = scene.next(&job, |job| job.attempt = 2);
    assert_eq!(scene.facts(&newer).over_quota_bytes, None);
    assert!(!mark(&job), "a late measurement of an earlier attempt concerns no other");
    assert!(scene.registry.over_quota(job.id).is_none());
}
