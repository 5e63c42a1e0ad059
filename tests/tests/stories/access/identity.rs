//! Authorization: users, roles and both kinds of tokens.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use orchestrator::{
    auth::{Role, SigningKey},
    store::{
        Store,
        tokens::{self, Revoked},
    },
};
use protocol::{ErrorCode, InstanceId, JobId, JobState};
use reqwest::Method;
use serde_json::json;
use tests::{Reply, User, World};

/// Every request on a job, read requests first.
async fn every_request(user: &User, id: JobId) -> Vec<(bool, Reply)> {
    let at = |tail: &str| format!("/api/jobs/{id}{tail}");
    let mut replies = vec![];
    for tail in ["", "/events", "/events?kind=state", "/actions", "/llm-calls"] {
        replies.push((false, user.get(&at(tail)).await));
    }
    let stream = user.request(Method::GET, &at("/events")).header("Accept", "text/event-stream");
    replies.push((false, Reply::of(stream).await));
    for (tail, body) in
        [("/cancel", json!({})), ("/prompt", json!({"content": "hi"})), ("/restart", json!({"prompt": "again"}))]
    {
        replies.push((true, user.post(&at(tail), &body).await));
    }
    replies
}

#[tokio::test]
async fn another_users_job_looks_like_a_missing_one_on_every_request() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let id = ada.create_job("mine").await;
    let other = JobId::generate();
    let foreign = every_request(&bob, id).await;
    for ((_, foreign), (_, missing)) in foreign.into_iter().zip(every_request(&bob, other).await) {
        let (foreign, missing) = (foreign.problem(ErrorCode::NotFound), missing.problem(ErrorCode::NotFound));
        let detail = |reply: &tests::Reply| reply.body["detail"].as_str().unwrap().to_owned();
        assert_eq!(detail(&foreign).replace(&id.to_string(), "ID"), detail(&missing).replace(&other.to_string(), "ID"));
    }
    assert_eq!(bob.jobs().await, []);
    assert_eq!(bob.get("/api/jobs/summary").await.expect(200).body["states"]["pending"], 0);

    let root = world.someone("root", Role::Admin);
    assert_eq!(root.jobs().await.len(), 1, "an admin sees all");
    root.cancel(id).await.expect(202);
    ada.wait_for(id, JobState::Cancelled).await;
    world.finish().await;
}

#[tokio::test]
async fn a_viewer_reads_its_own_jobs_and_changes_nothing() {
    let world = World::new().await;
    let (ada, viewer) = (world.user("ada"), world.someone("ada", Role::Viewer));
    let id = ada.create_job("mine").await;
    let worker = world.manual_worker(id).await;
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    for (changes, reply) in every_request(&viewer, id).await {
        if changes {
            reply.problem(ErrorCode::Forbidden);
        } else {
            reply.expect(200);
        }
    }
    viewer.post("/api/jobs", &json!({"prompt": "p"})).await.problem(ErrorCode::Forbidden);
    let anonymous = world.someone("bob", Role::Viewer);
    anonymous.get(&format!("/api/jobs/{id}")).await.problem(ErrorCode::NotFound);
    world.finish().await;
}

#[tokio::test]
async fn user_and_worker_tokens_are_not_interchangeable() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("mine").await;
    let worker = world.manual_worker(id).await;
    for (_, reply) in every_request(&ada.with_token(&worker.token), id).await {
        reply.problem(ErrorCode::Unauthorized);
    }
    let issued = world.key().issue("ada", Role::Admin, world.clock().now(), chrono::Duration::hours(1)).unwrap();
    let posing = worker.with_token(&issued.token);
    for path in ["job", "tools", "prompt?wait_seconds=0"] {
        posing.get(path).await.problem(ErrorCode::Unauthorized);
    }
    posing.ask("c1", "hi").await.problem(ErrorCode::Unauthorized);
    posing.report(json!({"outcome": "completed", "text": "stolen"})).await.problem(ErrorCode::Unauthorized);
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}

fn unsigned(header: &serde_json::Value, claims: &serde_json::Value, signature: &str) -> String {
    let part = |value: &serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{signature}", part(header), part(claims))
}

#[tokio::test]
async fn an_invalid_token_is_401() {
    let world = World::new().await;
    let now = world.clock().now();
    let hour = chrono::Duration::hours(1);
    let key = world.key();
    let good = key.issue("ada", Role::User, now, hour).unwrap().token;
    let claims = json!({"iss": "gantry", "aud": "gantry-api", "sub": "ada", "role": "admin", "jti": "j",
                        "iat": now.timestamp(), "exp": now.timestamp() + 3600});
    let (head, tail) = good.rsplit_once('.').unwrap();
    let other_key = SigningKey::from_secret(b"another secret that is at least 32 bytes");
    let bad = [
        String::new(),
        "garbage".to_owned(),
        "a.b.c".to_owned(),
        unsigned(&json!({"alg": "none", "typ": "JWT"}), &claims, ""),
        unsigned(&json!({"alg": "None", "typ": "JWT"}), &claims, ""),
        unsigned(&json!({"alg": "HS512", "typ": "JWT"}), &claims, tail),
        unsigned(&json!({"alg": "HS256", "typ": "JWT"}), &claims, tail),
        format!("{head}."),
        other_key.issue("ada", Role::User, now, hour).unwrap().token,
        key.issue("ada", Role::User, now - hour * 2, hour).unwrap().token,
        key.issue("ada", Role::User, now, chrono::Duration::zero()).unwrap().token,
        key.issue_worker(InstanceId::generate(), JobId::generate(), 1, now + hour).unwrap().token,
    ];
    world.anonymous().get("/api/jobs").await.problem(ErrorCode::Unauthorized);
    let ada = world.user("ada");
    for token in bad {
        let reply = ada.with_token(&token).get("/api/jobs").await.problem(ErrorCode::Unauthorized);
        assert!(reply.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer")), "{token}");
    }
    ada.with_token(&good).get("/api/jobs").await.expect(200);
    let basic = world.anonymous().request(Method::GET, "/api/jobs").header("Authorization", format!("Basic {good}"));
    Reply::of(basic).await.problem(ErrorCode::Unauthorized);
    world.finish().await;
}

#[tokio::test]
async fn a_revoked_token_is_401_immediately_and_permanently() {
    let mut world = World::new().await;
    let now = world.clock().now();
    let issued = world.key().issue("ada", Role::User, now, chrono::Duration::hours(1)).unwrap();
    let ada = world.anonymous().with_token(&issued.token);
    ada.get("/api/jobs").await.expect(200);
    // As `gantry token revoke` does, outside the daemon.
    let beside = Store::open(&world.config().database_url).await.unwrap();
    assert_eq!(tokens::revoke(&beside, &issued.jti, now).await.unwrap(), Revoked::Unlisted);
    beside.close().await;
    ada.get("/api/jobs").await.problem(ErrorCode::Unauthorized);
    world.user("ada").get("/api/jobs").await.expect(200);
    world.restart().await;
    world.anonymous().with_token(&issued.token).get("/api/jobs").await.problem(ErrorCode::Unauthorized);
    world.finish().await;
}
