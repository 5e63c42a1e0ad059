//! Creating jobs: the simplest request, files, and idempotency keys.

use protocol::{ErrorCode, EventData, Job, JobState, ReportedOutcome};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, World, script_of};

#[tokio::test]
async fn a_job_needs_only_a_prompt() {
    let world = World::builder().processes().build().await;
    let ada = world.user("ada");
    let id = ada.create_job("say hello").await;
    let (streamed, state, last) = ada.stream(id, None).await.rest().await;
    assert_eq!(state, JobState::Completed);

    let job = ada.job(id).await;
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Completed, None, 1));
    assert_eq!(job.result.as_ref().and_then(|result| result.text.as_deref()), Some("You said: say hello"));
    assert_eq!(job.usage.llm_calls, 1);
    assert_eq!(ada.jobs().await, [job.summary()]);
    assert_eq!(ada.events(id).await, streamed);
    assert_eq!(streamed.last().map(|event| event.seq), Some(last));
    let text = "You said: say hello".to_owned();
    let reported = EventData::Result { outcome: ReportedOutcome::Completed, text, partial: None };
    assert_eq!(streamed[streamed.len() - 2].data, reported);
    let summary = ada.get("/api/jobs/summary").await.expect(200).body;
    assert_eq!(summary["states"]["completed"], 1, "{summary:#}");
    assert_eq!(summary["usage_today"]["llm_calls"], 1, "{summary:#}");
    world.finish().await;
}

#[tokio::test]
async fn a_trivial_echo_takes_at_most_three_model_calls() {
    let script = script_of(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": [{"name": "echo", "arguments": {"message": "marco"}}]}}),
        json!({"when": {"tool_name": "echo"}, "reply": {"text": "echo said {{tool_result}}"}}),
    ]);
    let world = World::builder().processes().script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("echo marco").await;
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!(job.result.and_then(|result| result.text), Some("echo said marco".to_owned()));
    assert!(job.usage.llm_calls <= 3, "{:?}", job.usage);
    assert_eq!(job.usage.tool_calls, 1);

    // The gateway records `llm_call` itself, beside the worker's event batches.
    let kinds: Vec<&str> = ada.events(id).await.iter().map(|event| event.data.kind().as_str()).collect();
    let reported: Vec<&str> = kinds.iter().copied().filter(|kind| !["status", "llm_call"].contains(kind)).collect();
    assert_eq!(reported, ["state", "state", "message", "tool_use", "tool_result", "message", "result", "state"]);
    assert_eq!(kinds.iter().filter(|kind| **kind == "llm_call").count(), 2);
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    assert_eq!(actions["items"].as_array().map(Vec::len), Some(1), "{actions:#}");
    assert_eq!((&actions["items"][0]["tool"], &actions["items"][0]["success"]), (&json!("echo"), &json!(true)));
    let calls = ada.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200).body;
    assert_eq!(calls["items"].as_array().map(Vec::len), Some(2), "{calls:#}");
    world.finish().await;
}

#[tokio::test]
async fn inline_files_are_in_the_workspace_before_the_job_starts() {
    let script = script_of(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": [
            {"name": "shell", "arguments": {"command": "cat src/a.txt && od -An -tx1 deep/er/b.bin"}}]}}),
        json!({"reply": {"text": "{{tool_result}}"}}),
    ]);
    let world = World::builder().processes().script(script).build().await;
    let ada = world.user("ada");
    let files = json!([
        {"path": "src/a.txt", "content": "grüße\n"},
        {"path": "deep/er/b.bin", "content_base64": "AP8B"},
    ]);
    let id = ada.create(json!({"prompt": "look", "files": files})).await;
    let job = ada.wait_for(id, JobState::Completed).await;
    let text = job.result.and_then(|result| result.text).unwrap_or_default();
    assert!(text.contains("grüße") && text.contains("00 ff 01"), "{text}");
    world.finish().await;
}

#[tokio::test]
async fn a_repeated_idempotency_key_creates_one_job() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let body = json!({"prompt": "once"});
    let first = ada.post_once("/api/jobs", "k1", &body).await.expect(201);
    assert_eq!(first.header("idempotent-replayed"), None);
    let again = ada.post_once("/api/jobs", "k1", &body).await.expect(201);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.body, first.body);
    ada.post_once("/api/jobs", "k1", &json!({"prompt": "other"})).await.problem(ErrorCode::IdempotencyMismatch);
    let job: Job = first.json();
    let prompt = format!("/api/jobs/{}/prompt", job.id);
    ada.post_once(&prompt, "k1", &json!({"content": "once"})).await.problem(ErrorCode::IdempotencyMismatch);
    let theirs: Job = bob.post_once("/api/jobs", "k1", &body).await.expect(201).json();
    assert_ne!(theirs.id, job.id, "another user's key is another key");
    assert_eq!(ada.jobs().await.len(), 1);

    let messages = json!({"content": "more", "mode": "steer"});
    let first = ada.post_once(&prompt, "k2", &messages).await.expect(202);
    let again = ada.post_once(&prompt, "k2", &messages).await.expect(202);
    assert_eq!((again.header("idempotent-replayed"), &again.body), (Some("true"), &first.body));
    for (user, id) in [(&ada, job.id), (&bob, theirs.id)] {
        user.cancel(id).await;
        user.wait_for(id, JobState::Cancelled).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn ten_concurrent_requests_with_one_key_create_one_job() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body = json!({"prompt": "once", "files": [{"path": "a", "content": "b"}]});
    let asked = (0..10).map(|_| ada.post_once("/api/jobs", "k", &body));
    let replies: Vec<Reply> = futures_util::future::join_all(asked).await;
    let ids: Vec<Value> = replies.into_iter().map(|reply| reply.expect(201).body["id"].clone()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
    let jobs = ada.jobs().await;
    assert_eq!(jobs.len(), 1);
    let workspaces = std::fs::read_dir(&world.config().workspace_dir).unwrap().flatten();
    let workspaces = workspaces.filter(|entry| entry.path().is_dir()).count();
    assert_eq!(workspaces, 1, "files of refused jobs must be removed");
    world.manual_worker(jobs[0].id).await.finish("done").await;
    ada.wait_for(jobs[0].id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn job_lists_are_newest_first_filtered_and_paged() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let ada = world.user("ada");
    let mut ids = vec![];
    for (n, team) in ["red", "blue", "red"].iter().enumerate() {
        let labels = json!({"team": team, "a.b/c-d": format!("v:{n}"), "7": "seven"});
        ids.push(ada.create(json!({"prompt": format!("task {n}"), "labels": labels})).await);
    }
    let newest: Vec<_> = ids.iter().rev().copied().collect();
    assert_eq!(ada.jobs().await.iter().map(|job| job.id).collect::<Vec<_>>(), newest);
    let count = async |query: &str| {
        ada.get(&format!("/api/jobs?{query}")).await.expect(200).body["items"].as_array().map(Vec::len)
    };
    assert_eq!(count("label=team:red").await, Some(2));
    assert_eq!(count("label=a.b/c-d:v:1").await, Some(1));
    assert_eq!(count("label=7:seven").await, Some(3));
    assert_eq!(count("label=a.b:v").await, Some(0));
    assert_eq!(count("label=team:red&q=TASK%202").await, Some(1));
    assert_eq!(count("label=team=red").await, Some(2));
    assert_eq!(count("label=a.b/c-d=v:1").await, Some(1));
    let whole = ids[0].to_string();
    assert_eq!(count(&format!("id={}", &whole[28..])).await, Some(1), "the end of an id");
    assert_eq!(count(&format!("id={}", whole.to_uppercase())).await, Some(1));
    assert_eq!(count(&format!("id={}", &whole[..4])).await, Some(3), "ids of one day begin alike");
    assert_eq!(count("state=completed,failed").await, Some(0));
    let page = ada.get("/api/jobs?limit=2").await.expect(200).body;
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = ada.get(&format!("/api/jobs?limit=2&cursor={cursor}")).await.expect(200).body;
    assert_eq!(
        (rest["items"][0]["id"].as_str(), &rest["next_cursor"]),
        (Some(ids[0].to_string().as_str()), &Value::Null)
    );
    for query in [
        "limit=0",
        "limit=201",
        "cursor=zz",
        "state=asleep",
        "label=plain",
        "label=$x:1",
        "colour=red",
        "id=abc",
        "id=what",
    ] {
        let reply = Reply::of(ada.request(Method::GET, &format!("/api/jobs?{query}"))).await;
        reply.problem(ErrorCode::Invalid);
    }
    for id in ids {
        ada.cancel(id).await;
        ada.wait_for(id, JobState::Cancelled).await;
    }
    world.finish().await;
}
