//! Secrets of a connection in what its server sends besides results: errors, media types, and texts that are cut.

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use orchestrator::{
    auth::Role,
    config::{HeaderTemplate, McpTransport},
};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{ManualWorker, World};

use super::{
    job,
    server::{Behaviour, McpTestServer, tool},
    settings, world_with,
};

/// A secret that differs in each of its forms.
const TOKEN: &str = "ops/token+to=find?1";
/// The beginning of its plain form, shorter than what a cut leaves of it.
const BEGINNING: &str = "ops/tok";

/// A world whose server is sent the secret of `ops` by all users.
async fn world_with_shared_secret(server: &McpTestServer) -> World {
    let mut world = world_with(server).await;
    let mut with_header = settings("srv", server);
    let template = HeaderTemplate { prefix: "Bearer ".to_owned(), secret: "token".to_owned(), suffix: String::new() };
    let headers = [("authorization".to_owned(), template)].into();
    with_header.transport = McpTransport::Http { url: server.url.clone(), headers, secrets_of: Some("ops".to_owned()) };
    world.restart_with(|config| config.mcp = vec![with_header]).await;
    world
}

async fn store_shared_secret(world: &World) {
    world.user("ops").post("/api/secrets", &json!({"name": "token", "value": TOKEN})).await.expect(201);
}

/// The reply to a call. Failed calls are limited to a few in a second.
async fn reply(worker: &ManualWorker, call: &str) -> Value {
    tests::poll("the call to be accepted", async || {
        let reply = worker.tool("srv__echo", call, json!({})).await;
        (reply.status.as_u16() == 200).then_some(reply.body)
    })
    .await
}

#[rstest]
#[case::plain(TOKEN.to_owned())]
#[case::base64(BASE64_STANDARD.encode(TOKEN))]
#[case::base64_for_urls(BASE64_URL_SAFE_NO_PAD.encode(TOKEN))]
#[case::percent_encoded("ops%2Ftoken%2Bto%3Dfind%3F1".to_owned())]
#[tokio::test]
async fn an_error_of_a_server_contains_no_secret_of_another_user(#[case] form: String) {
    let server = McpTestServer::start(&[tool("echo", "repeats")]).await;
    let world = world_with_shared_secret(&server).await;
    store_shared_secret(&world).await;
    let ada = world.user("ada");
    let (id, worker) = job(&world, &ada, &["srv__echo"]).await;
    server.on("call:echo", Behaviour::Error(-32_001, format!("401: invalid token {form}")));
    let failed = reply(&worker, "t1").await;
    assert!(failed.to_string().contains("401: invalid token [redacted]"), "{failed:#}");
    let typed = json!({"content": [{"type": "image", "data": "AAAA", "mimeType": form}]});
    server.on("call:echo", Behaviour::Result(typed));
    let shown = reply(&worker, "t2").await;
    assert_eq!(shown["output"], "[image, 3 bytes: not shown]", "{shown:#}");
    worker.finish("done").await;
    // Each user reads the list by a separate connection.
    server.on("tools/list", Behaviour::Error(-32_001, format!("401: invalid token {form}")));
    world.user("bob").get("/api/tools").await.expect(200);
    let admins = world.someone("root", Role::Admin).get("/api/admin/mcp").await.expect(200).body;
    assert!(admins["items"][0]["error"].as_str().is_some_and(|error| error.contains("[redacted]")), "{admins:#}");
    let rows = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    assert_eq!(rows["items"].as_array().map(Vec::len), Some(2));
    let events = ada.get(&format!("/api/jobs/{id}/events?limit=200")).await.expect(200).body;
    for body in [failed, shown, admins, rows, events] {
        assert!(!body.to_string().contains(&form), "{form} in {body:#}");
    }
    assert_eq!(server.authorization(), [format!("Bearer {TOKEN}")], "it was sent");
    world.finish().await;
}

#[tokio::test]
async fn an_error_is_searched_before_it_is_cut() {
    let server = McpTestServer::start(&[tool("echo", "repeats")]).await;
    let world = world_with_shared_secret(&server).await;
    store_shared_secret(&world).await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "own", "value": "adas-own-long-token"})).await.expect(201);
    let (_, worker) = job(&world, &ada, &["srv__echo"]).await;
    // The head that is left has 982 bytes or so.
    for (index, before) in (964..=984).step_by(4).enumerate() {
        for (secret, beginning) in [(TOKEN, BEGINNING), ("adas-own-long-token", "adas-ow")] {
            let message = format!("{}{secret}{}", "x".repeat(before), "y".repeat(3_000));
            server.on("call:echo", Behaviour::Error(-32_001, message));
            let text = reply(&worker, &format!("{beginning}{index}").replace('/', "-")).await.to_string();
            assert!(text.contains("bytes left out"), "{text}");
            assert!(!text.contains(beginning), "cut after {before} bytes: {text}");
        }
    }
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_missing_secret_of_another_user_is_not_named() {
    let server = McpTestServer::start(&[tool("echo", "repeats")]).await;
    let world = world_with_shared_secret(&server).await;
    let ada = world.user("ada");
    let (_, worker) = job(&world, &ada, &["srv__echo", "tool_list"]).await;
    let offered = worker.get("tools").await.expect(200).body;
    let refused = reply(&worker, "t1").await;
    assert_eq!(refused["error"]["kind"], "not_authorized", "{refused:#}");
    let listed = worker.tool("tool_list", "t2", json!({})).await.expect(200).body;
    let shown = ada.get("/api/tools").await.expect(200).body;
    assert_eq!(shown["unavailable"][0]["server"], "srv", "{shown:#}");
    for body in [offered, refused, listed, shown] {
        let text = body.to_string();
        assert!(text.contains("needs a secret that is not stored; the operator must set it"), "{body:#}");
        assert!(!text.contains("of ops") && !text.contains("secret token"), "{body:#}");
    }
    let admins = world.someone("root", Role::Admin).get("/api/admin/mcp").await.expect(200).body;
    assert!(admins.to_string().contains("needs the secret token of ops, which is not stored"), "{admins:#}");
    store_shared_secret(&world).await;
    let reply = reply(&worker, "t3").await;
    assert_eq!(reply["success"], true, "{reply:#}");
    worker.finish("done").await;
    world.finish().await;
}
