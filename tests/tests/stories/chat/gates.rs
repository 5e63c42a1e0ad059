//! Gates: tool calls of chats that wait for a person, listed and resolved once.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock, domain::gate::parameters_digest};
use protocol::{
    AnyEventData, AuditRecord, ErrorCode, Gate, GateId, GateResolution, GateState, InstanceEventData, Page, ThreadId,
};
use serde_json::{Value, json};
use tests::{User, World, install::program};
use tokio::task::JoinSet;

/// A thread of this user that waits, with its gate, as the chat engine stores them.
async fn waiting(world: &World, user: &str) -> (GateId, ThreadId) {
    let (gate, thread) = (GateId::generate(), ThreadId::generate());
    let (now, mut database) = (world.clock().now(), world.database().await);
    sqlx::query(
        "INSERT INTO chat_threads (id, user_id, state, created_at, updated_at) VALUES ($1, $2, 'awaiting_approval', $3, $3)",
    )
    .bind(*thread.as_uuid())
    .bind(user)
    .bind(now)
    .execute(&mut database)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO gates (id, thread_id, user_id, kind, state, tool, parameters, parameters_digest, reasoning, \
         can_be_remembered, created_at, expires_at) \
         VALUES ($1, $2, $3, 'approval', 'pending', 'http', $4, $5, 'to look it up', TRUE, $6, $7)",
    )
    .bind(*gate.as_uuid())
    .bind(*thread.as_uuid())
    .bind(user)
    .bind(json!({"url": "https://example.com"}).to_string())
    .bind(parameters_digest(&json!({"url": "https://example.com"})))
    .bind(now)
    .bind(now + chrono::TimeDelta::hours(24))
    .execute(&mut database)
    .await
    .unwrap();
    let parked = sqlx::query("INSERT INTO chat_transcripts (thread_id, gate_id) VALUES ($1, $2)");
    parked.bind(*thread.as_uuid()).bind(*gate.as_uuid()).execute(&mut database).await.unwrap();
    (gate, thread)
}

fn path(gate: GateId) -> String {
    format!("/api/gates/{gate}/resolve")
}

async fn list(user: &User, query: &str) -> Vec<GateId> {
    let page: Page<Gate> = user.get(&format!("/api/gates{query}")).await.expect(200).json();
    page.items.iter().map(|gate| gate.id).collect()
}

#[tokio::test]
async fn of_ten_simultaneous_answers_one_is_200() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (gate, thread) = waiting(&world, "ada").await;
    let mut stream = ada.instance_stream("/api/events", None).await;
    let mut answers = JoinSet::new();
    for n in 0..10 {
        let (ada, decision) = (ada.clone(), if n % 2 == 0 { "approve" } else { "deny" });
        answers.spawn(async move { ada.post(&path(gate), &json!({"decision": decision})).await });
    }
    let mut resolved = vec![];
    while let Some(reply) = answers.join_next().await {
        let reply = reply.unwrap();
        if reply.status == 200 {
            resolved.push(reply.json::<GateResolution>());
        } else {
            reply.problem(ErrorCode::GateResolved);
        }
    }
    let [GateResolution { gate: resolved, remembered: false }] = &resolved[..] else { panic!("{resolved:#?}") };
    assert_eq!((resolved.id, resolved.thread_id, resolved.resolved_by.as_deref()), (gate, thread, Some("ada")));
    assert_eq!(ada.get(&format!("/api/gates/{gate}")).await.expect(200).json::<Gate>(), *resolved);
    let event = stream.event().await;
    assert_eq!((event.subject.gate_id, event.subject.thread_id), (Some(gate), Some(thread)));
    let AnyEventData::Instance(InstanceEventData::GateResolved(told)) = &event.data else { panic!("{event:?}") };
    assert_eq!(**told, *resolved);
    let event = stream.event().await;
    let state = AnyEventData::Instance(InstanceEventData::ThreadState {
        thread_id: thread,
        state: protocol::ThreadState::Processing,
    });
    assert_eq!(event.data, state);
    let root = world.someone("root", Role::Admin);
    let page: Page<AuditRecord> = root.get("/api/audit?action=gate.resolve").await.expect(200).json();
    assert!(page.items.iter().all(|row| row.code.as_deref() == Some("gate_resolved")), "{:#?}", page.items);
    world.finish().await;
}

#[tokio::test]
async fn only_the_owner_approves() {
    let world = World::new().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let viewer = world.someone("ada", Role::Viewer);
    let (gate, thread) = waiting(&world, "ada").await;
    let by_thread = |decision: &str| json!({"thread_id": thread, "decision": decision});
    for decision in ["approve", "deny", "always"] {
        bob.post(&path(gate), &json!({"decision": decision})).await.problem(ErrorCode::NotFound);
        bob.post("/api/chat/approval", &by_thread(decision)).await.problem(ErrorCode::NotFound);
        viewer.post(&path(gate), &json!({"decision": decision})).await.problem(ErrorCode::Forbidden);
    }
    bob.get(&format!("/api/gates/{gate}")).await.problem(ErrorCode::NotFound);
    ada.post(&path(GateId::nil()), &json!({"decision": "deny"})).await.problem(ErrorCode::NotFound);
    for decision in ["approve", "always"] {
        root.post(&path(gate), &json!({"decision": decision})).await.problem(ErrorCode::Forbidden);
        root.post("/api/chat/gate/resolve", &by_thread(decision)).await.problem(ErrorCode::Forbidden);
    }
    assert_eq!((list(&bob, "").await, list(&ada, "").await), (vec![], vec![gate]));
    assert_eq!((list(&viewer, "").await, list(&root, "").await), (vec![gate], vec![gate]));
    let denied = root.post(&path(gate), &json!({"decision": "deny", "reason": "not on my watch"})).await.expect(200);
    let denied: GateResolution = denied.json();
    assert_eq!((denied.gate.state, denied.gate.resolved_by.as_deref()), (GateState::Denied, Some("root")));
    ada.post(&path(gate), &json!({"decision": "approve"})).await.problem(ErrorCode::GateResolved);
    ada.post("/api/chat/approval", &by_thread("approve")).await.problem(ErrorCode::GateResolved);
    assert_eq!((list(&ada, "").await, list(&ada, "?state=denied,approved").await), (vec![], vec![gate]));
    let page: Page<AuditRecord> = root.get("/api/audit?action=gate.deny").await.expect(200).json();
    assert_eq!(page.items.iter().map(|row| row.user.as_str()).collect::<Vec<_>>(), ["root"]);
    world.finish().await;
}

#[tokio::test]
async fn an_answer_about_other_parameters_changes_nothing() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (gate, thread) = waiting(&world, "ada").await;
    let shown: Gate = ada.get(&format!("/api/gates/{gate}")).await.expect(200).json();
    let other = parameters_digest(&json!({"url": "https://elsewhere.example.com"}));
    let body = |digest: &str| json!({"decision": "approve", "parameters_digest": digest});
    ada.post(&path(gate), &body(&other)).await.problem(ErrorCode::GateDigestMismatch);
    let mut by_thread = body(&other);
    by_thread["thread_id"] = json!(thread);
    ada.post("/api/chat/approval", &by_thread).await.problem(ErrorCode::GateDigestMismatch);
    for (field, body) in [
        ("decision", json!({"decision": "perhaps"})),
        ("scope", json!({"decision": "always", "scope": "world"})),
        ("reason", json!({"decision": "deny", "reason": "x".repeat(5_000)})),
        ("colour", json!({"decision": "deny", "colour": "red"})),
    ] {
        let reply = ada.post(&path(gate), &body).await.problem(ErrorCode::Invalid);
        assert_eq!(reply.fields(), [field]);
    }
    for query in ["?state=open", "?limit=0", "?cursor=x", "?colour=blue"] {
        ada.get(&format!("/api/gates{query}")).await.problem(ErrorCode::Invalid);
    }
    assert_eq!(ada.get(&format!("/api/gates/{gate}")).await.expect(200).json::<Gate>(), shown);
    ada.post(&path(gate), &body(&shown.parameters_digest)).await.expect(200);
    world.finish().await;
}

#[tokio::test]
async fn a_secret_in_a_reason_reaches_no_reader() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let (gate, _) = waiting(&world, "ada").await;
    let value = "correct horse battery staple";
    root.post("/api/secrets", &json!({"name": "door", "value": value})).await.expect(201);
    let mut stream = ada.instance_stream("/api/events", None).await;
    let body = json!({"decision": "deny", "reason": format!("not with {value}")});
    let denied: GateResolution = root.post(&path(gate), &body).await.expect(200).json();
    let event = serde_json::to_string(&stream.event().await).unwrap();
    let shown = format!("{denied:?} {event} {:?}", ada.get(&format!("/api/gates/{gate}")).await.body);
    assert!(shown.contains("not with") && !shown.contains(value), "{shown}");
    world.finish().await;
}

#[tokio::test]
async fn a_gate_without_an_answer_expires_after_a_day() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let mut world = World::builder().clock(&time).build().await;
    let (gate, thread) = waiting(&world, "ada").await;
    // It survives a restart.
    world.restart().await;
    time.advance(Duration::from_hours(24));
    let ada = world.user("ada");
    let refused = ada.post(&path(gate), &json!({"decision": "approve"})).await;
    refused.problem(ErrorCode::GateExpired);
    tests::until("the gate to expire", async || list(&ada, "?state=expired").await == [gate]).await;
    let by_thread = json!({"thread_id": thread, "decision": "deny"});
    ada.post("/api/chat/gate/resolve", &by_thread).await.problem(ErrorCode::GateExpired);
    world.finish().await;
}

#[tokio::test]
async fn the_command_line_shows_gates_and_resolves_them() {
    let world = World::new().await;
    let ada = world.user("ada");
    let ((first, _), (second, _)) = (waiting(&world, "ada").await, waiting(&world, "ada").await);
    let variables = [("GANTRY_URL", ada.base().to_owned()), ("GANTRY_TOKEN", world.fresh("ada", Role::User))];
    let environment = variables.map(|(name, value)| (name.to_owned(), value));
    let run = async |arguments: &[&str]| program::run(arguments, &environment).await;
    // The last digits are what the table shows, and are enough to name a gate.
    let short = |gate: GateId| gate.to_string()[28..].to_owned();
    let (one, two) = (short(first), short(second));
    let table = run(&["gate", "list"]).await.stdout;
    assert!(table.contains(&one) && table.contains(&two) && table.contains("https://example.com"), "{table}");
    let shown = run(&["gate", "show", &one]).await.stdout;
    assert!(shown.contains("to look it up") && shown.contains("\"url\": \"https://example.com\""), "{shown}");
    assert_eq!(run(&["gate", "approve", &one, "--digest", "other"]).await.code, Some(5));
    let approved = run(&["--json", "gate", "approve", &one, "--always", "--scope", "user"]).await.json();
    assert_eq!((&approved["state"], &approved["remembered"]), (&json!("approved"), &json!(true)));
    let tools: Value = run(&["--json", "tool", "list"]).await.json();
    let http = tools["items"].as_array().unwrap().iter().find(|tool| tool["name"] == json!("http"));
    assert!(http.is_none_or(|http| http["permission"] == json!("always_allow")), "{http:?}");
    assert_eq!(run(&["gate", "deny", &one]).await.code, Some(5), "it is resolved");
    let denied = run(&["gate", "deny", &two, "--reason", "not today"]).await;
    assert_eq!((denied.code, denied.stdout.as_str()), (Some(0), "http denied"));
    assert_eq!(run(&["--json", "gate", "ls"]).await.json()["items"], json!([]));
    assert_eq!(run(&["gate", "show", &GateId::nil().to_string()]).await.code, Some(4));
    world.finish().await;
}
