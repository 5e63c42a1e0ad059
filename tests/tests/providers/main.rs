//! Chats, routines, jobs and heartbeats against providers that are as strict as the real ones. What they refuse is learned, and
//! no refusal comes twice; or it is known before, and there is none. No work fails.

mod definitions;
mod double;
mod failover;
mod families;
mod refusals;
mod signed;
mod wires;

use std::{collections::BTreeSet, time::Duration};

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{ChatContent, ChatHistory, JobState, RunReason, RunStatus, ThreadState};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{Reply, User, World, install::program, routines::triggered};

use self::{
    double::Double,
    families::{AZURE_CHAT_ALONE, COPILOT, FAMILIES, family},
    refusals::hosts::ZAI_BALANCE,
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
    #[values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)] index: usize,
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
    #[values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)] index: usize,
) {
    let family = &FAMILIES[index];
    let double = Double::start(family).await;
    let world = double.world().processes().build().await;
    let ada = world.user("ada");
    for body in [
        json!({"prompt": "use two", "tools": ["echo"]}),
        json!({"prompt": "odd name", "tools": ["echo"]}),
        json!({"prompt": "use two", "tools": ["echo"], "effort": "high", "plan": true}),
    ] {
        let id = ada.create(body.clone()).await;
        let job = ada.wait_for_end(id).await;
        assert_eq!(job.state, JobState::Completed, "{body}: {job:#?}\n{:#?}", double.refusals());
    }
    assert_learned(&double);
    world.finish().await;
}

/// What is known of a provider by its host and the name of a model needs no refusal. The last one is Copilot.
#[rstest]
#[tokio::test]
async fn presets_are_what_their_providers_take(
    #[values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20)] index: usize,
) {
    let family = FAMILIES.get(index).unwrap_or(&COPILOT);
    let Some(real) = &family.real else { return };
    let double = Double::start(family).await;
    let world = double.world_of_preset(real).processes().build().await;
    let ada = world.user("ada");
    for (content, expected) in
        [("use two", "2 results."), ("odd name", "1 results."), ("insist", "Given up."), ("hello", "Hello.")]
    {
        let history = turn(&ada, content).await;
        assert_eq!(answer(&history), expected, "{content}: {:#?}\n{:#?}", history.messages.last(), double.refusals());
    }
    let routine = lightweight(&ada, "news").await;
    let run = triggered(&ada, &routine).await;
    assert_eq!(run.status, RunStatus::Attention, "{run:#?}\n{:#?}", double.refusals());
    for effort in [None, Some("low"), Some("high")] {
        let id = ada.create(json!({"prompt": "use two", "tools": ["echo"], "effort": effort})).await;
        let job = ada.wait_for_end(id).await;
        assert_eq!(job.state, JobState::Completed, "{effort:?}: {job:#?}\n{:#?}", double.refusals());
    }
    assert_eq!(double.refusals().len(), real.lessons, "{:#?}", double.refusals());
    world.finish().await;
}

/// There is no other format, and tools are taken only without thinking. All of it is learned within the first call.
#[tokio::test]
async fn a_model_that_thinks_is_asked_at_chat_completions_where_there_is_nothing_else() {
    let double = Double::start(&AZURE_CHAT_ALONE).await;
    let world = double.world().build().await;
    let ada = world.user("ada");
    let routine = lightweight(&ada, "news").await;
    let run = triggered(&ada, &routine).await;
    assert_eq!(run.status, RunStatus::Attention, "{run:#?}\n{:#?}", double.refusals());
    // The limit's name, the temperature, the format, that there is no other one, and the thinking.
    assert_eq!(double.refusals().len(), 5, "{:#?}", double.refusals());
    assert_eq!(answer(&turn(&ada, "use two").await), "2 results.", "{:#?}", double.refusals());
    assert_eq!(double.refusals().len(), 5, "{:#?}", double.refusals());
    world.finish().await;
}

/// Z.ai answers 429 for its rate, which passes, and for an account without credit, which does not.
#[tokio::test]
async fn an_account_without_credit_disables_a_routine_and_a_rate_does_not() {
    let double = Double::start(family("z.ai")).await;
    let world = double.world().build().await;
    let ada = world.user("ada");
    let routine = lightweight(&ada, "news").await;
    let run = triggered(&ada, &routine).await;
    assert_eq!((run.status, double.refusals().len()), (RunStatus::Attention, 1), "{run:#?}");
    double.refuse_from_now_on(ZAI_BALANCE);
    let run = triggered(&ada, &routine).await;
    assert_eq!((run.status, run.reason), (RunStatus::Failed, Some(RunReason::ProviderAccount)), "{run:#?}");
    let routine = ada.get(&format!("/api/routines/{routine}")).await.expect(200).body;
    assert_eq!((&routine["enabled"], &routine["disabled_reason"]), (&json!(false), &json!("provider_account")));
    world.finish().await;
}

/// What is pinned, and what the preset of the model is, beside what was learned.
#[tokio::test]
async fn admins_see_what_is_known_of_a_provider() {
    let double = Double::start(family("a server that knows few fields")).await;
    let world = double.world().config_file("[llm.dialect]\ntemperature = \"omit\"\n").build().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    let seen = root.get("/readyz").await.body["models"][0].clone();
    assert_eq!(seen["pinned"], json!({"temperature": "omit"}));
    let learned = json!({"stream_options": "omit"});
    assert_eq!((&seen["learned"]["house"], &seen["preset"]), (&learned, &Value::Null), "{seen}");
    let seen = ada.get("/readyz").await.body["models"][0].clone();
    assert_eq!((&seen["pinned"], &seen["learned"]), (&Value::Null, &Value::Null), "{seen}");
    let as_root = [("GANTRY_URL", root.base().to_owned()), ("GANTRY_TOKEN", world.fresh("root", Role::Admin))];
    let doctor = program::run(&["doctor"], &as_root.map(|(name, value)| (name.to_owned(), value))).await;
    for line in [
        "openai takes, all models: set by llm.dialect: {\"temperature\":\"omit\"}",
        "openai takes, house: learned from refusals: {\"stream_options\":\"omit\"}",
    ] {
        assert!(doctor.stdout.contains(line), "{doctor:?}");
    }
    world.finish().await;

    let local = Double::start(family("a local server")).await;
    let world = local.world().build().await;
    let seen = world.someone("root", Role::Admin).get("/readyz").await.body["models"][0].clone();
    assert_eq!((&seen["preset"]["schema"], &seen["pinned"]), (&json!("plain"), &Value::Null), "{seen}");
    world.finish().await;
}
