//! The `http` tool as jobs meet it: offered where the operator allows a destination, refused where the job lists none.

use orchestrator::app::{App, TestOverrides};
use protocol::ErrorCode;
use serde_json::{Value, json};
use tests::World;
use tokio::net::TcpListener;

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
async fn a_job_without_an_egress_list_reaches_nothing() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let world = World::builder().set("GANTRY_EGRESS_CEILING", format!("*,{address}")).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "tools": ["http"]})).await;
    let worker = world.manual_worker(id).await;
    assert_eq!(listed(&worker).await, ["http"]);
    for (call, url, kind) in [
        ("t1", format!("http://{address}/"), "not_authorized"),
        ("t2", "https://example.org/".to_owned(), "not_authorized"),
        ("t3", "http://169.254.169.254/latest/meta-data".to_owned(), "not_authorized"),
        ("t4", "http://2130706433/".to_owned(), "invalid_parameters"),
        ("t5", "https://bob:pw@example.org/".to_owned(), "invalid_parameters"),
        ("t6", "file:///etc/passwd".to_owned(), "invalid_parameters"),
    ] {
        let arguments = json!({"method": "GET", "url": url, "headers": {"Authorization": "Bearer hunter2"}});
        let reply = worker.tool("http", call, arguments).await.expect(200);
        assert_eq!(reply.body["error"]["kind"], kind, "{url}: {:#}", reply.body);
    }
    let connected = tokio::time::timeout(std::time::Duration::ZERO, server.accept()).await;
    assert!(connected.is_err(), "no connection was made");
    worker.finish("done").await;
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    assert_eq!(actions["items"].as_array().map(Vec::len), Some(6));
    assert!(!actions.to_string().contains("hunter2"), "{actions:#}");
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
