//! What arrives from outside and fires routines, and what is posted about them.

mod accepted;
mod events;
mod notification_sender;
mod webhooks;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use chrono::{DateTime, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use protocol::{Page, RoutineRun, RunId, WebhookDelivery};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use tests::{Reply, User, World};

/// A secret that is used as it is written, and one whose key is encoded.
const PLAIN_SECRET: &str = "a secret of the sender";
const ENCODED_SECRET: &str = "whsec_c2l4dGVlbiBieXRlcyBhdCBsZWFzdA==";
const ENCODED_KEY: &[u8] = b"sixteen bytes at least";

fn mac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).map(char::from).collect()
}

/// The headers of a delivery by Standard Webhooks, signed with [`ENCODED_KEY`].
fn standard(id: &str, at: DateTime<Utc>, body: &str) -> Vec<(&'static str, String)> {
    let timestamp = at.timestamp().to_string();
    let digest = mac(ENCODED_KEY, &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body.as_bytes()]);
    let signature = format!("v1,{}", BASE64_STANDARD.encode(digest));
    vec![("webhook-id", id.to_owned()), ("webhook-timestamp", timestamp), ("webhook-signature", signature)]
}

/// The headers of a delivery of GitHub, signed with [`PLAIN_SECRET`].
fn github(id: &str, event: &str, body: &str) -> Vec<(&'static str, String)> {
    vec![
        ("x-github-event", event.to_owned()),
        ("x-github-delivery", id.to_owned()),
        ("x-hub-signature-256", format!("sha256={}", hex(&mac(PLAIN_SECRET.as_bytes(), &[body.as_bytes()])))),
        ("user-agent", "GitHub-Hookshot/044aadd".to_owned()),
    ]
}

/// The headers of a delivery with Gantry's own signature, signed with [`PLAIN_SECRET`].
fn own(id: Option<&str>, at: DateTime<Utc>, body: &str) -> Vec<(&'static str, String)> {
    let timestamp = at.timestamp().to_string();
    let digest = mac(PLAIN_SECRET.as_bytes(), &[timestamp.as_bytes(), b".", body.as_bytes()]);
    let signature = format!("t={timestamp},v1={}", hex(&digest));
    let id = id.map(|id| ("x-gantry-delivery", id.to_owned()));
    id.into_iter().chain([("x-gantry-signature", signature)]).collect()
}

/// Delivers a body to a webhook, without a token.
async fn deliver(world: &World, path: &str, headers: &[(&'static str, String)], body: &str) -> Reply {
    let mut request = world.anonymous().request(Method::POST, &format!("/api/webhooks/{path}"));
    request = request.header("content-type", "application/json").body(body.to_owned());
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    Reply::of(request).await
}

/// Creates a routine whose runs wait in the queue for a worker. Returns its id.
async fn create(user: &User, name: &str, trigger: Value, more: Value) -> String {
    let mut body = json!({
        "name": name, "trigger": trigger,
        "action": {"type": "full_job", "title": name, "description": "Do what has to be done.", "limits": {}, "egress": {}},
    });
    body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    user.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned()
}

/// Guardrails with which every firing is a run.
fn unlimited() -> Value {
    json!({"guardrails": {"cooldown_seconds": 0, "max_concurrent": 100}})
}

async fn deliveries(user: &User, routine: &str) -> Vec<WebhookDelivery> {
    let path = format!("/api/routines/{routine}/deliveries?limit=200");
    let page: Page<WebhookDelivery> = user.get(&path).await.expect(200).json();
    page.items
}

/// The verdicts of the log, the oldest first.
async fn verdicts(user: &User, routine: &str) -> Vec<String> {
    let mut verdicts: Vec<_> = deliveries(user, routine).await.iter().map(|one| one.verdict.to_string()).collect();
    verdicts.reverse();
    verdicts
}

/// Cancels the runs that have not ended, so that no job is left.
async fn end_runs(user: &User) {
    let page: Page<RoutineRun> = user.get("/api/runs?limit=200").await.expect(200).json();
    for run in page.items.iter().filter(|run| !run.status.is_finished()) {
        user.post(&format!("/api/runs/{}/cancel", run.id), &json!({})).await;
    }
    tests::until("the jobs to end", async || user.jobs().await.iter().all(|job| job.state.is_finished())).await;
}

fn run_id(reply: &Reply) -> RunId {
    serde_json::from_value(reply.body["run_id"].clone()).expect("the id of a run")
}
