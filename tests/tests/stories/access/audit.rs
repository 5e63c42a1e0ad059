//! The audit log: who did what, and what was refused. Only admins can read it.

use orchestrator::{auth::Role, store::Store};
use protocol::{ActorRole, AuditOutcome, AuditRecord, ErrorCode, JobState};
use serde_json::json;
use tests::{User, World};

async fn audit(admin: &User, query: &str) -> Vec<AuditRecord> {
    let (mut rows, mut cursor) = (vec![], String::new());
    loop {
        let page = admin.get(&format!("/api/audit?limit=2{query}{cursor}")).await.expect(200);
        let items: Vec<AuditRecord> = serde_json::from_value(page.body["items"].clone()).unwrap();
        rows.extend(items);
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

fn reported(rows: &[AuditRecord]) -> Vec<(&str, &str, &str)> {
    let word = |row: &'_ AuditRecord| row.outcome.as_str();
    rows.iter()
        .rev()
        .map(|row| (row.user.as_str(), row.action.as_str(), row.code.as_deref().unwrap_or(word(row))))
        .collect()
}

#[tokio::test]
async fn changes_to_a_job_are_audited() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let reply = ada.post("/api/jobs", &json!({"prompt": "a secret plan", "review": true})).await.expect(201);
    let job: protocol::Job = reply.json();
    let path = format!("/api/jobs/{}", job.id);
    ada.prompt(job.id, json!({"content": "a secret word"})).await.expect(202);
    let worker = world.manual_worker(job.id).await;
    worker.job().await;
    let prompt = worker.prompt(protocol::PromptId::nil(), 5).await.expect("the prompt");
    assert_eq!(worker.prompt(prompt.prompt_id, 0).await, None);
    worker.finish("done").await;
    ada.wait_for(job.id, JobState::Submitted).await;
    ada.post(&format!("{path}/reject"), &json!({"reason": "a secret reason"})).await.expect(200);
    ada.cancel(job.id).await.problem(ErrorCode::JobFinished);
    let again: protocol::Job = root.post(&format!("{path}/restart"), &json!({})).await.expect(201).json();
    root.cancel(again.id).await.expect(202);
    root.wait_for_end(again.id).await;
    let rows = audit(&root, "").await;
    assert_eq!(
        reported(&rows),
        [
            ("ada", "job.create", "done"),
            ("ada", "job.prompt", "done"),
            ("ada", "job.reject", "done"),
            ("ada", "job.cancel", "job_finished"),
            ("root", "job.restart", "done"),
            ("root", "job.cancel", "done"),
        ]
    );
    let first = rows.last().unwrap();
    assert_eq!((first.job_id, first.role, first.outcome), (Some(job.id), ActorRole::User, AuditOutcome::Done));
    assert_eq!(first.request_id.as_deref(), reply.header("x-request-id"));
    assert_eq!(first.source.as_deref(), Some("127.0.0.1"));
    assert!(first.jti.is_some());
    assert!(!serde_json::to_string(&rows).unwrap().contains("secret"));
    // Entries can be filtered by user, action, job and time.
    assert_eq!(reported(&audit(&root, "&user=root").await).len(), 2);
    assert_eq!(reported(&audit(&root, "&action=job.cancel&user=ada").await), [("ada", "job.cancel", "job_finished")]);
    assert_eq!(reported(&audit(&root, &format!("&job={}", again.id)).await), [("root", "job.cancel", "done")]);
    let at = first.at.to_rfc3339().replace('+', "%2B");
    assert_eq!(audit(&root, &format!("&until={at}")).await, []);
    assert_eq!(audit(&root, &format!("&since={at}")).await.len(), 6);
    world.finish().await;
}

#[tokio::test]
async fn refused_requests_are_audited() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let id = ada.create_job("work").await;
    let bob = world.user("bob");
    bob.get(&format!("/api/jobs/{id}")).await.problem(ErrorCode::NotFound);
    bob.cancel(id).await.problem(ErrorCode::NotFound);
    world.someone("eve", Role::Viewer).post("/api/jobs", &json!({"prompt": "x"})).await.problem(ErrorCode::Forbidden);
    bob.get("/api/audit").await.problem(ErrorCode::Forbidden);
    ada.post("/api/jobs", &json!({"prompt": ""})).await.problem(ErrorCode::Invalid);
    // A missing job is not a denial, and an unauthenticated caller has no name.
    bob.get(&format!("/api/jobs/{}", protocol::JobId::nil())).await.problem(ErrorCode::NotFound);
    world.anonymous().cancel(id).await.problem(ErrorCode::Unauthorized);
    world.manual_worker(id).await.finish("done").await;
    ada.wait_for_end(id).await;
    let rows = audit(&root, "").await;
    assert_eq!(
        reported(&rows),
        [
            ("ada", "job.create", "done"),
            ("bob", "read /api/jobs/{id}", "not_found"),
            ("bob", "job.cancel", "not_found"),
            ("eve", "job.create", "forbidden"),
            ("bob", "read /api/audit", "forbidden"),
            ("ada", "job.create", "invalid"),
        ]
    );
    assert!(rows[..5].iter().all(|row| row.outcome == AuditOutcome::Refused));
    assert_eq!((rows[3].job_id, rows[4].job_id), (Some(id), Some(id)));
    world.finish().await;
}

#[tokio::test]
async fn held_jobs_and_file_uploads_are_audited() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let id = ada.create(json!({"prompt": "work", "hold": true})).await;
    let put = ada.request(reqwest::Method::PUT, &format!("/api/jobs/{id}/files/a%20secret.txt")).body("x");
    tests::Reply::of(put).await.expect(201);
    ada.post(&format!("/api/jobs/{id}/start"), &json!({})).await.expect(202);
    world.user("bob").get(&format!("/api/jobs/{id}/files")).await.problem(ErrorCode::NotFound);
    world.manual_worker(id).await.finish("done").await;
    ada.wait_for_end(id).await;
    let rows = audit(&root, "").await;
    assert_eq!(
        reported(&rows),
        [
            ("ada", "job.create", "done"),
            ("ada", "files.write", "done"),
            ("ada", "job.start", "done"),
            ("bob", "read /api/jobs/{id}/files", "not_found"),
        ]
    );
    assert!(rows.iter().all(|row| row.job_id == Some(id)));
    world.finish().await;
}

#[tokio::test]
async fn a_change_and_its_audit_entry_are_one_transaction() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let body = json!({"prompt": "once"});
    let job: protocol::Job = ada.post_once("/api/jobs", "k", &body).await.expect(201).json();
    // A repeated response to an idempotency key adds no entry.
    ada.post_once("/api/jobs", "k", &body).await.expect(201);
    assert_eq!(reported(&audit(&root, "").await), [("ada", "job.create", "done")]);
    world.manual_worker(job.id).await.finish("done").await;
    ada.wait_for_end(job.id).await;
    world.finish().await;
}

#[tokio::test]
async fn created_and_revoked_tokens_are_audited() {
    let world = World::new().await;
    let store = Store::open(&world.config().database_url).await.unwrap();
    let now = world.clock().now();
    orchestrator::store::tokens::revoke(&store, "j1", now).await.unwrap();
    orchestrator::store::tokens::revoke(&store, "j1", now).await.unwrap();
    store.close().await;
    let rows = audit(&world.someone("root", Role::Admin), "").await;
    assert_eq!(reported(&rows), [("operator", "token.revoke", "done")]);
    assert_eq!((rows[0].jti.as_deref(), rows[0].source.as_deref()), (Some("j1"), Some("cli")));
    world.finish().await;
}
