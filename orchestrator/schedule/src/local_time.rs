//! Local times of a time zone and the instants that they stand for, also where the zone's clock is put forward or back.
//! Pure.

use chrono::{DateTime, MappedLocalTime, NaiveDateTime, TimeDelta, TimeZone, Utc};

use base::Zone;

/// More than the sum of the largest offsets from UTC, so that a local time lies within this distance of the same time
/// in UTC.
const OFFSET_RANGE: TimeDelta = TimeDelta::hours(26);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instants {
    /// It comes once.
    One(DateTime<Utc>),
    /// The clock is put back, so it comes twice.
    Two(DateTime<Utc>, DateTime<Utc>),
    /// The clock is put forward past it.
    Skipped {
        /// The first instant after the gap.
        resumes: DateTime<Utc>,
    },
}

pub fn instants(zone: Zone, local: NaiveDateTime) -> Instants {
    match zone.from_local_datetime(&local) {
        MappedLocalTime::Single(instant) => Instants::One(instant.to_utc()),
        MappedLocalTime::Ambiguous(first, second) => Instants::Two(first.to_utc(), second.to_utc()),
        MappedLocalTime::None => {
            let (before, after) = (local.and_utc() - OFFSET_RANGE, local.and_utc() + OFFSET_RANGE);
            Instants::Skipped { resumes: first_second(before, after, |instant| local_time(zone, instant) >= local) }
        }
    }
}

pub fn local_time(zone: Zone, instant: DateTime<Utc>) -> NaiveDateTime {
    instant.with_timezone(&zone).naive_local()
}

/// When the clock is put back between the two instants of one local time.
pub(crate) fn put_back_at(zone: Zone, first: DateTime<Utc>, second: DateTime<Utc>) -> DateTime<Utc> {
    let offset = |instant: DateTime<Utc>| local_time(zone, instant) - instant.naive_utc();
    first_second(first, second, |instant| offset(instant) != offset(first))
}

/// The first whole second after `before` at which `is_reached` holds: it does not at `before`, does at `after`, and
/// changes once.
fn first_second(
    before: DateTime<Utc>,
    after: DateTime<Utc>,
    is_reached: impl Fn(DateTime<Utc>) -> bool,
) -> DateTime<Utc> {
    let (mut low, mut high) = (0, (after - before).num_seconds());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if is_reached(before + TimeDelta::seconds(middle)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    before + TimeDelta::seconds(high)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn utc(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[rstest]
    #[case::skipped("Europe/Oslo", "2026-03-29T02:30:00", Instants::Skipped { resumes: utc("2026-03-29T01:00:00Z") })]
    #[case::first_second_of_the_gap("Europe/Oslo", "2026-03-29T02:00:00", Instants::Skipped { resumes: utc("2026-03-29T01:00:00Z") })]
    #[case::after_the_gap("Europe/Oslo", "2026-03-29T03:00:00", Instants::One(utc("2026-03-29T01:00:00Z")))]
    #[case::twice(
        "Europe/Oslo",
        "2026-10-25T02:30:00",
        Instants::Two(utc("2026-10-25T00:30:00Z"), utc("2026-10-25T01:30:00Z"))
    )]
    #[case::half_an_hour("Australia/Lord_Howe", "2026-10-04T02:15:00", Instants::Skipped { resumes: utc("2026-10-03T15:30:00Z") })]
    #[case::a_skipped_day("Pacific/Apia", "2011-12-30T12:00:00", Instants::Skipped { resumes: utc("2011-12-30T10:00:00Z") })]
    fn a_local_time_has_its_instants(#[case] zone: Zone, #[case] local: NaiveDateTime, #[case] expected: Instants) {
        assert_eq!(instants(zone, local), expected);
    }

    #[test]
    fn the_clock_is_put_back_between_the_two_instants() {
        let (first, second) = (utc("2026-10-25T00:10:00Z"), utc("2026-10-25T01:10:00Z"));
        assert_eq!(put_back_at("Europe/Oslo".parse().unwrap(), first, second), utc("2026-10-25T01:00:00Z"));
    }
}
