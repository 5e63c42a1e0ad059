//! The output of a command is in the job's events while the command runs.

use protocol::{CallId, Event, EventData, JobId, JobState};
use serde_json::{Value, json};
use tests::{User, World, script_of};

/// Waits until the test creates the file.
fn wait_for(file: &str) -> String {
    format!("until [ -e {file} ]; do sleep 0.02; done")
}

/// A world whose model calls `shell` with these commands at once and then ends.
async fn world_of(commands: &[String]) -> World {
    let calls: Vec<Value> =
        commands.iter().map(|command| json!({"name": "shell", "arguments": {"command": command}})).collect();
    let script = script_of(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": calls}}),
        json!({"when": {"turn": {"from": 2}}, "reply": {"text": "done"}}),
    ]);
    World::builder().processes().script(script).build().await
}

fn create_file(world: &World, id: JobId, name: &str) {
    std::fs::write(world.workspace(id).join(name), "").unwrap();
}

/// Waits until the streamed output contains the text.
async fn wait_for_output(user: &User, id: JobId, text: &str) {
    user.wait_for_event(
        id,
        text,
        |event| matches!(&event.data, EventData::Log { text: shown, .. } if shown.contains(text)),
    )
    .await;
}

/// What a call has streamed.
fn output_of(events: &[Event], call: &CallId) -> String {
    let text = |event: &Event| match &event.data {
        EventData::Log { text, call_id: Some(call_id), .. } if call_id == call => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

/// The results of calls, in order, with their positions.
fn results(events: &[Event]) -> Vec<(usize, CallId, String)> {
    let result = |(at, event): (usize, &Event)| match &event.data {
        EventData::ToolResult { call_id, output, .. } => Some((at, call_id.clone(), output.clone())),
        _ => None,
    };
    events.iter().enumerate().filter_map(result).collect()
}

#[tokio::test]
async fn a_follower_reads_the_output_of_a_command_that_still_runs() {
    let command = format!("echo begin; {}; echo more >&2; {}; printf end", wait_for("go"), wait_for("finish"));
    let world = world_of(&[command]).await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    wait_for_output(&ada, id, "begin").await;
    assert_eq!(results(&ada.events(id).await), [], "the command still runs");
    create_file(&world, id, "go");
    wait_for_output(&ada, id, "more").await;
    create_file(&world, id, "finish");
    ada.wait_for(id, JobState::Completed).await;

    let events = ada.events(id).await;
    let [(at, call, output)] = &results(&events)[..] else { panic!("{events:#?}") };
    assert_eq!(output, "begin\nmore\nend\n[exit 0]");
    assert_eq!(output_of(&events, call), "begin\nmore\nend");
    assert!(events[*at..].iter().all(|event| !matches!(event.data, EventData::Log { .. })), "{events:#?}");
    world.finish().await;
}

#[tokio::test]
async fn a_short_command_has_only_a_result() {
    let world = world_of(&["echo quick".to_owned()]).await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    ada.wait_for(id, JobState::Completed).await;
    let events = ada.events(id).await;
    assert_eq!(results(&events)[0].2, "quick\n[exit 0]");
    assert!(events.iter().all(|event| !matches!(event.data, EventData::Log { .. })), "{events:#?}");
    world.finish().await;
}

#[tokio::test]
async fn parallel_commands_stream_apart_and_a_secret_in_two_pieces_is_in_none() {
    let wait = wait_for("go");
    let commands = [
        format!("printf 'first\\ntoken=hunter2'; {wait}; echo -secret.; {}", wait_for("finish")),
        format!("printf 'second\\nhundred'; {wait}; echo ' apples'; {}", wait_for("finish")),
    ];
    let world = world_of(&commands).await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "TOKEN", "value": "hunter2-secret"})).await.expect(201);
    let id = ada.create_job("work").await;
    wait_for_output(&ada, id, "first").await;
    wait_for_output(&ada, id, "second").await;
    create_file(&world, id, "go");
    wait_for_output(&ada, id, "[redacted]").await;
    wait_for_output(&ada, id, "apples").await;
    create_file(&world, id, "finish");
    ada.wait_for(id, JobState::Completed).await;

    let events = ada.events(id).await;
    let results = results(&events);
    let streamed: Vec<String> = results.iter().map(|(_, call, _)| output_of(&events, call)).collect();
    assert_eq!(streamed, ["first\ntoken=[redacted].\n", "second\nhundred apples\n"]);
    let shown = events.iter().map(|event| serde_json::to_string(&event.data).unwrap()).collect::<String>();
    assert!(!shown.contains("hunter2-secret") && !shown.contains("\"-secret"), "{shown}");
    world.finish().await;
}
