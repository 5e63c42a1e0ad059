//! Which times of a schedule fire now, which were missed, and when the routine fires next. Pure.
//!
//! The stored `next_fire_at` is the first time without an outcome. A decision accounts for it and for every later time
//! up to now exactly once, and its `next` is later than all of them, so a clock that is set back fires nothing again.

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{CatchUp, DisabledReason, RoutineId, RunReason};

use schedule::Schedule;

/// A time is late when it is decided on later than this after it was due.
pub(crate) const LATE_AFTER: TimeDelta = TimeDelta::seconds(60);
/// The maximum number of missed times that one decision catches up, whatever `catch_up_max` says.
const MAX_CAUGHT_UP: u32 = 1_000;
/// The smallest step of stored times.
const TICK: TimeDelta = TimeDelta::microseconds(1);

/// What a decision is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimingFacts {
    pub schedule: Schedule,
    /// The delay of each of its times; see [`stagger_offset`].
    pub stagger: TimeDelta,
    /// The stored first time without an outcome, with the delay.
    pub next_fire_at: DateTime<Utc>,
    pub now: DateTime<Utc>,
    /// Which late times run.
    pub catch_up: CatchUp,
    /// How late a time may be caught up.
    pub catch_up_window_seconds: u64,
    /// The maximum number of missed times that `catch_up: all` runs.
    pub catch_up_max: u32,
    /// No time after this one fires.
    pub until: Option<DateTime<Utc>>,
    /// When automation was switched on again: times at or before it were missed.
    pub resumed_at: Option<DateTime<Utc>>,
}

/// What becomes of the times that are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimingDecision {
    /// Times that fire now, the earliest first.
    pub fire: Vec<DateTime<Utc>>,
    /// Times that were missed, one entry for each gap.
    pub missed: Vec<MissedSlots>,
    /// The next time, later than all that are accounted for.
    pub next: Option<DateTime<Utc>>,
    /// Why there is no next time.
    pub end: Option<DisabledReason>,
}

/// Consecutive times that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissedSlots {
    pub from: DateTime<Utc>,
    pub to: DateTime<Utc>,
    /// Their number; of a cron schedule at most one more than [`MAX_COUNTED`], which then is a lower bound.
    ///
    /// [`MAX_COUNTED`]: schedule::MAX_COUNTED
    pub count: u64,
    /// Why they were missed.
    pub reason: RunReason,
}

/// The first time that a routine fires, or why it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextFiring {
    /// The time, with the delay.
    pub next: Option<DateTime<Utc>>,
    pub end: Option<DisabledReason>,
}

/// The delay of a routine's times: whole seconds from 0 to `stagger_seconds`, always the same for a routine.
pub fn stagger_offset(routine: RoutineId, stagger_seconds: u64) -> TimeDelta {
    // The second half of an id is random.
    let (_, random) = routine.as_uuid().as_u64_pair();
    let seconds = (random & u64::from(u32::MAX)) % (stagger_seconds + 1);
    TimeDelta::seconds(seconds.cast_signed())
}

/// When a routine fires first after `instant`, such as when it is created, changed or enabled.
pub fn next_firing(
    schedule: &Schedule,
    stagger: TimeDelta,
    until: Option<DateTime<Utc>>,
    instant: DateTime<Utc>,
) -> NextFiring {
    match schedule.next_after(instant - stagger) {
        Some(time) => until_checked(time + stagger, until),
        None if matches!(schedule, Schedule::At(_)) => NextFiring { next: None, end: Some(DisabledReason::Completed) },
        None => NextFiring { next: None, end: Some(DisabledReason::ScheduleEnded) },
    }
}

/// This time, unless it is after `until`.
pub fn until_checked(time: DateTime<Utc>, until: Option<DateTime<Utc>>) -> NextFiring {
    if until.is_some_and(|until| time > until) {
        NextFiring { next: None, end: Some(DisabledReason::Until) }
    } else {
        NextFiring { next: Some(time), end: None }
    }
}

/// The next times after `from`: at most `count`, and at most `max_runs_left`.
pub fn upcoming(
    schedule: &Schedule,
    stagger: TimeDelta,
    until: Option<DateTime<Utc>>,
    max_runs_left: Option<u64>,
    from: DateTime<Utc>,
    count: usize,
) -> Vec<DateTime<Utc>> {
    let count = max_runs_left.map_or(count, |left| count.min(usize::try_from(left).unwrap_or(usize::MAX)));
    let next = |after: DateTime<Utc>| next_firing(schedule, stagger, until, after).next;
    std::iter::successors(next(from), |time| next(*time)).take(count).collect()
}

/// What becomes of the times that are due.
pub fn decide(facts: &TimingFacts) -> TimingDecision {
    let first = facts.next_fire_at;
    if facts.until.is_some_and(|until| first > until) {
        return TimingDecision { fire: vec![], missed: vec![], next: None, end: Some(DisabledReason::Until) };
    }
    if first > facts.now {
        return TimingDecision { fire: vec![], missed: vec![], next: Some(first), end: None };
    }
    let last = facts.until.map_or(facts.now, |until| until.min(facts.now));
    let newest = facts.newest_at(last);
    let mut missed = vec![];
    let mut rest = Some(first);
    if let Some(resumed_at) = facts.resumed_at.filter(|resumed_at| *resumed_at >= first) {
        let to = facts.newest_at(resumed_at.min(last));
        missed.push(facts.missed(first, to, RunReason::AutomationDisabled));
        rest = facts.slot_after(to).filter(|slot| *slot <= last);
    }
    let fire = rest.map_or_else(Vec::new, |from| {
        let (fire, late) = facts.split(from, newest);
        missed.extend(late);
        fire
    });
    let NextFiring { next, end } = next_firing(&facts.schedule, facts.stagger, facts.until, newest);
    TimingDecision { fire, missed, next, end }
}

impl TimingFacts {
    /// The first time of the schedule after `instant`, with the delay.
    fn slot_after(&self, instant: DateTime<Utc>) -> Option<DateTime<Utc>> {
        Some(self.schedule.next_after(instant - self.stagger)? + self.stagger)
    }

    /// The newest time that is to be accounted for, at or before `instant`, which is not before the stored first time.
    fn newest_at(&self, instant: DateTime<Utc>) -> DateTime<Utc> {
        let newest = self.schedule.newest_at(instant - self.stagger);
        newest.map_or(self.next_fire_at, |time| (time + self.stagger).max(self.next_fire_at))
    }

    /// The times from `from` to `newest` that fire, and those that were missed.
    fn split(&self, from: DateTime<Utc>, newest: DateTime<Utc>) -> (Vec<DateTime<Utc>>, Option<MissedSlots>) {
        let punctual_from = self.now - LATE_AFTER;
        let first = if from >= punctual_from { Some(from) } else { self.slot_after(punctual_from - TICK) };
        let punctual = std::iter::successors(first, |slot| self.slot_after(*slot));
        let mut fire: Vec<DateTime<Utc>> = punctual.take_while(|slot| *slot <= newest).collect();
        if from >= punctual_from {
            return (fire, None);
        }
        let quota = match self.catch_up {
            CatchUp::None => 0,
            CatchUp::Once => u32::from(fire.is_empty()),
            CatchUp::All => self.catch_up_max.min(MAX_CAUGHT_UP),
        };
        let mut late = Some(self.newest_at(newest.min(punctual_from - TICK)));
        for _ in 0..quota {
            let Some(slot) = late.filter(|slot| self.is_in_window(*slot)) else { break };
            fire.push(slot);
            late = Some(slot).filter(|slot| *slot > from).map(|slot| self.newest_at(slot - TICK));
        }
        fire.sort_unstable();
        (fire, late.map(|to| self.missed(from, to, RunReason::Late)))
    }

    fn is_in_window(&self, slot: DateTime<Utc>) -> bool {
        let lateness = u64::try_from((self.now - slot).num_seconds()).unwrap_or(0);
        lateness <= self.catch_up_window_seconds
    }

    fn missed(&self, from: DateTime<Utc>, to: DateTime<Utc>, reason: RunReason) -> MissedSlots {
        // `from` counts even if the schedule has changed beneath it, as it does with the rules of a time zone.
        let later = self.schedule.count(from - self.stagger, to - self.stagger);
        MissedSlots { from, to, count: later + 1, reason }
    }
}

#[cfg(test)]
mod tests;
