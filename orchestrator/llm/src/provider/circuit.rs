//! One circuit: closed, open or half-open. Consecutive failures open it for a while, then trial calls decide.
//!
//! A pure state machine: time is an argument, and it never waits. Never knows whose calls it counts.

use std::time::Duration;

use tokio::time::Instant;

/// When a circuit opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Consecutive failures of one job that open its circuit.
    pub failures: u32,
    /// How long a circuit stays open.
    pub open_for: Duration,
    /// Trial calls that must succeed before it closes; as many run at once.
    pub trials: u32,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_secs(30), trials: 2 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum BreakerState {
    /// Calls go through.
    Closed,
    /// Calls are refused.
    Open,
    /// Trial calls go through.
    HalfOpen,
}

impl BreakerState {
    /// The name in `/readyz`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Why a call is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// The circuit is open for this long.
    Open(Duration),
    /// Trial calls are running; their outcome is not known yet.
    HalfOpen,
}

/// The outcome of a call, as far as it concerns the provider's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthOutcome {
    /// The provider answered.
    Success,
    /// The provider failed.
    Failure,
    /// No evidence: the request was refused, limited, or given up here.
    Neither,
}

#[derive(Debug)]
pub(crate) struct Circuit {
    settings: BreakerSettings,
    state: CircuitState,
    /// Counts changes of state, so that the outcome of a call that was admitted before one is ignored after it.
    generation: u64,
}

#[derive(Debug)]
enum CircuitState {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen { running: u32, succeeded: u32 },
}

impl Circuit {
    pub(crate) const fn new(settings: BreakerSettings) -> Self {
        Self { settings, state: CircuitState::Closed { failures: 0 }, generation: 0 }
    }

    /// Admits a call or refuses it; returns the generation that it belongs to.
    pub(crate) fn admit(&mut self, now: Instant) -> Result<u64, NotAdmitted> {
        if let Some(refusal) = self.refusal(now) {
            return Err(refusal);
        }
        if matches!(self.state, CircuitState::Open { .. }) {
            self.enter(CircuitState::HalfOpen { running: 0, succeeded: 0 });
        }
        if let CircuitState::HalfOpen { running, .. } = &mut self.state {
            *running += 1;
        }
        Ok(self.generation)
    }

    pub(crate) fn refusal(&self, now: Instant) -> Option<NotAdmitted> {
        match self.state {
            CircuitState::Closed { .. } => None,
            CircuitState::Open { until } => (now < until).then(|| NotAdmitted::Open(until - now)),
            CircuitState::HalfOpen { running, succeeded } => {
                (running + succeeded >= self.settings.trials).then_some(NotAdmitted::HalfOpen)
            }
        }
    }

    pub(crate) fn report(&mut self, generation: u64, outcome: HealthOutcome, now: Instant) {
        if generation != self.generation {
            return;
        }
        match (&mut self.state, outcome) {
            (CircuitState::Closed { failures }, HealthOutcome::Success) => *failures = 0,
            (CircuitState::Closed { failures }, HealthOutcome::Failure) => {
                *failures = failures.saturating_add(1);
                if *failures >= self.settings.failures {
                    self.open(now);
                }
            }
            (CircuitState::HalfOpen { running, succeeded }, HealthOutcome::Success) => {
                *running = running.saturating_sub(1);
                *succeeded += 1;
                if *succeeded >= self.settings.trials {
                    self.enter(CircuitState::Closed { failures: 0 });
                }
            }
            (CircuitState::HalfOpen { .. }, HealthOutcome::Failure) => self.open(now),
            (CircuitState::HalfOpen { running, .. }, HealthOutcome::Neither) => *running = running.saturating_sub(1),
            (CircuitState::Closed { .. }, HealthOutcome::Neither) | (CircuitState::Open { .. }, _) => {}
        }
    }

    pub(crate) fn open(&mut self, now: Instant) {
        self.enter(CircuitState::Open { until: now + self.settings.open_for });
    }

    pub(crate) fn state(&self, now: Instant) -> BreakerState {
        match self.state {
            CircuitState::Closed { .. } => BreakerState::Closed,
            CircuitState::Open { until } if now < until => BreakerState::Open,
            CircuitState::Open { .. } | CircuitState::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    pub(crate) const fn is_pristine(&self) -> bool {
        matches!(self.state, CircuitState::Closed { failures: 0 })
    }

    pub(crate) const fn has_trials(&self) -> bool {
        matches!(self.state, CircuitState::HalfOpen { running: 1.., .. })
    }

    fn enter(&mut self, state: CircuitState) {
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
                '+' => HealthOutcome::Success,
                '-' => HealthOutcome::Failure,
                '.' => HealthOutcome::Neither,
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
            breaker.report(ticket, HealthOutcome::Failure, now);
        }
        now += Duration::from_secs(29);
        assert!(breaker.admit(now).is_err());
        now += Duration::from_secs(1);
        let first = breaker.admit(now).expect("first trial");
        let second = breaker.admit(now).expect("second trial");
        assert!(breaker.admit(now).is_err());
        breaker.report(late, HealthOutcome::Failure, now);
        assert_eq!(breaker.state(now), BreakerState::HalfOpen, "a call from before does not decide");
        breaker.report(first, HealthOutcome::Success, now);
        assert_eq!(breaker.admit(now), Err(NotAdmitted::HalfOpen), "one of two has succeeded, the other still runs");
        breaker.report(second, HealthOutcome::Success, now);
        assert_eq!(breaker.state(now), BreakerState::Closed);
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
                    0 => HealthOutcome::Success,
                    1 => HealthOutcome::Failure,
                    2 => HealthOutcome::Neither,
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
                breaker.report(ticket, HealthOutcome::Neither, now);
            }
            now += Duration::from_secs(30);
            for _ in 0..2 {
                if let Ok(ticket) = breaker.admit(now) {
                    breaker.report(ticket, HealthOutcome::Success, now);
                }
            }
            prop_assert_eq!(breaker.state(now), BreakerState::Closed);
        }
    }
}
