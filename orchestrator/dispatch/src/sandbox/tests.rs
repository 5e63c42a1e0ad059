//! Concurrent callers share one probe, its result is used for at most a second, and no caller cancels it.

use chrono::DateTime;
use tokio_util::task::TaskTracker;

use super::*;
use base::clock::ManualClock;

use crate::test_util::{ProbedEngine, ready};

impl ProbedEngine {
    fn counts(&self) -> (usize, usize) {
        (self.begun.load(Ordering::SeqCst), self.ended.load(Ordering::SeqCst))
    }
}

/// A sandbox whose prober runs, and its clock.
fn running(engine: &Arc<ProbedEngine>) -> (Sandbox, ManualClock, CancellationToken) {
    let clock = ManualClock::at(DateTime::from_timestamp(1_700_000_000, 0).unwrap());
    let (sandbox, prober) = Sandbox::new(Arc::<ProbedEngine>::clone(engine), Clock::Manual(clock.clone()));
    let drain = CancellationToken::new();
    TaskTracker::new().spawn(prober.run(drain.clone()));
    (sandbox, clock, drain)
}

#[tokio::test]
async fn concurrent_callers_share_one_probe_and_a_second_later_there_is_another() {
    let engine = ProbedEngine::with_permits(2);
    let (sandbox, clock, _drain) = running(&engine);

    let (one, other) = tokio::join!(sandbox.state(), sandbox.state());
    assert_eq!((one, other), (ready(1), ready(1)));
    clock.advance(Duration::from_millis(999));
    assert_eq!(sandbox.state().await, ready(1));
    clock.advance(Duration::from_millis(1));
    assert_eq!(sandbox.state().await, ready(2));
}

#[tokio::test]
async fn a_caller_that_disconnects_does_not_cancel_the_probe() {
    let engine = ProbedEngine::with_permits(0);
    let (sandbox, ..) = running(&engine);

    let left = tokio::time::timeout(Duration::from_millis(50), sandbox.state()).await;
    assert!(left.is_err(), "no answer yet");
    engine.permits.add_permits(1);

    assert_eq!(sandbox.state().await, ready(1));
    assert_eq!(engine.counts(), (1, 1), "the probe in progress was completed and used");
}

#[tokio::test]
async fn the_published_state_is_available_while_a_probe_hangs() {
    let engine = ProbedEngine::with_permits(1);
    let (sandbox, clock, _drain) = running(&engine);
    assert_eq!(sandbox.published(), None);
    sandbox.state().await;

    clock.advance(Duration::from_mins(1));
    sandbox.refresh();
    let hangs = tokio::time::timeout(Duration::from_millis(50), sandbox.state()).await;
    assert!(hangs.is_err(), "a fresh state has to be waited for");
    assert_eq!(sandbox.published(), Some(ready(1)));
}

#[tokio::test]
async fn an_engine_error_makes_the_next_caller_wait_for_a_new_probe() {
    let engine = ProbedEngine::with_permits(2);
    let (sandbox, ..) = running(&engine);
    assert_eq!(sandbox.state().await, ready(1));

    sandbox.mark_stale();

    assert_eq!(sandbox.state().await, ready(2));
}

#[tokio::test]
async fn a_change_of_the_state_wakes_its_waiters() {
    let engine = ProbedEngine::with_permits(2);
    let (sandbox, ..) = running(&engine);
    let first = sandbox.state().await;

    let unchanged = tokio::time::timeout(Duration::from_millis(50), sandbox.changed(Some(&first))).await;
    assert!(unchanged.is_err(), "nothing has changed");
    sandbox.mark_stale();
    sandbox.refresh();
    sandbox.changed(Some(&first)).await;

    assert_eq!(sandbox.published(), Some(ready(2)));
}

#[tokio::test]
async fn after_the_drain_the_last_state_is_used() {
    let engine = ProbedEngine::with_permits(1);
    let (sandbox, clock, drain) = running(&engine);
    sandbox.state().await;

    drain.cancel();
    clock.advance(Duration::from_mins(1));

    assert_eq!(sandbox.state().await, ready(1));
}

#[tokio::test]
async fn a_disabled_sandbox_never_probes_its_engine() {
    let engine = ProbedEngine::with_permits(1);
    let clock = Clock::system();
    let (sandbox, prober) = Sandbox::disabled(Arc::<ProbedEngine>::clone(&engine), clock);
    prober.probe().await;

    assert!(sandbox.is_disabled());
    assert_eq!((sandbox.state().await, sandbox.published()), (disabled(), Some(disabled())));
    assert_eq!(engine.counts(), (0, 0));
}
