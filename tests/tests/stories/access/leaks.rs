//! A stored secret stays where it is: whatever a model and a worker do with it, it is in no event, log, result, audit
//! entry or request to a provider, in any form.

mod chat;

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, http::HeaderMap, http::Uri, routing::any};
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD},
};
use orchestrator::telemetry::{LogFormatter, OWN_TARGETS, subscriber};
use protocol::{EventData, JobId, JobReason};
use serde_json::{Value, json};
use tests::{ManualWorker, User, World};
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    hooks::{Receiver, allow},
    mcp::{
        self,
        server::{McpTestServer, tool},
    },
    models::upstream::{Answer, Upstream},
};

/// With characters that every encoding changes.
const SECRET: &str = "s3cret/Horse+battery?staple~42";

/// The secret as others write it.
fn forms() -> Vec<String> {
    let percent = |keeps: fn(u8) -> bool| {
        let escape = |byte: u8| if keeps(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        SECRET.bytes().map(escape).collect::<String>()
    };
    let hexadecimal = SECRET.bytes().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    vec![
        SECRET.to_owned(),
        hexadecimal.to_uppercase(),
        hexadecimal,
        BASE64_STANDARD.encode(SECRET),
        BASE64_URL_SAFE.encode(SECRET),
        BASE64_URL_SAFE_NO_PAD.encode(SECRET),
        // Within a longer text, at another alignment: the part that depends on nothing else.
        BASE64_STANDARD.encode(format!("u:{SECRET}"))[3..42].to_owned(),
        percent(|byte| byte.is_ascii_alphanumeric()),
        percent(|byte| byte.is_ascii_alphanumeric()).to_lowercase().replace("horse", "Horse"),
        percent(|_| false),
    ]
}

/// Every form, within other text.
fn leak() -> String {
    let user = BASE64_STANDARD.encode(format!("u:{SECRET}"));
    forms().into_iter().chain([user]).map(|form| format!("a={form} b")).collect::<Vec<_>>().join("\n")
}

/// Fails if a form of the secret is in the bytes.
fn assert_clean(what: &str, bytes: &[u8]) {
    for form in forms() {
        let at = bytes.windows(form.len()).position(|window| window == form.as_bytes());
        let near = at.map(|at| String::from_utf8_lossy(&bytes[at.saturating_sub(200)..at]).into_owned());
        assert!(at.is_none(), "{what} contains {form} after: {near:?}");
    }
}

/// Fails if a form of the secret is in a file of the directory. The sealed value has none of them.
fn assert_files_clean(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            assert_files_clean(&path);
        } else {
            assert_clean(&path.display().to_string(), &std::fs::read(&path).unwrap());
        }
    }
}

/// Fails if a form of the secret is in what the server keeps, with all of it written.
async fn assert_stored_clean(world: &mut World) {
    world.stop().await;
    assert_files_clean(&world.config().data_dir);
    world.start().await;
}

async fn store_secret(user: &User) {
    user.post("/api/secrets", &json!({"name": "TOKEN", "value": SECRET})).await.expect(201);
}

/// A provider that puts the secret into every part of its answers, and the requests that it got.
async fn leaking_model() -> (Upstream, Arc<Mutex<Vec<Value>>>) {
    let requests = Arc::<Mutex<Vec<Value>>>::default();
    let received = Arc::clone(&requests);
    let upstream = Upstream::start(move |request| {
        let mut received = received.lock().unwrap();
        received.push(request.clone());
        let usage = json!({"prompt_tokens": 3, "completion_tokens": 2});
        let answer = match received.len() {
            1 => Answer::Calls(vec![("echo", json!({"message": leak()})), ("memory_write", json!({"a": [leak()]}))]),
            2 => Answer::Refusal(400, SECRET.to_owned()),
            _ => Answer::Text(leak()),
        };
        (answer, usage)
    })
    .await;
    (upstream, requests)
}

/// Sends the secret through every part of a request to the model.
async fn ask_with_secret(worker: &ManualWorker, call_id: &str) -> tests::Reply {
    let call = json!({"id": format!("c {SECRET}"), "name": "echo", "arguments": {"message": leak(), SECRET: 1}});
    let messages = json!([
        {"role": "system", "content": leak()},
        {"role": "user", "content": leak()},
        {"role": "assistant", "content": leak(), "tool_calls": [call], "reasoning": leak()},
        {"role": "tool", "tool_call_id": format!("c {SECRET}"), "name": "echo", "content": leak()},
    ]);
    worker.post("llm/complete_with_tools", &json!({"call_id": call_id, "messages": messages})).await
}

/// Sends the secret in every kind of event.
async fn events_with_secret(worker: &ManualWorker) {
    let halves = SECRET.split_at(11);
    let events = [
        (1, "message", json!({"role": "assistant", "content": leak()})),
        (2, "message", json!({"role": "user", "content": leak()})),
        (3, "reasoning", json!({"content": leak()})),
        (4, "plan", json!({"goal": leak(), "steps": [{"tool": leak(), "reasoning": leak()}], "confidence": 1.0})),
        (5, "tool_use", json!({"call_id": "t 1", "tool": "shell", "input": {"command": leak(), SECRET: [leak()]}})),
        (
            6,
            "tool_result",
            json!({
                "call_id": "t 1", "tool": "shell", "success": true, "output": leak(), "truncated": false, "duration_ms": 1
            }),
        ),
        (7, "status", json!({"message": leak(), "iteration": 1})),
        (8, "log", json!({"stream": "stdout", "text": leak()})),
        (9, "log", json!({"stream": "stdout", "text": format!("first {}", halves.0)})),
        (10, "log", json!({"stream": "stderr", "text": "another stream\n"})),
    ];
    worker.send(&events).await.expect(200);
    // The other half comes in a separate batch, which is sent twice.
    let rest = [
        (11, "log", json!({"stream": "stdout", "text": halves.1})),
        (12, "log", json!({"stream": "stdout", "text": " then more; unfinished"})),
    ];
    for _ in 0..2 {
        worker.send(&rest).await.expect(200);
    }
    worker.post("status", &json!({"iteration": 1, "message": leak()})).await.expect(200);
}

/// The text of a job's standard output, over all events.
async fn stdout(user: &User, id: JobId) -> String {
    let events = user.events(id).await;
    let text = |data: &EventData| match data {
        EventData::Log { stream: protocol::LogStream::Stdout, text, .. } => text.clone(),
        _ => String::new(),
    };
    events.iter().map(|event| text(&event.data)).collect()
}

#[tokio::test]
async fn a_stored_secret_is_nowhere_but_in_its_sealed_column() {
    let (upstream, requests) = leaking_model().await;
    let mut world = upstream.world().build().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.print(&format!("started\n{}last line: {SECRET}", leak()));

    let answers = [ask_with_secret(&worker, "l1").await.expect(200), ask_with_secret(&worker, "l2").await];
    assert!(!answers[1].status.is_success(), "{:?}", answers[1].status);
    let text = worker.complete_llm("l3", "hello").await;
    assert!(text.content.contains("[redacted]"), "{text:?}");
    let repeated = worker.complete_llm("l3", "hello").await;
    assert_eq!(text, repeated, "the recorded answer");
    assert_clean("the answers", format!("{:?}{text:?}", answers.each_ref().map(|reply| &reply.body)).as_bytes());

    events_with_secret(&worker).await;
    let partial = json!({"text": leak(), "last_actions": [leak()], "iterations": 1, "tool_calls": 0, "usage": {}});
    let report = json!({"outcome": "failed", "message": leak(), "text": leak(), "partial": partial});
    worker.report(report).await.expect(200);
    worker.exit(1);
    ada.wait_for_end(id).await;
    world.engine().until_empty().await;

    let shown = stdout(&ada, id).await;
    assert!(shown.ends_with("first [redacted] then more; unfinished"), "{shown}");
    let shown = ada.get(&format!("/api/jobs/{id}/logs")).await.expect(200);
    assert!(shown.body.as_str().unwrap().contains("last line: [redacted]"), "{:#}", shown.body);
    assert_clean("the requests to the provider", json!(*requests.lock().unwrap()).to_string().as_bytes());
    assert!(requests.lock().unwrap().len() >= 3, "the provider was asked");
    assert_stored_clean(&mut world).await;
    world.finish().await;
}

#[tokio::test]
async fn the_last_line_of_a_worker_that_crashed_is_redacted() {
    let world = World::new().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.record_message(1, "begun").await.expect(200);
    worker.complete_llm("l1", "hello").await;
    worker.print(&format!("panic at {SECRET}"));
    worker.exit(101);
    let job = ada.wait_for_end(id).await;
    assert_eq!(job.reason, Some(JobReason::WorkerCrashed));
    let message = job.message.unwrap();
    assert!(message.contains("panic at [redacted]"), "{message}");
    world.finish().await;
}

/// The prompt is the user's own text: it stays as it is for the user, and the secret in it leaves neither for the
/// provider nor into an event.
#[tokio::test]
async fn a_secret_in_a_prompt_stays_with_its_user() {
    let (upstream, requests) = leaking_model().await;
    let world = upstream.world().processes().build().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let prompt = format!("log in with {SECRET}");
    let id = ada.create(json!({"prompt": prompt, "tools": ["echo"]})).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.prompt.as_str(), job.title.as_str()), (prompt.as_str(), "log in with [redacted]"));
    assert_clean("the events", format!("{:?}", ada.events(id).await).as_bytes());
    let requests = json!(*requests.lock().unwrap()).to_string();
    assert!(requests.contains("log in with [redacted]"), "{requests}");
    assert_clean("the requests to the provider", requests.as_bytes());
    world.finish().await;
}

/// Only the owner's secrets are looked for: another user's text is left alone, which would otherwise reveal them.
#[tokio::test]
async fn another_users_text_is_left_alone() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    store_secret(&ada).await;
    let id = bob.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.record_message(1, SECRET).await.expect(200);
    worker.finish(SECRET).await;
    assert_eq!(bob.wait_for_end(id).await.result.unwrap().text.as_deref(), Some(SECRET));
    world.finish().await;
}

/// A secret that is stored while a job runs is looked for at once, and one that is deleted no more.
#[tokio::test]
async fn a_change_of_the_secrets_applies_at_once() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.record_message(1, SECRET).await.expect(200);
    store_secret(&ada).await;
    worker.record_message(2, SECRET).await.expect(200);
    tests::Reply::of(ada.request(reqwest::Method::DELETE, "/api/secrets/TOKEN")).await.expect(204);
    worker.record_message(3, SECRET).await.expect(200);
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    let events = ada.events(id).await;
    let message =
        |data: &EventData| if let EventData::Message { content, .. } = data { Some(content.clone()) } else { None };
    let messages: Vec<String> = events.iter().filter_map(|event| message(&event.data)).collect();
    assert_eq!(messages, [SECRET, "[redacted]", SECRET]);
    world.finish().await;
}

#[tokio::test]
async fn a_document_that_a_model_writes_contains_no_secret() {
    let world = World::new().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let write = async |call: &str, path: &str| {
        let arguments = json!({"path": path, "content": leak()});
        worker.tool("memory_write", call, arguments).await.expect(200).body
    };
    assert_eq!(write("m1", &format!("a/{SECRET}")).await["error"]["kind"], "invalid_parameters");
    assert_eq!(write("m2", "notes.md").await["success"], true);
    let notes = ada.get("/api/memory?path=notes.md").await.expect(200).body.to_string();
    assert!(notes.contains("a=[redacted] b"), "{notes}");
    assert_clean("the document", notes.as_bytes());
    worker.finish("done").await;
    world.finish().await;
}

/// A server that keeps all that it is sent, and answers with a header, a body and a redirect that it is asked for.
async fn recording_server() -> (String, Arc<Mutex<Vec<u8>>>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let received = Arc::<Mutex<Vec<u8>>>::default();
    let kept = Arc::clone(&received);
    let keep = move |uri: Uri, headers: HeaderMap, body: Bytes| {
        let kept = Arc::clone(&kept);
        async move {
            let mut kept = kept.lock().unwrap();
            kept.extend_from_slice(format!("{uri} {headers:?} ").as_bytes());
            kept.extend_from_slice(&body);
            leak()
        }
    };
    let mut server = JoinSet::new();
    server.spawn(async move { drop(axum::serve(listener, Router::new().fallback(any(keep))).await) });
    (address, received, server)
}

/// Calls of every tool whose arguments leave, or are kept, with the secret in all of them.
async fn call_tools_with_secret(worker: &ManualWorker, address: &str) {
    let percent = forms().pop().unwrap();
    let url = format!("http://{address}/path/{percent}?q={percent}");
    let calls = [
        (
            "http",
            json!({"method": "POST", "url": url, "headers": {"X-Key": SECRET, "X-Other": forms()[1]}, "body": leak()}),
        ),
        (
            "http",
            json!({"method": "POST", "url": format!("http://{address}/"), "body": {SECRET: [leak(), {"a": leak()}]}}),
        ),
        ("http", json!({"method": "GET", "url": format!("https://{percent}.example/{SECRET}")})),
        ("message", json!({"content": leak()})),
        ("srv__echo", json!({"text": leak(), SECRET: [leak()]})),
        ("echo", json!({"message": leak()})),
        ("json", json!({"operation": "query", "value": {SECRET: leak()}, "pointer": format!("/{SECRET}")})),
        ("json", json!({"operation": "parse", "text": leak()})),
        ("memory_write", json!({"path": "notes.md", "content": leak()})),
        ("memory_search", json!({"query": leak()})),
        ("memory_read", json!({"path": SECRET})),
        ("nothing", json!({"a": leak()})),
        (SECRET, json!({})),
    ];
    for (index, (name, arguments)) in calls.into_iter().enumerate() {
        // Failed calls are limited to a few in a second.
        let reply = tests::poll("the call to be accepted", async || {
            let path = format!("tools/{}", name.replace('/', "%2F").replace('?', "%3F"));
            let reply = worker.post(&path, &json!({"call_id": format!("t{index}"), "arguments": arguments})).await;
            (reply.status.as_u16() != 429).then_some(reply)
        })
        .await;
        assert_clean(name, reply.body.to_string().as_bytes());
    }
}

/// The log of this process, in a file.
pub(crate) fn start_log() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(file.reopen().unwrap());
    let filter = format!("info,{}=trace", OWN_TARGETS.join("=trace,"));
    let subscriber = subscriber(&filter, LogFormatter::Json, writer, None);
    tracing::subscriber::set_global_default(subscriber.unwrap()).unwrap();
    file
}

#[tokio::test]
async fn tools_hooks_notifications_and_the_log_get_no_secret() {
    let log = start_log();
    let (address, received, _server) = recording_server().await;
    let mcp = McpTestServer::start(&[tool("echo", "repeats")]).await;
    let webhook = Receiver::start(|_| allow()).await;
    let points = ["before_tool_call", "after_tool_call", "inbound_message", "outbound_message", "job_start", "job_end"];
    let hooks = points.map(|point| webhook.hook(point, "").replace("'guard'", &format!("'{point}'")));
    let ceiling = format!("{address},{},*.example", mcp.address);
    let builder = World::builder().config_file(hooks.concat()).set("GANTRY_EGRESS_CEILING", ceiling);
    let mut world = builder.build().await;
    let servers = vec![mcp::settings("srv", &mcp)];
    world.restart_with(|config| config.mcp = servers).await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let tools = ["http", "message", "srv__echo", "echo", "json", "memory_write", "memory_search", "memory_read"];
    let egress = json!({"allow": [address, "*.example"]});
    let id = ada.create(json!({"prompt": "work", "tools": tools, "egress": egress})).await;
    let worker = world.manual_worker(id).await;
    call_tools_with_secret(&worker, &address).await;
    ada.prompt(id, json!({"content": "go on"})).await.expect(202);
    worker.prompt(protocol::PromptId::nil(), 10).await.unwrap();
    worker.report(json!({"outcome": "failed", "message": leak(), "text": leak(), "iterations": 1})).await.expect(200);
    worker.exit(1);
    ada.wait_for_end(id).await;
    let ends = || webhook.bodies().iter().filter(|body| body["type"] == "job_end").count();
    tests::until("the announcement of the end", async || ends() == 1).await;

    let notices = ada.get("/api/notifications").await.expect(200).body["items"].clone();
    assert_eq!(notices.as_array().map(Vec::len), Some(1), "{notices:#}");
    assert_clean("the notifications", notices.to_string().as_bytes());
    let sent = received.lock().unwrap().clone();
    assert!(String::from_utf8_lossy(&sent).contains("[redacted:TOKEN]"), "the server was reached");
    assert_clean("the requests of http", &sent);
    let calls = mcp.requests("tools/call");
    assert_eq!(calls.len(), 1);
    assert_clean("the calls of the MCP server", json!(calls).to_string().as_bytes());
    let bodies = webhook.bodies();
    for point in points {
        assert!(bodies.iter().any(|body| body["type"] == point), "{point} was asked");
    }
    assert_clean("the bodies of webhooks", json!(bodies).to_string().as_bytes());
    world.stop().await;
    assert_files_clean(&world.config().data_dir);
    let lines = std::fs::read(log.path()).unwrap();
    assert!(lines.len() > 1_000, "the log has lines");
    assert_clean("the log", &lines);
    world.start().await;
    world.finish().await;
}
