//! Child jobs: created by a job's tool within its settings, in the slot of a parent that waits, and ended with it.

mod create;
mod lifecycle;

use protocol::{Job, JobId, ToolCallReply, ToolErrorKind};
use serde_json::{Value, json};
use tests::{ManualWorker, User, World};

/// A running job that may have this many jobs below it.
async fn parent_of(world: &World, user: &User, max_children: u32) -> ManualWorker {
    let id = user.create(json!({"prompt": "work", "limits": {"max_children": max_children}})).await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    worker
}

/// The result of a tool call: its output as JSON, or its error.
async fn call(
    worker: &ManualWorker,
    call_id: &str,
    tool: &str,
    arguments: Value,
) -> Result<Value, (ToolErrorKind, String)> {
    let reply: ToolCallReply = worker.tool(tool, call_id, arguments).await.expect(200).json();
    match reply.error {
        Some(failure) => Err((failure.kind, failure.message)),
        None => Ok(serde_json::from_str(reply.output.as_ref().and_then(Value::as_str).expect("output")).expect("JSON")),
    }
}

fn id_of(output: &Value) -> JobId {
    serde_json::from_value(output["job_id"].clone()).expect("an id")
}

/// Creates a child, which must succeed.
async fn create(worker: &ManualWorker, call_id: &str, arguments: Value) -> JobId {
    let mut with_prompt = json!({"prompt": "a part of the work"});
    with_prompt.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
    id_of(&call(worker, call_id, "create_job", with_prompt).await.expect("the child is created"))
}

async fn finish(world: &World, user: &User, id: JobId) -> Job {
    world.manual_worker(id).await.finish("done").await;
    user.wait_for_end(id).await
}

/// Ends a job with success.
async fn end(worker: ManualWorker, user: &User) {
    let id = worker.job;
    worker.finish("done").await;
    user.wait_for_end(id).await;
}
