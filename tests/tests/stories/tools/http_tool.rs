//! The `http` tool as jobs meet it: offered where the operator allows a destination, refused where the job lists none.

use axum::{
    Router,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    routing::any,
};
use orchestrator::app::{App, TestOverrides};
use protocol::{EgressDecision, ErrorCode, EventData, ThreadState};
use serde_json::{Value, json};
use tests::{World, script_of};
use tokio::{net::TcpListener, task::JoinSet};

use crate::chat::{gates_in_chat::waiting, send, until_state};

/// Host, port, decision, rule, and the bytes up and down.
type Decision = (String, u16, EgressDecision, String, (u64, u64));

async fn listed(worker: &tests::ManualWorker) -> Vec<String> {
    let tools = worker.get("tools").await.expect(200).body["tools"].clone();
    tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn http_is_not_offered_while_nothing_is_allowed() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body = json!({"prompt": "work", "tools": ["http"]});
    ada.post("/api/jobs", &body).await.problem(ErrorCode::NotAvailable);
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    assert!(!listed(&worker).await.contains(&"http".to_owned()));
    let arguments = json!({"method": "GET", "url": "https://example.org"});
    let reply = worker.tool("http", "t1", arguments).await.expect(200);
    assert_eq!(reply.body["error"]["kind"], "not_found", "{:#}", reply.body);
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_job_without_an_egress_list_has_no_http() {
    let world = World::builder().set("GANTRY_EGRESS_CEILING", "*").build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "tools": ["http", "echo"]})).await;
    let worker = world.manual_worker(id).await;
    assert_eq!(listed(&worker).await, ["echo"]);
    let arguments = json!({"method": "GET", "url": "https://example.org/"});
    let reply = worker.tool("http", "t1", arguments).await.expect(200);
    assert_eq!(reply.body["error"]["kind"], "not_found", "{:#}", reply.body);
    assert!(worker.job().await.egress == protocol::EgressView::default());
    worker.finish("done").await;
    assert_eq!(ada.job(id).await.egress, None);
    world.finish().await;
}

/// A server that answers with a text, at `/echo` with the request, and at `/away` and `/kept` with a redirect to the query.
async fn server() -> (std::net::SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let to = |status: StatusCode, uri: &Uri| (status, [(header::LOCATION, uri.query().unwrap_or_default().to_owned())]);
    let away = move |uri: Uri| async move { to(StatusCode::FOUND, &uri) };
    let kept = move |uri: Uri| async move { to(StatusCode::TEMPORARY_REDIRECT, &uri) };
    let echo = async |method: Method, headers: HeaderMap, body: String| {
        format!("{method} {:?} {body}", headers.get(header::AUTHORIZATION))
    };
    // A server that knows the secret.
    let secret = async || (StatusCode::FOUND, [(header::LOCATION, "https://correct-horse-battery.example.org/")]);
    let router = Router::new()
        .route("/text", any(async || "four"))
        .route("/echo", any(echo))
        .route("/away", any(away))
        .route("/kept", any(kept))
        .route("/secret", any(secret));
    let mut task = JoinSet::new();
    task.spawn(async move { drop(axum::serve(listener, router).await) });
    (address, task)
}

#[tokio::test]
async fn a_job_reaches_what_it_lists_and_each_decision_is_an_event() {
    let (one, _one) = server().await;
    let (other, _other) = server().await;
    let ceiling = format!("{one},{other},*.example.org");
    let world = World::builder().set("GANTRY_EGRESS_CEILING", ceiling).build().await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "TOKEN", "value": "correct-horse-battery"})).await.expect(201);
    let egress = json!({"allow": [one.to_string(), "api.example.org"]});
    let id = ada.create(json!({"prompt": "work", "tools": ["http"], "egress": egress})).await;
    assert_eq!(serde_json::to_value(ada.job(id).await.egress).unwrap()["allow"], egress["allow"]);
    let shown = ada.get("/api/jobs").await.expect(200).body["items"][0]["egress"]["allow"].clone();
    assert_eq!(shown, egress["allow"]);
    let worker = world.manual_worker(id).await;
    assert_eq!(listed(&worker).await, ["http"]);
    assert!(worker.job().await.egress.enabled);
    for (call, url, error) in [
        ("t1", format!("http://{one}/text"), None),
        ("t2", format!("http://{other}/text"), Some("not_authorized")),
        ("t3", "http://169.254.169.254/latest/meta-data".to_owned(), Some("not_authorized")),
        ("t4", format!("http://{one}/away?http://{other}/text"), Some("not_authorized")),
        ("t5", "http://2130706433/".to_owned(), Some("invalid_parameters")),
        ("t6", "https://bob:pw@example.org/".to_owned(), Some("invalid_parameters")),
        ("t7", "file:///etc/passwd".to_owned(), Some("invalid_parameters")),
        ("t8", format!("http://{one}/away?http://{one}/text"), None),
        ("t9", format!("http://{one}/secret"), Some("not_authorized")),
    ] {
        let arguments = json!({
            "method": "POST", "url": url, "headers": {"Authorization": "Bearer hunter2"}, "body": "body"
        });
        let reply = worker.tool("http", call, arguments).await.expect(200);
        let kind = reply.body["error"]["kind"].as_str();
        assert_eq!(kind, error, "{url}: {:#}", reply.body);
    }
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    let decisions: Vec<Decision> = ada
        .events(id)
        .await
        .into_iter()
        .filter_map(|event| match event.data {
            EventData::Egress { host, port, decision, rule, bytes_up, bytes_down, .. } => {
                Some((host, port, decision, rule, (bytes_up, bytes_down)))
            }
            _ => None,
        })
        .collect();
    let local = |address: std::net::SocketAddr, allowed: bool, rule: &str, bytes| {
        let decision = if allowed { EgressDecision::Allowed } else { EgressDecision::Denied };
        ("127.0.0.1".to_owned(), address.port(), decision, rule.to_owned(), bytes)
    };
    let rule = one.to_string();
    let expected = [
        local(one, true, &rule, (4, 4)),
        local(other, false, "egress.allow", (0, 0)),
        ("169.254.169.254".to_owned(), 80, EgressDecision::Denied, "egress.allow".to_owned(), (0, 0)),
        local(one, true, &rule, (4, 0)),
        local(other, false, "egress.allow", (0, 0)),
        local(one, true, &rule, (4, 0)),
        local(one, true, &rule, (0, 4)),
        local(one, true, &rule, (4, 0)),
        ("[redacted].example.org".to_owned(), 443, EgressDecision::Denied, "egress.allow".to_owned(), (0, 0)),
    ];
    assert_eq!(decisions, expected);
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    assert_eq!(actions["items"].as_array().map(Vec::len), Some(9));
    assert!(!actions.to_string().contains("hunter2"), "{actions:#}");
    world.finish().await;
}

#[tokio::test]
async fn the_body_of_a_request_stays_with_the_origin_that_was_asked() {
    let (one, _one) = server().await;
    let (other, _other) = server().await;
    let world = World::builder().set("GANTRY_EGRESS_CEILING", format!("{one},{other}")).build().await;
    let ada = world.user("ada");
    let egress = json!({"allow": [one.to_string(), other.to_string()]});
    let id = ada.create(json!({"prompt": "work", "tools": ["http"], "egress": egress})).await;
    let worker = world.manual_worker(id).await;
    let elsewhere = format!("http://{other}/echo");
    for (call, path, expected) in [
        ("t1", format!("kept?{elsewhere}"), json!({"status": 307, "redirected_to": elsewhere, "body": ""})),
        ("t2", format!("away?{elsewhere}"), json!({"status": 200, "url": elsewhere, "body": "GET None "})),
        (
            "t3",
            "kept?/echo".to_owned(),
            json!({"status": 200, "url": format!("http://{one}/echo"), "body": "POST Some(\"x\") private"}),
        ),
    ] {
        let url = format!("http://{one}/{path}");
        let arguments = json!({"method": "POST", "url": url, "headers": {"Authorization": "x"}, "body": "private"});
        let reply = worker.tool("http", call, arguments).await.expect(200);
        let output: Value = serde_json::from_str(reply.body["output"].as_str().unwrap()).unwrap();
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&output[field], value, "{field} of {output:#}");
        }
        let is_refused = output.get("redirected_to").is_some();
        assert_eq!((is_refused, output["url"] == json!(url)), (call == "t1", call == "t1"), "{output:#}");
    }
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    let asked = ada.events(id).await.into_iter().filter_map(|event| match event.data {
        EventData::Egress { port, .. } => Some(port),
        _ => None,
    });
    let (one, other) = (one.port(), other.port());
    assert_eq!(asked.collect::<Vec<_>>(), [one, one, other, one, one]);
    world.finish().await;
}

#[tokio::test]
async fn an_approval_shows_the_headers_of_a_request_without_credentials() {
    let headers = json!({
        "x-note": "a private document", "accept": "*/*", "Authorization": "Bearer hunter2", "x-door": "is correct-horse-battery",
    });
    let arguments = json!({"method": "GET", "url": "https://api.example.org/", "headers": headers});
    let script = script_of(&[
        json!({"when": {"tool_name": "http"}, "reply": {"text": "result: {{tool_result}}"}}),
        json!({"reply": {"text": "I will.", "tool_calls": [{"name": "http", "arguments": arguments}]}}),
    ]);
    let world = World::builder().script(script).set("GANTRY_EGRESS_CEILING", "api.example.org").build().await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "DOOR", "value": "correct-horse-battery"})).await.expect(201);
    send(&ada, "send it").await;
    let gate = waiting(&ada).await;
    let shown = json!({
        "x-note": "a private document", "accept": "*/*", "Authorization": "[redacted]", "x-door": "is [redacted:DOOR]",
    });
    assert_eq!(gate.parameters["headers"], shown, "{gate:#?}");
    ada.post(&format!("/api/gates/{}/resolve", gate.id), &json!({"decision": "deny"})).await.expect(200);
    until_state(&ada, ThreadState::Idle).await;
    world.finish().await;
}

#[tokio::test]
async fn a_list_is_held_to_the_ceiling_when_the_job_is_created_and_restarted() {
    let mut world = World::builder().set("GANTRY_EGRESS_CEILING", "a.example,*.b.example:8443").build().await;
    let ada = world.user("ada");
    for (allow, field) in [
        (json!(["a.example", "c.example"]), "egress.allow[1]"),
        (json!(["a.example:80"]), "egress.allow[0]"),
        (json!(["*"]), "egress.allow[0]"),
        (json!(["https://a.example"]), "egress.allow[0]"),
        (json!(["169.254.169.254"]), "egress.allow[0]"),
    ] {
        let body = json!({"prompt": "work", "egress": {"allow": allow}});
        let problem = ada.post("/api/jobs", &body).await.problem(ErrorCode::Invalid);
        assert_eq!(problem.fields(), [field]);
    }
    let inject = json!([{"host": "a.example", "header": "Authorization", "secret": "TOKEN"}]);
    let body = json!({"prompt": "work", "egress": {"allow": ["a.example"], "inject": inject}});
    let problem = ada.post("/api/jobs", &body).await.problem(ErrorCode::NotAvailable);
    assert_eq!(problem.fields(), ["egress.inject"]);
    let both = ada.post("/api/jobs", &json!({"prompt": "", "egress": {"allow": ["c.example"]}})).await;
    assert_eq!(both.problem(ErrorCode::Invalid).fields(), ["prompt", "egress.allow[0]"]);

    let egress = json!({"allow": ["a.example", "x.b.example:8443"]});
    let id = ada.create(json!({"prompt": "work", "egress": egress, "hold": true})).await;
    ada.cancel(id).await;
    ada.wait_for_end(id).await;
    let again = ada.post(&format!("/api/jobs/{id}/restart"), &json!({})).await.expect(201);
    assert_eq!(again.body["egress"]["allow"], egress["allow"]);
    let first: protocol::JobId = again.body["id"].as_str().unwrap().parse().unwrap();
    world.manual_worker(first).await.finish("done").await;
    world.restart_with(|config| config.egress_ceiling = vec!["a.example".to_owned()]).await;
    let ada = world.user("ada");
    let again = ada.post(&format!("/api/jobs/{id}/restart"), &json!({})).await.expect(201);
    assert_eq!(again.body["egress"]["allow"], json!(["a.example"]));
    let message = again.body["message"].as_str().unwrap();
    assert!(message.contains("hosts that are no longer allowed: x.b.example:8443"), "{message}");
    let second: protocol::JobId = again.body["id"].as_str().unwrap().parse().unwrap();
    world.manual_worker(second).await.finish("done").await;
    world.restart_with(|config| config.egress_ceiling.clear()).await;
    let ada = world.user("ada");
    let body = json!({"prompt": "work", "egress": {"allow": ["a.example"]}});
    ada.post("/api/jobs", &body).await.problem(ErrorCode::NotAvailable);
    let none = ada.create(json!({"prompt": "work", "egress": {"allow": []}})).await;
    world.manual_worker(none).await.finish("done").await;
    world.finish().await;
}

/// A provider's cache finds the common beginning of the requests of all attempts.
#[tokio::test]
async fn attempts_of_a_job_share_the_nonce_of_their_markers() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (one, other) = (ada.create_job("work").await, ada.create_job("work").await);
    let worker = world.manual_worker(one).await;
    let nonce = worker.job().await.delimiter_nonce.unwrap();
    assert!(nonce.len() >= 32, "{nonce}");
    let second = world.manual_worker(other).await;
    assert_ne!(second.job().await.delimiter_nonce.unwrap(), nonce);
    second.finish("done").await;
    // Without a model call the attempt is repeated.
    worker.exit(0);
    ada.wait_for_event(one, "the second attempt", |event| event.attempt == 2).await;
    let worker = world.manual_worker(one).await;
    let assignment = worker.job().await;
    assert_eq!((assignment.attempt, assignment.delimiter_nonce), (2, Some(nonce)));
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn an_invalid_ceiling_stops_the_start() {
    let mut world = World::new().await;
    world.stop().await;
    world.configure(|config| config.egress_ceiling = vec!["a.example".to_owned(), "https://bob:pw@b".to_owned()]);
    let error = match App::build(world.config().clone(), TestOverrides::default()).await {
        Ok(_) => panic!("the daemon was built"),
        Err(error) => error.to_string(),
    };
    assert_eq!(error, "GANTRY_EGRESS_CEILING: 'https://********@b': the port must be a number from 1 to 65535");
    world.configure(|config| config.egress_ceiling = Vec::new());
    world.start().await;
    assert_eq!(world.user("ada").get("/api/jobs").await.expect(200).body["items"], Value::Array(vec![]));
    world.finish().await;
}
