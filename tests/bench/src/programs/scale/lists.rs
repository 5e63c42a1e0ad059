//! The time of every list and page, one after the other on one connection of each caller.

use std::time::{Duration, Instant};

use super::{super::Bench, Caller, requests};
use crate::{
    Failure,
    report::{Series, Unit},
};

/// No more requests of a kind are made after this long.
const LONGEST: Duration = Duration::from_secs(5);
const MAX_MS: f64 = 50.0;
const MISSED: &str = "lists and pages with a p99 over 50 ms";
const UNKNOWN: &str = "GET requests of the API's document that are not timed";

/// Times them, and reports them with the slowest first.
pub(super) async fn run(bench: &mut Bench, callers: impl Iterator<Item = &Caller>) -> Result<(), Failure> {
    let mut all = Vec::new();
    for caller in callers {
        if all.is_empty() {
            let missing = requests::missing(caller).await?;
            let mut series = Series::new(UNKNOWN, Unit::Count);
            series.add(if missing.is_empty() { Ok(0.0) } else { Err(missing.join(", ").into()) });
            bench.report.side(series);
        }
        for (name, path) in requests::of(caller).await? {
            let mut series = Series::new(format!("{}: {name}", caller.name), Unit::Ms);
            let started = Instant::now();
            for _ in 0..bench.runs {
                series.add(timed(caller, &path).await);
                if started.elapsed() > LONGEST {
                    break;
                }
            }
            all.push(series);
        }
    }
    let p99 = |series: &Series| series.percentile(99).unwrap_or(f64::INFINITY);
    all.sort_by(|a, b| p99(b).total_cmp(&p99(a)));
    let missed: Vec<String> =
        all.iter().filter(|series| p99(series) > MAX_MS).map(|series| series.name().to_owned()).collect();
    for series in all {
        bench.report.side(series);
    }
    for name in &missed {
        bench.report.limit_at(name, 99, MAX_MS);
    }
    bench.report.figure(MISSED, Unit::Count, f64::from(u32::try_from(missed.len())?));
    bench.report.limit(MISSED, 0.0);
    Ok(())
}

/// The time of a request in milliseconds.
pub(super) async fn timed(caller: &Caller, path: &str) -> Result<f64, Failure> {
    let answer = caller.get(path).await?;
    answer.success(path)?;
    Ok(answer.ms)
}
