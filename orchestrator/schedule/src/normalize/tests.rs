//! Triggers as people write them, and as they are stored.

use serde_json::json;

use super::*;

use rstest::rstest;

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn normalized(trigger: serde_json::Value) -> Result<serde_json::Value, String> {
    let trigger: RoutineTrigger = serde_json::from_value(trigger).unwrap();
    let zone = "Asia/Tokyo".parse().unwrap();
    let stored = normalize(trigger, zone, utc("2026-11-23T12:00:00Z"), utc("2026-11-01T00:00:00Z"), 60);
    stored.map(|trigger| serde_json::to_value(trigger).unwrap()).map_err(|error| error.to_string())
}

#[rstest]
#[case::expression(json!({"type": "cron", "schedule": " 0  9 * * MON-FRI ", "timezone": "Europe/Oslo"}),
    json!({"type": "cron", "schedule": "0 9 * * MON-FRI", "timezone": "Europe/Oslo"}))]
#[case::steps_that_fit(json!({"type": "cron", "schedule": "0-10/10,30-59/15 0-0/1 */30 * MON-FRI/2"}),
    json!({"type": "cron", "schedule": "0-10/10,30-59/15 0-0/1 */30 * MON-FRI/2", "timezone": "Asia/Tokyo"}))]
#[case::phrase_without_a_zone(json!({"type": "cron", "schedule": "every day at 9:00"}),
    json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "Asia/Tokyo"}))]
#[case::local_time(json!({"type": "cron", "schedule": "at 2026-12-01 07:00"}), json!({"type": "at", "at": "2026-11-30T22:00:00Z"}))]
#[case::phrase(json!({"type": "cron", "schedule": "every weekday at 9:00", "timezone": "Europe/Oslo"}),
    json!({"type": "cron", "schedule": "0 9 * * MON-FRI", "timezone": "Europe/Oslo"}))]
#[case::interval(json!({"type": "cron", "schedule": "every 2h"}), json!({"type": "every", "every_seconds": 7200}))]
#[case::one_time(json!({"type": "cron", "schedule": "in 20m"}), json!({"type": "at", "at": "2026-11-23T12:20:00Z"}))]
#[case::no_anchor(json!({"type": "every", "every_seconds": 60}), json!({"type": "every", "every_seconds": 60}))]
#[case::anchor(json!({"type": "every", "every_seconds": 60, "anchor": "2027-01-01T00:00:00.1234567Z"}),
    json!({"type": "every", "every_seconds": 60, "anchor": "2027-01-01T00:00:00.123456Z"}))]
#[case::offset(json!({"type": "at", "at": "2026-12-01T07:00:00-08:00"}), json!({"type": "at", "at": "2026-12-01T15:00:00Z"}))]
#[case::no_times(json!({"type": "manual"}), json!({"type": "manual"}))]
fn a_trigger_is_stored_as_what_it_means(#[case] trigger: serde_json::Value, #[case] expected: serde_json::Value) {
    assert_eq!(normalized(trigger), Ok(expected));
}

#[rstest]
#[case(json!({"type": "cron", "schedule": "0 0 30 2 *"}), "never fires: no time after 2026-11-23T12:00:00Z matches")]
#[case(json!({"type": "cron", "schedule": "0 0 0 1 1 * 2020"}), "check the day, month and year")]
#[case(json!({"type": "cron", "schedule": "*/30 * * * * *"}), "fires 30 seconds apart, and the minimum is 60")]
#[case(json!({"type": "cron", "schedule": "every 10s"}), "fires 10 seconds apart, and the minimum is 60")]
#[case(json!({"type": "cron", "schedule": "@daily", "timezone": "Mars/Olympus"}), "unknown time zone \"Mars/Olympus\"")]
#[case(json!({"type": "cron", "schedule": "every 2h", "timezone": "Mars/Olympus"}), "unknown time zone \"Mars/Olympus\"")]
#[case(json!({"type": "cron", "schedule": "at 2026-11-23T12:00:00Z"}), "has passed; choose a time after")]
// dagster-io/dagster#15294.
#[case(json!({"type": "cron", "schedule": "*/90 * * * *"}), "the step 90 in `*/90` is beyond the 60 minutes: write `0 * * * *`, which it would mean, or `every 90m` for an interval")]
#[case(json!({"type": "cron", "schedule": "0 */24 * * *"}), "the step 24 in `*/24` is beyond the 24 hours: write `0 0 * * *`, which it would mean, or `every 24h`")]
#[case(json!({"type": "cron", "schedule": "0 0 */31 * *"}), "write `0 0 1 * *`, which it would mean, or `every 31d`")]
#[case(json!({"type": "cron", "schedule": "0 0 0 * 1-6/13 *"}), "the step 13 in `1-6/13` is beyond the 12 months: write `0 0 0 * 1 *`, which it would mean")]
#[case(json!({"type": "cron", "schedule": "5,0-10/20 * * * *"}), "the step 20 in `5,0-10/20` is beyond its range: write `5,0 * * * *`, which it would mean")]
#[case(json!({"type": "cron", "schedule": "0 9-17/9 * * *"}), "the step 9 in `9-17/9` is beyond its range: write `0 9 * * *`")]
#[case(json!({"type": "every", "every_seconds": 59}), "fires 59 seconds apart")]
#[case(json!({"type": "every", "every_seconds": 0}), "must be from 1 to")]
#[case(json!({"type": "every", "every_seconds": u64::MAX}), "must be from 1 to")]
#[case(json!({"type": "at", "at": "2026-11-23T12:00:00Z"}), "2026-11-23T12:00:00+00:00 has passed")]
fn a_trigger_that_cannot_work_is_refused(#[case] trigger: serde_json::Value, #[case] expected: &str) {
    let error = normalized(trigger).unwrap_err();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn an_operator_may_allow_seconds() {
    let trigger = RoutineTrigger::Cron { schedule: "* * * * * *".to_owned(), timezone: Some("UTC".to_owned()) };
    let now = utc("2026-11-23T12:00:00Z");
    assert_eq!(normalize(trigger.clone(), Zone::UTC, now, now, 1), Ok(trigger));
}

#[rstest]
#[case(json!({"type": "cron", "schedule": "0 9 * * *"}), true)]
#[case(json!({"type": "cron", "schedule": "@daily", "timezone": "UTC"}), false)]
#[case(json!({"type": "cron", "schedule": "every day at 9:00"}), true)]
#[case(json!({"type": "cron", "schedule": "every day at 9:00 Europe/Oslo"}), false)]
#[case(json!({"type": "cron", "schedule": "at 2026-12-01 07:00"}), true)]
#[case(json!({"type": "cron", "schedule": "at 2026-12-01T07:00:00Z"}), false)]
#[case(json!({"type": "cron", "schedule": "every 2h"}), false)]
#[case(json!({"type": "cron", "schedule": "in 20m"}), false)]
#[case(json!({"type": "manual"}), false)]
fn local_times_without_a_zone_need_one(#[case] trigger: serde_json::Value, #[case] expected: bool) {
    let trigger: RoutineTrigger = serde_json::from_value(trigger).unwrap();
    assert_eq!(needs_zone(&trigger, utc("2026-11-23T12:00:00Z")), expected);
}
