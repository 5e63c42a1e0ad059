//! Times of schedules: tables, and what holds in every time zone of the database across both changes of the clock.

use chrono::{NaiveDate, Timelike};
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn cron(expression: &str, zone: &str) -> Schedule {
    Schedule::cron(expression, Some(zone)).unwrap()
}

/// The times after `start` in local time, without the year.
fn local_times(schedule: &Schedule, start: &str, count: usize) -> Vec<String> {
    let zone = schedule.zone().unwrap();
    let local = |time: DateTime<Utc>| time.with_timezone(&zone).format("%m-%d %H:%M:%S%:::z").to_string();
    schedule.times_after(utc(start)).take(count).map(local).collect()
}

#[rstest]
#[case::five_fields("0 9 * * MON-FRI", "UTC", &["11-24 09:00:00+00", "11-25 09:00:00+00"])]
#[case::seconds_first("30 0 9 * * *", "Europe/Oslo", &["11-24 09:00:30+01", "11-25 09:00:30+01"])]
#[case::year_last("0 0 9 1 1 * 2027-2028", "UTC", &["01-01 09:00:00+00", "01-01 09:00:00+00"])]
#[case::names("0 9 1 FEB,aug mon", "UTC", &["02-01 09:00:00+00", "02-08 09:00:00+00"])]
#[case::nickname("@daily", "Europe/Oslo", &["11-24 00:00:00+01", "11-25 00:00:00+01"])]
#[case::another_nickname("@Midnight", "UTC", &["11-24 00:00:00+00", "11-25 00:00:00+00"])]
#[case::hourly("@hourly", "UTC", &["11-23 13:00:00+00", "11-23 14:00:00+00"])]
#[case::last_day("0 9 L * *", "UTC", &["11-30 09:00:00+00", "12-31 09:00:00+00"])]
#[case::last_weekday_of_month("0 9 * * FRI#L", "UTC", &["11-27 09:00:00+00", "12-25 09:00:00+00"])]
#[case::second_monday("0 9 * * MON#2", "UTC", &["12-14 09:00:00+00", "01-11 09:00:00+00"])]
fn an_expression_has_its_times(#[case] expression: &str, #[case] zone: &str, #[case] expected: &[&str]) {
    assert_eq!(local_times(&cron(expression, zone), "2026-11-23T12:00:00.5Z", 2), expected);
}

// The clock of Oslo goes from 02:00 to 03:00 on 29 March and from 03:00 to 02:00 on 25 October 2026.
#[rstest]
#[case::skipped("30 2 * * *", "2026-03-28T00:00:00Z", &["03-28 02:30:00+01", "03-29 03:00:00+02", "03-30 02:30:00+02"])]
#[case::a_list("30 2,14 * * *", "2026-03-28T23:00:00Z", &["03-29 03:00:00+02", "03-29 14:30:00+02", "03-30 02:30:00+02"])]
#[case::several_skipped("0,30 2,3 * * *", "2026-03-28T23:00:00Z", &["03-29 03:00:00+02", "03-29 03:30:00+02", "03-30 02:00:00+02"])]
#[case::minutes_of_the_skipped_hour("*/20 2 * * *", "2026-03-28T23:00:00Z", &["03-29 03:00:00+02", "03-30 02:00:00+02"])]
#[case::hourly_skips("15 * * * *", "2026-03-28T23:30:00Z", &["03-29 01:15:00+01", "03-29 03:15:00+02"])]
#[case::not_that_day("30 2 * * MON", "2026-03-28T23:00:00Z", &["03-30 02:30:00+02"])]
#[case::twice("30 2 * * *", "2026-10-24T12:00:00Z", &["10-25 02:30:00+02", "10-26 02:30:00+01"])]
#[case::a_list_twice("0,30 2 * * *", "2026-10-24T12:00:00Z", &["10-25 02:00:00+02", "10-25 02:30:00+02", "10-26 02:00:00+01"])]
#[case::from_the_second_pass("30 2 * * *", "2026-10-25T01:10:00Z", &["10-26 02:30:00+01"])]
#[case::hourly_goes_on("15 * * * *", "2026-10-24T23:30:00Z", &["10-25 02:15:00+02", "10-25 02:15:00+01", "10-25 03:15:00+01"])]
#[case::minutes_go_on("*/30 2-3 * * *", "2026-10-24T12:00:00Z",
    &["10-25 02:00:00+02", "10-25 02:30:00+02", "10-25 02:00:00+01", "10-25 02:30:00+01", "10-25 03:00:00+01"])]
fn changes_of_the_clock(#[case] expression: &str, #[case] start: &str, #[case] expected: &[&str]) {
    assert_eq!(local_times(&cron(expression, "Europe/Oslo"), start, expected.len()), expected);
}

#[rstest]
#[case::a_day_that_the_zone_skips("Pacific/Apia", "0 12 * * *", "2011-12-29T12:00:00Z", &["12-29 12:00:00-10", "12-31 00:00:00+14"])]
#[case::not_put_back_any_more("America/Vancouver", "30 1 * * *", "2026-10-31T12:00:00Z", &["11-01 01:30:00-07", "11-02 01:30:00-07"])]
#[case::a_gap_at_midnight("America/Asuncion", "0 0 * * *", "2023-10-01T02:00:00Z", &["10-01 01:00:00-03", "10-02 00:00:00-03"])]
#[case::a_gap_across_midnight("America/Nuuk", "30 23 * * SAT", "2025-03-29T12:00:00Z", &["03-30 00:00:00-01", "04-05 23:30:00-01"])]
fn unusual_changes(#[case] zone: &str, #[case] expression: &str, #[case] start: &str, #[case] expected: &[&str]) {
    assert_eq!(local_times(&cron(expression, zone), start, expected.len()), expected);
}

#[rstest]
#[case("", "cannot be an empty string")]
#[case("* * *", "between 5 and 7 fields")]
#[case("61 * * * *", "out of bounds")]
#[case(", * * * *", "a field has no value")]
#[case("* * * * FOO", "illegal character")]
#[case("@reboot", "5 and 7 fields")]
#[case(&"*".repeat(300), "longer than 256 bytes")]
fn an_invalid_expression_is_refused(#[case] expression: &str, #[case] expected: &str) {
    let error = Schedule::cron(expression, None).unwrap_err().to_string();
    assert!(error.contains(expected) && error.contains("5 fields (minute hour day month weekday)"), "{error}");
}

#[test]
fn an_unknown_zone_is_refused() {
    let error = Schedule::cron("@daily", Some("Europe/Nowhere")).unwrap_err();
    assert_eq!(error, ScheduleError::Zone("Europe/Nowhere".to_owned()));
}

#[rstest]
#[case("0 0 30 2 *")]
#[case("0 0 0 1 1 * 2020-2025")]
fn an_expression_without_times_has_none(#[case] expression: &str) {
    assert_eq!(cron(expression, "Europe/Oslo").next_after(utc("2026-11-23T12:00:00Z")), None);
}

#[rstest]
#[case("*/5 * * * *", Some(300))]
#[case("*/7 * * * *", Some(240))]
#[case("0,50 * * * * *", Some(10))]
#[case("0 9,10 1 1 *", Some(3600))]
#[case("59 23 * * *", Some(86_400))]
#[case("0,59 0,23 * * *", Some(60))]
#[case("0 0 0 1 1 * 2027", None)]
fn the_smallest_gap_is_found(#[case] expression: &str, #[case] expected: Option<i64>) {
    // Two days before the clock is put forward, which makes no difference.
    let gap = cron(expression, "Europe/Oslo").smallest_gap(utc("2026-03-27T12:00:00Z"));
    assert_eq!(gap.map(|gap| gap.num_seconds()), expected);
}

#[test]
fn intervals_count_from_their_anchor() {
    let schedule = Schedule::every(600, utc("2026-01-01T00:00:30Z")).unwrap();
    assert_eq!(schedule.next_after(utc("2025-01-01T00:00:00Z")), Some(utc("2026-01-01T00:00:30Z")));
    assert_eq!(schedule.next_after(utc("2026-01-01T00:00:30Z")), Some(utc("2026-01-01T00:10:30Z")));
    assert_eq!(schedule.newest_at(utc("2026-01-01T00:10:29Z")), Some(utc("2026-01-01T00:00:30Z")));
    assert_eq!(schedule.newest_at(utc("2026-01-01T00:00:29Z")), None);
    assert_eq!(schedule.count(utc("2020-01-01T00:00:00Z"), utc("2026-01-01T01:00:30Z")), 7);
    assert_eq!(schedule.count(utc("2026-01-01T00:00:30Z"), utc("2026-01-01T01:00:30Z")), 6);
}

#[test]
fn counting_is_bounded() {
    let schedule = cron("* * * * *", "UTC");
    let (from, to) = (utc("2026-01-01T00:00:00Z"), utc("2027-01-01T00:00:00Z"));
    assert_eq!(schedule.count(from, to), MAX_COUNTED);
    assert_eq!(schedule.count(from, from + TimeDelta::hours(1)), 60);
}

/// The instants, in the two years from 2026, at which the offset of a zone changes.
fn changes_in_two_years(zone: Zone) -> Vec<DateTime<Utc>> {
    let offset = |instant: DateTime<Utc>| local_time(zone, instant) - instant.naive_utc();
    let span = TimeDelta::days(5);
    let spans = (0..146).map(|index| utc("2026-01-01T00:00:00Z") + span * index);
    let changed = spans.filter(|start| offset(*start) != offset(*start + span));
    changed.map(|start| put_back_at(zone, start, start + span)).collect()
}

#[test]
fn fixed_times_fire_once_a_day_in_all_zones() {
    for zone in Zone::all() {
        for change in changes_in_two_years(zone) {
            for (hour, minute) in
                [(0, 0), (0, 30), (1, 15), (1, 59), (2, 0), (2, 30), (3, 15), (12, 30), (23, 0), (23, 59)]
            {
                let schedule = cron(&format!("{minute} {hour} * * *"), zone.name());
                let (start, end) = (change - TimeDelta::days(3), change + TimeDelta::days(3));
                let times: Vec<_> = schedule.times_after(start).take_while(|time| *time <= end).collect();
                let first = local_time(zone, start).date();
                // The last time of a day that the clock skips fires in the next day.
                let day = |time: &DateTime<Utc>| {
                    let local = local_time(zone, *time);
                    let is_of_day_before = hour == 23 && *time == change && local.hour() < 2;
                    if is_of_day_before { local.date().pred_opt() } else { Some(local.date()) }
                };
                let days: Vec<NaiveDate> = times.iter().filter_map(day).collect();
                assert!(
                    days.windows(2).all(|days| days[0].succ_opt() == Some(days[1])),
                    "{zone} {hour}:{minute} {times:?}"
                );
                assert!(
                    days.first().is_some_and(|day| (*day - first).num_days() <= 1),
                    "{zone} {hour}:{minute} {times:?}"
                );
                assert!(times.len() >= 5, "{zone} {hour}:{minute} {times:?}");
            }
        }
    }
}

#[test]
fn intervals_neither_pause_nor_double_in_all_zones() {
    for zone in Zone::all() {
        for change in changes_in_two_years(zone) {
            let (start, end) = (change - TimeDelta::hours(5), change + TimeDelta::hours(5));
            for minutes in [1, 5, 10, 15, 30] {
                let schedule = cron(&format!("*/{minutes} * * * *"), zone.name());
                let times: Vec<_> = schedule.times_after(start).take_while(|time| *time <= end).collect();
                let distance = TimeDelta::minutes(minutes);
                assert!(times.windows(2).all(|pair| pair[1] - pair[0] == distance), "{zone} {minutes}: {times:?}");
                assert!(times.len() >= usize::try_from(600 / minutes - 1).unwrap(), "{zone} {minutes}");
            }
        }
    }
}

fn any_expression() -> impl Strategy<Value = String> {
    let seconds = prop_oneof![Just(""), Just("0 "), Just("*/20 "), Just("5,35 ")];
    let minutes = prop_oneof![Just("0"), Just("30"), Just("*"), Just("*/15"), Just("5,55"), Just("7-9")];
    let hours = prop_oneof![Just("*"), Just("2"), Just("*/2"), Just("1-3"), Just("0,2,23"), Just("0-23")];
    let days = prop_oneof![Just("* * *"), Just("L * *"), Just("* * SUN"), Just("* * SUN#L"), Just("25-31 3,10 *")];
    (seconds, minutes, hours, days)
        .prop_map(|(seconds, minutes, hours, days)| format!("{seconds}{minutes} {hours} {days}"))
}

/// An instant within two days of a change of the clock, in a zone that has one.
fn near_a_change() -> impl Strategy<Value = (Zone, DateTime<Utc>)> {
    let zones = prop::sample::select(vec![
        "Europe/Oslo",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/Nuuk",
        "Africa/Casablanca",
        "Africa/Cairo",
        "Pacific/Chatham",
        "America/Havana",
    ]);
    (zones, any::<prop::sample::Index>(), -172_800..172_800_i64).prop_map(|(zone, index, seconds)| {
        let zone = zone_named(zone).unwrap();
        (zone, *index.get(&changes_in_two_years(zone)) + TimeDelta::seconds(seconds))
    })
}

proptest! {
    #[test]
    fn times_are_monotone_and_the_same_in_both_directions(expression in any_expression(), (zone, start) in near_a_change()) {
        let schedule = cron(&expression, zone.name());
        let mut earlier = schedule.newest_at(start);
        prop_assert!(earlier.is_none_or(|time| time <= start));
        for time in schedule.times_after(start).take(40) {
            prop_assert!(time > start && earlier.is_none_or(|earlier| earlier < time));
            prop_assert_eq!(schedule.newest_at(time), Some(time));
            prop_assert_eq!(schedule.newest_at(time - TimeDelta::milliseconds(1)), earlier);
            prop_assert_eq!(schedule.next_after(time - TimeDelta::milliseconds(1)), Some(time));
            earlier = Some(time);
        }
    }

    #[test]
    fn each_matching_local_time_fires(expression in any_expression(), (zone, start) in near_a_change()) {
        let Schedule::Cron(schedule) = cron(&expression, zone.name()) else { unreachable!() };
        for local in std::iter::successors(schedule.first_from(local_time(zone, start)), |time| schedule.first_from(*time + SECOND)).take(40) {
            let fires = |instant: DateTime<Utc>| schedule.newest_at(instant) == Some(instant);
            match instants(zone, local) {
                Instants::One(instant) => prop_assert!(fires(instant)),
                Instants::Two(first, second) => prop_assert!(fires(first) && fires(second) == schedule.in_both_passes),
                Instants::Skipped { resumes } => prop_assert!(fires(resumes) || !schedule.after_gap),
            }
        }
    }

    #[test]
    fn no_text_makes_a_schedule_panic(expression in "[-0-9*/,#LW?+ @A-Za-z]{0,30}", text in ".{0,40}") {
        for text in [expression, text] {
            if let Ok(schedule) = Schedule::cron(&text, None) {
                schedule.next_after(utc("2026-11-23T12:00:00Z"));
            }
        }
    }
}

#[rstest]
#[case("0 9 31 * *", "Feb Apr Jun Sep Nov")]
#[case("0 9 30,31 * *", "Feb")]
#[case("0 9 29 * *", "Feb")]
#[case("0 9 31 1,3,5 *", "")]
#[case("0 9 31 3,4 *", "Apr")]
#[case("0 0 9 31 4,5 * 2027-2030", "Apr")]
#[case("0 9 28 * *", "")]
#[case("0 9 1,31 * *", "")]
#[case("0 9 L * *", "")]
#[case("0 9 31,L * *", "")]
#[case("0 9 31 * MON", "")]
#[case("0 9 * * *", "")]
#[case("@monthly", "")]
fn months_without_the_day_are_named(#[case] expression: &str, #[case] expected: &str) {
    let months = Schedule::cron(expression, None).unwrap().skipped_months();
    let names: Vec<&str> = months.iter().map(|month| &month.name()[..3]).collect();
    assert_eq!(names.join(" "), expected);
}

#[test]
fn a_schedule_without_a_calendar_skips_no_month() {
    assert_eq!(Schedule::every(60, DateTime::UNIX_EPOCH).unwrap().skipped_months(), []);
}
