//! Limits of the public API, and what a request may cost the server.

use orchestrator::{
    auth::Role,
    store::{Store, tokens},
};
use protocol::{AuditRecord, ErrorCode, Job, JobState, JobSummary};
use serde_json::{Value, json};
use tests::{Reply, User, World};

async fn held(user: &User, fields: Value) -> protocol::JobId {
    let mut body = json!({"prompt": "wait", "hold": true});
    for (name, value) in fields.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    user.create(body).await
}

async fn cancel_all(user: &User) {
    for job in user.jobs().await {
        user.cancel(job.id).await;
        user.wait_for_end(job.id).await;
    }
}

#[tokio::test]
async fn a_list_contains_summaries_and_is_limited_to_a_mebibyte() {
    let world = World::new().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let long = "é".repeat(50_000);
    let id = held(&ada, json!({"prompt": long, "metadata": {"k": "v"}})).await;
    let page = ada.get("/api/jobs").await.expect(200).body;
    let item = page["items"][0].as_object().unwrap();
    assert_eq!(item["prompt_preview"].as_str().map(|text| text.chars().count()), Some(200));
    for absent in ["prompt", "result", "metadata"] {
        assert!(!item.contains_key(absent), "{absent}");
    }
    let listed: JobSummary = serde_json::from_value(page["items"][0].clone()).unwrap();
    assert_eq!(listed, ada.job(id).await.summary());

    let label = |n: usize| (format!("{n:060}"), "x".repeat(250));
    let labels: serde_json::Map<String, Value> = (0..64).map(label).map(|(key, value)| (key, json!(value))).collect();
    for _ in 0..60 {
        held(&ada, json!({"labels": labels})).await;
    }
    let reply = ada.request(reqwest::Method::GET, "/api/jobs?limit=200").send().await.unwrap();
    let bytes = reply.bytes().await.unwrap();
    assert!((900_000..=1024 * 1024).contains(&bytes.len()), "{}", bytes.len());
    let jobs = ada.jobs().await;
    assert_eq!(jobs.len(), 61, "the pages must contain all items");
    assert!(jobs.is_sorted_by(|a, b| a.id > b.id));

    held(&bob, json!({})).await;
    let count = async |who: &User, query: &str| {
        who.get(&format!("/api/jobs?limit=200&{query}")).await.expect(200).body["items"].as_array().map(Vec::len)
    };
    assert_eq!(count(&root, "user=bob").await, Some(1));
    assert_eq!(count(&bob, "user=bob").await, Some(1));
    bob.get("/api/jobs?user=ada").await.problem(ErrorCode::Forbidden);
    let many = |count: usize| vec!["label=a:b"; count].join("&");
    assert_eq!(count(&bob, &many(64)).await, Some(0));
    for query in [many(65), many(1_100), "label=$x:1".to_owned(), "label=%00:1".to_owned(), "label=:1".to_owned()] {
        let reply = bob.get(&format!("/api/jobs?{query}")).await.problem(ErrorCode::Invalid);
        assert_eq!(reply.fields(), ["label"]);
    }
    cancel_all(&root).await;
    world.finish().await;
}

#[tokio::test]
async fn metadata_is_stored_unchanged_up_to_its_size_limit() {
    let world = World::new().await;
    let ada = world.user("ada");
    let metadata = json!({"b": [1, 2.5, null, {"c": "ä"}], "a": "x".repeat(60 * 1024)});
    let id = held(&ada, json!({"metadata": metadata})).await;
    let job = ada.job(id).await;
    assert_eq!(serde_json::to_value(&job.metadata).unwrap(), metadata);
    assert!(job.metadata.as_json().starts_with("{\""));
    let deep = format!("{{\"deep\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    ada.post_raw("/api/jobs", &format!("{{\"prompt\":\"p\",\"hold\":true,\"metadata\":{deep}}}")).await.expect(201);
    let zeros = format!("{{\"prompt\":\"p\",\"metadata\":{{\"a\":[{}0]}}}}", "0,".repeat(100_000));
    let text = format!("{{\"prompt\":\"p\",\"metadata\":{{\"a\":\"{}\"}}}}", "x".repeat(100_000));
    for body in [zeros, text] {
        let reply = ada.post_raw("/api/jobs", &body).await.problem(ErrorCode::Invalid);
        assert_eq!(reply.fields(), ["metadata"], "{:#}", reply.body);
    }
    for (field, value) in [
        ("metadata", json!([])),
        ("metadata", Value::Null),
        ("priority", json!(-101)),
        ("priority", json!(i32::MIN)),
        ("labels", (0..65).map(|n| (n.to_string(), json!("v"))).collect()),
    ] {
        let mut body = json!({"prompt": "p"});
        body[field] = value;
        let reply = ada.post("/api/jobs", &body).await.problem(ErrorCode::Invalid);
        assert_eq!(reply.fields(), [field]);
    }
    cancel_all(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn a_restart_applies_current_limits_and_reports_them() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    let limits = json!({"memory_mb": 4096, "timeout_seconds": 3600, "max_tokens": 500_000});
    let id = held(&ada, json!({"limits": limits})).await;
    ada.cancel(id).await;
    ada.wait_for_end(id).await;
    world.stop().await;
    world.configure(|config| {
        config.limits_ceiling.memory_mb = 512;
        config.limits_ceiling.timeout_seconds = 100;
        config.limits_ceiling.max_tokens = 1_000;
        config.limits_ceiling.max_cost_usd = 0.5;
    });
    world.start().await;
    let ada = world.user("ada");
    ada.post("/api/jobs", &json!({"prompt": "p", "limits": limits})).await.problem(ErrorCode::Invalid);
    let job: Job = ada.post(&format!("/api/jobs/{id}/restart"), &json!({})).await.expect(201).json();
    let got = (job.limits.memory_mb, job.limits.timeout_seconds, job.limits.max_tokens, job.limits.max_cost_usd);
    assert_eq!(got, (512, 100, 1_000, 0.5));
    let message = job.message.unwrap_or_default();
    for change in ["memory_mb 4096 -> 512", "timeout_seconds 3600 -> 100", "max_tokens 500000 -> 1000", "max_cost_usd"]
    {
        assert!(message.contains(change), "{message}");
    }
    world.manual_worker(job.id).await.finish("done").await;
    ada.wait_for(job.id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn secrets_in_a_provider_url_are_never_shown() {
    let world = World::builder()
        .set("GANTRY_LLM_PROVIDER", "openai")
        .set("GANTRY_LLM_SCRIPT", "")
        .set("GANTRY_LLM_MODEL", "m")
        .set("GANTRY_LLM_API_KEY", "sk-0123456789")
        // The discard port: nothing listens there.
        .set("GANTRY_LLM_BASE_URL", "http://bob:hunter2@127.0.0.1:9/v1?api-key=abcdef")
        .build()
        .await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let refused = worker.ask("c1", "hello").await.problem(ErrorCode::RateLimited);
    let messages = refused.body["detail"].as_str().unwrap_or_default().to_owned();
    worker
        .report(json!({"outcome": "failed", "reason": "llm_error", "message": messages, "text": ""}))
        .await
        .expect(200);
    worker.exit(0);
    let job = ada.wait_for(id, JobState::Failed).await;
    let mut reported = vec![format!("{:?}", refused.body), format!("{job:?}"), format!("{:?}", world.config())];
    for path in ["/events", "/llm-calls", "/actions"] {
        reported.push(ada.get(&format!("/api/jobs/{id}{path}")).await.expect(200).body.to_string());
    }
    reported.push(root.get("/readyz").await.expect(200).body.to_string());
    reported.push(root.get("/metrics").await.expect(200).body.to_string());
    for text in &reported {
        for secret in ["hunter2", "abcdef", "sk-0123456789"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    let calls = ada.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200).body;
    assert!(calls["items"][0]["error"].is_string(), "{calls:#}");
    world.finish().await;
}

async fn rows(admin: &User, user: &str) -> Vec<AuditRecord> {
    let (mut rows, mut cursor) = (vec![], String::new());
    loop {
        let page = admin.get(&format!("/api/audit?limit=200&user={user}{cursor}")).await.expect(200);
        rows.extend(serde_json::from_value::<Vec<AuditRecord>>(page.body["items"].clone()).unwrap());
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

#[tokio::test]
async fn refusals_beyond_the_rate_limit_are_counted_instead_of_audited() {
    let world = World::builder().set("GANTRY_METRICS_BIND", "127.0.0.1:0").build().await;
    let (eve, root) = (world.someone("eve", Role::Viewer), world.someone("root", Role::Admin));
    for _ in 0..200 {
        eve.post("/api/jobs", &json!({"prompt": "x"})).await.problem(ErrorCode::Forbidden);
    }
    let recorded = rows(&root, "eve").await.len();
    // A burst, plus one for each second that has passed.
    assert!((60..150).contains(&recorded), "{recorded}");
    let metrics = world.metrics().await;
    let unrecorded = metrics.value("gantry_audit_refusals_unrecorded_total");
    assert!((unrecorded - (200.0 - f64::from(u32::try_from(recorded).unwrap()))).abs() < f64::EPSILON, "{unrecorded}");
    world.finish().await;
}

#[tokio::test]
async fn an_expired_token_is_audited_and_an_unknown_one_is_counted() {
    let world = World::builder().set("GANTRY_METRICS_BIND", "127.0.0.1:0").build().await;
    let root = world.someone("root", Role::Admin);
    let now = world.clock().now();
    let issue = |user: &str, at| world.key().issue(user, Role::User, at, chrono::Duration::hours(1)).unwrap();
    let (expired, revoked) = (issue("ada", now - chrono::Duration::days(1)), issue("bob", now));
    let store = Store::open(&world.config().database_url).await.unwrap();
    tokens::revoke(&store, &revoked.jti, now).await.unwrap();
    store.close().await;
    let with = |token: &str| world.anonymous().with_token(token);
    with(&expired.token).get("/api/jobs").await.problem(ErrorCode::Unauthorized);
    with(&revoked.token).post("/api/jobs", &json!({"prompt": "p"})).await.problem(ErrorCode::Unauthorized);
    let forged = format!("{}x", &revoked.token[..revoked.token.len() - 1]);
    with(&forged).get("/api/jobs").await.problem(ErrorCode::Unauthorized);
    world.anonymous().get("/api/jobs").await.problem(ErrorCode::Unauthorized);
    let reported = |rows: Vec<AuditRecord>| -> Vec<(String, Option<String>, Option<String>)> {
        rows.into_iter().map(|row| (row.action, row.code, row.jti)).collect()
    };
    let unauthorized = Some("unauthorized".to_owned());
    let row = |action: &str, jti: &str| (action.to_owned(), unauthorized.clone(), Some(jti.to_owned()));
    assert_eq!(reported(rows(&root, "ada").await), [row("read /api/jobs", &expired.jti)]);
    assert_eq!(reported(rows(&root, "bob").await), [row("job.create", &revoked.jti)]);
    let metrics = world.metrics().await;
    assert!((metrics.value("gantry_unauthenticated_requests_total") - 2.0).abs() < f64::EPSILON);
    world.finish().await;
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada, json!({})).await;
    let issue = |ttl| world.key().issue("ada", Role::User, world.clock().now(), ttl).unwrap();
    let (short, revoked) = (issue(chrono::Duration::seconds(3)), issue(chrono::Duration::hours(1)));
    let open = async |token: &str| {
        let mut stream = ada.with_token(token).stream(id, None).await;
        assert!(stream.next().await.is_some(), "event 1");
        stream
    };
    let (mut brief, mut long) = (open(&short.token).await, open(&revoked.token).await);
    assert_eq!(brief.next().await, None, "the stream must end with its token even without events");
    let store = world.store().await;
    tokens::revoke(&store, &revoked.jti, world.clock().now()).await.unwrap();
    store.close().await;
    ada.cancel(id).await;
    assert_eq!(long.next().await, None, "events after the revocation must not be delivered");
    ada.wait_for_end(id).await;
    world.finish().await;
}

#[tokio::test]
async fn html_pages_allow_only_their_own_scripts_and_no_framing() {
    let world = World::new().await;
    let anonymous = world.anonymous();
    let policy = |reply: &Reply| reply.header("content-security-policy").unwrap_or_default().to_owned();
    for path in ["/api/docs/", "/api/docs/swagger-ui-bundle.js", "/api/openapi.json", "/healthz", "/no/such/path"] {
        let reply = anonymous.get(path).await;
        let policy = policy(&reply);
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
    }
    let page = anonymous.get("/api/docs/").await.expect(200);
    let policy = policy(&page);
    for part in ["script-src 'self';", "style-src 'self' 'unsafe-inline'", "img-src 'self' data:", "connect-src 'self'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    let html = page.body.as_str().unwrap_or_default();
    assert!(
        html.contains("swagger-ui-bundle.js") && !html.contains("<script>"),
        "the page has no script inline: {html}"
    );
    world.finish().await;
}

#[tokio::test]
async fn unauthenticated_readiness_shows_only_states_and_reasons() {
    let world = World::new().await;
    let reported = world.anonymous().get("/readyz").await.expect(200).body;
    assert_eq!(reported["status"], "ready");
    assert_eq!(
        (&reported["engine"], &reported["sandbox"]),
        (&json!({"status": "ok"}), &json!({"state": "ready", "reason": null, "jobs_left": null}))
    );
    assert_eq!(reported.get("models"), None);
    let stale = world.anonymous().with_token("no.such.token").get("/readyz").await.expect(200).body;
    assert_eq!(stale, reported, "an invalid token must be treated like no token");
    let reported = world.user("ada").get("/readyz").await.expect(200).body;
    assert!(reported["engine"]["version"].is_string() && reported["models"][0]["model"].is_string(), "{reported:#}");
    world.finish().await;
}

#[tokio::test]
async fn three_concurrent_large_metadata_bodies_leave_the_server_responsive() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body = |metadata: &str| format!("{{\"prompt\":\"p\",\"metadata\":{{\"a\":{metadata}}}}}");
    let many_values = body(&format!("[{}0]", "0,".repeat(11 * 1024 * 1024)));
    let one_text = body(&format!("\"{}\"", "x".repeat(22 * 1024 * 1024)));
    for (body, code) in [(many_values, ErrorCode::TooLarge), (one_text, ErrorCode::Invalid)] {
        let refused = futures_util::future::join_all((0..3).map(|_| ada.post_raw("/api/jobs", &body)));
        for reply in tests::within("three refusals", refused).await {
            reply.problem(code);
        }
        ada.get("/healthz").await.expect(200);
    }
    world.finish().await;
}
