//! The circuit breaker of one provider: whose calls are refused, and for how long.
//!
//! Counts by job and, separately, by provider. A job whose own calls fail is refused alone: its requests may be the
//! reason. All calls are refused only when those of several users fail; failures of one user's jobs affect that user
//! alone. A pure state machine: time is an argument, and it never waits.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use protocol::{JobId, WorkId};
use tokio::time::Instant;

use super::circuit::{BreakerSettings, BreakerState, Circuit, HealthOutcome, NotAdmitted};

/// Failed calls count together for this long.
const SHARED_WINDOW: Duration = Duration::from_secs(30);
/// The circuit opens for all users when the calls of this many users fail.
const SHARED_USERS: usize = 2;
/// The same for this many jobs when only one user is active.
const SHARED_JOBS: usize = 3;
/// The generation of a call that the shared circuit does not apply to; never one of the circuit's.
const NOT_APPLIED: u64 = u64::MAX;
/// Jobs and users remembered before those that were not seen for a while are dropped. A job that is forgotten starts
/// with a closed circuit.
const MAX_REMEMBERED: usize = 1_000;
/// A job's failures are forgotten after this long without another call.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// On whose behalf a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallOwner<'a> {
    /// What the call is made for; a thread and a run count as a job.
    pub work: WorkId,
    pub user: &'a str,
}

impl Default for CallOwner<'_> {
    fn default() -> Self {
        Self { work: JobId::nil().into(), user: "" }
    }
}

/// An admitted call; its outcome is reported with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    work: WorkId,
    user: String,
    /// The generations of the job's circuit and of the shared one.
    generations: (u64, u64),
}

/// The breaker of one provider.
#[derive(Debug)]
pub(crate) struct Breaker {
    settings: BreakerSettings,
    shared: Circuit,
    /// The user whose jobs alone opened the shared circuit; it applies to no other user.
    opened_by: Option<String>,
    /// Jobs with failures; others have no entry.
    jobs: HashMap<WorkId, JobCircuit>,
    /// Failed calls since the last success of any user.
    failed_calls: HashMap<WorkId, FailedCall>,
    /// When each user last made a call.
    active_users: HashMap<String, Instant>,
}

#[derive(Debug)]
struct JobCircuit {
    circuit: Circuit,
    used_at: Instant,
}

#[derive(Debug)]
struct FailedCall {
    user: String,
    at: Instant,
}

impl Breaker {
    pub(crate) fn new(settings: BreakerSettings) -> Self {
        // The shared circuit is opened by `call_failed`, never by the number of failures alone.
        let shared = Circuit::new(BreakerSettings { failures: u32::MAX, ..settings });
        Self {
            settings,
            shared,
            opened_by: None,
            jobs: HashMap::new(),
            failed_calls: HashMap::new(),
            active_users: HashMap::new(),
        }
    }

    /// Admits a call or refuses it.
    pub(crate) fn admit(&mut self, caller: CallOwner<'_>, now: Instant) -> Result<Ticket, NotAdmitted> {
        self.note_active(caller.user, now);
        let of_job = match self.jobs.get_mut(&caller.work) {
            Some(job) => {
                job.used_at = now;
                job.circuit.admit(now)?
            }
            None => 0,
        };
        let of_all = if self.applies_to(caller.user) { self.shared.admit(now) } else { Ok(NOT_APPLIED) };
        match of_all {
            Ok(of_all) => Ok(Ticket { work: caller.work, user: caller.user.to_owned(), generations: (of_job, of_all) }),
            Err(refusal) => {
                // The trial that the job's own circuit granted is not made.
                if let Some(job) = self.jobs.get_mut(&caller.work) {
                    job.circuit.report(of_job, HealthOutcome::Neither, now);
                }
                Err(refusal)
            }
        }
    }

    /// Whether a call would be refused now. Changes nothing.
    pub(crate) fn refusal(&self, caller: CallOwner<'_>, now: Instant) -> Option<NotAdmitted> {
        let of_job = self.jobs.get(&caller.work).and_then(|job| job.circuit.refusal(now));
        of_job.or_else(|| self.shared.refusal(now).filter(|_| self.applies_to(caller.user)))
    }

    /// Takes the outcome of an attempt.
    pub(crate) fn report(&mut self, ticket: &Ticket, outcome: HealthOutcome, now: Instant) {
        let (of_job, of_all) = ticket.generations;
        match self.jobs.get_mut(&ticket.work) {
            Some(job) => {
                job.used_at = now;
                job.circuit.report(of_job, outcome, now);
                if job.circuit.is_pristine() {
                    self.jobs.remove(&ticket.work);
                }
            }
            None if outcome == HealthOutcome::Failure => {
                self.make_room(now);
                let mut circuit = Circuit::new(self.settings);
                circuit.report(of_job, outcome, now);
                self.jobs.insert(ticket.work, JobCircuit { circuit, used_at: now });
            }
            None => {}
        }
        if outcome == HealthOutcome::Success {
            self.failed_calls.clear();
        }
        let was_half_open = self.shared.state(now) == BreakerState::HalfOpen;
        self.shared.report(of_all, outcome, now);
        if was_half_open && self.shared.state(now) == BreakerState::Open {
            // A failed trial is evidence about its own user only: other users are admitted, and the next of them whose
            // call fails opens the circuit for all again.
            self.opened_by = Some(ticket.user.clone());
        }
    }

    /// Takes a call that has failed after all its attempts: opens the shared circuit when other calls fail, too.
    pub(crate) fn call_failed(&mut self, caller: CallOwner<'_>, now: Instant) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < SHARED_WINDOW;
        self.failed_calls.retain(|_, call| is_recent(call.at));
        self.active_users.retain(|_, at| is_recent(*at));
        self.failed_calls.insert(caller.work, FailedCall { user: caller.user.to_owned(), at: now });
        let users: HashSet<&str> = self.failed_calls.values().map(|call| call.user.as_str()).collect();
        let is_alone = self.active_users.keys().all(|user| user == caller.user);
        if users.len() >= SHARED_USERS {
            self.opened_by = None;
            self.failed_calls.clear();
            self.shared.open(now);
        } else if is_alone && self.failed_calls.len() >= SHARED_JOBS {
            // Its failures are remembered: the next user's failure opens the circuit for all users.
            self.opened_by = Some(caller.user.to_owned());
            self.shared.open(now);
        }
    }

    fn applies_to(&self, user: &str) -> bool {
        self.opened_by.as_deref().is_none_or(|alone| alone == user)
    }

    /// The shared circuit's state.
    pub(crate) fn state(&self, now: Instant) -> BreakerState {
        self.shared.state(now)
    }

    fn note_active(&mut self, user: &str, now: Instant) {
        if let Some(at) = self.active_users.get_mut(user) {
            *at = now;
            return;
        }
        if self.active_users.len() >= MAX_REMEMBERED {
            self.active_users.retain(|_, at| now.saturating_duration_since(*at) < SHARED_WINDOW);
        }
        self.active_users.insert(user.to_owned(), now);
    }

    fn make_room(&mut self, now: Instant) {
        if self.jobs.len() >= MAX_REMEMBERED {
            self.jobs.retain(|_, job| {
                job.circuit.has_trials() || now.saturating_duration_since(job.used_at) < FORGOTTEN_AFTER
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const ADA: &str = "ada";
    const BOB: &str = "bob";
    const CLEO: &str = "cleo";

    /// A breaker with jobs 0 to 9; steps in seconds.
    struct Provider {
        breaker: Breaker,
        jobs: Vec<JobId>,
        now: Instant,
    }

    impl Provider {
        fn new() -> Self {
            let jobs = (0..10).map(|_| JobId::generate()).collect();
            Self { breaker: Breaker::new(BreakerSettings::default()), jobs, now: Instant::now() }
        }

        fn try_once(&mut self, user: &str, job: usize, outcome: HealthOutcome) -> Result<(), NotAdmitted> {
            let ticket = self.breaker.admit(CallOwner { work: self.jobs[job].into(), user }, self.now)?;
            self.breaker.report(&ticket, outcome, self.now);
            Ok(())
        }

        /// A call of one try that fails.
        fn fail(&mut self, user: &str, job: usize) {
            self.try_once(user, job, HealthOutcome::Failure).expect("let through");
            self.breaker.call_failed(CallOwner { work: self.jobs[job].into(), user }, self.now);
        }

        fn refusal(&self, user: &str, job: usize) -> Option<NotAdmitted> {
            self.breaker.refusal(CallOwner { work: self.jobs[job].into(), user }, self.now)
        }
    }

    #[test]
    fn the_failures_of_one_job_delay_only_that_job() {
        let mut provider = Provider::new();
        for _ in 0..5 {
            provider.fail(ADA, 0);
        }
        provider.now += Duration::from_secs(10);
        assert_eq!(provider.refusal(ADA, 0), Some(NotAdmitted::Open(Duration::from_secs(20))));
        assert_eq!((provider.refusal(ADA, 1), provider.refusal(BOB, 2)), (None, None));
        assert_eq!(provider.breaker.state(provider.now), BreakerState::Closed);
        provider.now += Duration::from_secs(20);
        for _ in 0..2 {
            provider.try_once(ADA, 0, HealthOutcome::Success).expect("a trial");
        }
        assert!(provider.breaker.jobs.is_empty(), "a job without failures is not remembered");
    }

    /// Each step: who fails (`a0` ada's job 0), `+` a success of bob's job 9, `w` 30 s pass.
    #[rstest]
    #[case::two_users("a0 b1", &[ADA, BOB, CLEO])]
    #[case::two_users_with_a_success_between("a0 + b1", &[])]
    #[case::two_users_too_far_apart("a0 w b1", &[])]
    #[case::one_user_with_one_job("a0 a0 a0 a0", &[])]
    #[case::one_user_with_two_jobs("a0 a1 a0 a1", &[])]
    #[case::one_user_with_three_jobs("a0 a1 a2", &[ADA])]
    #[case::then_another_users_call_fails_too("a0 a1 a2 b3", &[ADA, BOB, CLEO])]
    #[case::then_another_users_call_succeeds("a0 a1 a2 +", &[ADA])]
    #[case::three_jobs_of_one_user_while_another_is_active("+ a0 a1 a2", &[])]
    #[case::three_jobs_of_one_user_after_another_was_active("+ w a0 a1 a2", &[ADA])]
    fn it_opens_for_all_only_when_several_fail(#[case] story: &str, #[case] held: &[&str]) {
        let mut provider = Provider::new();
        for step in story.split(' ') {
            match step {
                "+" => provider.try_once(BOB, 9, HealthOutcome::Success).expect("let through"),
                "w" => provider.now += Duration::from_secs(30),
                failing => {
                    let (user, job) = failing.split_at(1);
                    provider.fail(if user == "a" { ADA } else { BOB }, job.parse().expect("a number"));
                }
            }
        }
        let refused: Vec<_> = [ADA, BOB, CLEO].into_iter().filter(|user| provider.refusal(user, 5).is_some()).collect();
        assert_eq!(refused, held);
        assert_eq!(provider.breaker.state(provider.now) == BreakerState::Open, !held.is_empty());
    }

    #[test]
    fn a_user_whose_trials_fail_holds_back_no_other() {
        let mut provider = Provider::new();
        provider.fail(ADA, 0);
        provider.fail(BOB, 1);
        provider.now += Duration::from_secs(30);
        provider.fail(ADA, 0);
        assert!(provider.refusal(ADA, 5).is_some());
        assert_eq!((provider.refusal(BOB, 1), provider.refusal(CLEO, 2)), (None, None));
        provider.fail(CLEO, 2);
        assert!(provider.refusal(BOB, 1).is_some(), "two users fail again");
    }

    #[test]
    fn open_for_all_two_trials_decide_whosever_they_are() {
        let mut provider = Provider::new();
        provider.fail(ADA, 0);
        provider.fail(BOB, 1);
        provider.now += Duration::from_secs(30);
        let first = provider
            .breaker
            .admit(CallOwner { work: provider.jobs[5].into(), user: CLEO }, provider.now)
            .expect("a trial");
        provider.try_once(ADA, 0, HealthOutcome::Success).expect("the second trial");
        assert_eq!(provider.refusal(BOB, 1), Some(NotAdmitted::HalfOpen));
        provider.breaker.report(&first, HealthOutcome::Success, provider.now);
        assert_eq!(provider.refusal(BOB, 1), None);
    }

    #[test]
    fn a_trial_that_the_shared_circuit_refuses_is_given_back_to_the_job() {
        let mut provider = Provider::new();
        for _ in 0..5 {
            provider.fail(ADA, 0);
        }
        provider.now += Duration::from_secs(20);
        provider.fail(ADA, 1);
        provider.fail(BOB, 2);
        provider.now += Duration::from_secs(10);
        // The job's own circuit is half-open, that of all has 20 s left.
        for _ in 0..5 {
            assert_eq!(
                provider.try_once(ADA, 0, HealthOutcome::Success),
                Err(NotAdmitted::Open(Duration::from_secs(20)))
            );
        }
        provider.now += Duration::from_secs(20);
        assert_eq!(provider.try_once(ADA, 0, HealthOutcome::Success), Ok(()));
    }
}
