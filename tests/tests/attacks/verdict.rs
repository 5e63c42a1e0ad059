//! The limits of what an attack may do to other users, checked in one place.
//!
//! Owns the comparison with the limits and the table that a failure shows. Never measures.

use std::{fmt::Write as _, time::Duration};

use attack::{MAX_HEALTH, MAX_LOG_GROWTH_BYTES, MAX_MEMORY_GROWTH_MB, MAX_SLOWDOWN, Readings, percentile};

/// Added to twice the baseline: the delay of a short job on a busy machine.
const SLACK: Duration = Duration::from_millis(300);

/// A single job of the victim that takes longer was blocked, not just slowed down.
const MAX_JOB_DURATION: Duration = Duration::from_secs(5);

/// The measurements of one attack.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The name of the attack.
    pub(crate) attack: String,
    /// The attackers' reports.
    pub(crate) reports: Vec<String>,
    /// Durations of the victim's jobs before and after the attack.
    pub(crate) baseline: [Vec<Duration>; 2],
    /// Durations of the victim's jobs during the attack.
    pub(crate) during_attack: Vec<Duration>,
    /// The victim's jobs that did not complete.
    pub(crate) failed: Vec<String>,
    /// Health and memory.
    pub(crate) readings: Readings,
    /// Bytes that the orchestrator logged.
    pub(crate) log_growth_bytes: u64,
    /// Hostile jobs that did not end as expected.
    pub(crate) unexpected_ends: Vec<String>,
}

struct Row {
    what: &'static str,
    measured: String,
    limit: String,
    holds: bool,
}

impl Row {
    fn new(what: &'static str, measured: String, limit: String, holds: bool) -> Self {
        Self { what, measured, limit, holds }
    }
}

impl Verdict {
    /// Fails with the whole table unless all limits hold.
    #[track_caller]
    #[expect(clippy::print_stdout, reason = "nextest shows it on demand, and with a failure")]
    pub(crate) fn check(&self) {
        let table = self.table();
        println!("{table}");
        assert!(self.rows().iter().all(|row| row.holds), "an attack is not contained\n{table}");
    }

    fn rows(&self) -> Vec<Row> {
        // The slower of the two: other load on the machine changes within seconds.
        let [before, after] = self.baseline.each_ref().map(|samples| percentile(samples, 50));
        let (baseline, during_attack) = (before.max(after), percentile(&self.during_attack, 50));
        let most = percentile(&self.during_attack, 100);
        let allowed = baseline.mul_f64(MAX_SLOWDOWN) + SLACK;
        let readings = &self.readings;
        let health = percentile(&readings.health, 99);
        // If even a control server that only responds is slow, the machine is busy with something else.
        let allowed_health = MAX_HEALTH.max(percentile(&readings.control, 99).mul_f64(MAX_SLOWDOWN));
        let memory = readings.memory_growth_mb();
        let no_limit = String::new;
        vec![
            Row::new("victim's job, quiet, p50", format!("{baseline:.0?}"), no_limit(), true),
            Row::new(
                "victim's job, attacked, p50",
                format!("{during_attack:.0?} of {}", self.during_attack.len()),
                format!("{allowed:.0?}"),
                !self.during_attack.is_empty() && during_attack <= allowed,
            ),
            Row::new(
                "victim's job, attacked, most",
                format!("{most:.0?}"),
                format!("{MAX_JOB_DURATION:.0?}"),
                most <= MAX_JOB_DURATION,
            ),
            Row::new("victim's jobs failed", self.failed.len().to_string(), "0".to_owned(), self.failed.is_empty()),
            Row::new("health, p99", format!("{health:.0?}"), format!("{allowed_health:.0?}"), health <= allowed_health),
            Row::new("health, most", format!("{:.0?}", percentile(&readings.health, 100)), no_limit(), true),
            Row::new(
                "health, failed",
                format!("{} of {}", readings.health_failures, readings.health.len()),
                "0".to_owned(),
                readings.health_failures == 0,
            ),
            Row::new(
                "memory",
                format!("+{memory} MB on {} MB", readings.memory_before_mb),
                format!("+{MAX_MEMORY_GROWTH_MB} MB"),
                memory <= MAX_MEMORY_GROWTH_MB,
            ),
            Row::new(
                "log",
                format!("+{} kB", self.log_growth_bytes / 1000),
                format!("+{} kB", MAX_LOG_GROWTH_BYTES / 1000),
                self.log_growth_bytes <= MAX_LOG_GROWTH_BYTES,
            ),
            Row::new(
                "hostile jobs with a wrong end",
                self.unexpected_ends.len().to_string(),
                "0".to_owned(),
                self.unexpected_ends.is_empty(),
            ),
        ]
    }

    fn table(&self) -> String {
        let mut table = format!("{}\n", self.attack);
        for Row { what, measured, limit, holds } in self.rows() {
            let holds = if holds { "" } else { "BROKEN" };
            writeln!(table, "  {what:<30} {measured:>24} {limit:>12} {holds}").expect("a string takes everything");
        }
        for line in self.reports.iter().chain(&self.failed).chain(&self.unexpected_ends) {
            writeln!(table, "  {line}").expect("a string takes everything");
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Break = fn(&mut Verdict);

    fn passing_verdict() -> Verdict {
        let millis = |all: &[u64]| all.iter().copied().map(Duration::from_millis).collect();
        Verdict {
            attack: "none".to_owned(),
            reports: vec![],
            baseline: [millis(&[300, 310, 320]), millis(&[290])],
            during_attack: millis(&[500, 600, 700]),
            failed: vec![],
            readings: Readings {
                health: millis(&[1, 2, 3]),
                health_failures: 0,
                control: millis(&[1, 2, 3]),
                memory_before_mb: 40,
                memory_peak_mb: 140,
            },
            log_growth_bytes: 2_000_000,
            unexpected_ends: vec![],
        }
    }

    #[test]
    fn each_limit_is_checked() {
        let broken: [(&str, Break); 9] = [
            ("victim's job, attacked, p50", |verdict| verdict.during_attack = vec![Duration::from_millis(921)]),
            ("victim's job, attacked, p50", |verdict| verdict.during_attack.clear()),
            ("victim's job, attacked, most", |verdict| verdict.during_attack.push(Duration::from_secs(6))),
            ("victim's jobs failed", |verdict| verdict.failed.push("llm_error".to_owned())),
            ("health, p99", |verdict| verdict.readings.health.push(Duration::from_millis(251))),
            ("health, failed", |verdict| verdict.readings.health_failures = 1),
            ("memory", |verdict| verdict.readings.memory_peak_mb = 141),
            ("log", |verdict| verdict.log_growth_bytes += 1),
            ("hostile jobs with a wrong end", |verdict| verdict.unexpected_ends.push("stuck".to_owned())),
        ];
        assert!(passing_verdict().rows().iter().all(|row| row.holds), "{}", passing_verdict().table());
        for (what, breaking) in broken {
            let mut verdict = passing_verdict();
            breaking(&mut verdict);
            let rows = verdict.rows();
            let wrong: Vec<&str> = rows.iter().filter(|row| !row.holds).map(|row| row.what).collect();
            assert_eq!(wrong, [what]);
        }
    }
}
