//! The times of a schedule. Pure.
//!
//! The only user of croner, which finds the matching times of a calendar. What a time zone's clock does to them is
//! decided here. A local time that the clock skips fires once, right after the gap, and one that comes twice fires
//! once, the first time. Two kinds of expressions follow the clock's hands instead, so that they neither pause nor fire
//! twice in an interval: those of every hour (`15 * * * *`) leave skipped times out, and these and those with `*` in
//! the minutes or seconds (`*/10 0-5 * * *`) fire in both passes of a repeated hour.
//!
//! croner itself treats lists of fixed times (`30 2,14 * * *`) as intervals and drops a skipped time whose gap crosses
//! midnight.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Month, NaiveDateTime, SubsecRound, TimeDelta, Utc};
use croner::Cron;
use protocol::RoutineTrigger;

use super::{
    error::ScheduleError,
    local_time::{Instants, instants, local_time, put_back_at},
};

use base::Zone;

/// Maximum bytes of a cron expression or phrase.
pub(crate) const MAX_SCHEDULE_BYTES: usize = 256;
/// Times after which counting stops: a few milliseconds of work, and 3.5 days of a routine that fires each minute.
pub const MAX_COUNTED: u64 = 5_000;
/// Times that are compared for the smallest gap between two.
const COMPARED_TIMES: usize = 500;
/// Longest period: 10 years.
const MAX_PERIOD_SECONDS: u64 = 10 * 366 * 86_400;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    Cron(Box<CalendarSchedule>),
    /// The anchor, and times at a fixed interval after it.
    Every {
        /// The interval; positive.
        period: TimeDelta,
        anchor: DateTime<Utc>,
    },
    At(DateTime<Utc>),
}

/// Times of a calendar in a time zone.
#[derive(Clone, PartialEq, Eq)]
pub struct CalendarSchedule {
    cron: Cron,
    zone: Zone,
    /// Whether it fires in both passes of a repeated hour.
    in_both_passes: bool,
    /// Whether a skipped time fires after the gap.
    after_gap: bool,
}

impl Schedule {
    /// The schedule of a stored trigger; `None` if the trigger has no times. An `every` without an anchor counts from
    /// `created_at`, when its routine was created.
    pub fn of(trigger: &RoutineTrigger, created_at: DateTime<Utc>) -> Result<Option<Self>, ScheduleError> {
        match trigger {
            RoutineTrigger::Cron { schedule, timezone } => Self::cron(schedule, timezone.as_deref()).map(Some),
            RoutineTrigger::Every { every_seconds, anchor } => {
                Self::every(*every_seconds, anchor.unwrap_or(created_at)).map(Some)
            }
            RoutineTrigger::At { at } => Ok(Some(Self::At(at.trunc_subsecs(6)))),
            RoutineTrigger::Event { .. }
            | RoutineTrigger::SystemEvent { .. }
            | RoutineTrigger::Webhook(_)
            | RoutineTrigger::Manual {} => Ok(None),
        }
    }

    /// The times of a cron expression in an IANA time zone, UTC by default.
    pub fn cron(expression: &str, timezone: Option<&str>) -> Result<Self, ScheduleError> {
        let zone = timezone.map_or(Ok(Zone::UTC), zone_named)?;
        CalendarSchedule::new(expression, zone).map(|schedule| Self::Cron(Box::new(schedule)))
    }

    /// The anchor, and times at a fixed interval after it.
    pub fn every(every_seconds: u64, anchor: DateTime<Utc>) -> Result<Self, ScheduleError> {
        let period = i64::try_from(every_seconds).ok().filter(|_| (1..=MAX_PERIOD_SECONDS).contains(&every_seconds));
        let period = period.ok_or(ScheduleError::Period { max_seconds: MAX_PERIOD_SECONDS })?;
        Ok(Self::Every { period: TimeDelta::seconds(period), anchor: anchor.trunc_subsecs(6) })
    }

    /// The time zone of a cron schedule.
    pub fn zone(&self) -> Option<Zone> {
        match self {
            Self::Cron(schedule) => Some(schedule.zone),
            Self::Every { .. } | Self::At(_) => None,
        }
    }

    /// The earliest time after `instant`; `None` if there is none.
    pub fn next_after(&self, instant: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Cron(schedule) => schedule.next_after(instant),
            Self::Every { anchor, .. } if instant < *anchor => Some(*anchor),
            Self::Every { period, anchor } => nth(*anchor, *period, periods(*anchor, *period, instant)? + 1),
            Self::At(at) => Some(*at).filter(|at| *at > instant),
        }
    }

    /// The newest time at or before `instant`; `None` if there is none.
    pub fn newest_at(&self, instant: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Cron(schedule) => schedule.newest_at(instant),
            Self::Every { anchor, .. } if instant < *anchor => None,
            Self::Every { period, anchor } => nth(*anchor, *period, periods(*anchor, *period, instant)?),
            Self::At(at) => Some(*at).filter(|at| *at <= instant),
        }
    }

    /// The times after `instant`, the earliest first.
    pub fn times_after(&self, instant: DateTime<Utc>) -> impl Iterator<Item = DateTime<Utc>> {
        std::iter::successors(self.next_after(instant), |time| self.next_after(*time))
    }

    /// The number of times after `from`, up to and including `to`. Of a cron schedule at most [`MAX_COUNTED`], which
    /// then is a lower bound.
    pub fn count(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> u64 {
        match self {
            Self::Every { period, anchor } => {
                let until = |instant| if instant < *anchor { None } else { periods(*anchor, *period, instant) };
                let number = |instant| until(instant).map_or(0, |periods| periods.saturating_add(1));
                u64::try_from(number(to).saturating_sub(number(from))).unwrap_or(0)
            }
            Self::Cron(_) | Self::At(_) => {
                let times = self.times_after(from).take_while(|time| *time <= to);
                times.take(usize::try_from(MAX_COUNTED).unwrap_or(usize::MAX)).map(|_| 1).sum()
            }
        }
    }

    /// The months in which a schedule of days of the month never fires, or only in leap years, because they have no
    /// such day.
    pub fn skipped_months(&self) -> Vec<Month> {
        match self {
            Self::Cron(schedule) => schedule.skipped_months(),
            Self::Every { .. } | Self::At(_) => Vec::new(),
        }
    }

    /// The smallest interval between two consecutive times, in the calendar of a cron schedule without changes of the
    /// clock; reads a bounded number of times after `now`. `None` with fewer than two times.
    pub(crate) fn smallest_gap(&self, now: DateTime<Utc>) -> Option<TimeDelta> {
        match self {
            Self::Cron(schedule) => schedule.smallest_gap(now),
            Self::Every { period, .. } => Some(*period),
            Self::At(_) => None,
        }
    }
}

impl fmt::Debug for CalendarSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CalendarSchedule")
            .field("cron", &self.cron.as_str())
            .field("zone", &self.zone)
            .finish_non_exhaustive()
    }
}

/// The IANA time zone with this name.
pub(crate) fn zone_named(name: &str) -> Result<Zone, ScheduleError> {
    name.parse().map_err(|_| ScheduleError::Zone(name.chars().take(64).collect()))
}

/// Whole periods from `anchor` to `instant`, which is not earlier.
fn periods(anchor: DateTime<Utc>, period: TimeDelta, instant: DateTime<Utc>) -> Option<i64> {
    Some((instant - anchor).num_microseconds()? / period.num_microseconds()?)
}

fn nth(anchor: DateTime<Utc>, period: TimeDelta, number: i64) -> Option<DateTime<Utc>> {
    let distance = period.num_microseconds()?.checked_mul(number)?;
    anchor.checked_add_signed(TimeDelta::microseconds(distance))
}

/// A year in which February has 28 days.
const COMMON_YEAR: i32 = 2027;

const SECOND: TimeDelta = TimeDelta::seconds(1);

impl CalendarSchedule {
    fn new(expression: &str, zone: Zone) -> Result<Self, ScheduleError> {
        let error = |message: String| ScheduleError::Expression { message };
        if expression.len() > MAX_SCHEDULE_BYTES {
            return Err(error(format!("it is longer than {MAX_SCHEDULE_BYTES} bytes")));
        }
        let expression = if expression.trim().eq_ignore_ascii_case("@midnight") { "@daily" } else { expression };
        let cron = Cron::from_str(expression).map_err(|cause| error(cause.to_string()))?;
        let fields = &cron.pattern;
        let numbered = [&fields.seconds, &fields.minutes, &fields.hours, &fields.months, &fields.years];
        // croner accepts lists without an element, and would then try each hour until the year 5000.
        if numbered.iter().any(|field| field.values().is_empty()) {
            return Err(error("a field has no value".to_owned()));
        }
        let each_hour = fields.hours.values().len() == 24;
        let in_both_passes = each_hour || fields.minutes.from_wildcard || fields.seconds.from_wildcard;
        Ok(Self { zone, in_both_passes, after_gap: !each_hour, cron })
    }

    fn skipped_months(&self) -> Vec<Month> {
        let fields = &self.cron.pattern;
        if fields.days.has_modifiers() || !fields.is_dow_wildcard() {
            return Vec::new();
        }
        let Some(first_day) = fields.days.values().into_iter().min() else { return Vec::new() };
        let months = fields.months.values().into_iter().filter_map(|month| u8::try_from(month).ok());
        let months = months.filter_map(|month| Month::try_from(month).ok());
        months.filter(|month| month.num_days(COMMON_YEAR).is_some_and(|days| u16::from(days) < first_day)).collect()
    }

    /// The first matching local time at or after `local`. croner gives up after the year 4999.
    fn first_from(&self, local: NaiveDateTime) -> Option<NaiveDateTime> {
        self.cron.find_next_occurrence(&local, true).ok()
    }

    /// The last matching local time at or before `local`.
    fn last_until(&self, local: NaiveDateTime) -> Option<NaiveDateTime> {
        self.cron.find_previous_occurrence(&local, true).ok()
    }

    fn next_after(&self, instant: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let instant = floor(instant);
        let local = local_time(self.zone, instant);
        let passes = instants(self.zone, local);
        match passes {
            // In the second pass, which is over for times that fire once.
            Instants::Two(first, second) if instant >= second && !self.in_both_passes => {
                self.forward(after_passes(self.zone, first, second), instant)
            }
            Instants::Two(first, second) if instant < second && self.in_both_passes => {
                let again = put_back_at(self.zone, first, second);
                let in_this = self.forward(local + SECOND, instant);
                let in_second = self.forward(local_time(self.zone, again), again - SECOND);
                in_this.into_iter().chain(in_second).min()
            }
            _ => self.forward(local + SECOND, instant),
        }
    }

    /// The instant, after `bound`, of the first matching local time from `local` on.
    fn forward(&self, local: NaiveDateTime, bound: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut local = self.first_from(local)?;
        loop {
            match instants(self.zone, local) {
                Instants::One(instant) => return Some(instant),
                Instants::Two(first, _) if first > bound => return Some(first),
                Instants::Two(_, second) => return Some(second),
                Instants::Skipped { resumes } if self.after_gap => return Some(resumes),
                Instants::Skipped { resumes } => local = self.first_from(local_time(self.zone, resumes))?,
            }
        }
    }

    fn newest_at(&self, instant: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let instant = floor(instant);
        let local = local_time(self.zone, instant);
        match instants(self.zone, local) {
            Instants::Two(first, second) if instant >= second => {
                let in_first = self.backward(after_passes(self.zone, first, second) - SECOND, second - SECOND);
                let in_second = self.in_both_passes.then(|| self.backward(local, instant)).flatten();
                in_first.into_iter().chain(in_second).max()
            }
            _ => self.backward(local, instant),
        }
    }

    /// The instant, at or before `bound`, of the last matching local time until `local`.
    fn backward(&self, local: NaiveDateTime, bound: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut local = self.last_until(local)?;
        loop {
            match instants(self.zone, local) {
                Instants::One(instant) => return Some(instant),
                Instants::Two(_, second) if second <= bound && self.in_both_passes => return Some(second),
                Instants::Two(first, _) => return Some(first),
                Instants::Skipped { resumes } if self.after_gap => return Some(resumes),
                Instants::Skipped { resumes } => local = self.last_until(local_time(self.zone, resumes - SECOND))?,
            }
        }
    }

    fn smallest_gap(&self, now: DateTime<Utc>) -> Option<TimeDelta> {
        let start = local_time(self.zone, floor(now));
        let times = std::iter::successors(self.first_from(start), |time| self.first_from(*time + SECOND));
        let mut times = times.take(COMPARED_TIMES);
        let mut earlier = times.next()?;
        times.map(|time| time - std::mem::replace(&mut earlier, time)).min()
    }
}

/// The first local time after those that come twice.
fn after_passes(zone: Zone, first: DateTime<Utc>, second: DateTime<Utc>) -> NaiveDateTime {
    local_time(zone, put_back_at(zone, first, second) - SECOND) + SECOND
}

/// The whole second; times of a calendar have no fractions.
fn floor(instant: DateTime<Utc>) -> DateTime<Utc> {
    instant.trunc_subsecs(0)
}

#[cfg(test)]
mod tests;
