//! Heartbeats: when the main session of a user has one, and what its reply means. Pure.
//!
//! Decides for one user at one moment. Never reads the clock, and never knows who else has a heartbeat.

use chrono::{DateTime, Days, LocalResult, NaiveDateTime, TimeDelta, TimeZone as _, Timelike as _, Utc};
use protocol::{QuietHours, TimeOfDay, UserSettings};

use base::Zone;

/// The reply that says that there is nothing to report.
pub const HEARTBEAT_OK: &str = "HEARTBEAT_OK";
/// Failures in a row of which the user is notified, once.
pub const FAILURES_TO_NOTIFY: u32 = 3;
/// How long a request waits for others, which then share its heartbeat.
const COALESCE: TimeDelta = TimeDelta::milliseconds(250);
/// When a heartbeat that was put off is tried again.
const BUSY_RETRY: TimeDelta = TimeDelta::seconds(1);
/// Minutes after which the search for a local time that exists ends: some zones have skipped a whole day.
const MAX_SKIPPED_MINUTES: u32 = 25 * 60;

/// What is known of a user's main session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatFacts {
    /// Time between two heartbeats; `None` for no heartbeats.
    pub every: Option<TimeDelta>,
    pub quiet_hours: Option<QuietHours>,
    /// The zone of these hours.
    pub zone: Zone,
    /// Whether there is a checklist with text, or a line that waits.
    pub has_work: bool,
    /// When the last heartbeat began or, without one, since when there is work.
    pub since: DateTime<Utc>,
    /// When a heartbeat was asked for that has not begun.
    pub requested_at: Option<DateTime<Utc>>,
    /// Whether the main session works on a message. A call that waits for a person is no work.
    pub is_busy: bool,
}

/// Whether the user has a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatDecision {
    Begin,
    /// It does not begin before this time.
    Wait(DateTime<Utc>),
    /// The user has none until their settings change.
    Off,
    /// There is nothing to do until there is a checklist or a line.
    NoWork,
}

impl HeartbeatFacts {
    /// Whether a heartbeat begins at this moment.
    pub fn decide(&self, now: DateTime<Utc>) -> HeartbeatDecision {
        if !self.has_work {
            return HeartbeatDecision::NoWork;
        }
        let Some(every) = self.every else { return HeartbeatDecision::Off };
        // A time in the future is of a clock that was set back since.
        let regular = self.since.min(now) + every;
        let requested = self.requested_at.map(|at| at.min(now) + COALESCE);
        let due = requested.map_or(regular, |requested| requested.min(regular));
        if now < due {
            return HeartbeatDecision::Wait(due);
        }
        if let Some(end) = self.quiet_until(now) {
            return HeartbeatDecision::Wait(end);
        }
        if self.is_busy {
            return HeartbeatDecision::Wait(now + BUSY_RETRY);
        }
        HeartbeatDecision::Begin
    }

    /// The end of the quiet hours that this moment is in.
    fn quiet_until(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let hours = self.quiet_hours?;
        let local = now.with_timezone(&self.zone).naive_local();
        if !hours.contains(time_of(local)?) {
            return None;
        }
        let today = local.date().and_hms_opt(u32::from(hours.to.hour()), u32::from(hours.to.minute()), 0)?;
        // A local time that comes twice may have been once already.
        let ends = (0..=2).filter_map(|days| today.checked_add_days(Days::new(days)));
        ends.flat_map(|end| instants(self.zone, end)).find(|end| *end > now)
    }
}

fn time_of(local: NaiveDateTime) -> Option<TimeOfDay> {
    TimeOfDay::new(u8::try_from(local.hour()).ok()?, u8::try_from(local.minute()).ok()?)
}

/// The instants of a local time, earliest first; of one that the clock skips, that of the first minute after the gap.
fn instants(zone: Zone, local: NaiveDateTime) -> Vec<DateTime<Utc>> {
    for minutes in 0..MAX_SKIPPED_MINUTES {
        let Some(local) = local.checked_add_signed(TimeDelta::minutes(i64::from(minutes))) else { break };
        match zone.from_local_datetime(&local) {
            LocalResult::Single(one) => return vec![one.to_utc()],
            LocalResult::Ambiguous(first, second) => return vec![first.to_utc(), second.to_utc()],
            LocalResult::None => {}
        }
    }
    Vec::new()
}

/// The time between two heartbeats of a user; `None` for no heartbeats.
pub fn interval(settings: &UserSettings, default_seconds: u64) -> Option<TimeDelta> {
    let seconds = settings.heartbeat_every_seconds.unwrap_or(default_seconds);
    TimeDelta::try_seconds(i64::try_from(seconds).ok()?).filter(|every| *every > TimeDelta::zero())
}

/// Whether a reply has nothing to report to the user: the word alone, with whatever emphasis, quotes or full stop a
/// model puts around it.
pub fn is_silent(reply: &str) -> bool {
    let decoration = |c: char| c.is_whitespace() || "*_`~\"'.!\u{201c}\u{201d}\u{2018}\u{2019}".contains(c);
    reply.trim_matches(decoration) == HEARTBEAT_OK
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a fact")]
    fn hours(from: &str, to: &str) -> Option<QuietHours> {
        Some(QuietHours { from: from.parse().unwrap(), to: to.parse().unwrap() })
    }

    /// Work since noon, a heartbeat every half hour.
    fn facts() -> HeartbeatFacts {
        HeartbeatFacts {
            every: Some(TimeDelta::minutes(30)),
            quiet_hours: None,
            zone: Zone::UTC,
            has_work: true,
            since: at("2026-11-22T12:00:00Z"),
            requested_at: None,
            is_busy: false,
        }
    }

    fn wait(text: &str) -> HeartbeatDecision {
        HeartbeatDecision::Wait(at(text))
    }

    #[rstest]
    #[case::at_once("2026-11-22T12:00:00Z", wait("2026-11-22T12:30:00Z"))]
    #[case::just_before("2026-11-22T12:29:59.999Z", wait("2026-11-22T12:30:00Z"))]
    #[case::on_time("2026-11-22T12:30:00Z", HeartbeatDecision::Begin)]
    #[case::late("2026-11-23T12:30:00Z", HeartbeatDecision::Begin)]
    #[case::clock_set_back("2026-11-22T10:00:00Z", wait("2026-11-22T10:30:00Z"))]
    fn the_first_heartbeat_is_an_interval_after_there_is_work(#[case] now: &str, #[case] expected: HeartbeatDecision) {
        assert_eq!(facts().decide(at(now)), expected);
    }

    #[rstest]
    #[case::the_first_request_waits_for_others("2026-11-22T12:10:00Z", wait("2026-11-22T12:10:00.250Z"))]
    #[case::they_have_come("2026-11-22T12:10:00.250Z", HeartbeatDecision::Begin)]
    #[case::clock_set_back("2026-11-22T12:05:00Z", wait("2026-11-22T12:05:00.250Z"))]
    fn a_request_is_not_kept_until_the_interval_is_over(#[case] now: &str, #[case] expected: HeartbeatDecision) {
        let facts = HeartbeatFacts { requested_at: Some(at("2026-11-22T12:10:00Z")), ..facts() };
        assert_eq!(facts.decide(at(now)), expected);
    }

    #[test]
    fn a_request_delays_no_heartbeat() {
        let facts = HeartbeatFacts { requested_at: Some(at("2026-11-22T12:29:59.900Z")), ..facts() };
        assert_eq!(facts.decide(at("2026-11-22T12:30:00Z")), HeartbeatDecision::Begin);
    }

    #[rstest]
    #[case::no_work(HeartbeatFacts { has_work: false, ..facts() }, HeartbeatDecision::NoWork)]
    #[case::off(HeartbeatFacts { every: None, ..facts() }, HeartbeatDecision::Off)]
    #[case::busy(HeartbeatFacts { is_busy: true, ..facts() }, wait("2026-11-22T13:00:01Z"))]
    #[case::no_work_though_requested(
        HeartbeatFacts { has_work: false, requested_at: Some(facts().since), ..facts() }, HeartbeatDecision::NoWork
    )]
    #[case::off_though_requested(
        HeartbeatFacts { every: None, requested_at: Some(facts().since), ..facts() }, HeartbeatDecision::Off
    )]
    fn a_heartbeat_that_is_due_may_have_to_wait(#[case] facts: HeartbeatFacts, #[case] expected: HeartbeatDecision) {
        assert_eq!(facts.decide(at("2026-11-22T13:00:00Z")), expected);
    }

    #[rstest]
    #[case::before(Zone::UTC, "2026-11-22T21:59:59Z", "22:00", "07:00", HeartbeatDecision::Begin)]
    #[case::at_the_beginning(Zone::UTC, "2026-11-22T22:00:00Z", "22:00", "07:00", wait("2026-11-23T07:00:00Z"))]
    #[case::after_midnight(Zone::UTC, "2026-11-23T06:59:59Z", "22:00", "07:00", wait("2026-11-23T07:00:00Z"))]
    #[case::at_the_end(Zone::UTC, "2026-11-23T07:00:00Z", "22:00", "07:00", HeartbeatDecision::Begin)]
    #[case::by_day(Zone::UTC, "2026-11-23T13:30:00Z", "13:00", "14:00", wait("2026-11-23T14:00:00Z"))]
    #[case::in_the_users_zone(
        "America/New_York",
        "2026-11-23T03:00:00Z",
        "22:00",
        "07:00",
        wait("2026-11-23T12:00:00Z")
    )]
    // 02:30 does not exist on this day; the first minute after the gap is 03:00, which is 01:00 UTC.
    #[case::their_end_is_skipped(
        "Europe/Berlin",
        "2027-03-28T00:00:00Z",
        "22:00",
        "02:30",
        wait("2027-03-28T01:00:00Z")
    )]
    // 02:30 comes twice, at 00:30 and at 01:30 UTC.
    #[case::their_end_comes_twice(
        "Europe/Berlin",
        "2027-10-31T00:10:00Z",
        "22:00",
        "02:30",
        wait("2027-10-31T00:30:00Z")
    )]
    #[case::they_come_twice("Europe/Berlin", "2027-10-31T01:10:00Z", "22:00", "02:30", wait("2027-10-31T01:30:00Z"))]
    fn quiet_hours_put_a_heartbeat_off(
        #[case] zone: Zone,
        #[case] now: &str,
        #[case] from: &str,
        #[case] to: &str,
        #[case] expected: HeartbeatDecision,
    ) {
        let regular = HeartbeatFacts { zone, quiet_hours: hours(from, to), ..facts() };
        let requested =
            HeartbeatFacts { requested_at: Some(facts().since), every: Some(TimeDelta::days(900)), ..regular };
        assert_eq!(regular.decide(at(now)), expected);
        assert_eq!(requested.decide(at(now)), expected, "also one that was asked for");
    }

    #[rstest]
    #[case(None, 1_800, Some(1_800))]
    #[case(Some(60), 1_800, Some(60))]
    #[case(Some(60), 0, Some(60))]
    #[case(Some(0), 1_800, None)]
    #[case(None, 0, None)]
    #[case(Some(u64::MAX), 0, None)]
    fn the_users_interval_wins(#[case] own: Option<u64>, #[case] default: u64, #[case] expected: Option<i64>) {
        let settings = UserSettings { heartbeat_every_seconds: own, ..UserSettings::default() };
        assert_eq!(interval(&settings, default), expected.map(TimeDelta::seconds));
    }

    #[rstest]
    #[case("HEARTBEAT_OK", true)]
    #[case(" HEARTBEAT_OK\n", true)]
    // use-agent-os/agent-os#2945, openclaw/openclaw#16974
    #[case("**HEARTBEAT_OK**", true)]
    #[case("HEARTBEAT_OK.", true)]
    #[case("HEARTBEAT_OK!", true)]
    #[case("_HEARTBEAT_OK_", true)]
    #[case("`HEARTBEAT_OK`", true)]
    #[case("```\nHEARTBEAT_OK\n```", true)]
    #[case("\"HEARTBEAT_OK\"", true)]
    #[case("'HEARTBEAT_OK'.", true)]
    #[case("\u{201c}HEARTBEAT_OK\u{201d}", true)]
    #[case("**HEARTBEAT_OK.**", true)]
    #[case("heartbeat_ok", false)]
    #[case("HEARTBEAT_OK and more", false)]
    #[case("Not HEARTBEAT_OK.", false)]
    #[case("**HEARTBEAT_OK**: the build is red.", false)]
    #[case("HEARTBEAT_OK\nHEARTBEAT_OK", false)]
    #[case("HEARTBEAT OK", false)]
    #[case("**", false)]
    #[case("", false)]
    fn only_the_word_alone_is_silent(#[case] reply: &str, #[case] expected: bool) {
        assert_eq!(is_silent(reply), expected);
    }

    proptest! {
        /// Whatever the zone and the hours: who asks again at the time that was given gets a heartbeat, and not in the
        /// quiet hours.
        #[test]
        fn quiet_hours_end(
            zone in proptest::sample::select(Zone::all()),
            from in 0_u8..24,
            length in 1_u8..22,
            minute in 0_u8..60,
            seconds in 0_i64..(2 * 365 * 86_400),
        ) {
            let [from, to] = [from, (from + length) % 24].map(|hour| TimeOfDay::new(hour, minute).unwrap());
            let facts = HeartbeatFacts { zone, quiet_hours: Some(QuietHours { from, to }), ..facts() };
            let now = at("2026-11-22T12:30:00Z") + TimeDelta::seconds(seconds);
            match facts.decide(now) {
                HeartbeatDecision::Wait(end) => {
                    prop_assert!(end > now && end <= now + TimeDelta::hours(26));
                    prop_assert_eq!(facts.decide(end), HeartbeatDecision::Begin);
                }
                decision => prop_assert_eq!(decision, HeartbeatDecision::Begin),
            }
        }
    }
}
