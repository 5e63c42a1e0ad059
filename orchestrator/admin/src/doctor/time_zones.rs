//! The check of `gantry doctor` about the rules of time zones. Read-only.

use chrono::{DateTime, Datelike as _, Months, Utc};

use base::zone::Database;
use cli::Check;

/// The version in force, which is old a year after the middle of the year in its name: it has no date.
pub(super) fn check(rules: &Database, now: DateTime<Utc>) -> Check {
    const NAME: &str = "time zones";
    let found = format!("rules of version {}, {}", rules.version(), rules.source());
    if (now - Months::new(18)).year() < rules.version().year() {
        return Check::ok(NAME, found);
    }
    let advice = "they are older than a year, so schedules may run at the wrong time where the rules have changed: update Gantry, or \
                  this machine's package tzdata";
    Check::note(NAME, found, advice)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use cli::Verdict;

    #[rstest]
    #[case::the_same_year(0, "12-31", Verdict::Ok)]
    #[case::within_a_year(1, "06-30", Verdict::Ok)]
    #[case::over_a_year(1, "07-01", Verdict::Note)]
    #[case::two_years(2, "01-01", Verdict::Note)]
    fn old_rules_are_reported(#[case] years: i32, #[case] day: &str, #[case] verdict: Verdict) {
        let rules = Database::in_force();
        let now: DateTime<Utc> = format!("{}-{day}T00:00:00Z", rules.version().year() + years).parse().unwrap();
        let check = check(rules, now);
        assert_eq!(check.verdict, verdict);
        assert!(check.found.starts_with(&format!("rules of version {}, ", rules.version())), "{check:?}");
    }
}
