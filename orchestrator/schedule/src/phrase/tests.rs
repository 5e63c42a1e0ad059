//! Phrases of schedules and what they mean.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn now() -> DateTime<Utc> {
    "2026-11-23T12:00:00Z".parse().unwrap()
}

fn zones(beside: Option<&str>) -> Zones {
    Zones { beside: beside.map(|name| name.parse().unwrap()), default: Zone::UTC }
}

fn parsed(text: &str, timezone: Option<&str>) -> String {
    described(parse(text, zones(timezone), now()))
}

fn described(parsed: Result<RoutineTrigger, ScheduleError>) -> String {
    match parsed {
        Ok(RoutineTrigger::Cron { schedule, timezone }) => {
            format!("{schedule} in {}", timezone.as_deref().unwrap_or("-"))
        }
        Ok(RoutineTrigger::Every { every_seconds, anchor: None }) => format!("every {every_seconds}"),
        Ok(RoutineTrigger::At { at }) => at.format("at %Y-%m-%dT%H:%M:%SZ").to_string(),
        Ok(other) => panic!("{other:?}"),
        Err(error) => error.to_string().split("; use one of").next().unwrap().to_owned(),
    }
}

#[rstest]
#[case("every 2h", "every 7200")]
#[case("every 10m", "every 600")]
#[case("Every 1h30m", "every 5400")]
#[case("every 2 hours", "every 7200")]
#[case("every 90 seconds", "every 90")]
#[case("every 1 day 12 hours", "every 129600")]
#[case("every hour", "every 3600")]
#[case("every minute", "every 60")]
#[case("every day", "0 0 * * * in UTC")]
#[case("every day at 9:00", "0 9 * * * in UTC")]
#[case("every day at 9", "0 9 * * * in UTC")]
#[case("every day at 9:30pm", "30 21 * * * in UTC")]
#[case("every day at 12 am", "0 0 * * * in UTC")]
#[case("every day at noon", "0 12 * * * in UTC")]
#[case("every day at 09:00:30", "30 0 9 * * * in UTC")]
#[case("every day at 18:00, 9:00 and 9:00", "0 9,18 * * * in UTC")]
#[case("every weekday at 9:00", "0 9 * * MON-FRI in UTC")]
#[case("every weekday at 9:00 Europe/Oslo", "0 9 * * MON-FRI in Europe/Oslo")]
#[case("every weekend at 10:00", "0 10 * * SAT,SUN in UTC")]
#[case("every monday,thursday at 18:30", "30 18 * * MON,THU in UTC")]
#[case("every Mon , Thursdays and sun at 7:15", "15 7 * * MON,THU,SUN in UTC")]
#[case("every month on the 1st at 9:00", "0 9 1 * * in UTC")]
#[case("every month on last day at 9:00", "0 9 L * * in UTC")]
#[case("in 20m", "at 2026-11-23T12:20:00Z")]
#[case("in 1 hour 30 minutes", "at 2026-11-23T13:30:00Z")]
#[case("at 2026-12-01T07:00:00Z", "at 2026-12-01T07:00:00Z")]
#[case("at 2026-12-01T07:00:00-08:00", "at 2026-12-01T15:00:00Z")]
#[case("at 2026-12-01T07:00Z", "at 2026-12-01T07:00:00Z")]
#[case("at 2026-12-01t07:00z", "at 2026-12-01T07:00:00Z")]
#[case("at 2026-12-01T07:00-08:00", "at 2026-12-01T15:00:00Z")]
#[case("at 2026-12-01 07:00 Europe/Oslo", "at 2026-12-01T06:00:00Z")]
#[case("at 2026-12-01T07:00", "at 2026-12-01T07:00:00Z")]
#[case("at 2026-03-29 2:30 Europe/Oslo", "at 2026-03-29T01:00:00Z")]
fn a_phrase_has_a_meaning(#[case] text: &str, #[case] expected: &str) {
    assert!(is_phrase(text));
    assert_eq!(parsed(text, None), expected);
}

#[rstest]
#[case("every day at 9:00", "0 9 * * * in Europe/Oslo")]
#[case("every day at 9:00 Europe/Oslo", "0 9 * * * in Europe/Oslo")]
#[case("at 2026-12-01 07:00", "at 2026-12-01T06:00:00Z")]
#[case("every 2h", "every 7200")]
#[case(
    "every day at 9:00 Europe/Paris",
    "the schedule names the time zone Europe/Paris, and timezone is Europe/Oslo; leave one of them out"
)]
fn a_phrase_with_a_zone_beside_it(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(parsed(text, Some("Europe/Oslo")), expected);
}

#[rstest]
#[case("every", "\"every\" needs an interval or days")]
#[case("every 2", "a duration is a number and a unit, such as 10m, 1h30m or 2 hours")]
#[case("every 0m", "a duration is a number and a unit, such as 10m, 1h30m or 2 hours")]
#[case("every 99y", "a duration is a number and a unit, such as 10m, 1h30m or 2 hours")]
#[case("every 20 years", "a duration is a number and a unit, such as 10m, 1h30m or 2 hours")]
#[case("every 999999999999999h", "a duration may be at most 10 years")]
#[case("every 99999999999999999999h", "a duration is a number and a unit, such as 10m, 1h30m or 2 hours")]
#[case("every fortnight", "\"fortnight\" is not an interval, \"day\", \"weekday\", \"month\" or a day of the week")]
#[case("every day at", "\"at\" needs a time, such as 9:00")]
#[case("every day at 25:00", "\"25:00\" is not a time of day")]
#[case("every day at 13pm", "\"13pm\" is not a time of day")]
#[case("every day at 9:00 and 10:30", "the times of one schedule must have the same minutes; make a routine for each")]
#[case("every day at 9:00 Europe/Oslo please", "unexpected \"please\"")]
#[case("every day at 9:00 Nowhere", "unknown time zone \"Nowhere\"; use an IANA name, such as Europe/Oslo or UTC")]
#[case("every 2h at 9:00", "unexpected \"at\"")]
#[case("every month on 32 at 9:00", "\"on\" needs a day from 1 to 31, or \"last\"")]
#[case("in", "a duration is a number and a unit, such as 10m, 1h30m or 2 hours")]
#[case("at 2026-12-01T07Z", "\"at\" needs a date and a time, such as 2030-12-01T07:00:00Z")]
#[case("at noon", "\"at\" needs a date and a time, such as 2030-12-01T07:00:00Z")]
#[case("at 2026-13-01T07:00:00Z", "\"at\" needs a date and a time, such as 2030-12-01T07:00:00Z")]
fn an_invalid_phrase_is_refused(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(parsed(text, None), expected);
}

#[rstest]
#[case("every day at 9:00", None, "0 9 * * * in Asia/Tokyo")]
#[case("every day at 9:00 Europe/Oslo", None, "0 9 * * * in Europe/Oslo")]
#[case("every day at 9:00", Some("Europe/Oslo"), "0 9 * * * in Europe/Oslo")]
#[case("at 2026-12-01 07:00", None, "at 2026-11-30T22:00:00Z")]
#[case("at 2026-12-01T07:00Z", None, "at 2026-12-01T07:00:00Z")]
#[case("every 2h", None, "every 7200")]
fn a_phrase_without_a_zone_takes_the_default(#[case] text: &str, #[case] beside: Option<&str>, #[case] expected: &str) {
    let zones = Zones { default: "Asia/Tokyo".parse().unwrap(), ..zones(beside) };
    assert_eq!(described(parse(text, zones, now())), expected);
}

#[test]
fn a_refusal_shows_the_accepted_forms() {
    let error = parse("every fortnight", zones(None), now()).unwrap_err().to_string();
    assert!(error.contains("use one of \"every 10m\"") && error.ends_with("or a cron expression"), "{error}");
}

#[rstest]
#[case("* * * * *")]
#[case("@daily")]
#[case("everyday")]
#[case("")]
fn other_texts_are_no_phrases(#[case] text: &str) {
    assert!(!is_phrase(text));
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(
        text in ".{0,60}",
        words in prop::collection::vec(prop_oneof![
            "[a-z]{1,9}", "[0-9]{1,20}[a-z]{0,3}", "[0-9:,/TZ+-]{1,25}",
            Just("at".to_owned()), Just("every".to_owned()), Just("day".to_owned()), Just("month".to_owned()),
            Just("on".to_owned()), Just("in".to_owned()), Just("and".to_owned()), Just("ø".to_owned()),
        ], 0..8),
    ) {
        let phrase = words.join(" ");
        for text in [text.clone(), format!("every {text}"), format!("at {text}"), format!("in {text}"), format!("every {phrase}"), phrase] {
            if let Ok(RoutineTrigger::Cron { schedule, timezone }) = parse(&text, zones(None), now()) {
                prop_assert!(crate::Schedule::cron(&schedule, timezone.as_deref()).is_ok(), "{} -> {}", text, schedule);
            }
        }
    }
}
