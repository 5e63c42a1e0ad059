//! What a run reads and keeps: its owner's jobs, its whole result, and its conversation.

use protocol::{EventData, MessageRole, Page, RoutineRun, RunMessage, RunStatus};
use serde_json::{Value, json};
use tests::{
    User, World,
    routines::{run_of, runs, triggered},
    script_of,
};

use super::create;

async fn messages(user: &User, run: &RoutineRun) -> Vec<RunMessage> {
    let (mut all, mut query) = (vec![], "limit=2".to_owned());
    loop {
        let page: Page<RunMessage> =
            user.get(&format!("/api/runs/{}/messages?{query}", run.id)).await.expect(200).json();
        all.extend(page.items);
        let Some(cursor) = page.next_cursor else { return all };
        query = format!("limit=2&cursor={cursor}");
    }
}

#[tokio::test]
async fn a_long_result_is_whole_where_one_run_is_read() {
    let digest = "A line of the digest. ".repeat(500);
    let digest = digest.trim();
    let world = World::builder().script(script_of(&[json!({"reply": {"text": digest}})])).build().await;
    let ada = world.user("ada");
    let job = json!({"jsonrpc": "2.0", "id": 1, "method": "cron.add", "params": {"name": "digest",
        "schedule": {"everyMs": 86_400_000}, "payload": {"message": "write the digest", "deliver": true}}});
    let id = ada.post("/api/rpc", &job).await.expect(200).body["result"]["id"].as_str().unwrap().to_owned();
    let run = run_of(&ada, triggered(&ada, &id).await.id).await;
    assert_eq!((run.status, run.result.as_deref(), run.result_truncated), (RunStatus::Attention, Some(digest), true));

    let listed = runs(&ada, &id).await.remove(0);
    let summary = listed.result_summary.unwrap();
    assert_eq!((listed.result, listed.result_truncated, summary.chars().count()), (None, true, 4_000));
    assert!(summary.ends_with("… [shortened]"), "{summary}");
    let asked = json!({"jsonrpc": "2.0", "id": 1, "method": "cron.runs", "params": {"id": id}});
    let entries = ada.post("/api/rpc", &asked).await.expect(200).body["result"]["entries"].clone();
    assert_eq!(entries[0]["summary"], json!(digest));
    let notifications = ada.get("/api/notifications").await.expect(200).body;
    let texts: Vec<&Value> = notifications["items"].as_array().unwrap().iter().map(|one| &one["text"]).collect();
    assert_eq!(texts, [&json!(summary)]);
    let routine: Value = ada.get(&format!("/api/routines/{id}")).await.expect(200).body;
    let state = routine["state"].as_str().unwrap();
    assert_eq!((state.chars().count(), state.ends_with("… [shortened]")), (2_000, true));
    world.finish().await;
}

#[tokio::test]
async fn a_run_shows_what_its_model_read_thought_called_and_answered() {
    let world = World::builder()
        .script(script_of(&[
            json!({"when": {"tool_name": "echo"}, "reply": {"text": "Two are late."}}),
            json!({"reply": {"text": "I look.", "reasoning": "It may be late.",
                "tool_calls": [{"name": "echo", "arguments": {"message": "list"}}]}}),
        ]))
        .build()
        .await;
    let ada = world.user("ada");
    let action = json!({"type": "lightweight", "prompt": "Check the list.", "use_tools": true});
    let routine = create(&ada, "watch", action).await;
    let run = triggered(&ada, &routine).await;
    assert_eq!(run.status, RunStatus::Attention, "{run:?}");

    let messages = messages(&ada, &run).await;
    assert!(messages.iter().map(|message| message.seq).eq(1..=messages.len() as u64), "{messages:#?}");
    let seen: Vec<(&str, String)> = messages
        .iter()
        .map(|message| match &message.data {
            EventData::Message { role, content } => (
                match role {
                    MessageRole::System => "system",
                    MessageRole::User => "user",
                    MessageRole::Assistant => "assistant",
                },
                content.lines().next().unwrap_or_default().to_owned(),
            ),
            EventData::Reasoning { content } => ("reasoning", content.clone()),
            EventData::ToolUse { tool, input, .. } => ("tool_use", format!("{tool} {input}")),
            EventData::ToolResult { output, .. } => ("tool_result", output.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        ("user", "Check the list."),
        ("reasoning", "It may be late."),
        ("assistant", "I look."),
        ("tool_use", "echo {\"message\":\"list\"}"),
        ("tool_result", "list"),
        ("assistant", "Two are late."),
    ];
    assert_eq!(seen[0].0, "system");
    let seen: Vec<(&str, &str)> = seen[1..].iter().map(|(kind, text)| (*kind, text.as_str())).collect();
    assert_eq!(seen, expected);
    let calls = ada.get(&format!("/api/runs/{}/llm-calls", run.id)).await.expect(200).body;
    assert_eq!(calls["items"].as_array().unwrap().len(), 2, "{calls:#}");

    // Others see nothing of it.
    for part in ["messages", "llm-calls", "actions"] {
        world.user("bob").get(&format!("/api/runs/{}/{part}", run.id)).await.expect(404);
    }
    world.finish().await;
}

#[tokio::test]
async fn a_conversation_has_what_fired_the_run_only_where_the_routine_keeps_it() {
    let world = World::builder().script(script_of(&[json!({"reply": {"text": "Seen."}})])).build().await;
    let ada = world.user("ada");
    for (name, persist, is_kept) in [("forgets", false, false), ("keeps", true, true)] {
        let body = json!({"name": name, "trigger": {"type": "manual"}, "persist_payload": persist,
            "action": {"type": "lightweight", "prompt": "Look."}});
        let routine = ada.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned();
        let fired = json!({"payload": {"secret_plan": "the heron"}, "wait_seconds": 60});
        let run: RoutineRun = ada.post(&format!("/api/routines/{routine}/trigger"), &fired).await.expect(200).json();
        let messages = serde_json::to_string(&messages(&ada, &run).await).unwrap();
        assert_eq!(messages.contains("the heron"), is_kept, "{messages}");
    }
    world.finish().await;
}

#[tokio::test]
async fn a_cron_job_that_does_not_deliver_notifies_of_nothing_and_still_has_its_line() {
    let world = World::builder().script(script_of(&[json!({"reply": {"text": "Two are late."}})])).build().await;
    let ada = world.user("ada");
    let job = json!({"jsonrpc": "2.0", "id": 1, "method": "cron.add",
        "params": {"name": "watch", "schedule": {"everyMs": 86_400_000}, "payload": {"message": "look"}}});
    let id = ada.post("/api/rpc", &job).await.expect(200).body["result"]["id"].as_str().unwrap().to_owned();
    assert_eq!(triggered(&ada, &id).await.status, RunStatus::Attention);
    let notifications = ada.get("/api/notifications").await.expect(200).body;
    assert_eq!(notifications["items"], json!([]));
    let mut database = world.database().await;
    let lines: Vec<String> =
        sqlx::query_scalar("SELECT text FROM system_lines").fetch_all(&mut database).await.unwrap();
    assert_eq!(lines, ["Cron: watch: Two are late."]);
    world.finish().await;
}

#[tokio::test]
async fn a_run_reads_all_jobs_of_its_owner_unless_something_from_outside_fired_it() {
    let script = script_of(&[
        json!({"when": {"tool_name": "list_jobs"}, "reply": {"text": "It said: {{tool_result}}"}}),
        json!({"when": {"last_message": "Report."}, "reply": {"tool_calls": [{"name": "list_jobs", "arguments": {}}]}}),
    ]);
    let world = World::builder().script(script).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let job = ada.create(json!({"prompt": "work", "title": "the heron", "hold": true})).await;
    let other = bob.create(json!({"prompt": "work", "title": "the stork", "hold": true})).await;
    let action = json!({"type": "lightweight", "prompt": "Report.", "use_tools": true});
    let routine = create(&ada, "report", action).await;
    for (payload, sees) in [(Value::Null, true), (json!({"from": "outside"}), false)] {
        let fired = json!({"payload": payload, "wait_seconds": 60});
        let run: RoutineRun = ada.post(&format!("/api/routines/{routine}/trigger"), &fired).await.expect(200).json();
        let text = run.result_summary.clone().unwrap_or_else(|| panic!("{run:?}"));
        assert_eq!((text.contains("the heron"), text.contains("the stork")), (sees, false), "{text}");
    }
    ada.cancel(job).await.expect(202);
    bob.cancel(other).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn a_run_names_a_job_that_it_reads_by_a_part_of_its_id() {
    let script = script_of(&[
        json!({"when": {"tool_name": "job_status"}, "reply": {"text": "It said: {{tool_result}}"}}),
        json!({"when": {"last_message": {"regex": "About ([0-9a-f]+)"}},
               "reply": {"tool_calls": [{"name": "job_status", "arguments": {"job_id": "{{match.1}}"}}]}}),
    ]);
    let world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let job = ada.create(json!({"prompt": "work", "title": "the heron", "hold": true})).await;
    let prompt = format!("About {}", &job.to_string()[28..]);
    let action = json!({"type": "lightweight", "prompt": prompt, "use_tools": true});
    let routine = create(&ada, "report", action).await;
    for (payload, said) in [(Value::Null, "the heron"), (json!({"from": "outside"}), "no such job")] {
        let fired = json!({"payload": payload, "wait_seconds": 60});
        let run: RoutineRun = ada.post(&format!("/api/routines/{routine}/trigger"), &fired).await.expect(200).json();
        let text = run.result_summary.clone().unwrap_or_else(|| panic!("{run:?}"));
        assert!(text.contains(said), "{text}");
    }
    ada.cancel(job).await.expect(202);
    world.finish().await;
}
