//! What must hold for everybody else while somebody attacks, judged in one place.
//!
//! Owns the limits' comparison and the table that a failure shows. Never measures.

use std::{fmt::Write as _, time::Duration};

use attack::{MAX_HEALTH, MAX_LOG_GROWTH_BYTES, MAX_MEMORY_GROWTH_MB, MAX_SLOWDOWN, Readings, percentile};

/// Added to twice the quiet time: a busy machine delays a short job by as much.
const SLACK: Duration = Duration::from_millis(300);

/// A single job of the victim's that takes longer was not slowed down but held up.
const HELD_UP: Duration = Duration::from_secs(5);

/// What was measured during one attack.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// What was done.
    pub(crate) attack: String,
    /// What the attackers say they did.
    pub(crate) told: Vec<String>,
    /// A victim's jobs before the attack and after it, from the request to the end.
    pub(crate) quiet: [Vec<Duration>; 2],
    /// The same during the attack.
    pub(crate) flooded: Vec<Duration>,
    /// Victims' jobs that did not complete.
    pub(crate) failed: Vec<String>,
    /// Health and memory.
    pub(crate) readings: Readings,
    /// How much the orchestrator printed.
    pub(crate) log_growth_bytes: u64,
    /// How the hostile jobs ended, where that is not as they should.
    pub(crate) wrong_ends: Vec<String>,
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
    /// Fails with the whole table unless everything holds.
    #[track_caller]
    #[expect(clippy::print_stdout, reason = "nextest shows it on demand, and with a failure")]
    pub(crate) fn check(&self) {
        let table = self.table();
        println!("{table}");
        assert!(self.rows().iter().all(|row| row.holds), "an attack is not contained\n{table}");
    }

    fn rows(&self) -> Vec<Row> {
        // Of the two, the slower: a machine's other load changes within seconds.
        let [before, after] = self.quiet.each_ref().map(|samples| percentile(samples, 50));
        let (quiet, flooded) = (before.max(after), percentile(&self.flooded, 50));
        let most = percentile(&self.flooded, 100);
        let allowed = quiet.mul_f64(MAX_SLOWDOWN) + SLACK;
        let readings = &self.readings;
        let health = percentile(&readings.health, 99);
        // Where even a server that only answers takes long, the machine is busy with something else.
        let allowed_health = MAX_HEALTH.max(percentile(&readings.control, 99).mul_f64(MAX_SLOWDOWN));
        let memory = readings.memory_growth_mb();
        let no_limit = String::new;
        vec![
            Row::new("victim's job, quiet, p50", format!("{quiet:.0?}"), no_limit(), true),
            Row::new(
                "victim's job, attacked, p50",
                format!("{flooded:.0?} of {}", self.flooded.len()),
                format!("{allowed:.0?}"),
                !self.flooded.is_empty() && flooded <= allowed,
            ),
            Row::new("victim's job, attacked, most", format!("{most:.0?}"), format!("{HELD_UP:.0?}"), most <= HELD_UP),
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
                self.wrong_ends.len().to_string(),
                "0".to_owned(),
                self.wrong_ends.is_empty(),
            ),
        ]
    }

    fn table(&self) -> String {
        let mut table = format!("{}\n", self.attack);
        for Row { what, measured, limit, holds } in self.rows() {
            let holds = if holds { "" } else { "BROKEN" };
            writeln!(table, "  {what:<30} {measured:>24} {limit:>12} {holds}").expect("a string takes everything");
        }
        for line in self.told.iter().chain(&self.failed).chain(&self.wrong_ends) {
            writeln!(table, "  {line}").expect("a string takes everything");
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Break = fn(&mut Verdict);

    fn contained() -> Verdict {
        let millis = |all: &[u64]| all.iter().copied().map(Duration::from_millis).collect();
        Verdict {
            attack: "none".to_owned(),
            told: vec![],
            quiet: [millis(&[300, 310, 320]), millis(&[290])],
            flooded: millis(&[500, 600, 700]),
            failed: vec![],
            readings: Readings {
                health: millis(&[1, 2, 3]),
                health_failures: 0,
                control: millis(&[1, 2, 3]),
                memory_before_mb: 40,
                memory_peak_mb: 140,
            },
            log_growth_bytes: 2_000_000,
            wrong_ends: vec![],
        }
    }

    #[test]
    fn each_limit_is_judged() {
        let broken: [(&str, Break); 9] = [
            ("victim's job, attacked, p50", |verdict| verdict.flooded = vec![Duration::from_millis(921)]),
            ("victim's job, attacked, p50", |verdict| verdict.flooded.clear()),
            ("victim's job, attacked, most", |verdict| verdict.flooded.push(Duration::from_secs(6))),
            ("victim's jobs failed", |verdict| verdict.failed.push("llm_error".to_owned())),
            ("health, p99", |verdict| verdict.readings.health.push(Duration::from_millis(251))),
            ("health, failed", |verdict| verdict.readings.health_failures = 1),
            ("memory", |verdict| verdict.readings.memory_peak_mb = 141),
            ("log", |verdict| verdict.log_growth_bytes += 1),
            ("hostile jobs with a wrong end", |verdict| verdict.wrong_ends.push("stuck".to_owned())),
        ];
        assert!(contained().rows().iter().all(|row| row.holds), "{}", contained().table());
        for (what, breaking) in broken {
            let mut verdict = contained();
            breaking(&mut verdict);
            let rows = verdict.rows();
            let wrong: Vec<&str> = rows.iter().filter(|row| !row.holds).map(|row| row.what).collect();
            assert_eq!(wrong, [what]);
        }
    }
}
