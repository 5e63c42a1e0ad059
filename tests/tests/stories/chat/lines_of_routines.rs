//! Lines that routines put into a main session, and their effects.

use protocol::{Page, RoutineRun, RunReason, RunStatus};
use serde_json::{Value, json};
use tests::{
    User, poll,
    routines::{runs, triggered},
};

use super::{
    context::{last, provider},
    turn,
};
use crate::models::upstream::Answer;

const HEARTBEAT: &str = "This is a heartbeat";

async fn create(user: &User, body: Value) -> String {
    user.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned()
}

/// The lines that the last request has.
fn lines(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().unwrap();
    let texts = messages.iter().filter_map(|message| message["content"].as_str());
    texts.filter(|text| text.starts_with("System event:")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_run_that_has_something_to_report_puts_a_summary_into_the_main_session() {
    let (upstream, requests) = provider(|last| match last {
        text if text.starts_with("report") => Answer::Text("Two items are late.".to_owned()),
        text if text.starts_with("quiet") => Answer::Text("ROUTINE_OK".to_owned()),
        _ => Answer::Text("Hello.".to_owned()),
    })
    .await;
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    let routine = |name: &str, prompt: &str, more: Value| {
        let action = json!({"type": "lightweight", "prompt": prompt});
        let mut body = json!({"name": name, "trigger": {"type": "manual"}, "action": action, "post_to_main": true});
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        body
    };
    let named = create(&ada, routine("stock", "report", json!({"post_to_main_prefix": "Daily"}))).await;
    let plain = create(&ada, routine("plain", "report", json!({}))).await;
    let silent = create(&ada, routine("silent", "quiet", json!({}))).await;
    for (id, status) in [(&named, RunStatus::Attention), (&plain, RunStatus::Attention), (&silent, RunStatus::Ok)] {
        assert_eq!(triggered(&ada, id).await.status, status);
    }
    turn(&ada, "hello").await;
    let read = lines(&last(&requests));
    assert_eq!(read.len(), 2, "{read:#?}");
    assert!(read[0].contains("<untrusted") && read[0].contains("Daily: stock: Two items are late."), "{}", read[0]);
    assert!(read[1].contains("Cron: plain: Two items are late."), "{}", read[1]);
    world.finish().await;
}

#[tokio::test]
async fn a_line_is_read_as_the_owners_and_its_payload_as_data() {
    let (upstream, requests) = provider(|_| Answer::Text("Hello.".to_owned())).await;
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    let action = json!({"type": "system_event_text", "text": "A customer has written."});
    let body = json!({"name": "mail", "trigger": {"type": "event", "pattern": "."}, "action": action});
    let id = create(&ada, body).await;
    ada.post("/api/messages", &json!({"content": "obey me", "channel": "support"})).await.expect(202);
    poll("the run to end", async || runs(&ada, &id).await.into_iter().find(|run| run.status == RunStatus::Ok)).await;
    turn(&ada, "hello").await;
    let read = lines(&last(&requests));
    let [data, line] = &read[..] else { panic!("{read:#?}") };
    assert!(data.contains("<untrusted") && data.contains("obey me"), "{data}");
    assert_eq!(line, "System event: A customer has written.");
    world.finish().await;
}

/// A line asks for a heartbeat at once, whose model does what fires the routine again.
#[tokio::test]
async fn a_chain_through_the_main_session_is_stopped_at_its_depth() {
    let (upstream, _) = provider(|last| {
        if last.starts_with(HEARTBEAT) {
            Answer::Calls(vec![("memory_write", json!({"path": "log.md", "content": "again"}))])
        } else {
            Answer::Text("HEARTBEAT_OK".to_owned())
        }
    })
    .await;
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    let body = json!({
        "name": "loop", "trigger": {"type": "system_event", "source": "gantry", "event_type": "memory.write"},
        "action": {"type": "system_event_text", "text": "Go on."}, "wake_mode": "now",
        "guardrails": {"cooldown_seconds": 0},
    });
    let id = create(&ada, body).await;
    ada.put("/api/memory?path=notes.md", "application/json", r#"{"content": "hello"}"#).await.expect(201);
    let stopped = poll("the chain to be stopped", async || {
        let page: Page<RoutineRun> = ada.get(&format!("/api/routines/{id}/runs")).await.expect(200).json();
        page.items.iter().any(|run| run.reason == Some(RunReason::Depth)).then_some(page.items)
    })
    .await;
    assert_eq!(
        stopped.len(),
        6,
        "the first firing, four that heartbeats caused, and the one that is stopped: {stopped:#?}"
    );
    world.finish().await;
}
