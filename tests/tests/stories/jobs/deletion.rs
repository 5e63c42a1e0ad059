//! Deleting a finished job: what goes, what stays counted, and what refers to it afterwards.

use orchestrator::auth::Role;
use protocol::{ErrorCode, JobId, JobState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World};

async fn delete(user: &User, id: JobId) -> Reply {
    Reply::of(user.request(Method::DELETE, &format!("/api/jobs/{id}"))).await
}

/// Creates a job that asks the model, calls a tool, leaves a file and ends.
async fn worked(world: &World, user: &User, body: Value, key: &str) -> JobId {
    let id = user.post_once("/api/jobs", key, &body).await.expect(201).json::<protocol::Job>().id;
    let worker = world.manual_worker(id).await;
    worker.complete_llm("c1", "hi").await;
    worker.tool("echo", "t1", json!({"message": "hi"})).await.expect(200);
    worker.record_message(1, "a text that goes").await.expect(200);
    std::fs::write(world.workspace(id).join("file.txt"), "content").unwrap();
    worker.print("printed");
    worker.finish("done").await;
    user.wait_for(id, JobState::Completed).await;
    world.engine().until_empty().await;
    id
}

#[tokio::test]
async fn a_deleted_job_is_gone_and_what_it_used_stays_counted() {
    let mut world = World::builder().set("GANTRY_METRICS_BIND", "127.0.0.1:0").build().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let request = json!({"prompt": "work"});
    let id = worked(&world, &ada, request.clone(), "first").await;
    let other = worked(&world, &ada, request.clone(), "second").await;
    let log = world.config().data_dir.join(format!("logs/gantry-job-{id}-1.log"));
    assert!(log.exists() && world.workspace(id).exists());
    let totals = async |ada: &User| {
        let mut bodies = Vec::new();
        for path in ["/api/usage?by=day", "/api/usage?by=model", "/api/jobs/summary"] {
            let body = ada.get(path).await.expect(200).body;
            bodies.push(body.get("usage_today").unwrap_or(&body).clone());
        }
        bodies
    };
    let before = totals(&ada).await;
    assert_eq!(before[0]["items"][0]["tool_calls"], 2, "{before:#?}");
    let ended = "gantry_jobs_ended_total{state=\"completed\",reason=\"none\"}";
    world.until_metric(ended, 2.0).await;

    assert_eq!(delete(&ada, id).await.status, 204);
    for path in ["", "/events", "/actions", "/llm-calls", "/files", "/logs", "/archive"] {
        ada.get(&format!("/api/jobs/{id}{path}")).await.problem(ErrorCode::NotFound);
    }
    delete(&ada, id).await.problem(ErrorCode::NotFound);
    assert!(!log.exists() && !world.workspace(id).exists());
    assert_eq!(ada.jobs().await.iter().map(|job| job.id).collect::<Vec<_>>(), [other]);
    assert_eq!(totals(&ada).await, before);
    let lines = ada.get("/api/usage?by=job").await.expect(200).body;
    assert_eq!(lines["items"].as_array().map(Vec::len), Some(1), "{lines:#}");
    // The key neither creates the job again nor shows what is gone; another body is refused as before.
    ada.post_once("/api/jobs", "first", &request).await.problem(ErrorCode::Conflict);
    ada.post_once("/api/jobs", "first", &json!({"prompt": "x"})).await.problem(ErrorCode::IdempotencyMismatch);
    assert_eq!(ada.post_once("/api/jobs", "second", &request).await.expect(201).body["id"], json!(other));
    let audit = root.get(&format!("/api/audit?job={id}&limit=2")).await.expect(200).body;
    assert_eq!((&audit["items"][1]["action"], &audit["items"][1]["outcome"]), (&json!("job.delete"), &json!("done")));

    // The events of other jobs keep their cursors, and a reader that resumes before the deleted ones sees no break.
    let mut stream = ada.instance_stream("/api/events", Some(0)).await;
    assert_eq!(stream.event().await.subject.job_id, Some(other));
    drop(stream);
    let shown = ada.request(Method::GET, "/api/events?limit=200").header("Accept", "application/json");
    let shown = Reply::of(shown).await.expect(200).body;
    let of_job: Vec<_> =
        shown["items"].as_array().unwrap().iter().filter(|event| event["job_id"] == json!(id)).collect();
    assert!(
        matches!(of_job[..], [event] if event["kind"] == "job_deleted" && event["data"] == json!({"id": id})),
        "{of_job:#?}"
    );
    world.restart().await;
    let ada = world.user("ada");
    assert_eq!(totals(&ada).await, before);
    world.until_metric(ended, 2.0).await;
    let root = world.someone("root", Role::Admin);
    assert_eq!(delete(&root, other).await.status, 204, "an admin deletes the jobs of others");
    assert_eq!(totals(&ada).await, before);
    world.finish().await;
}

#[tokio::test]
async fn only_a_finished_job_is_deleted_and_only_by_those_who_may() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let viewer = world.someone("ada", Role::Viewer);
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let refused = delete(&ada, id).await.problem(ErrorCode::NotFinished);
    assert!(refused.body["detail"].as_str().unwrap().contains("cancel it first"), "{:#}", refused.body);
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    delete(&bob, id).await.problem(ErrorCode::NotFound);
    delete(&viewer, id).await.problem(ErrorCode::Forbidden);
    delete(&ada, JobId::nil()).await.problem(ErrorCode::NotFound);
    assert_eq!(ada.job(id).await.state, JobState::Completed);
    let reviewed = ada.create(json!({"prompt": "work", "review": true})).await;
    world.manual_worker(reviewed).await.finish("done").await;
    ada.wait_for(reviewed, JobState::Submitted).await;
    delete(&ada, reviewed).await.problem(ErrorCode::NotFinished);
    ada.post(&format!("/api/jobs/{reviewed}/accept"), &json!({})).await.expect(200);
    delete(&ada, reviewed).await.expect(204);
    world.finish().await;
}

#[tokio::test]
async fn references_to_a_deleted_job_stay_safe() {
    let world = World::new().await;
    let ada = world.user("ada");
    let parent = ada.create(json!({"prompt": "work", "limits": {"max_children": 1}})).await;
    let worker = world.manual_worker(parent).await;
    let made = worker.tool("create_job", "t1", json!({"prompt": "part", "wait": false})).await.expect(200).body;
    assert_eq!(made["success"], true, "{made:#}");
    let children = ada.get(&format!("/api/jobs?parent={parent}")).await.expect(200).body;
    let child: JobId = serde_json::from_value(children["items"][0]["id"].clone()).unwrap();
    let below = world.manual_worker(child).await;
    worker.report(json!({"outcome": "failed", "reason": "llm_error", "text": ""})).await.expect(200);
    worker.exit(0);
    ada.wait_for(parent, JobState::Failed).await;
    below.exit(0);
    ada.wait_for_end(child).await;
    let again: protocol::Job = ada.post(&format!("/api/jobs/{parent}/restart"), &json!({})).await.expect(201).json();
    delete(&ada, parent).await.expect(204);
    assert_eq!(ada.job(child).await.parent_id, None);
    assert_eq!(ada.job(again.id).await.restarted_from, Some(parent));
    world.manual_worker(again.id).await.finish("done").await;
    ada.wait_for(again.id, JobState::Completed).await;
    world.finish().await;
}
