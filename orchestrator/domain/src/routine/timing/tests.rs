//! Decisions: a table, and random walks over a clock that jumps.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn utc(text: &str) -> DateTime<Utc> {
    format!("2026-11-23T{text}Z").parse().unwrap()
}

/// Each hour, due at 08:00, with `catch_up: once`.
fn facts(now: &str) -> TimingFacts {
    TimingFacts {
        schedule: Schedule::cron("0 * * * *", None).unwrap(),
        stagger: TimeDelta::zero(),
        next_fire_at: utc("08:00:00"),
        now: utc(now),
        catch_up: CatchUp::Once,
        catch_up_window_seconds: 86_400,
        catch_up_max: 10,
        until: None,
        resumed_at: None,
    }
}

/// A decision in one line: `fire …; missed from-to xN reason; next …; end`.
fn line(decision: &TimingDecision) -> String {
    let time = |time: &DateTime<Utc>| time.format("%H:%M").to_string();
    let mut parts: Vec<String> = decision.fire.iter().map(|slot| format!("fire {}", time(slot))).collect();
    parts.extend(decision.missed.iter().map(|missed| {
        format!("missed {}-{} x{} {}", time(&missed.from), time(&missed.to), missed.count, missed.reason.as_str())
    }));
    parts.extend(decision.next.as_ref().map(|next| format!("next {}", time(next))));
    parts.extend(decision.end.map(|end| end.as_str().to_owned()));
    parts.join("; ")
}

#[rstest]
#[case::not_due("07:59:59", |_: &mut TimingFacts| {}, "next 08:00")]
#[case::punctual("08:00:00", |_: &mut TimingFacts| {}, "fire 08:00; next 09:00")]
#[case::a_minute_late("08:01:00", |facts: &mut TimingFacts| facts.catch_up = CatchUp::None, "fire 08:00; next 09:00")]
#[case::late_without_catch_up("08:01:01", |facts: &mut TimingFacts| facts.catch_up = CatchUp::None,
    "missed 08:00-08:00 x1 late; next 09:00")]
#[case::late_with_catch_up("08:01:01", |_: &mut TimingFacts| {}, "fire 08:00; next 09:00")]
#[case::the_newest("11:30:00", |_: &mut TimingFacts| {}, "fire 11:00; missed 08:00-10:00 x3 late; next 12:00")]
#[case::a_punctual_one_instead("11:00:10", |_: &mut TimingFacts| {}, "fire 11:00; missed 08:00-10:00 x3 late; next 12:00")]
#[case::all("11:30:00", |facts: &mut TimingFacts| facts.catch_up = CatchUp::All,
    "fire 08:00; fire 09:00; fire 10:00; fire 11:00; next 12:00")]
#[case::all_up_to_the_maximum("11:30:00", |facts: &mut TimingFacts| (facts.catch_up, facts.catch_up_max) = (CatchUp::All, 2),
    "fire 10:00; fire 11:00; missed 08:00-09:00 x2 late; next 12:00")]
#[case::all_and_a_punctual_one("11:00:10", |facts: &mut TimingFacts| (facts.catch_up, facts.catch_up_max) = (CatchUp::All, 1),
    "fire 10:00; fire 11:00; missed 08:00-09:00 x2 late; next 12:00")]
#[case::all_within_the_window("11:30:00", |facts: &mut TimingFacts| (facts.catch_up, facts.catch_up_window_seconds) = (CatchUp::All, 5400),
    "fire 10:00; fire 11:00; missed 08:00-09:00 x2 late; next 12:00")]
#[case::outside_the_window("11:30:00", |facts: &mut TimingFacts| facts.catch_up_window_seconds = 1799,
    "missed 08:00-11:00 x4 late; next 12:00")]
#[case::no_catch_up("11:30:00", |facts: &mut TimingFacts| facts.catch_up = CatchUp::None,
    "missed 08:00-11:00 x4 late; next 12:00")]
#[case::paused("11:30:00", |facts: &mut TimingFacts| facts.resumed_at = Some(utc("11:15:00")),
    "missed 08:00-11:00 x4 automation_disabled; next 12:00")]
#[case::paused_punctual("08:00:30", |facts: &mut TimingFacts| facts.resumed_at = Some(utc("08:00:10")),
    "missed 08:00-08:00 x1 automation_disabled; next 09:00")]
#[case::paused_and_late("11:30:00", |facts: &mut TimingFacts| facts.resumed_at = Some(utc("09:00:00")),
    "fire 11:00; missed 08:00-09:00 x2 automation_disabled; missed 10:00-10:00 x1 late; next 12:00")]
#[case::paused_before("08:00:10", |facts: &mut TimingFacts| facts.resumed_at = Some(utc("07:59:59")), "fire 08:00; next 09:00")]
#[case::until("08:00:10", |facts: &mut TimingFacts| facts.until = Some(utc("08:30:00")), "fire 08:00; until")]
#[case::late_after_until("11:30:00", |facts: &mut TimingFacts| facts.until = Some(utc("09:30:00")),
    "fire 09:00; missed 08:00-08:00 x1 late; until")]
#[case::until_itself("08:00:10", |facts: &mut TimingFacts| facts.until = Some(utc("08:00:00")), "fire 08:00; until")]
#[case::past_until("08:00:10", |facts: &mut TimingFacts| facts.until = Some(utc("07:59:59")), "until")]
#[case::staggered("10:10:00", |facts: &mut TimingFacts| {
    (facts.stagger, facts.next_fire_at) = (TimeDelta::minutes(5), utc("08:05:00"));
}, "fire 10:05; missed 08:05-09:05 x2 late; next 11:05")]
#[case::not_of_the_schedule("09:00:10", |facts: &mut TimingFacts| facts.next_fire_at = utc("07:30:00"),
    "fire 09:00; missed 07:30-08:00 x2 late; next 10:00")]
#[case::interval("11:30:00", |facts: &mut TimingFacts| facts.schedule = Schedule::every(3600, utc("01:00:00")).unwrap(),
    "fire 11:00; missed 08:00-10:00 x3 late; next 12:00")]
#[case::once("08:00:10", |facts: &mut TimingFacts| facts.schedule = Schedule::At(utc("08:00:00")), "fire 08:00; completed")]
#[case::once_late("11:30:00", |facts: &mut TimingFacts| facts.schedule = Schedule::At(utc("08:00:00")), "fire 08:00; completed")]
#[case::once_missed("11:30:00", |facts: &mut TimingFacts| {
    (facts.schedule, facts.catch_up) = (Schedule::At(utc("08:00:00")), CatchUp::None);
}, "missed 08:00-08:00 x1 late; completed")]
#[case::last_of_the_schedule("08:00:10", |facts: &mut TimingFacts| {
    facts.schedule = Schedule::cron("0 0 8 23 11 * 2026", None).unwrap();
}, "fire 08:00; schedule_ended")]
fn a_due_routine_is_decided(#[case] now: &str, #[case] change: impl FnOnce(&mut TimingFacts), #[case] expected: &str) {
    let mut facts = facts(now);
    change(&mut facts);
    assert_eq!(line(&decide(&facts)), expected);
}

#[test]
fn a_long_gap_of_an_interval_is_counted_exactly() {
    let mut facts = facts("08:00:00");
    (facts.schedule, facts.next_fire_at) =
        (Schedule::every(1, facts.now - TimeDelta::days(3650)).unwrap(), facts.now - TimeDelta::days(3650));
    let decision = decide(&facts);
    let missed = decision.missed[0];
    assert_eq!(decision.fire.len(), 61);
    assert_eq!(missed.count + 61, 3650 * 86_400 + 1);
}

#[test]
fn a_delay_is_in_its_range_and_stays_the_same() {
    let ids: Vec<RoutineId> = (0..200).map(|_| RoutineId::generate()).collect();
    let delays: Vec<i64> = ids.iter().map(|id| stagger_offset(*id, 9).num_seconds()).collect();
    assert!(delays.iter().all(|delay| (0..=9).contains(delay)));
    assert!((0..=9).all(|delay| delays.contains(&delay)), "{delays:?}");
    assert!(ids.iter().zip(&delays).all(|(id, delay)| stagger_offset(*id, 9).num_seconds() == *delay));
    assert_eq!(stagger_offset(ids[0], 0), TimeDelta::zero());
}

#[test]
fn coming_times_respect_the_delay_and_the_ends() {
    let schedule = Schedule::every(3600, utc("00:00:00")).unwrap();
    let of = |until: Option<&str>, left| {
        let times = upcoming(&schedule, TimeDelta::minutes(5), until.map(utc), left, utc("08:05:00"), 3);
        times.iter().map(|time| time.format("%H:%M").to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of(None, None), "09:05 10:05 11:05");
    assert_eq!(of(Some("10:05:00"), None), "09:05 10:05");
    assert_eq!(of(None, Some(1)), "09:05");
    assert_eq!(of(None, Some(0)), "");
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    prop_oneof![
        (60..7200_u64, 0..86_400_i64).prop_map(|(period, anchor)| {
            Schedule::every(period, utc("00:00:00") + TimeDelta::milliseconds(anchor * 1_001)).unwrap()
        }),
        (0..86_400_i64).prop_map(|second| Schedule::At(utc("00:00:00") + TimeDelta::seconds(second))),
        prop::sample::select(vec![
            "*/5 * * * *",
            "7 * * * *",
            "30 8,9,20 * * *",
            "0 9 * * MON",
            "*/2 6-20 * * *",
            "0 0 */3 23 11 * 2026"
        ])
        .prop_map(|expression| Schedule::cron(expression, Some("Europe/Oslo")).unwrap()),
    ]
}

/// Steps of the clock in seconds: small, long, and backwards.
fn any_step() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0..90_i64, 2 => 0..7_200_i64, 1 => 0..172_800_i64, 1 => -7_200..0_i64]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn each_time_is_accounted_for_once(
        schedule in any_schedule(),
        stagger in prop_oneof![Just(0), 0..600_i64],
        catch_up in prop::sample::select(vec![CatchUp::None, CatchUp::Once, CatchUp::All]),
        window in prop_oneof![Just(86_400), 0..7_200_u64],
        max in 0..5_u32,
        until in prop::option::of(0..172_800_i64),
        steps in prop::collection::vec((any_step(), prop::option::of(0..3_600_i64)), 1..40),
    ) {
        let start = utc("00:00:00");
        let stagger = TimeDelta::seconds(stagger);
        let until = until.map(|seconds| start + TimeDelta::seconds(seconds));
        let mut next = next_firing(&schedule, stagger, until, start).next;
        let (mut now, mut latest) = (start, start);
        // Fired or missed, in order; and how many stand behind each.
        let mut accounted: Vec<(DateTime<Utc>, DateTime<Utc>, u64)> = vec![];
        for (step, paused) in steps {
            now += TimeDelta::seconds(step);
            latest = latest.max(now);
            let Some(next_fire_at) = next else { break };
            let resumed_at = paused.map(|ago| now - TimeDelta::seconds(ago));
            let facts = TimingFacts {
                schedule: schedule.clone(), stagger, next_fire_at, now, catch_up, catch_up_window_seconds: window,
                catch_up_max: max, until, resumed_at,
            };
            let decision = decide(&facts);
            let mut slots: Vec<_> = decision.fire.iter().map(|slot| (*slot, *slot, 1)).collect();
            slots.extend(decision.missed.iter().map(|missed| (missed.from, missed.to, missed.count)));
            slots.sort_unstable();
            for (slot, _, _) in &slots {
                prop_assert!(*slot <= now && until.is_none_or(|until| *slot <= until));
            }
            for fired in &decision.fire {
                let lateness = now - *fired;
                prop_assert!(resumed_at.is_none_or(|resumed_at| *fired > resumed_at));
                prop_assert!(lateness <= LATE_AFTER || (catch_up != CatchUp::None && lateness.num_seconds().unsigned_abs() <= window));
            }
            for missed in decision.missed.iter().filter(|missed| missed.reason == RunReason::Late) {
                prop_assert!(now - missed.to > LATE_AFTER);
            }
            accounted.extend(slots);
            prop_assert!(decision.next.is_none_or(|next| next > now || Some(next) == Some(next_fire_at)));
            prop_assert_eq!(decision.next.is_none(), decision.end.is_some());
            next = decision.next;
        }
        prop_assert!(accounted.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", accounted);
        let end = next.map_or(latest, |next| latest.min(next - TICK));
        let slots = schedule.times_after(start - stagger).map(|time| time + stagger);
        let expected = slots.take_while(|slot| *slot <= end && until.is_none_or(|until| *slot <= until)).count();
        let number: u64 = accounted.iter().map(|(_, _, count)| count).sum();
        prop_assert_eq!(number, expected as u64, "{:?}", accounted);
    }
}
