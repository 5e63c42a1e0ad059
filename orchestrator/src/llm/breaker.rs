//! The circuit breaker of one provider: who is not let through to it, and for how long.
//!
//! Counts by job and, apart from that, by provider. A job whose own calls fail is held back alone: its requests may be the
//! reason. Everybody is held back only when the calls of several users fail; the jobs of one user hold back that user. A pure state machine: time is an argument,
//! and it never waits.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use protocol::JobId;
use tokio::time::Instant;

/// Failed calls count together for this long (contract: agent, Gateway).
const SHARED_WINDOW: Duration = Duration::from_secs(30);
/// The circuit opens for everybody when the calls of so many users fail (contract: agent, Gateway).
const SHARED_USERS: usize = 2;
/// The same for so many jobs when one user alone is active (contract: agent, Gateway).
const SHARED_JOBS: usize = 3;
/// The generation of a call that the shared circuit does not hold; it is never one of the circuit's.
const NOT_HELD: u64 = u64::MAX;
/// Jobs and users remembered before those that were not seen for a while are dropped. A job that is forgotten starts
/// with a closed circuit.
const MAX_REMEMBERED: usize = 1_000;
/// A job's failures are forgotten after this long without another call.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// When to stop asking, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Failures in a row of one job that open its circuit.
    pub failures: u32,
    /// How long a circuit stays open.
    pub open_for: Duration,
    /// Trials that must succeed before it closes; as many run at once.
    pub trials: u32,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_secs(30), trials: 2 }
    }
}

/// A breaker as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls go through.
    Closed,
    /// Calls are refused.
    Open,
    /// A few calls go through, to see.
    HalfOpen,
}

impl BreakerState {
    /// Its name, for people and for `/readyz`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// On whose behalf a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller<'a> {
    /// The job.
    pub job: JobId,
    /// Its user.
    pub user: &'a str,
}

impl Default for Caller<'_> {
    fn default() -> Self {
        Self { job: JobId::nil(), user: "" }
    }
}

/// Why a call is not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The circuit is open for so long.
    Open(Duration),
    /// Other calls are trying the provider; their outcome is not known yet.
    HalfOpen,
}

/// A call that was let through; its outcome is reported with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    job: JobId,
    /// Of the job's circuit and of the shared one.
    generations: (u64, u64),
}

/// How a call went, as far as the provider's health is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It answered.
    Success,
    /// It did not.
    Failure,
    /// This says nothing: refused for the request's sake, limited, or given up by us.
    Neither,
}

/// The breaker of one provider.
#[derive(Debug)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    shared: Circuit,
    /// The user whose jobs alone opened the shared circuit: it holds no other user's calls.
    opened_by: Option<String>,
    /// Jobs with failures. A job that has none has no entry.
    jobs: HashMap<JobId, JobCircuit>,
    /// Since the last success of anyone.
    failed_calls: HashMap<JobId, FailedCall>,
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
    pub(super) fn new(settings: BreakerSettings) -> Self {
        // Failures open the shared circuit by whose they are, never by their number alone.
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

    /// Lets a call through, or not.
    pub(super) fn admit(&mut self, caller: Caller<'_>, now: Instant) -> Result<Ticket, Refusal> {
        self.note_active(caller.user, now);
        let of_job = match self.jobs.get_mut(&caller.job) {
            Some(job) => {
                job.used_at = now;
                job.circuit.admit(now)?
            }
            None => 0,
        };
        let of_all = if self.is_held(caller.user) { self.shared.admit(now) } else { Ok(NOT_HELD) };
        match of_all {
            Ok(of_all) => Ok(Ticket { job: caller.job, generations: (of_job, of_all) }),
            Err(refusal) => {
                // The trial that the job's own circuit granted is not made.
                if let Some(job) = self.jobs.get_mut(&caller.job) {
                    job.circuit.report(of_job, Outcome::Neither, now);
                }
                Err(refusal)
            }
        }
    }

    /// Whether a call would be refused now. Changes nothing.
    pub(super) fn refusal(&self, caller: Caller<'_>, now: Instant) -> Option<Refusal> {
        let of_job = self.jobs.get(&caller.job).and_then(|job| job.circuit.refusal(now));
        of_job.or_else(|| self.shared.refusal(now).filter(|_| self.is_held(caller.user)))
    }

    /// Hears how a try went.
    pub(super) fn report(&mut self, ticket: Ticket, outcome: Outcome, now: Instant) {
        let (of_job, of_all) = ticket.generations;
        match self.jobs.get_mut(&ticket.job) {
            Some(job) => {
                job.used_at = now;
                job.circuit.report(of_job, outcome, now);
                if job.circuit.is_pristine() {
                    self.jobs.remove(&ticket.job);
                }
            }
            None if outcome == Outcome::Failure => {
                self.make_room(now);
                let mut circuit = Circuit::new(self.settings);
                circuit.report(of_job, outcome, now);
                self.jobs.insert(ticket.job, JobCircuit { circuit, used_at: now });
            }
            None => {}
        }
        if outcome == Outcome::Success {
            self.failed_calls.clear();
        }
        self.shared.report(of_all, outcome, now);
    }

    /// Hears of a call that has failed, all its tries together: opens the circuit for everybody when others fail too.
    pub(super) fn call_failed(&mut self, caller: Caller<'_>, now: Instant) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < SHARED_WINDOW;
        self.failed_calls.retain(|_, call| is_recent(call.at));
        self.active_users.retain(|_, at| is_recent(*at));
        self.failed_calls.insert(caller.job, FailedCall { user: caller.user.to_owned(), at: now });
        let users: HashSet<&str> = self.failed_calls.values().map(|call| call.user.as_str()).collect();
        let is_alone = self.active_users.keys().all(|user| user == caller.user);
        if users.len() >= SHARED_USERS {
            self.opened_by = None;
            self.failed_calls.clear();
            self.shared.open(now);
        } else if is_alone && self.failed_calls.len() >= SHARED_JOBS {
            // Its failures are remembered: the next user's failure opens the circuit for everybody.
            self.opened_by = Some(caller.user.to_owned());
            self.shared.open(now);
        }
    }

    fn is_held(&self, user: &str) -> bool {
        self.opened_by.as_deref().is_none_or(|alone| alone == user)
    }

    /// The shared circuit's state.
    pub(super) fn state(&self, now: Instant) -> BreakerState {
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

/// One circuit: so many failures in a row open it for a while, then trials decide.
#[derive(Debug)]
struct Circuit {
    settings: BreakerSettings,
    state: State,
    /// Counts changes of state, so that a call let through before one is not heard after it.
    generation: u64,
}

#[derive(Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen { running: u32, succeeded: u32 },
}

impl Circuit {
    const fn new(settings: BreakerSettings) -> Self {
        Self { settings, state: State::Closed { failures: 0 }, generation: 0 }
    }

    /// Lets a call through, or not; the generation that it belongs to.
    fn admit(&mut self, now: Instant) -> Result<u64, Refusal> {
        if let Some(refusal) = self.refusal(now) {
            return Err(refusal);
        }
        if matches!(self.state, State::Open { .. }) {
            self.enter(State::HalfOpen { running: 0, succeeded: 0 });
        }
        if let State::HalfOpen { running, .. } = &mut self.state {
            *running += 1;
        }
        Ok(self.generation)
    }

    fn refusal(&self, now: Instant) -> Option<Refusal> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { until } => (now < until).then(|| Refusal::Open(until - now)),
            State::HalfOpen { running, succeeded } => {
                (running + succeeded >= self.settings.trials).then_some(Refusal::HalfOpen)
            }
        }
    }

    fn report(&mut self, generation: u64, outcome: Outcome, now: Instant) {
        if generation != self.generation {
            return;
        }
        match (&mut self.state, outcome) {
            (State::Closed { failures }, Outcome::Success) => *failures = 0,
            (State::Closed { failures }, Outcome::Failure) => {
                *failures = failures.saturating_add(1);
                if *failures >= self.settings.failures {
                    self.open(now);
                }
            }
            (State::HalfOpen { running, succeeded }, Outcome::Success) => {
                *running -= 1;
                *succeeded += 1;
                if *succeeded >= self.settings.trials {
                    self.enter(State::Closed { failures: 0 });
                }
            }
            (State::HalfOpen { .. }, Outcome::Failure) => self.open(now),
            (State::HalfOpen { running, .. }, Outcome::Neither) => *running -= 1,
            (State::Closed { .. }, Outcome::Neither) | (State::Open { .. }, _) => {}
        }
    }

    fn open(&mut self, now: Instant) {
        self.enter(State::Open { until: now + self.settings.open_for });
    }

    fn state(&self, now: Instant) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until } if now < until => BreakerState::Open,
            State::Open { .. } | State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    const fn is_pristine(&self) -> bool {
        matches!(self.state, State::Closed { failures: 0 })
    }

    const fn has_trials(&self) -> bool {
        matches!(self.state, State::HalfOpen { running: 1.., .. })
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// `+` success, `-` failure, `.` neither, `w` wait until it may be tried again, `x` refused.
    #[rstest]
    #[case("----", BreakerState::Closed)]
    #[case("----+----", BreakerState::Closed)]
    #[case("-----", BreakerState::Open)]
    #[case("-----xxx", BreakerState::Open)]
    #[case("-----w", BreakerState::HalfOpen)]
    #[case("-----w+", BreakerState::HalfOpen)]
    #[case("-----w++", BreakerState::Closed)]
    #[case("-----w++----", BreakerState::Closed)]
    #[case("-----w++-----", BreakerState::Open)]
    #[case("-----w-", BreakerState::Open)]
    #[case("-----w+-", BreakerState::Open)]
    #[case("-----w-x", BreakerState::Open)]
    #[case("-----w-w++", BreakerState::Closed)]
    #[case("-----w...++", BreakerState::Closed)]
    #[case("--.--.-", BreakerState::Open)]
    fn calls_one_after_another(#[case] story: &str, #[case] expected: BreakerState) {
        let mut breaker = Circuit::new(BreakerSettings::default());
        let mut now = Instant::now();
        for step in story.chars() {
            let outcome = match step {
                '+' => Outcome::Success,
                '-' => Outcome::Failure,
                '.' => Outcome::Neither,
                'w' => {
                    now += Duration::from_secs(30);
                    continue;
                }
                _ => {
                    assert!(breaker.admit(now).is_err());
                    continue;
                }
            };
            let ticket = breaker.admit(now).expect("let through");
            breaker.report(ticket, outcome, now);
        }
        assert_eq!(breaker.state(now), expected);
    }

    #[test]
    fn half_open_lets_two_through_and_no_more() {
        let mut breaker = Circuit::new(BreakerSettings::default());
        let mut now = Instant::now();
        let late = breaker.admit(now).expect("closed");
        for _ in 0..5 {
            let ticket = breaker.admit(now).expect("closed");
            breaker.report(ticket, Outcome::Failure, now);
        }
        now += Duration::from_secs(29);
        assert!(breaker.admit(now).is_err());
        now += Duration::from_secs(1);
        let first = breaker.admit(now).expect("first trial");
        let second = breaker.admit(now).expect("second trial");
        assert!(breaker.admit(now).is_err());
        breaker.report(late, Outcome::Failure, now);
        assert_eq!(breaker.state(now), BreakerState::HalfOpen, "a call from before does not decide");
        breaker.report(first, Outcome::Success, now);
        assert_eq!(breaker.admit(now), Err(Refusal::HalfOpen), "one of two has succeeded, the other still runs");
        breaker.report(second, Outcome::Success, now);
        assert_eq!(breaker.state(now), BreakerState::Closed);
    }

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

        fn try_once(&mut self, user: &str, job: usize, outcome: Outcome) -> Result<(), Refusal> {
            let ticket = self.breaker.admit(Caller { job: self.jobs[job], user }, self.now)?;
            self.breaker.report(ticket, outcome, self.now);
            Ok(())
        }

        /// A call of one try that fails.
        fn fail(&mut self, user: &str, job: usize) {
            self.try_once(user, job, Outcome::Failure).expect("let through");
            self.breaker.call_failed(Caller { job: self.jobs[job], user }, self.now);
        }

        fn refusal(&self, user: &str, job: usize) -> Option<Refusal> {
            self.breaker.refusal(Caller { job: self.jobs[job], user }, self.now)
        }
    }

    #[test]
    fn the_failures_of_one_job_hold_back_that_job_alone() {
        let mut provider = Provider::new();
        for _ in 0..5 {
            provider.fail(ADA, 0);
        }
        provider.now += Duration::from_secs(10);
        assert_eq!(provider.refusal(ADA, 0), Some(Refusal::Open(Duration::from_secs(20))));
        assert_eq!((provider.refusal(ADA, 1), provider.refusal(BOB, 2)), (None, None));
        assert_eq!(provider.breaker.state(provider.now), BreakerState::Closed);
        provider.now += Duration::from_secs(20);
        for _ in 0..2 {
            provider.try_once(ADA, 0, Outcome::Success).expect("a trial");
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
                "+" => provider.try_once(BOB, 9, Outcome::Success).expect("let through"),
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
    fn open_for_all_two_trials_decide_whosever_they_are() {
        let mut provider = Provider::new();
        provider.fail(ADA, 0);
        provider.fail(BOB, 1);
        provider.now += Duration::from_secs(30);
        let first =
            provider.breaker.admit(Caller { job: provider.jobs[5], user: CLEO }, provider.now).expect("a trial");
        provider.try_once(ADA, 0, Outcome::Success).expect("the second trial");
        assert_eq!(provider.refusal(BOB, 1), Some(Refusal::HalfOpen));
        provider.breaker.report(first, Outcome::Success, provider.now);
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
            assert_eq!(provider.try_once(ADA, 0, Outcome::Success), Err(Refusal::Open(Duration::from_secs(20))));
        }
        provider.now += Duration::from_secs(20);
        assert_eq!(provider.try_once(ADA, 0, Outcome::Success), Ok(()));
    }

    proptest! {
        /// However calls overlap, it can always come back: after the wait, trials that succeed close it.
        #[test]
        fn it_always_recovers(steps in proptest::collection::vec((0..6_u8, 0..40_u64), 0..200)) {
            let mut breaker = Circuit::new(BreakerSettings::default());
            let mut now = Instant::now();
            let mut running = Vec::new();
            for (step, seconds) in steps {
                now += Duration::from_secs(seconds);
                let outcome = match step {
                    0 => Outcome::Success,
                    1 => Outcome::Failure,
                    2 => Outcome::Neither,
                    _ => {
                        running.extend(breaker.admit(now));
                        continue;
                    }
                };
                if let Some(ticket) = running.pop() {
                    breaker.report(ticket, outcome, now);
                }
            }
            for ticket in running {
                breaker.report(ticket, Outcome::Neither, now);
            }
            now += Duration::from_secs(30);
            for _ in 0..2 {
                if let Ok(ticket) = breaker.admit(now) {
                    breaker.report(ticket, Outcome::Success, now);
                }
            }
            prop_assert_eq!(breaker.state(now), BreakerState::Closed);
        }
    }
}
