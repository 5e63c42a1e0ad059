//! Routines and their runs, over the public API.

use std::fmt::Display;

use protocol::{Page, RoutineRun, RunId, RunStatus};
use serde_json::json;

use super::{User, poll};

/// Fires a routine manually. Its run need not have started.
pub async fn trigger(user: &User, routine: impl Display) -> RoutineRun {
    user.post(&format!("/api/routines/{routine}/trigger"), &json!({})).await.expect(202).json()
}

/// Fires a routine manually and waits for the end of its run.
pub async fn triggered(user: &User, routine: impl Display) -> RoutineRun {
    let body = json!({"wait_seconds": 60});
    user.post(&format!("/api/routines/{routine}/trigger"), &body).await.expect(200).json()
}

/// A run, which must exist.
pub async fn run_of(user: &User, run: RunId) -> RoutineRun {
    user.get(&format!("/api/runs/{run}")).await.expect(200).json()
}

/// Waits until a run has this status.
pub async fn until_run(user: &User, run: RunId, status: RunStatus) -> RoutineRun {
    poll(&format!("the run to be {status}"), async || Some(run_of(user, run).await).filter(|run| run.status == status))
        .await
}

/// How many firings runs and entries of skipped firings stand for.
pub fn firings(runs: &[RoutineRun]) -> u64 {
    runs.iter().map(|run| run.skipped_count.unwrap_or(1)).sum()
}

/// All runs of a routine, newest first. At most 200.
pub async fn runs(user: &User, routine: impl Display) -> Vec<RoutineRun> {
    let page: Page<RoutineRun> = user.get(&format!("/api/routines/{routine}/runs?limit=200")).await.expect(200).json();
    assert!(page.next_cursor.is_none(), "more runs than a test looks at");
    page.items
}
