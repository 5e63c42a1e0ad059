//! Floods from one container and from unauthenticated clients: other callers are served, and memory stays bounded.

use std::time::{Duration, Instant};

use orchestrator::auth::Role;
use protocol::{ErrorCode, JobState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, World};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
};

/// As JSON text, so that the test itself does not build a large `Value`.
fn zeros(megabytes: usize) -> String {
    format!("[{}0]", "0,".repeat(megabytes << 19))
}

#[tokio::test]
async fn half_sent_requests_of_one_container_affect_no_other_caller() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let id = ada.create_job("flood").await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    let socket = world.engine().until_running(id).await.spec.run_dir.join("worker.sock");
    let flood = async {
        let mut held = vec![];
        loop {
            if let Ok(mut stream) = UnixStream::connect(&socket).await {
                let _ = stream.write_all(b"POST /worker/x/llm/complete HTTP/1.1\r\ncontent-length: 31000000\r\n").await;
                held.push(stream);
            }
            // Bounds the rate of the flood.
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    };
    let others = async {
        for _ in 0..3 {
            let other = bob.create_job("work").await;
            let other_worker = world.manual_worker(other).await;
            other_worker.complete_llm("c1", "hi").await;
            other_worker.finish("done").await;
            bob.wait_for(other, JobState::Completed).await;
            // The flooded job's own worker is served too, on a new connection for each request.
            worker.status().await;
            world.anonymous().get("/healthz").await.expect(200);
        }
    };
    tokio::select! {
        never = flood => never,
        () = others => {}
    }
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn the_body_of_a_refused_call_is_not_read() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    let socket = world.engine().until_running(id).await.spec.run_dir.join("worker.sock");
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    let head = format!(
        "POST /worker/{id}/llm/complete HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 31000000\r\n\r\n",
        worker.token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tests::within("the connection to end", stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("session_rejected"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn json_that_expands_in_memory_is_refused_and_long_conversations_are_not() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let send = |body: String| {
        let request = worker.request(Method::POST, "llm/complete_with_tools");
        Reply::of(request.header("content-type", "application/json").body(body))
    };
    let tools = json!([{"name": "t", "description": "", "parameters": "ZEROS"}]).to_string();
    let grows = format!(r#"{{"call_id":"c1","messages":[],"tools":{}}}"#, tools.replace(r#""ZEROS""#, &zeros(30)));
    let refused = send(grows).await.problem(ErrorCode::TooLarge);
    assert!(refused.body["detail"].as_str().is_some_and(|detail| detail.contains("JSON values")), "{:#}", refused.body);
    let messages: Vec<Value> = (0..2_000)
        .map(|turn| json!({"role": "user", "content": format!("{turn} {}", "long ".repeat(3_100))}))
        .collect();
    let body = json!({"call_id": "c2", "messages": messages}).to_string();
    assert!(body.len() > 29 << 20);
    send(body).await.expect(200);
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    let body = format!(r#"{{"prompt":"p","metadata":{{"a":{}}}}}"#, zeros(20));
    let request = ada.request(Method::POST, "/api/jobs").header("content-type", "application/json").body(body);
    Reply::of(request).await.problem(ErrorCode::TooLarge);
    world.finish().await;
}

#[tokio::test]
async fn idle_unauthenticated_connections_are_closed() {
    let world = World::new().await;
    let address = world.anonymous().base().trim_start_matches("http://").to_owned();
    let since = Instant::now();
    let mut held = vec![];
    for _ in 0..50 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost").await.unwrap();
        held.push(stream);
    }
    world.anonymous().get("/healthz").await.expect(200);
    for mut stream in held {
        let _ = tests::within("a silent connection to be closed", stream.read(&mut [0; 512])).await;
    }
    assert!(since.elapsed() >= Duration::from_secs(9), "{:?}", since.elapsed());
    world.finish().await;
}

#[tokio::test]
async fn large_content_lengths_of_one_user_block_no_other_user() {
    let world = World::new().await;
    let bob = world.user("bob");
    let address = bob.base().trim_start_matches("http://").to_owned();
    let alice = world.key().issue("alice", Role::User, world.clock().now(), chrono::Duration::hours(1)).unwrap();
    let mut held = vec![];
    // All users together have 128 permits for small bodies.
    for _ in 0..200 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let request = format!(
            "POST /api/jobs HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: 262144\r\n\r\n{{",
            alice.token
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        held.push(stream);
    }
    let since = Instant::now();
    let created = bob.post("/api/jobs", &json!({"prompt": "p", "hold": true})).await.expect(201);
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    drop(held);
    let id = created.body["id"].as_str().unwrap().parse().unwrap();
    bob.cancel(id).await;
    bob.wait_for_end(id).await;
    world.finish().await;
}

#[tokio::test]
async fn the_number_of_streams_of_a_user_is_limited() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let held = json!({"prompt": "p", "hold": true});
    let mut ids = vec![];
    for user in [&ada, &bob] {
        let created = user.post("/api/jobs", &held).await.expect(201);
        ids.push(created.body["id"].as_str().unwrap().parse::<protocol::JobId>().unwrap());
    }
    let open = async |user: &tests::User, id: protocol::JobId| {
        let request = user.request(Method::GET, &format!("/api/jobs/{id}/events"));
        request.header("accept", "text/event-stream").send().await.unwrap()
    };
    let mut streams = vec![];
    for _ in 0..256 {
        streams.push(open(&ada, ids[0]).await.error_for_status().unwrap());
    }
    assert_eq!(open(&ada, ids[0]).await.status(), 429);
    ada.get("/api/events").await.problem(ErrorCode::RateLimited);
    assert_eq!(open(&bob, ids[1]).await.status(), 200);
    drop(streams);
    for (user, id) in [(&ada, ids[0]), (&bob, ids[1])] {
        user.cancel(id).await;
        user.wait_for_end(id).await;
    }
    world.finish().await;
}
