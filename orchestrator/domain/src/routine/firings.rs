//! The firings to come of many routines: the soonest of all, and their number in each hour. Pure.
//!
//! Owns the bounds of the work. A schedule whose times cannot be computed is left out by itself.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    panic::{AssertUnwindSafe, catch_unwind},
};

use chrono::{DateTime, DurationRound, TimeDelta, Utc};

use super::timing::{next_firing, until_checked};
use schedule::Schedule;

/// Routines with a cron schedule whose firings are counted, each time by itself.
const MAX_CALENDARS: usize = 500;
const HOUR: TimeDelta = TimeDelta::hours(1);
/// The smallest step of times.
const TICK: TimeDelta = TimeDelta::microseconds(1);

/// What fires a routine from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firings {
    pub schedule: Schedule,
    /// The delay of each time.
    pub stagger: TimeDelta,
    /// The first time without an outcome, with the delay.
    pub first: DateTime<Utc>,
    /// No time after this one fires.
    pub until: Option<DateTime<Utc>>,
    /// How many more runs it may have.
    pub runs_left: Option<u64>,
}

/// Firings by hour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FiringsByHour {
    /// Their number in each hour in UTC that has some.
    pub hours: BTreeMap<DateTime<Utc>, u64>,
    /// The number of routines whose firings are not counted.
    pub left_out: u64,
}

impl Firings {
    /// The first time after `now`.
    fn next(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if self.runs_left == Some(0) {
            return None;
        }
        if self.first > now { until_checked(self.first, self.until).next } else { self.after(now) }
    }

    /// The first time of the schedule after `instant`; none if it cannot be computed.
    fn after(&self, instant: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let next = || next_firing(&self.schedule, self.stagger, self.until, instant).next;
        catch_unwind(AssertUnwindSafe(next)).ok().flatten()
    }

    /// The number of firings in each hour after `now` and before `until`; none if `is_over` comes first.
    fn by_hour(
        &self,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
        is_over: &impl Fn() -> bool,
    ) -> Option<Vec<(DateTime<Utc>, u64)>> {
        let mut hours: Vec<(DateTime<Utc>, u64)> = Vec::new();
        let mut left = self.runs_left.unwrap_or(u64::MAX);
        let mut next = self.next(now).filter(|time| *time < until);
        while let Some(time) = next.filter(|_| left > 0) {
            let hour = time.duration_trunc(HOUR).ok()?;
            let (last, count) = self.rest_of_hour(time, (hour + HOUR).min(until));
            let count = count.min(left);
            left -= count;
            match hours.last_mut().filter(|(latest, _)| *latest == hour) {
                Some((_, counted)) => *counted += count,
                None => hours.push((hour, count)),
            }
            if is_over() {
                return None;
            }
            next = self.after(last).filter(|time| *time < until);
        }
        Some(hours)
    }

    /// The number of times from `time` on and before `end`, with the last of them: of fixed intervals all at once, of a
    /// calendar `time` alone.
    fn rest_of_hour(&self, time: DateTime<Utc>, end: DateTime<Utc>) -> (DateTime<Utc>, u64) {
        if !matches!(self.schedule, Schedule::Every { .. }) {
            return (time, 1);
        }
        let last = self.until.map_or(end - TICK, |until| until.min(end - TICK));
        (last.max(time), 1 + self.schedule.count(time - self.stagger, last - self.stagger))
    }
}

/// The soonest `limit` firings after `now` and before `until`, each with the position of what fires.
pub fn soonest(of: &[Firings], now: DateTime<Utc>, until: DateTime<Utc>, limit: usize) -> Vec<(DateTime<Utc>, usize)> {
    let mut found = Vec::new();
    let mut left: Vec<u64> = of.iter().map(|firings| firings.runs_left.unwrap_or(u64::MAX)).collect();
    let firsts = of.iter().enumerate().filter_map(|(position, firings)| Some(Reverse((firings.next(now)?, position))));
    let mut next: BinaryHeap<_> = firsts.filter(|Reverse((time, _))| *time < until).collect();
    while let Some(Reverse((time, position))) = next.pop().filter(|_| found.len() < limit) {
        found.push((time, position));
        left[position] -= 1;
        if left[position] > 0 {
            let later = of[position].after(time).filter(|time| *time < until);
            next.extend(later.map(|time| Reverse((time, position))));
        }
    }
    found
}

/// The numbers of firings after `now` and before `until`. Times of calendars are counted until `is_over`.
pub fn by_hour(of: &[Firings], now: DateTime<Utc>, until: DateTime<Utc>, is_over: impl Fn() -> bool) -> FiringsByHour {
    let (mut counted, mut calendars) = (FiringsByHour::default(), 0);
    for firings in of {
        let is_calendar = matches!(firings.schedule, Schedule::Cron(_));
        calendars += usize::from(is_calendar);
        let hours = if is_calendar && calendars > MAX_CALENDARS {
            None
        } else if is_calendar {
            firings.by_hour(now, until, &is_over)
        } else {
            firings.by_hour(now, until, &|| false)
        };
        match hours {
            Some(hours) => hours.into_iter().for_each(|(hour, count)| *counted.hours.entry(hour).or_default() += count),
            None => counted.left_out += 1,
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn utc(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn now() -> DateTime<Utc> {
        utc("2026-11-29T14:20:00Z")
    }

    fn firings(schedule: Schedule) -> Firings {
        let first = next_firing(&schedule, TimeDelta::zero(), None, now()).next.unwrap();
        Firings { schedule, stagger: TimeDelta::zero(), first, until: None, runs_left: None }
    }

    fn every(seconds: u64) -> Firings {
        firings(Schedule::every(seconds, utc("2026-11-01T00:00:07Z")).unwrap())
    }

    fn cron(expression: &str) -> Firings {
        firings(Schedule::cron(expression, Some("Europe/Berlin")).unwrap())
    }

    /// Counted one by one.
    fn expected(of: &Firings, until: DateTime<Utc>) -> BTreeMap<DateTime<Utc>, u64> {
        let mut hours = BTreeMap::new();
        let times = std::iter::successors(of.next(now()), |time| of.after(*time));
        let left = of.runs_left.map_or(usize::MAX, |left| usize::try_from(left).unwrap());
        for time in times.take_while(|time| *time < until).take(left) {
            *hours.entry(time.duration_trunc(HOUR).unwrap()).or_default() += 1;
        }
        hours
    }

    #[rstest]
    #[case::seconds(every(7))]
    #[case::minutes(every(60))]
    #[case::across_hours(every(5_400))]
    #[case::a_day(every(86_400))]
    #[case::staggered(Firings { stagger: TimeDelta::seconds(59), first: now() + TimeDelta::seconds(66), ..every(60) })]
    #[case::ends(Firings { until: Some(utc("2026-11-29T16:30:07Z")), ..every(60) })]
    #[case::ends_on_the_hour(Firings { until: Some(utc("2026-11-29T16:00:00Z")), ..every(60) })]
    #[case::few_runs_left(Firings { runs_left: Some(61), ..every(60) })]
    #[case::no_run_left(Firings { runs_left: Some(0), ..every(60) })]
    #[case::overdue(Firings { first: utc("2026-11-20T00:00:07Z"), ..every(600) })]
    #[case::later(Firings { first: utc("2026-11-30T00:00:07Z"), ..every(600) })]
    #[case::calendar(cron("*/7 8-17 * * MON-FRI"))]
    #[case::calendar_with_few_runs_left(Firings { runs_left: Some(3), ..cron("30 * * * *") })]
    #[case::once(firings(Schedule::At(utc("2026-11-29T15:00:00Z"))))]
    fn the_firings_of_each_hour_are_counted(#[case] of: Firings) {
        for until in ["2026-11-29T14:20:01Z", "2026-11-29T16:00:07Z", "2026-12-02T09:17:00Z"].map(utc) {
            let counted = by_hour(std::slice::from_ref(&of), now(), until, || false);
            assert_eq!(counted, FiringsByHour { hours: expected(&of, until), left_out: 0 }, "{until}");
        }
    }

    #[test]
    fn calendars_are_counted_up_to_a_number_and_a_time() {
        let until = utc("2026-11-29T17:00:00Z");
        let many = vec![cron("0 * * * *"); MAX_CALENDARS + 2];
        let counted = by_hour(&many, now(), until, || false);
        assert_eq!((counted.left_out, counted.hours[&utc("2026-11-29T15:00:00Z")]), (2, 500));
        let both = [cron("* * * * *"), every(3_600)];
        let counted = by_hour(&both, now(), until, || true);
        assert_eq!((counted.left_out, counted.hours.len()), (1, 2), "fixed intervals take no time");
    }

    #[test]
    fn the_soonest_firings_of_all_are_in_order() {
        let of = [every(3_600), Firings { runs_left: Some(2), ..every(600) }, cron("0,30 * * * *")];
        let found = soonest(&of, now(), utc("2026-11-29T16:00:07Z"), 6);
        let times: Vec<(String, usize)> = found.iter().map(|(at, of)| (at.format("%T").to_string(), *of)).collect();
        let expected =
            [("14:20:07", 1), ("14:30:00", 2), ("14:30:07", 1), ("15:00:00", 2), ("15:00:07", 0), ("15:30:00", 2)];
        assert_eq!(times, expected.map(|(at, of)| (at.to_owned(), of)));
        assert_eq!(soonest(&of, now(), utc("2026-11-29T16:00:07Z"), 200).len(), 7, "before the end");
    }
}
