//! Routines, from what fires them to what becomes of their runs.

mod command_line;
mod disturbed_schedules;
mod edits;
mod full_jobs;
mod guardrails;
mod inbound;
mod lightweight;
mod results;
mod rpc;
mod schedules;
mod tools;
mod upcoming;
mod zones;

use serde_json::{Value, json};
use tests::User;

/// Creates a routine that is triggered manually. Returns its id.
pub(crate) async fn create(user: &User, name: &str, action: Value) -> String {
    let body = json!({"name": name, "trigger": {"type": "manual"}, "action": action});
    user.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned()
}
