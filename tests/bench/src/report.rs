//! The results, and how both sides compare.
//!
//! Owns the statistics, the table and the JSON. Never measures, and never fails a run because of a value.

pub(crate) mod comparison;

use std::{borrow::Cow, path::Path};

use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::{Failure, chain, clock};

/// Results of one program.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    benchmark: String,
    measured_at: String,
    runs: u32,
    /// Path of the program.
    gantry: String,
    machine: Machine,
    sides: Vec<Side>,
    ratios: Vec<Ratio>,
    limits: Vec<Limit>,
}

/// The machine that the results depend on.
#[derive(Debug, Serialize)]
struct Machine {
    cpus: usize,
    memory_mb: u64,
    kernel: String,
}

/// Unit of a side's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// Milliseconds.
    Ms,
    /// Megabytes, of 10⁶ bytes.
    Mb,
    /// A rate per second.
    PerSecond,
    /// A plain count.
    Count,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::Mb => "MB",
            Self::PerSecond => "a second",
            Self::Count => "",
        }
    }
}

/// Statistics of one series of samples.
#[derive(Debug, Serialize)]
struct Side {
    name: Cow<'static, str>,
    unit: Unit,
    success_rate: f64,
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    samples: Vec<f64>,
    failures: Vec<String>,
}

/// Ratio of two sides.
#[derive(Debug, Serialize)]
struct Ratio {
    name: String,
    p50: Option<f64>,
    p95: Option<f64>,
    at_most: Option<f64>,
    /// Target where more is better.
    at_least: Option<f64>,
}

/// Target for a percentile of one side.
#[derive(Debug, Serialize)]
struct Limit {
    name: String,
    unit: Unit,
    percentile: usize,
    value: Option<f64>,
    at_most: Option<f64>,
    /// Target where more is better.
    at_least: Option<f64>,
}

/// A series of samples.
#[derive(Debug)]
pub(crate) struct Series {
    name: Cow<'static, str>,
    unit: Unit,
    samples: Vec<f64>,
    failures: Vec<String>,
}

impl Series {
    /// An empty series.
    pub(crate) fn new(name: impl Into<Cow<'static, str>>, unit: Unit) -> Self {
        Self { name: name.into(), unit, samples: Vec::new(), failures: Vec::new() }
    }

    /// Adds a sample. A failure lowers the success rate and is in no percentile.
    pub(crate) fn add(&mut self, attempt: Result<f64, Failure>) {
        match attempt {
            Ok(sample) => self.samples.push(sample),
            Err(failure) => self.failures.push(chain(&*failure)),
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Adds several samples.
    pub(crate) fn extend(&mut self, attempts: impl IntoIterator<Item = Result<f64, Failure>>) {
        for attempt in attempts {
            self.add(attempt);
        }
    }
}

impl Report {
    /// A report for a program that is about to run.
    pub(crate) fn new(benchmark: String, runs: u32, gantry: &Path) -> Result<Self, Failure> {
        Ok(Self {
            benchmark,
            measured_at: stamp(clock::wall()),
            runs,
            gantry: gantry.display().to_string(),
            machine: Machine::read()?,
            sides: Vec::new(),
            ratios: Vec::new(),
            limits: Vec::new(),
        })
    }

    /// Adds a side that is one figure.
    pub(crate) fn figure(&mut self, name: impl Into<Cow<'static, str>>, unit: Unit, value: f64) {
        let mut series = Series::new(name, unit);
        series.add(Ok(value));
        self.side(series);
    }

    /// Adds a side.
    pub(crate) fn side(&mut self, attempts: Series) {
        let Series { name, unit, samples, failures } = attempts;
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let all = samples.len() + failures.len();
        self.sides.push(Side {
            name,
            unit,
            success_rate: share(samples.len(), all),
            p50: percentile(&sorted, 50),
            p95: percentile(&sorted, 95),
            p99: percentile(&sorted, 99),
            samples,
            failures,
        });
    }

    /// Compares two sides; `at_most` is the target, if any.
    pub(crate) fn ratio(&mut self, ours: &'static str, other: &'static str, at_most: Option<f64>) {
        self.compare(ours, other, at_most, None);
    }

    /// Compares two sides where more is better.
    pub(crate) fn ratio_at_least(&mut self, ours: &'static str, other: &'static str, at_least: f64) {
        self.compare(ours, other, None, Some(at_least));
    }

    fn compare(&mut self, ours: &str, other: &str, at_most: Option<f64>, at_least: Option<f64>) {
        let (a, b) = (self.find(ours), self.find(other));
        let divided = |pick: fn(&Side) -> Option<f64>| quotient(a.and_then(pick), b.and_then(pick));
        let (p50, p95) = (divided(|side| side.p50), divided(|side| side.p95));
        self.ratios.push(Ratio { name: format!("{ours} / {other}"), p50, p95, at_most, at_least });
    }

    /// Sets a target for a side's median.
    pub(crate) fn limit(&mut self, name: &str, at_most: f64) {
        self.limit_at(name, 50, at_most);
    }

    /// Sets a target for a side's 50th, 95th or 99th percentile.
    pub(crate) fn limit_at(&mut self, name: &str, percentile: usize, at_most: f64) {
        if let Some(side) = self.find(name) {
            let value = match percentile {
                99 => side.p99,
                95 => side.p95,
                _ => side.p50,
            };
            let (at_most, at_least) = (Some(at_most), None);
            self.limits.push(Limit { name: name.to_owned(), unit: side.unit, percentile, value, at_most, at_least });
        }
    }

    /// Sets a minimum for the median of a side where more is better.
    pub(crate) fn limit_at_least(&mut self, name: &str, at_least: f64) {
        if let Some(side) = self.find(name) {
            let (value, at_most, at_least) = (side.p50, None, Some(at_least));
            self.limits.push(Limit {
                name: name.to_owned(),
                unit: side.unit,
                percentile: 50,
                value,
                at_most,
                at_least,
            });
        }
    }

    fn find(&self, name: &str) -> Option<&Side> {
        self.sides.iter().find(|side| side.name == name)
    }

    /// Fails if an attempt failed, or if there was none.
    pub(crate) fn require_success(self) -> Result<Self, Failure> {
        let failures: Vec<String> = self.failures().collect();
        if failures.is_empty() { Ok(self) } else { Err(failures.join("; ").into()) }
    }

    /// A line for each side with failed attempts or without any.
    fn failures(&self) -> impl Iterator<Item = String> {
        self.sides.iter().filter(|side| side.success_rate < 1.0).map(|Side { name, samples, failures, .. }| {
            match failures.first() {
                Some(first) => {
                    let (failed, all) = (failures.len(), samples.len() + failures.len());
                    format!("{name}: {failed} of {all} failed, the first: {first}")
                }
                None => format!("{name}: no samples"),
            }
        })
    }

    /// The report as a table.
    pub(crate) fn table(&self) -> String {
        let head = format!("{}: {} runs of {}, {}", self.benchmark, self.runs, self.gantry, self.conditions());
        let mut parts = vec![head, self.side_table(), self.target_table()];
        parts.extend(self.failures());
        parts.retain(|part| !part.is_empty());
        parts.join("\n\n")
    }

    fn conditions(&self) -> String {
        let Machine { cpus, memory_mb, kernel } = &self.machine;
        format!("{}, {cpus} CPUs, {memory_mb} MB, Linux {kernel}", self.measured_at)
    }

    fn side_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["measured", "unit", "p50", "p95", "p99", "samples", "success"]);
        for side in &self.sides {
            table.add_row([
                side.name.to_string(),
                side.unit.name().to_owned(),
                figure(side.p50),
                figure(side.p95),
                figure(side.p99),
                side.samples.len().to_string(),
                format!("{:.0} %", side.success_rate * 100.0),
            ]);
        }
        right(&mut table, 2..=6);
        table.to_string()
    }

    fn target_table(&self) -> String {
        if self.ratios.is_empty() && self.limits.is_empty() {
            return String::new();
        }
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_header(["compared", "p50", "p95", "target"]);
        for ratio in &self.ratios {
            let target = match (ratio.at_most, ratio.at_least) {
                (Some(most), _) => format!("at most {most} x"),
                (None, Some(least)) => format!("at least {least} x"),
                (None, None) => String::new(),
            };
            table.add_row([ratio.name.clone(), times(ratio.p50), times(ratio.p95), target]);
        }
        for limit in &self.limits {
            let unit = limit.unit.name();
            let name = match limit.percentile {
                50 => limit.name.clone(),
                percentile => format!("{}, p{percentile}", limit.name),
            };
            let target = match (limit.at_most, limit.at_least) {
                (Some(most), _) => format!("at most {most} {unit}"),
                (None, Some(least)) => format!("at least {least} {unit}"),
                (None, None) => String::new(),
            };
            let value = format!("{} {unit}", figure(limit.value));
            table.add_row([name, value.trim().to_owned(), String::new(), target.trim().to_owned()]);
        }
        right(&mut table, 1..=2);
        table.to_string()
    }
}

impl Machine {
    fn read() -> Result<Self, Failure> {
        let memory = std::fs::read_to_string("/proc/meminfo")?;
        Ok(Self {
            cpus: std::thread::available_parallelism()?.get(),
            memory_mb: kilobytes(&memory, "MemTotal:").ok_or("/proc/meminfo has no MemTotal")? * 1024 / 1_000_000,
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        })
    }
}

/// The value of a line such as `VmRSS:  1234 kB` in a file of `/proc`.
fn kilobytes(table: &str, field: &str) -> Option<u64> {
    let rest = table.lines().find_map(|line| line.strip_prefix(field))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Resident memory of a process, in megabytes.
pub(crate) fn resident_mb(process: u32) -> Result<f64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let kilobytes = kilobytes(&status, "VmRSS:").ok_or("the kernel tells no VmRSS")?;
    Ok(f64::from(u32::try_from(kilobytes)?) * 1024.0 / 1e6)
}

fn stamp(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

impl Series {
    /// A percentile of the samples so far.
    pub(crate) fn percentile(&self, percent: usize) -> Option<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        percentile(&sorted, percent)
    }
}

/// Nearest-rank percentile: always a measured value.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

fn quotient(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    let (a, b) = (a?, b?);
    (b != 0.0).then(|| a / b)
}

fn share(part: usize, all: usize) -> f64 {
    let count = |number: usize| u32::try_from(number).map_or(f64::from(u32::MAX), f64::from);
    if all == 0 { 0.0 } else { count(part) / count(all) }
}

fn figure(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value.abs() < 10.0 => format!("{value:.3}"),
        Some(value) => format!("{value:.1}"),
    }
}

fn times(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2} x"))
}

fn right(table: &mut Table, columns: std::ops::RangeInclusive<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([50, 95, 99].map(|p| percentile(&hundred, p)), [Some(50.0), Some(95.0), Some(99.0)]);
        assert_eq!([50, 95, 99].map(|p| percentile(&[1.0, 2.0, 3.0], p)), [Some(2.0), Some(3.0), Some(3.0)]);
        assert_eq!([50, 99].map(|p| percentile(&[7.0], p)), [Some(7.0), Some(7.0)]);
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn failures_count_in_the_rate_and_in_no_percentile() {
        let mut attempts = Series::new("ours", Unit::Ms);
        for attempt in [Ok(4.0), Err(Failure::from("no")), Ok(2.0), Ok(6.0)] {
            attempts.add(attempt);
        }
        let mut other = Series::new("other", Unit::Ms);
        other.add(Ok(2.0));
        let mut report = Report::new("t".into(), 4, Path::new("target/release/gantry")).unwrap();
        report.side(attempts);
        report.side(other);
        report.ratio("ours", "other", Some(2.5));
        report.ratio("ours", "absent", None);
        report.ratio_at_least("ours", "other", 0.5);
        report.limit_at("ours", 99, 5.0);
        let seen = serde_json::to_value(&report).unwrap();
        assert_eq!(seen["sides"][0]["success_rate"], 0.75);
        assert_eq!(seen["sides"][0]["p50"], 4.0);
        assert_eq!(seen["ratios"][0]["p50"], 2.0);
        assert_eq!(seen["ratios"][0]["p95"], 3.0);
        assert_eq!(seen["ratios"][1]["p50"], serde_json::Value::Null);
        assert_eq!((&seen["ratios"][2]["at_least"], &seen["limits"][0]["value"]), (&0.5.into(), &6.0.into()));
        let table = report.table();
        assert!(table.contains("75 %") && table.contains("2.00 x") && table.contains("the first: no"), "{table}");
        assert!(table.contains("at least 0.5 x") && table.contains("ours, p99"), "{table}");
        report.side(Series::new("empty", Unit::Ms));
        let failure = report.require_success().unwrap_err().to_string();
        assert_eq!(failure, "ours: 1 of 4 failed, the first: no; empty: no samples");
    }

    #[test]
    fn a_kernels_table_is_read() {
        let table = "Name:\tgantry\nVmRSS:\t   31236 kB\nVmSwap:\t 0 kB\n";
        assert_eq!(kilobytes(table, "VmRSS:"), Some(31_236));
        assert_eq!(kilobytes(table, "VmHWM:"), None);
    }
}
