//! What a user stores has one limit: what would add to it is refused, and what is in progress stores its end.

use orchestrator::auth::Role;
use protocol::{ErrorCode, JobState, StorageKind, UserStorage};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World, install::program};

async fn remember(user: &User, path: &str, bytes: usize) -> Reply {
    let request = user.request(Method::PUT, &format!("/api/memory?path={path}"));
    Reply::of(request.json(&json!({"content": "x".repeat(bytes)}))).await
}

async fn storage(user: &User, query: &str) -> UserStorage {
    user.get(&format!("/api/storage{query}")).await.expect(200).json()
}

fn routine(prompt: &str) -> Value {
    let action = json!({"type": "lightweight", "prompt": prompt});
    json!({"name": "r", "trigger": {"type": "event", "pattern": "."}, "action": action})
}

#[tokio::test]
async fn a_full_account_refuses_what_adds_to_it_and_lets_work_end() {
    let world = World::builder().set("GANTRY_USER_STORAGE_MAX_MB", 1).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let job = ada.create_job("work").await;
    let worker = world.manual_worker(job).await;
    let made = ada.post("/api/routines", &routine("p")).await.expect(201).body["id"].as_str().unwrap().to_owned();
    let trigger = async || {
        let request = ada.request(Method::POST, &format!("/api/routines/{made}/trigger"));
        Reply::of(request.header("idempotency-key", "first").json(&json!({}))).await
    };
    let fired = trigger().await.expect(202).body["id"].clone();
    for path in ["a.md", "b.md"] {
        remember(&ada, path, 600_000).await.expect(201);
    }
    let refused = [
        remember(&ada, "c.md", 1).await,
        ada.post("/api/jobs", &json!({"prompt": "more"})).await,
        ada.post("/api/routines", &routine("more")).await,
        Reply::of(ada.request(Method::PATCH, &format!("/api/routines/{made}")).json(&json!({"description": "d"})))
            .await,
        ada.post(&format!("/api/routines/{made}/trigger"), &json!({"payload": "more"})).await,
        ada.post(&format!("/api/jobs/{job}/prompt"), &json!({"content": "more"})).await,
        ada.post("/api/messages", &json!({"content": "hi"})).await,
        ada.post("/api/system-events", &json!({"source": "s", "event_type": "t"})).await,
        ada.post("/api/chat/send", &json!({"content": "hello"})).await,
    ];
    for reply in refused {
        assert_eq!(reply.status, 507, "{reply:?}");
        let problem = reply.problem(ErrorCode::UserStorageFull).body;
        assert!(problem["detail"].as_str().unwrap().contains("(memory: 1200000, "), "{problem:#}");
    }
    assert_eq!(trigger().await.expect(202).body["id"], fired, "a repetition adds nothing");
    let message = worker.tool("memory_write", "t1", json!({"path": "d.md", "content": "x"})).await.expect(200).body;
    assert!(message.to_string().contains("memory: 1200000"), "{message:#}");
    worker.finish("the result").await;
    assert_eq!(ada.wait_for(job, JobState::Completed).await.result.unwrap().text.as_deref(), Some("the result"));
    ada.post(&format!("/api/routines/{made}/disable"), &json!({})).await.expect(200);
    remember(&bob, "a.md", 10).await.expect(201);

    let seen = storage(&ada, "").await;
    assert_eq!(
        (seen.max_bytes, seen.kinds[0].kind, seen.kinds[0].bytes),
        (Some(1_048_576), StorageKind::Memory, 1_200_000)
    );
    let root = world.someone("root", Role::Admin);
    assert_eq!(storage(&root, "?user=ada").await, seen);
    bob.get("/api/storage?user=ada").await.problem(ErrorCode::Forbidden);
    let variables = [("GANTRY_URL", ada.base().to_owned()), ("GANTRY_TOKEN", world.fresh("ada", Role::User))];
    let environment = variables.map(|(name, value)| (name.to_owned(), value));
    let printed = program::run(&["storage"], &environment).await;
    assert!(printed.stdout.contains("memory       1200000\n") && printed.stdout.contains("of 1048576"), "{printed:?}");

    Reply::of(ada.request(Method::DELETE, "/api/memory?path=a.md")).await.expect(204);
    let next = ada.create_job("more").await;
    ada.cancel(next).await.expect(202);
    ada.wait_for_end(next).await;
    world.finish().await;
}

#[tokio::test]
async fn of_a_long_prompt_whose_rest_is_deleted_no_job_is_restarted() {
    let world = World::builder().set("GANTRY_RECORD_RETENTION_DAYS", 1).build().await;
    let ada = world.user("ada");
    let job = ada.create_job(&"long ".repeat(500)).await;
    let worker = world.manual_worker(job).await;
    worker.report(json!({"outcome": "failed", "reason": "llm_error", "text": ""})).await.expect(200);
    worker.exit(0);
    ada.wait_for(job, JobState::Failed).await;
    let store = world.store().await;
    let limits = orchestrator::store::RetentionLimits { days: 1, audit_days: 1, max_mb: 0 };
    let trimmed = store.trim(&limits, world.clock().now() + chrono::TimeDelta::days(2)).await;
    assert!(trimmed.rows_of("jobs") > 0, "{trimmed:?}");
    store.close().await;
    assert_eq!(ada.job(job).await.prompt.chars().count(), 1_001);
    let restart = format!("/api/jobs/{job}/restart");
    ada.post(&restart, &json!({})).await.problem(ErrorCode::NotRestartable);
    let again: protocol::Job = ada.post(&restart, &json!({"prompt": "long again"})).await.expect(201).json();
    world.manual_worker(again.id).await.finish("done").await;
    ada.wait_for(again.id, JobState::Completed).await;
    world.finish().await;
}
