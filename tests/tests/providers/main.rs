//! Chats, routines, jobs and heartbeats against providers that are as strict as the real ones. What they refuse is learned, or
//! known before: no work fails, and no refusal comes twice.

mod double;
mod families;
mod wires;

use std::{collections::BTreeSet, time::Duration};

use orchestrator::clock::ManualClock;
use protocol::{ChatContent, ChatHistory, JobState, RunStatus, ThreadState};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{Reply, User, World, WorldBuilder, routines::triggered};

use self::{
    double::Double,
    families::{FAMILIES, Family, family},
};

async fn history(user: &User) -> ChatHistory {
    user.get("/api/chat/threads/main?limit=200").await.expect(200).json()
}

/// Sends a message to the main session and waits for the end of its turn.
async fn turn(user: &User, content: &str) -> ChatHistory {
    user.post("/api/chat/send", &json!({"content": content})).await.expect(202);
    tests::poll("the end of the turn", async || {
        let history = history(user).await;
        let queued = history.messages.iter().any(|message| message.seq.is_none());
        (history.thread.state == ThreadState::Idle && !queued).then_some(history)
    })
    .await
}

/// What the model has said last, unless the turn failed.
fn answer(history: &ChatHistory) -> &str {
    match history.messages.last().map(|message| &message.content) {
        Some(ChatContent::Assistant { content }) => content,
        other => panic!("{other:?}"),
    }
}

async fn put(user: &User, path: &str, body: &Value) {
    let reply = Reply::of(user.request(Method::PUT, path).json(body)).await;
    assert!(reply.status.is_success(), "{reply:?}");
}

async fn lightweight(user: &User, name: &str) -> String {
    let action = json!({"type": "lightweight", "prompt": "use echo", "use_tools": true});
    let body = json!({"name": name, "trigger": {"type": "manual"}, "action": action});
    user.post("/api/routines", &body).await.expect(201).body["id"].as_str().expect("an id").to_owned()
}

/// Each refusal came once: it was learned.
fn assert_learned(double: &Double) {
    let refusals = double.refusals();
    let kinds: BTreeSet<&String> = refusals.iter().collect();
    assert_eq!(kinds.len(), refusals.len(), "{refusals:#?}");
}

async fn converse(world: &World, double: &Double, clock: &ManualClock) {
    let ada = world.user("ada");
    for (content, expected) in [
        ("hello", "Hello."),
        ("use echo", "1 results."),
        ("use two", "2 results."),
        ("insist", "Given up."),
        ("odd name", "1 results."),
        ("hello again", "Hello."),
    ] {
        let history = turn(&ada, content).await;
        assert_eq!(answer(&history), expected, "{content}: {:#?}\n{:#?}", history.messages.last(), double.refusals());
    }
    // A temperature of the user's, and the one that routines have.
    put(&ada, "/api/settings", &json!({"temperature": 0.2})).await;
    assert_eq!(answer(&turn(&ada, "hello once more").await), "Hello.");
    put(&ada, "/api/memory?path=HEARTBEAT.md", &json!({"content": "- look"})).await;
    let before = double.kept().requests.len();
    clock.advance(Duration::from_hours(1));
    tests::until("the heartbeat", async || double.kept().requests.len() > before).await;
    // Its token has expired.
    let ada = world.user("ada");
    turn(&ada, "/compact").await;
    assert_eq!(answer(&turn(&ada, "use two").await), "2 results.", "{:#?}", double.refusals());
    let routine = lightweight(&ada, "news").await;
    let run = triggered(&ada, &routine).await;
    assert_eq!(run.status, RunStatus::Attention, "{run:#?}\n{:#?}", double.refusals());
    assert_learned(double);
}

#[rstest]
#[tokio::test]
async fn chats_and_routines_of_each_family(
    #[values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)] index: usize,
) {
    let family = &FAMILIES[index];
    let double = Double::start(family).await;
    let clock = ManualClock::at("2026-11-23T12:00:00Z".parse().unwrap());
    let world = double.world().clock(&clock).build().await;
    converse(&world, &double, &clock).await;
    world.finish().await;
}

#[rstest]
#[tokio::test]
async fn a_job_in_a_worker_of_each_family(
    #[values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)] index: usize,
) {
    let family = &FAMILIES[index];
    let double = Double::start(family).await;
    let world = double.world().processes().build().await;
    let ada = world.user("ada");
    for prompt in ["use two", "odd name"] {
        let id = ada.create(json!({"prompt": prompt, "tools": ["echo"]})).await;
        let job = ada.wait_for_end(id).await;
        assert_eq!(job.state, JobState::Completed, "{prompt}: {job:#?}\n{:#?}", double.refusals());
    }
    assert_learned(&double);
    world.finish().await;
}

/// Nothing changes what came before a signed reply: not two days, a changed document, a restart or a heartbeat. A compaction
/// begins another one.
#[tokio::test]
async fn signed_replies_keep_their_beginning() {
    let double = Double::start(family("anthropic")).await;
    let clock = ManualClock::at("2026-11-23T22:00:00Z".parse().unwrap());
    let mut world = double.world().clock(&clock).build().await;
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "use echo").await), "1 results.");
    clock.advance(Duration::from_hours(49));
    // Its token has expired.
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    put(&ada, "/api/memory?path=IDENTITY.md", &json!({"content": "Your name is Marvin."})).await;
    assert_eq!(answer(&turn(&ada, "use two").await), "2 results.");
    let replayed = signatures(double.kept().requests.last().unwrap());
    assert_eq!(replayed, 4, "the thinking of four replies");
    world.restart().await;
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    assert_eq!(signatures(double.kept().requests.last().unwrap()), replayed + 1);
    put(&ada, "/api/memory?path=HEARTBEAT.md", &json!({"content": "- look"})).await;
    let before = double.kept().requests.len();
    clock.advance(Duration::from_hours(1));
    tests::until("the heartbeat", async || double.kept().requests.len() > before).await;
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    turn(&ada, "/compact").await;
    assert_eq!(answer(&turn(&ada, "use echo").await), "1 results.");
    assert_eq!(double.refusals(), [""; 0], "and no request was refused");
    world.finish().await;
}

fn signatures(request: &Value) -> usize {
    request.to_string().matches("\"signature\"").count()
}

/// The world of a provider that refuses its key, with a failover.
fn failing_over(first: &Double, second: &Double, second_family: &Family) -> WorldBuilder {
    let failover = format!(
        "[[llm.failover]]\nprovider = \"{}\"\nbase_url = \"{}\"\nmodel = \"{}\"\napi_key = \"sk-second-0123456789\"\n",
        second_family.kind,
        second.base_url(),
        second_family.model
    );
    first.world().config_file(failover)
}

/// langchain-ai/langchain#37756 and anomalyco/opencode#1525: the ids of one provider are none of another's.
#[rstest]
#[case("moonshot", "anthropic")]
#[case("moonshot", "mistral")]
#[case("openai, chat", "mistral")]
#[case("anthropic", "gemini")]
#[case("deepseek", "groq")]
#[tokio::test]
async fn a_conversation_goes_on_with_another_provider(#[case] first: &str, #[case] second: &str) {
    let (first, second_family) = (Double::start(family(first)).await, family(second));
    let second = Double::start(second_family).await;
    let world = failing_over(&first, &second, second_family).build().await;
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "use two").await), "2 results.");
    first.fail_from_now_on();
    for (content, expected) in [("use echo", "1 results."), ("odd name", "1 results."), ("hello", "Hello.")] {
        let history = turn(&ada, content).await;
        assert_eq!(answer(&history), expected, "{:#?}", second.refusals());
    }
    assert_learned(&second);
    world.finish().await;
}
