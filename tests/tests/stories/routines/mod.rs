//! Routines, from what fires them to what becomes of their runs.

mod command_line;
mod full_jobs;
mod guardrails;
mod inbound;
mod lightweight;
mod rpc;
mod schedules;
mod tools;

use protocol::{Page, RoutineRun, RunId, RunStatus};
use serde_json::{Value, json};
use tests::User;

/// Creates a routine that is fired by hand. Returns its id.
pub(crate) async fn create(user: &User, name: &str, action: Value) -> String {
    let body = json!({"name": name, "trigger": {"type": "manual"}, "action": action});
    user.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned()
}

/// Fires a routine. Its run need not have started.
pub(crate) async fn trigger(user: &User, routine: &str) -> RoutineRun {
    user.post(&format!("/api/routines/{routine}/trigger"), &json!({})).await.expect(202).json()
}

/// Fires a routine and waits for the end of its run.
pub(crate) async fn triggered(user: &User, routine: &str) -> RoutineRun {
    let body = json!({"wait_seconds": 60});
    user.post(&format!("/api/routines/{routine}/trigger"), &body).await.expect(200).json()
}

/// A run, which must exist.
pub(crate) async fn run_of(user: &User, run: RunId) -> RoutineRun {
    user.get(&format!("/api/runs/{run}")).await.expect(200).json()
}

/// Waits until a run has this status.
pub(crate) async fn until_run(user: &User, run: RunId, status: RunStatus) -> RoutineRun {
    tests::poll(&format!("the run to be {status}"), async || {
        Some(run_of(user, run).await).filter(|run| run.status == status)
    })
    .await
}

/// The runs of a routine, newest first.
pub(crate) async fn runs(user: &User, routine: &str) -> Vec<RoutineRun> {
    let page: Page<RoutineRun> = user.get(&format!("/api/routines/{routine}/runs?limit=200")).await.expect(200).json();
    page.items
}
