//! The beginnings of budget periods, in time zones and at changes of their clocks.

use chrono::{TimeDelta, Timelike};
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

#[rstest]
#[case::day(BudgetPeriod::Day, "UTC", "2026-11-23T12:00:00Z", "2026-11-23T00:00:00Z", "2026-11-24T00:00:00Z")]
#[case::day_in_zone(
    BudgetPeriod::Day,
    "Europe/Oslo",
    "2026-11-23T23:30:00Z",
    "2026-11-23T23:00:00Z",
    "2026-11-24T23:00:00Z"
)]
#[case::short_day(
    BudgetPeriod::Day,
    "Europe/Oslo",
    "2026-03-29T12:00:00Z",
    "2026-03-28T23:00:00Z",
    "2026-03-29T22:00:00Z"
)]
#[case::long_day(
    BudgetPeriod::Day,
    "Europe/Oslo",
    "2026-10-25T12:00:00Z",
    "2026-10-24T22:00:00Z",
    "2026-10-25T23:00:00Z"
)]
#[case::week(BudgetPeriod::Week, "UTC", "2026-11-29T23:59:59Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z")]
#[case::month(
    BudgetPeriod::Month,
    "America/New_York",
    "2026-11-30T12:00:00Z",
    "2026-11-01T04:00:00Z",
    "2026-12-01T05:00:00Z"
)]
#[case::december(BudgetPeriod::Month, "UTC", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")]
#[case::no_midnight(
    BudgetPeriod::Day,
    "Africa/Cairo",
    "2026-04-24T12:00:00Z",
    "2026-04-23T22:00:00Z",
    "2026-04-24T21:00:00Z"
)]
fn a_period_has_its_bounds(
    #[case] period: BudgetPeriod,
    #[case] zone: Zone,
    #[case] now: &str,
    #[case] start: &str,
    #[case] end: &str,
) {
    assert_eq!(period_at(period, zone, utc(now)), PeriodBounds { start: utc(start), end: utc(end) });
}

proptest! {
    #[test]
    fn periods_follow_each_other(
        zone in any::<prop::sample::Index>(),
        seconds in 0..2 * 366 * 86_400_i64,
        period in prop_oneof![Just(BudgetPeriod::Day), Just(BudgetPeriod::Week), Just(BudgetPeriod::Month)],
    ) {
        let zone = *zone.get(&Zone::all());
        let now = utc("2026-01-01T00:00:00Z") + TimeDelta::seconds(seconds);
        let bounds = period_at(period, zone, now);
        prop_assert!(bounds.start <= now && now < bounds.end);
        prop_assert_eq!(period_at(period, zone, bounds.start), bounds);
        prop_assert_eq!(period_at(period, zone, bounds.end).start, bounds.end);
        prop_assert_eq!(period_at(period, zone, bounds.end - TimeDelta::seconds(1)), bounds);
        prop_assert!(local_time(zone, bounds.start).hour() <= 1);
    }
}
