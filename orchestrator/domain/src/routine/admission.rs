//! Whether a firing may become a run. Pure.
//!
//! Owns the order of the guardrails. Never reads a clock or the store: all that it knows is in [`AdmissionFacts`].

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{Guardrails, Overlap, RunReason};

/// Firings by routines that lead to one another.
pub const MAX_DEPTH: u32 = 5;
/// Started runs of one routine within [`FIRE_RATE_WINDOW`] beyond which it is disabled. Runs
/// that a schedule fired do not count: their interval is limited by `routine_min_interval_seconds`.
pub const MAX_STARTS_PER_WINDOW: u32 = 60;
pub const FIRE_RATE_WINDOW: TimeDelta = TimeDelta::seconds(60);

/// What fires a routine, as far as guardrails distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FiringKind {
    /// A time of its schedule.
    Scheduled {
        due_at: DateTime<Utc>,
        /// Whether it is one of several that are caught up: they wait for each other.
        is_backlog: bool,
    },
    /// A message, an event or a webhook.
    Event,
    /// A person or a program that asks for it.
    Manual,
}

/// What is known of a routine when it fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdmissionFacts {
    /// Runs in progress.
    pub running: u32,
    /// Runs that wait to start for the first time.
    pub queued: u32,
    /// Runs that wait to be tried again.
    pub retrying: u32,
    /// Runs that no schedule fired and that started within [`FIRE_RATE_WINDOW`].
    pub recent_starts: u32,
    /// Runs that have ever started.
    pub run_count: u64,
    /// When the last run started.
    pub last_run_at: Option<DateTime<Utc>>,
    /// Whether the budget of the current period is spent.
    pub is_budget_spent: bool,
    /// Whether the same payload fired within `dedup_window_seconds`.
    pub is_duplicate: bool,
    /// Firings by routines that led to this one.
    pub depth: u32,
}

/// The decision about a firing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It becomes a run, which starts as soon as fewer than `max_concurrent` are in progress.
    Queue,
    /// It becomes a run, and the oldest run ends.
    ReplaceOldest,
    /// It is recorded as skipped.
    Skip(RunReason),
}

/// Decides about a firing of an enabled routine.
pub fn admit(guardrails: &Guardrails, facts: &AdmissionFacts, kind: FiringKind, now: DateTime<Utc>) -> Admission {
    let time = match kind {
        FiringKind::Scheduled { due_at, .. } => due_at,
        FiringKind::Event | FiringKind::Manual => now,
    };
    let waiting = u64::from(facts.queued);
    let refusals = [
        (facts.depth >= MAX_DEPTH, RunReason::Depth),
        (guardrails.max_runs.is_some_and(|max| facts.run_count + waiting >= max), RunReason::MaxRuns),
        (guardrails.until.is_some_and(|until| time > until), RunReason::Until),
        (facts.is_duplicate, RunReason::Duplicate),
        (kind == FiringKind::Event && is_cooling_down(guardrails, facts, now), RunReason::Cooldown),
        (facts.is_budget_spent, RunReason::Budget),
    ];
    if let Some((_, reason)) = refusals.into_iter().find(|(applies, _)| *applies) {
        return Admission::Skip(reason);
    }
    // Only a firing that would become a run counts. The interval of a schedule is limited when it is stored.
    let is_scheduled = matches!(kind, FiringKind::Scheduled { .. });
    match admit_overlap(guardrails, facts, kind) {
        Admission::Skip(reason) => Admission::Skip(reason),
        _ if !is_scheduled && facts.recent_starts >= MAX_STARTS_PER_WINDOW => Admission::Skip(RunReason::FireRate),
        admitted => admitted,
    }
}

/// Decides about a firing that only runs of the same routine could stop.
fn admit_overlap(guardrails: &Guardrails, facts: &AdmissionFacts, kind: FiringKind) -> Admission {
    let unfinished = facts.running + facts.queued + facts.retrying;
    if unfinished < guardrails.max_concurrent {
        return Admission::Queue;
    }
    if matches!(kind, FiringKind::Scheduled { is_backlog: true, .. }) {
        return Admission::Queue;
    }
    match guardrails.overlap {
        Overlap::QueueOne if unfinished <= guardrails.max_concurrent => Admission::Queue,
        Overlap::Skip | Overlap::QueueOne => Admission::Skip(RunReason::Overlap),
        Overlap::CancelPrevious => Admission::ReplaceOldest,
    }
}

/// A run that waits to start counts as one that starts now.
fn is_cooling_down(guardrails: &Guardrails, facts: &AdmissionFacts, now: DateTime<Utc>) -> bool {
    let passed = |last: DateTime<Utc>| u64::try_from((now - last).num_seconds()).ok();
    guardrails.cooldown_seconds > 0
        && (facts.queued > 0
            || facts.last_run_at.and_then(passed).is_some_and(|seconds| seconds < guardrails.cooldown_seconds))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

    fn scheduled(is_backlog: bool) -> FiringKind {
        FiringKind::Scheduled { due_at: NOW, is_backlog }
    }

    #[rstest]
    #[case::nothing_runs(Overlap::Skip, 0, 0, scheduled(false), Admission::Queue)]
    #[case::one_runs(Overlap::Skip, 1, 0, scheduled(false), Admission::Skip(RunReason::Overlap))]
    #[case::one_waits(Overlap::Skip, 0, 1, scheduled(false), Admission::Skip(RunReason::Overlap))]
    #[case::a_backlog_waits(Overlap::Skip, 1, 3, scheduled(true), Admission::Queue)]
    #[case::the_first_waits(Overlap::QueueOne, 1, 0, FiringKind::Manual, Admission::Queue)]
    #[case::the_first_has_not_started(Overlap::QueueOne, 0, 1, FiringKind::Manual, Admission::Queue)]
    #[case::the_second_does_not(Overlap::QueueOne, 1, 1, FiringKind::Manual, Admission::Skip(RunReason::Overlap))]
    #[case::replaces(Overlap::CancelPrevious, 1, 0, scheduled(false), Admission::ReplaceOldest)]
    fn a_run_in_progress(
        #[case] overlap: Overlap,
        #[case] running: u32,
        #[case] queued: u32,
        #[case] kind: FiringKind,
        #[case] expected: Admission,
    ) {
        let guardrails = Guardrails { overlap, ..Guardrails::default() };
        let facts = AdmissionFacts { running, queued, ..AdmissionFacts::default() };
        assert_eq!(admit(&guardrails, &facts, kind, NOW), expected);
    }

    #[rstest]
    #[case::event_in_time(FiringKind::Event, 299, true)]
    #[case::event_later(FiringKind::Event, 300, false)]
    #[case::schedule(scheduled(false), 1, false)]
    #[case::manual(FiringKind::Manual, 1, false)]
    #[case::clock_stepped_back(FiringKind::Event, -7_200, false)]
    fn a_recent_run(#[case] kind: FiringKind, #[case] seconds_since: i64, #[case] is_skipped: bool) {
        let facts =
            AdmissionFacts { last_run_at: Some(NOW - TimeDelta::seconds(seconds_since)), ..AdmissionFacts::default() };
        let expected = if is_skipped { Admission::Skip(RunReason::Cooldown) } else { Admission::Queue };
        assert_eq!(admit(&Guardrails::default(), &facts, kind, NOW), expected);
    }

    #[test]
    fn the_time_that_is_due_is_compared_with_until() {
        let guardrails = Guardrails { until: Some(NOW), ..Guardrails::default() };
        let late = NOW + TimeDelta::seconds(30);
        assert_eq!(admit(&guardrails, &AdmissionFacts::default(), scheduled(false), late), Admission::Queue);
        assert_eq!(
            admit(&guardrails, &AdmissionFacts::default(), FiringKind::Event, late),
            Admission::Skip(RunReason::Until)
        );
    }

    #[test]
    fn waiting_runs_count_for_the_number_of_runs() {
        let guardrails = Guardrails { max_concurrent: 100, max_runs: Some(10), ..Guardrails::default() };
        let facts = AdmissionFacts { run_count: 8, queued: 1, ..AdmissionFacts::default() };
        assert_eq!(admit(&guardrails, &facts, FiringKind::Manual, NOW), Admission::Queue);
        let facts = AdmissionFacts { run_count: 8, queued: 2, ..facts };
        assert_eq!(admit(&guardrails, &facts, FiringKind::Manual, NOW), Admission::Skip(RunReason::MaxRuns));
        let guardrails = Guardrails { max_runs: None, ..guardrails };
        assert_eq!(admit(&guardrails, &facts, FiringKind::Manual, NOW), Admission::Queue);
    }

    #[test]
    fn only_firings_that_would_run_count_for_the_rate() {
        let guardrails = Guardrails { max_concurrent: 100, ..Guardrails::default() };
        let decide = |facts: &AdmissionFacts, kind| admit(&guardrails, facts, kind, NOW);
        let facts = AdmissionFacts { recent_starts: 59, queued: 40, ..AdmissionFacts::default() };
        assert_eq!(decide(&facts, FiringKind::Manual), Admission::Queue);
        let facts = AdmissionFacts { recent_starts: 60, queued: 0, ..facts };
        assert_eq!(decide(&facts, FiringKind::Manual), Admission::Skip(RunReason::FireRate));
        assert_eq!(decide(&facts, scheduled(false)), Admission::Queue);
        let facts = AdmissionFacts { is_duplicate: true, ..facts };
        assert_eq!(decide(&facts, FiringKind::Event), Admission::Skip(RunReason::Duplicate));
        let facts = AdmissionFacts { is_duplicate: false, running: 100, ..facts };
        assert_eq!(decide(&facts, FiringKind::Event), Admission::Skip(RunReason::Overlap));
    }

    #[test]
    fn a_long_chain_and_a_spent_budget_stop_every_firing() {
        for kind in [scheduled(false), FiringKind::Event, FiringKind::Manual] {
            let facts = AdmissionFacts { depth: MAX_DEPTH, is_budget_spent: true, ..AdmissionFacts::default() };
            assert_eq!(admit(&Guardrails::default(), &facts, kind, NOW), Admission::Skip(RunReason::Depth));
            let facts = AdmissionFacts { depth: MAX_DEPTH - 1, ..facts };
            assert_eq!(admit(&Guardrails::default(), &facts, kind, NOW), Admission::Skip(RunReason::Budget));
        }
    }
}
