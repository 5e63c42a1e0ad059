//! Values that cannot be read: the message names the field, in the terms of the API and without types of the program.

use protocol::ErrorCode;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tests::{Reply, World};

/// What the messages of the program's deserializers contain.
const PROGRAM_WORDS: &[&str] = &[
    "expected",
    "invalid type",
    "invalid value",
    "invalid digit",
    "deserialize",
    "struct ",
    "enum ",
    "variant",
    "u32",
    "u64",
    "i64",
    "`",
];
const ID: &str = "01a21181-465d-74aa-9429-a8423a63dbcb";

/// A new job with this field.
fn with(field: &str, value: Value) -> Value {
    let mut body = json!({"prompt": "p"});
    body[field] = value;
    body
}

/// Asserts that a request is refused with a detail that begins like this.
async fn refused(request: RequestBuilder, detail: &str) {
    let reply = Reply::of(request).await.problem(ErrorCode::Invalid);
    let shown = reply.body["detail"].as_str().unwrap();
    assert!(shown.starts_with(detail), "{shown:?} instead of {detail:?}");
    assert_eq!(reply.fields(), [detail.split_once(':').unwrap().0]);
    let leaked: Vec<_> = PROGRAM_WORDS.iter().filter(|word| shown.contains(**word)).collect();
    assert!(leaked.is_empty(), "{shown}: {leaked:?}");
}

#[tokio::test]
async fn a_query_parameter_is_named() {
    let world = World::new().await;
    let ada = world.user("ada");
    let cases = [
        ("/api/jobs?limit=", "limit: must be an integer of at least 0"),
        ("/api/jobs?limit=many", "limit: must be an integer of at least 0"),
        ("/api/jobs?limit=0", "limit: must be from 1 to 200"),
        ("/api/jobs?limit=5&limit=6", "limit: must be given only once"),
        (
            "/api/jobs?limt=5",
            "limt: unknown parameter; the parameters are state, label, user, q, id, parent, routine_id, run_id, ",
        ),
        ("/api/jobs?parent=7", "parent: must be the id of a job"),
        ("/api/usage?by=week", "by: must be one of day, job, model"),
        ("/api/secrets?limit=1.5", "limit: must be an integer of at least 0"),
        ("/api/memory", "path: is required"),
        ("/api/memory?path=a&version=x", "version: must be an integer of at least 0"),
        ("/api/runs?since=today", "since: must be a time such as 2030-01-31T08:00:00Z (RFC 3339)"),
        ("/api/notifications?unread=yes", "unread: must be true or false"),
        ("/api/events?after=x", "after: must be an integer"),
    ];
    for (path, detail) in cases {
        refused(ada.request(Method::GET, path).header("accept", "application/json"), detail).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_field_of_a_body_is_named() {
    let world = World::new().await;
    let ada = world.user("ada");
    let cases = [
        ("POST", "/api/jobs", json!({}), "prompt: is required"),
        ("POST", "/api/jobs", json!([]), "body: must be an object"),
        ("POST", "/api/jobs", with("mode", json!("turbo")), "mode: must be one of worker, command"),
        ("POST", "/api/jobs", with("mode", json!(7)), "mode: must be a string"),
        ("POST", "/api/jobs", with("priority", json!("high")), "priority: must be an integer"),
        (
            "POST",
            "/api/jobs",
            with("priority", json!(5_000_000_000_u64)),
            "priority: must be an integer of at most 2147483647",
        ),
        ("POST", "/api/jobs", with("plan", json!("yes")), "plan: must be true or false"),
        ("POST", "/api/jobs", with("labels", json!({"a": 1})), "labels.a: must be a string"),
        ("POST", "/api/jobs", with("files", json!({})), "files: must be an array"),
        ("POST", "/api/jobs", with("metadata", json!("m")), "metadata: must be an object"),
        ("POST", "/api/jobs", with("limits", json!({"cpus": "two"})), "limits.cpus: must be a number"),
        ("POST", "/api/jobs", with("limits", json!({"pids": 1.5})), "limits.pids: must be an integer of at least 0"),
        ("POST", "/api/jobs/ID/cancel", json!({"reason": 7}), "reason: must be a string"),
        ("POST", "/api/jobs/ID/cancel", json!({"why": "x"}), "why: unknown field; the fields are reason"),
        ("POST", "/api/jobs/ID/cancel", json!("x"), "body: must be an object"),
        ("POST", "/api/jobs/ID/prompt", json!({"content": "p", "mode": "now"}), "mode: must be one of steer, queue"),
        ("PUT", "/api/settings", json!({"temperature": "hot"}), "temperature: must be a number"),
        (
            "PUT",
            "/api/settings",
            json!({"quiet_hours": {"from": "7", "to": "08:00"}}),
            "quiet_hours.from: must be a time",
        ),
        (
            "POST",
            "/api/routines",
            json!({"name": "n", "trigger": {"type": "often"}, "action": {}}),
            "trigger.type: must be one of ",
        ),
        ("POST", "/api/gates/ID/resolve", json!({"decision": "maybe"}), "decision: must be one of "),
        ("POST", "/api/secrets", json!({"name": 7}), "name: must be an object with the strings name and value"),
    ];
    for (method, path, body, detail) in cases {
        let request = ada.request(method.parse().unwrap(), &path.replace("ID", ID)).json(&body);
        refused(request, detail).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_parameter_of_a_json_rpc_call_is_named() {
    let world = World::new().await;
    let ada = world.user("ada");
    let calls = [
        (json!({"limit": "x"}), "limit: must be an integer of at least 0"),
        (json!({"limt": 1}), "limt: unknown field; the fields are "),
    ];
    for (params, message) in calls {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "cron.list", "params": params});
        let reply = ada.post("/api/rpc", &call).await.expect(200);
        let shown = reply.body["error"]["message"].as_str().unwrap();
        assert!(shown.starts_with(message), "{shown}");
    }
    world.finish().await;
}
