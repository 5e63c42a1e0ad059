//! Searches of an admin over all users: each ends within a second, with its result or with a refusal that says what to
//! add; and what a list of a user takes while several of them run.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use tokio::{task::JoinSet, time::interval};

use super::{super::Bench, Caller, lists};
use crate::{
    Failure,
    report::{Series, Unit},
};

const SEARCHES: [&str; 10] = [
    "/api/jobs?q=module%20123",
    "/api/jobs?q=nowhere",
    "/api/jobs?label=team:t7",
    "/api/jobs?label=team:none",
    "/api/jobs?id=0000ffff",
    "/api/routines?q=nowhere",
    "/api/routines?id=0000ffff",
    "/api/runs?id=0000ffff",
    "/api/usage?by=day&limit=92",
    "/api/usage?by=model",
];
const TOO_BROAD: &str = "query_too_broad";
const SECOND_MS: f64 = 1_000.0;
const MEANWHILE: &str = "GET /api/jobs of a user while searches run";
const MEANWHILE_MAX_MS: f64 = 50.0;
const MEANWHILE_INTERVAL: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(10);

/// Times them.
pub(super) async fn run(bench: &mut Bench, admin: &Caller, user: &Caller) -> Result<(), Failure> {
    for path in SEARCHES {
        let (mut series, started) = (Series::new(format!("all users: {path}"), Unit::Ms), Instant::now());
        for _ in 0..bench.runs {
            series.add(search(admin, path).await);
            if started.elapsed() > LONGEST {
                break;
            }
        }
        let name = series.name().to_owned();
        bench.report.side(series);
        bench.report.limit_at(&name, 99, SECOND_MS);
    }
    meanwhile(bench, admin, user).await
}

async fn search(admin: &Caller, path: &str) -> Result<f64, Failure> {
    let answer = admin.get(path).await?;
    if answer.status != StatusCode::UNPROCESSABLE_ENTITY || !answer.body.contains(TOO_BROAD) {
        answer.success(path)?;
    }
    Ok(answer.ms)
}

/// All searches at once, each again and again on its own connection, and a list beside them.
async fn meanwhile(bench: &mut Bench, admin: &Caller, user: &Caller) -> Result<(), Failure> {
    let mut searches = JoinSet::new();
    for path in SEARCHES {
        let admin = admin.on_another_connection()?;
        searches.spawn(async move {
            loop {
                // How they end was seen above.
                let _ = search(&admin, path).await;
            }
        });
    }
    let (mut series, mut ticks) = (Series::new(MEANWHILE, Unit::Ms), interval(MEANWHILE_INTERVAL));
    let started = Instant::now();
    for _ in 0..bench.runs {
        ticks.tick().await;
        series.add(lists::timed(user, "/api/jobs").await);
        if started.elapsed() > LONGEST {
            break;
        }
    }
    searches.abort_all();
    bench.report.side(series);
    bench.report.limit_at(MEANWHILE, 99, MEANWHILE_MAX_MS);
    Ok(())
}
