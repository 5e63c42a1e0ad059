//! Writes of a user while an operator uses the commands that work on the server's machine.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::json;
use tokio::time::{interval, sleep};

use super::{super::Bench, Caller};
use crate::{
    Failure,
    report::{Series, Unit},
};

const USER: &str = "writer";
const COMMANDS: [&[&str]; 5] = [
    &["token", "create", "--user", "someone"],
    &["token", "list"],
    &["token", "revoke", "token-001-01"],
    &["doctor"],
    &["backup", "backup.db"],
];
const WRITE_INTERVAL: Duration = Duration::from_millis(5);
/// How long writes are timed at least.
const WATCHED: Duration = Duration::from_secs(2);
const SMOKE_WATCHED: Duration = Duration::from_millis(200);

const MAX_ADDED_MS: f64 = 50.0;

/// Times them.
pub(super) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let writer = Caller::new(bench.stack.installation(), USER, "user").await?;
    let watched = bench.size(WATCHED, SMOKE_WATCHED);
    for arguments in COMMANDS {
        let shown = arguments[..arguments.len().min(2)].join(" ");
        let mut series = Series::new(format!("a write during `gantry {shown}`"), Unit::Ms);
        let started = Instant::now();
        let command = async {
            let output = bench.stack.installation().command().args(arguments).output().await?;
            sleep(watched.saturating_sub(started.elapsed())).await;
            // The checks of `doctor` judge the machine.
            if output.status.success() || arguments == ["doctor"] {
                return Ok(());
            }
            Err(format!("gantry {shown}: {}", String::from_utf8_lossy(&output.stderr)).into())
        };
        write_until(&writer, &mut series, command).await?;
        // As long, so that what happens now and then is in both.
        let mut alone = Series::new(format!("a write after `gantry {shown}`"), Unit::Ms);
        let taken = started.elapsed();
        write_until(&writer, &mut alone, async {
            sleep(taken).await;
            Ok(())
        })
        .await?;
        let slowest = |series: &Series| series.percentile(100).unwrap_or_default();
        let added = format!("slowest write during `gantry {shown}`, added");
        bench.report.figure(added.clone(), Unit::Ms, slowest(&series) - slowest(&alone));
        bench.report.side(series);
        bench.report.side(alone);
        bench.report.limit(&added, MAX_ADDED_MS);
    }
    // It may be as large as the database.
    std::fs::remove_file(bench.stack.directory().join("backup.db"))?;
    Ok(())
}

/// Writes a small document again and again until `ended` is, and the write in flight then to its end.
async fn write_until(
    writer: &Caller,
    series: &mut Series,
    ended: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let (mut ticks, has_ended) = (interval(WRITE_INTERVAL), Cell::new(false));
    let body = json!({"content": "The printer drops the last line."});
    let ended = async {
        let result = ended.await;
        has_ended.set(true);
        result
    };
    let loop_of_writes = async {
        while !has_ended.get() {
            ticks.tick().await;
            let written = writer.request(Method::PUT, "/api/memory?path=bench.md", Some(&body)).await;
            series.add(written.and_then(|answer| {
                answer.success("PUT /api/memory")?;
                Ok(answer.ms)
            }));
        }
    };
    tokio::join!(ended, loop_of_writes).0
}
