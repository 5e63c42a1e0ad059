//! What the model of a job was sent: rebuilt from the record, it is what the provider got.

use std::sync::{Arc, Mutex};

use orchestrator::auth::Role;
use protocol::{
    CallId, CreateJob, ErrorCode, JobState, LlmCallRecord, LlmCallRequest, ModelMessageRole, Page, UnrecordedPart,
};
use rstest::rstest;
use serde_json::{Value, json};
use tests::User;

use super::upstream::{Answer, Upstream};

const SECRET: &str = "correct-horse-battery";

/// A provider that asks for a tool twice and then ends, and the requests that it got.
async fn provider() -> (Upstream, Arc<Mutex<Vec<Value>>>) {
    let asked = Arc::<Mutex<Vec<Value>>>::default();
    let seen = Arc::clone(&asked);
    let upstream = Upstream::start(move |request| {
        seen.lock().unwrap().push(request.clone());
        let results =
            request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count();
        let answer = match results {
            0 | 1 => Answer::Calls(vec![("echo", json!({"message": format!("{results}: {SECRET}")}))]),
            _ => Answer::Text("Fine.".to_owned()),
        };
        (answer, json!({"prompt_tokens": 10, "completion_tokens": 5}))
    })
    .await;
    (upstream, asked)
}

/// Role, text and number of tool calls of the messages after the instructions, as the provider got them.
fn sent(request: &Value) -> Vec<(String, String, usize)> {
    let messages = request["messages"].as_array().unwrap();
    assert_eq!(messages[0]["role"], "system");
    let shown = |message: &Value| {
        let calls = message["tool_calls"].as_array().map_or(0, Vec::len);
        (
            message["role"].as_str().unwrap().to_owned(),
            message["content"].as_str().unwrap_or_default().to_owned(),
            calls,
        )
    };
    messages[1..].iter().map(shown).collect()
}

async fn rebuilt(user: &User, job: impl std::fmt::Display, call: &CallId) -> LlmCallRequest {
    user.get(&format!("/api/jobs/{job}/llm-calls/{call}/request")).await.expect(200).json()
}

#[rstest]
#[case::jobs_in_the_server(true)]
#[case::jobs_in_containers(false)]
#[tokio::test]
async fn a_rebuilt_request_has_the_messages_that_the_provider_got(#[case] on_host: bool) {
    let (upstream, asked) = provider().await;
    let builder = upstream.world();
    let builder = if on_host { builder.set("GANTRY_SANDBOX", "disabled") } else { builder.processes() };
    let world = builder.build().await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "KEY", "value": SECRET})).await.expect(201);
    let (prompt, tools) = (format!("Say {SECRET}."), Some(vec!["echo".to_owned()]));
    let id = world.submit("ada", CreateJob { prompt, tools, ..CreateJob::default() }).await.unwrap();
    ada.wait_for_end(id).await;
    let calls: Page<LlmCallRecord> = ada.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200).json();
    let asked = asked.lock().unwrap().clone();
    assert_eq!((calls.items.len(), asked.len()), (3, 3));
    for (call, asked) in calls.items.iter().zip(&asked) {
        let request = rebuilt(&ada, id, &call.call_id).await;
        let shown: Vec<_> = request
            .messages
            .iter()
            .map(|message| (message.role.to_string(), message.content.clone(), message.tool_calls.len()))
            .collect();
        assert_eq!(shown, sent(asked));
        assert_eq!(request.unrecorded, [UnrecordedPart::Instructions, UnrecordedPart::ToolDefinitions]);
        assert_eq!((&request.model, request.at), (&call.model, call.at));
    }
    let last = rebuilt(&ada, id, &calls.items[2].call_id).await;
    assert_eq!(last.messages.iter().filter(|message| message.role == ModelMessageRole::Tool).count(), 2);
    let text = serde_json::to_string(&last).unwrap();
    assert!(!text.contains(SECRET) && text.contains("[redacted:KEY]"), "{text}");

    let path = format!("/api/jobs/{id}/llm-calls/{}/request", calls.items[0].call_id);
    world.user("bob").get(&path).await.problem(ErrorCode::NotFound);
    world.someone("root", Role::Admin).get(&path).await.problem(ErrorCode::Forbidden);
    ada.get(&format!("/api/jobs/{id}/llm-calls/other/request")).await.problem(ErrorCode::NotFound);
    world.finish().await;
}

#[tokio::test]
async fn a_new_attempt_sends_the_prompt_once_also_with_a_secret_in_it() {
    let asked = Arc::<Mutex<Vec<Value>>>::default();
    let seen = Arc::clone(&asked);
    // The command's parent is its supervisor, whose parent is the worker.
    let stop = "kill -STOP $(sed -n 's/^PPid:[[:space:]]*//p' /proc/$PPID/status)";
    let upstream = Upstream::start(move |request| {
        let mut asked = seen.lock().unwrap();
        asked.push(request.clone());
        let answer = match asked.len() {
            1 => Answer::Calls(vec![("shell", json!({"command": stop}))]),
            _ => Answer::Text("Fine.".to_owned()),
        };
        (answer, json!({"prompt_tokens": 10, "completion_tokens": 5}))
    })
    .await;
    let world = upstream.world().processes().set("GANTRY_LEASE_SECONDS", 6).build().await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "KEY", "value": SECRET})).await.expect(201);
    let id = ada.create_job(&format!("Say {SECRET}.")).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Completed, 2), "{job:#?}");
    let asked = asked.lock().unwrap().clone();
    let of_user = |request: &Value| -> Vec<String> {
        sent(request).into_iter().filter(|(role, ..)| role == "user").map(|(_, text, _)| text).collect()
    };
    assert_eq!(of_user(&asked[1]), of_user(&asked[0]));
    let calls: Page<LlmCallRecord> = ada.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200).json();
    let request = rebuilt(&ada, id, &calls.items[1].call_id).await;
    assert_eq!(request.messages.iter().filter(|message| message.role == ModelMessageRole::User).count(), 1);
    world.finish().await;
}
