//! The OpenAPI document and its page, the page at `/`, the dashboard's files, caching and compression.

use std::io::Read as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::read::GzDecoder;
use protocol::ErrorCode;
use reqwest::{Method, Response, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tests::{Reply, User, World};

async fn fetch(user: &User, path: &str, headers: &[(&str, &str)]) -> Response {
    let request =
        headers.iter().fold(user.request(Method::GET, path), |request, (name, value)| request.header(*name, *value));
    request.send().await.unwrap()
}

fn header<'r>(response: &'r Response, name: &str) -> &'r str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

fn unzipped(bytes: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    text
}

/// What "Try it out" sends for each operation with a JSON body.
#[tokio::test]
async fn examples_of_bodies_are_valid_as_they_are() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", orchestrator::auth::Role::Admin));
    let document = world.anonymous().get("/api/openapi.json").await.expect(200).body;
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let example = &operation["requestBody"]["content"]["application/json"]["example"];
            if example.is_null() {
                continue;
            }
            let user = if path.starts_with("/api/admin") { &root } else { &ada };
            let path = path.replace("{id}", "01a21181-465d-74aa-9429-a8423a63dbcb").replace("{name}", "shell");
            let query = if path == "/api/memory" { "?path=a.md" } else { "" };
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let reply = Reply::of(user.request(method.clone(), &format!("{path}{query}")).json(example)).await;
            assert!(
                ![400, 405, 413, 415, 422, 500].contains(&reply.status.as_u16()),
                "{method} {path}: {:#}",
                reply.body
            );
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
    for job in ada.jobs().await {
        ada.cancel(job.id).await;
        ada.wait_for_end(job.id).await;
    }
    world.finish().await;
}

#[rstest]
#[case("/api/openapi.json", "application/json", 300)]
#[case("/api/docs/", "text/html; charset=utf-8", 300)]
#[case("/api/docs/initializer.js", "text/javascript; charset=utf-8", 300)]
#[case("/api/docs/swagger-ui.css", "text/css; charset=utf-8", 86_400)]
#[case("/api/docs/favicon-32x32.png", "image/png", 86_400)]
#[tokio::test]
async fn files_of_the_documentation_are_cached(#[case] path: &str, #[case] kind: &str, #[case] max_age: u32) {
    let world = World::new().await;
    let anonymous = world.anonymous();
    let plain = fetch(&anonymous, path, &[]).await;
    assert_eq!((plain.status(), header(&plain, "content-type")), (StatusCode::OK, kind));
    assert_eq!(header(&plain, "cache-control"), format!("public, max-age={max_age}"));
    assert_eq!((header(&plain, "content-encoding"), header(&plain, "vary")), ("", "accept-encoding"));
    let etag = header(&plain, "etag").to_owned();
    assert!(etag.starts_with("W/\""), "{etag}");
    let plain = plain.bytes().await.unwrap();

    let gzipped = fetch(&anonymous, path, &[("accept-encoding", "gzip, br")]).await;
    if plain.len() > 1024 && kind != "image/png" {
        assert_eq!((header(&gzipped, "content-encoding"), header(&gzipped, "etag")), ("gzip", etag.as_str()));
        let gzipped = gzipped.bytes().await.unwrap();
        assert!(gzipped.len() < plain.len() / 2, "{} of {} bytes", gzipped.len(), plain.len());
        assert_eq!(unzipped(&gzipped).as_bytes(), &plain[..]);
    } else {
        assert_eq!(header(&gzipped, "content-encoding"), "");
    }

    let same = fetch(&anonymous, path, &[("if-none-match", &etag)]).await;
    assert_eq!((same.status(), header(&same, "etag")), (StatusCode::NOT_MODIFIED, etag.as_str()));
    assert_eq!(same.bytes().await.unwrap().len(), 0);
    let other = fetch(&anonymous, path, &[("if-none-match", "\"other\"")]).await;
    assert_eq!(other.status(), StatusCode::OK);
    world.finish().await;
}

#[tokio::test]
async fn the_page_of_the_documentation_is_gantrys() {
    let world = World::new().await;
    let anonymous = world.anonymous();
    let page = anonymous.get("/api/docs/").await.expect(200).body;
    assert!(page.as_str().unwrap().contains("<title>Gantry API</title>"), "{page}");
    anonymous.get("/api/docs/no-such-file").await.problem(ErrorCode::NotFound);
    world.finish().await;
}

#[tokio::test]
async fn a_person_gets_a_page_at_the_root_and_a_client_a_problem() {
    let world = World::builder().set("GANTRY_DASHBOARD", false).build().await;
    let anonymous = world.anonymous();
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let page = fetch(&anonymous, "/", &[("accept", browser)]).await;
    assert_eq!((page.status(), header(&page, "content-type")), (StatusCode::OK, "text/html; charset=utf-8"));
    let policy = header(&page, "content-security-policy").to_owned();
    assert!(policy.contains("default-src 'none'") && !policy.contains("script-src"), "{policy}");
    let html = page.text().await.unwrap();
    for part in ["/api/docs/", "/api/openapi.json", "/healthz", "gantry job run"] {
        assert!(html.contains(part), "{part} in {html}");
    }
    assert!(!html.contains("<script"), "{html}");
    let client = anonymous.request(Method::GET, "/").header("accept", "application/json");
    let reply = Reply::of(client).await.problem(ErrorCode::NotFound);
    let detail = reply.body["detail"].as_str().unwrap();
    assert!(detail.contains("/api/openapi.json") && !detail.contains("dashboard"), "{detail}");
    world.finish().await;
}

/// Where the dashboard's pages are, each with a part of its URL that only the page reads.
const PAGES: &[&str] = &[
    "/",
    "/login",
    "/jobs?state=failed",
    "/jobs/new",
    "/jobs/no-such-job/files/a.txt",
    "/memory/notes/a.md?show=edit",
    "/usage?by=day",
    "/settings/tools",
    "/nothing",
];

#[tokio::test]
async fn every_page_of_the_dashboard_is_its_shell_whose_files_are_there() {
    let world = World::new().await;
    let anonymous = world.anonymous();
    for path in PAGES {
        let page = fetch(&anonymous, path, &[("accept", "text/html")]).await;
        assert_eq!((page.status(), header(&page, "cache-control")), (StatusCode::OK, "no-cache"), "{path}");
        let policy = header(&page, "content-security-policy").to_owned();
        let html = page.text().await.unwrap();
        let map = html.split_once("<script type=\"importmap\">").unwrap().1.split_once("</script>").unwrap().0;
        let digest = BASE64_STANDARD.encode(Sha256::digest(map));
        assert!(policy.contains(&format!("script-src 'self' 'sha256-{digest}';")), "{policy}");
        for file in html.split('"').filter(|part| part.starts_with("/assets/")) {
            let file = fetch(&anonymous, file, &[]).await;
            assert_eq!(file.status(), StatusCode::OK, "{}", file.url());
            assert!(header(&file, "cache-control").ends_with("immutable"));
        }
    }
    anonymous.get("/assets/0123456789abcdef/app/main.js").await.problem(ErrorCode::NotFound);
    let change = anonymous.request(Method::POST, "/jobs").header("accept", "text/html");
    Reply::of(change).await.problem(ErrorCode::NotFound);
    // As curl asks.
    let client = anonymous.request(Method::GET, "/").header("accept", "*/*");
    let reply = Reply::of(client).await.problem(ErrorCode::NotFound);
    let detail = reply.body["detail"].as_str().unwrap();
    for part in ["dashboard", "browser", "`gantry dashboard`", "/api/openapi.json", "/api/docs"] {
        assert!(detail.contains(part), "{part} in {detail}");
    }
    world.finish().await;
}

#[tokio::test]
async fn large_json_is_compressed_and_nothing_else_is() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job(&"words ".repeat(1_000)).await;
    let worker = world.manual_worker(id).await;
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    let document = json!({"content": "line\n".repeat(1_000)}).to_string();
    ada.put("/api/memory?path=long.md", "application/json", document).await.expect(201);
    for n in 0..30 {
        ada.post("/api/secrets", &json!({"name": format!("NAME_{n:050}"), "value": "a23-45678"})).await.expect(201);
    }

    let gzip = ("accept-encoding", "gzip");
    let job = format!("/api/jobs/{id}");
    for path in [job.as_str(), "/api/jobs?limit=10", "/api/memory?path=long.md", "/api/tools"] {
        let zipped = fetch(&ada, path, &[gzip]).await;
        assert_eq!(
            (header(&zipped, "content-encoding"), header(&zipped, "vary")),
            ("gzip", "accept-encoding"),
            "{path}"
        );
        let zipped = zipped.bytes().await.unwrap();
        let plain = fetch(&ada, path, &[]).await;
        assert_eq!(header(&plain, "content-encoding"), "", "{path}");
        let plain = plain.text().await.unwrap();
        assert!(zipped.len() < plain.len(), "{path}");
        let [zipped, plain]: [Value; 2] = [unzipped(&zipped), plain].map(|text| serde_json::from_str(&text).unwrap());
        assert_eq!(zipped, plain, "{path}");
    }
    let events = format!("{job}/events");
    let stream = [gzip, ("accept", "text/event-stream")];
    let logs = format!("{job}/logs");
    for (path, headers) in [
        (events.as_str(), &stream[..]),
        (&logs, &[gzip]),
        ("/api/secrets?limit=200", &[gzip]),
        ("/healthz", &[gzip]),
        ("/api/jobs?limit=x", &[gzip]),
    ] {
        let reply = fetch(&ada, path, headers).await;
        assert_eq!(header(&reply, "content-encoding"), "", "{path}");
    }
    world.finish().await;
}

#[tokio::test]
async fn an_event_of_a_routine_has_each_field_once() {
    let world = World::new().await;
    let ada = world.user("ada");
    let action = json!({"type": "lightweight", "prompt": "look"});
    let routine = json!({"name": "n", "trigger": {"type": "manual"}, "action": action});
    let id = ada.post("/api/routines", &routine).await.expect(201).body["id"].clone();
    ada.post(&format!("/api/routines/{}/disable", id.as_str().unwrap()), &json!({})).await.expect(200);
    let page = fetch(&ada, "/api/events?kind=routine", &[("accept", "application/json")]).await.text().await.unwrap();
    assert_eq!(page.matches("\"action\":").count(), 2, "once in each of the two events: {page}");
    let page: Value = serde_json::from_str(&page).unwrap();
    let events = page["items"].as_array().unwrap();
    let changes: Vec<_> = events.iter().map(|event| event["data"]["change"].as_str().unwrap_or_default()).collect();
    assert_eq!(changes, ["created", "disabled"]);
    assert_eq!(events[0]["data"]["action"]["prompt"], "look");
    let _: protocol::InstanceEvent = serde_json::from_value(events[1].clone()).unwrap();
    world.finish().await;
}
