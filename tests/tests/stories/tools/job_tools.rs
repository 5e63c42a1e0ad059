//! The job tools as a model calls them: parts of ids, prompts with a mode, and jobs with files, a plan and an image.

use protocol::{ChatContent, ErrorCode, Job, JobId, PromptId, PromptMode};
use serde_json::{Value, json};
use tests::{User, World, script_of};

use crate::chat::{history, turn};

/// A world whose model calls the tool with the arguments that it is told.
async fn world() -> World {
    let tools = ["create_job", "job_status", "job_prompt"];
    let mut rules: Vec<Value> =
        tools.iter().map(|tool| json!({"when": {"tool_name": tool}, "reply": {"text": "done"}})).collect();
    rules.extend(tools.iter().map(|tool| {
        let arguments = "{{match.1}}";
        json!({"when": {"last_message": {"regex": format!(r"{tool} (\{{.*\}})")}},
               "reply": {"tool_calls": [{"name": tool, "arguments": arguments}]}})
    }));
    World::builder()
        .script(script_of(&rules))
        .set("GANTRY_SANDBOX_IMAGES", "other:1")
        .set("GANTRY_TOOL_RATE_BURST", 0)
        .build()
        .await
}

async fn user(world: &World) -> User {
    let ada = world.user("ada");
    for tool in ["create_job", "job_prompt"] {
        let body = json!({"permission": "always_allow"}).to_string();
        ada.put(&format!("/api/tools/{tool}/permission"), "application/json", body).await.expect(200);
    }
    ada
}

/// The result of a call in the user's chat: whether it succeeded, and its output.
async fn call(user: &User, tool: &str, arguments: &Value) -> (bool, String) {
    turn(user, &format!("{tool} {arguments}")).await;
    let mut results = history(user).await.messages.into_iter().filter_map(|message| match message.content {
        ChatContent::ToolResult { success, output, .. } => Some((success, output)),
        _ => None,
    });
    results.next_back().expect("a call")
}

#[tokio::test]
async fn a_model_creates_a_job_with_files_a_plan_and_an_image() {
    let world = world().await;
    let ada = user(&world).await;
    let files =
        json!([{"path": "src/a.txt", "content": "text"}, {"path": "run.sh", "content_base64": "AAE=", "mode": "0755"}]);
    let arguments = json!({"prompt": "work", "files": files, "plan": true, "image": "other:1"});
    let (success, output) = call(&ada, "create_job", &arguments).await;
    assert!(success, "{output}");
    let created: Value = serde_json::from_str(&output).unwrap();
    let id: JobId = serde_json::from_value(created["job_id"].clone()).unwrap();
    let worker = world.manual_worker(id).await;
    assert!(worker.job().await.plan);
    let job: Job = ada.job(id).await;
    assert_eq!(job.container.map(|container| container.image).as_deref(), Some("other:1"));
    for (path, content) in [("src/a.txt", &b"text"[..]), ("run.sh", &[0, 1])] {
        assert_eq!(ada.bytes(&format!("/api/jobs/{id}/files/{path}")).await, content, "{path}");
    }
    for (arguments, field) in [
        (json!({"prompt": "work", "image": "evil:latest"}), "image: must be one of: "),
        (json!({"prompt": "work", "files": [{"path": "../a", "content": ""}]}), "files[0].path: "),
        (json!({"prompt": "work", "files": [{"path": "a"}]}), "files[0]: must have exactly one of"),
    ] {
        let (success, output) = call(&ada, "create_job", &arguments).await;
        assert!(!success && output.contains(field), "{output}");
    }
    assert_eq!(ada.jobs().await.len(), 1);
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    world.finish().await;
}

#[tokio::test]
async fn a_model_sends_a_last_prompt_that_waits_for_the_end() {
    let world = world().await;
    let ada = user(&world).await;
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let end = id.to_string().split_off(28);
    let arguments = json!({"job_id": end, "content": "and this", "mode": "queue", "done": true});
    let (success, output) = call(&ada, "job_prompt", &arguments).await;
    assert!(success, "{output}");
    let prompt = worker.prompt(PromptId::nil(), 0).await.expect("a prompt");
    assert_eq!((prompt.content.as_str(), prompt.mode, prompt.done), ("and this", PromptMode::Queue, true));
    let path = format!("/api/jobs/{id}/prompt");
    ada.post(&path, &json!({"content": "too late"})).await.problem(ErrorCode::PromptsClosed);
    let (success, output) = call(&ada, "job_prompt", &json!({"job_id": end, "content": "c", "mode": "later"})).await;
    assert!(!success && output.contains("mode"), "{output}");
    assert!(worker.prompt(prompt.prompt_id, 0).await.is_none());
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    world.finish().await;
}

#[tokio::test]
async fn a_part_of_an_id_names_a_job_of_the_user() {
    let world = world().await;
    let (ada, bob) = (user(&world).await, world.user("bob"));
    let (first, other) = (ada.create_job("first").await, bob.create_job("of bob").await);
    let text = first.to_string();
    let short = &text[28..];
    // Bob's job was created at the same time.
    for part in [short, &short[..4], &text[..4], &text.replace('-', "")] {
        let (success, output) = call(&ada, "job_status", &json!({"job_id": part})).await;
        assert!(success && output.contains(&text), "{part}: {output}");
    }
    for part in [&other.to_string()[28..], "abc", "latest", "zzzzzzzz"] {
        let (success, output) = call(&ada, "job_status", &json!({"job_id": part})).await;
        assert!(!success && output.contains("no such job"), "{part}: {output}");
    }
    let second = ada.create_job("second").await;
    let (success, output) = call(&ada, "job_status", &json!({"job_id": text[..4]})).await;
    assert!(!success && output.contains("matches several jobs; give more characters:"), "{output}");
    assert!(output.contains(&format!("{text} first")) && output.contains(&format!("{second} second")), "{output}");
    assert!(!output.contains("of bob"), "{output}");
    for (user, id) in [(&ada, first), (&ada, second), (&bob, other)] {
        world.manual_worker(id).await.finish("done").await;
        user.wait_for_end(id).await;
    }
    world.finish().await;
}
