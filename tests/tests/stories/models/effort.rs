//! How much a model thinks: what jobs, runs, chats, users and the operator ask for, as a provider reads it.

use std::sync::{Arc, Mutex};

use protocol::{CreateJob, Effort, ErrorCode, UserSettings};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{Reply, User, World, routines::triggered};

use super::upstream::{Answer, Upstream};
use crate::{chat::turn, routines::create};

/// What the provider was asked for with each request.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<Value>>>);

impl Asked {
    fn take(&self) -> Vec<Value> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

async fn provider() -> (Upstream, Asked) {
    let asked = Asked::default();
    let seen = asked.clone();
    let upstream = Upstream::start(move |request| {
        seen.0.lock().unwrap().push(request["reasoning_effort"].clone());
        (Answer::Text("Fine.".to_owned()), json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}))
    })
    .await;
    (upstream, asked)
}

/// Runs a job in the server. Returns it as it is shown.
async fn job(world: &World, effort: Option<Effort>) -> Value {
    let request = CreateJob { prompt: "p".to_owned(), effort, ..CreateJob::default() };
    let (user, id) = (world.user("ada"), world.submit("ada", request).await.unwrap());
    user.wait_for_end(id).await;
    user.get(&format!("/api/jobs/{id}")).await.expect(200).body
}

async fn set(user: &User, settings: Value) {
    Reply::of(user.request(Method::PUT, "/api/settings").json(&settings)).await.expect(200);
}

#[tokio::test]
async fn the_one_who_asks_comes_before_the_user_and_the_user_before_the_operator() {
    let (upstream, asked) = provider().await;
    let world = upstream.world().set("GANTRY_LLM_MODEL", "gpt-oss-20b").set("GANTRY_LLM_EFFORT", "high");
    let world = world.set("GANTRY_SANDBOX", "disabled").build().await;
    let ada = world.user("ada");
    let lightweight = |fields: Value| {
        let mut action = json!({"type": "lightweight", "prompt": "Check."});
        action.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        action
    };
    let by_operator = create(&ada, "plain", lightweight(json!({}))).await;
    let by_action = create(&ada, "quick", lightweight(json!({"effort": "low"}))).await;
    let by_job = create(&ada, "job", json!({"type": "full_job", "description": "p", "effort": "low"})).await;
    let job_of_user = create(&ada, "job-of-user", json!({"type": "full_job", "description": "p"})).await;
    for preferred in [None, Some("medium")] {
        set(&ada, json!({"effort": preferred})).await;
        let other = preferred.unwrap_or("high");
        let shown = job(&world, None).await;
        assert_eq!((&shown["effort"], asked.take()), (&json!(preferred), vec![json!(other)]));
        let shown = job(&world, Some(Effort::Low)).await;
        assert_eq!((&shown["effort"], asked.take()), (&json!("low"), vec![json!("low")]));
        for (routine, expected) in [(&by_operator, other), (&by_action, "low"), (&by_job, "low"), (&job_of_user, other)]
        {
            triggered(&ada, routine).await;
            assert_eq!(asked.take(), [json!(expected)]);
        }
        turn(&ada, "hello").await;
        assert_eq!(asked.take(), [json!(other)]);
    }
    let settings: UserSettings = ada.get("/api/settings").await.expect(200).json();
    assert_eq!(settings.effort, Some(Effort::Medium));
    let listed = ada.get("/api/jobs?limit=1").await.expect(200).body;
    assert!(listed["items"][0].get("effort").is_some(), "{listed:#}");
    world.finish().await;
}

#[tokio::test]
async fn a_model_without_words_for_it_is_asked_as_usual() {
    let (upstream, asked) = provider().await;
    let world = upstream.world().set("GANTRY_LLM_EFFORT", "high").set("GANTRY_SANDBOX", "disabled").build().await;
    job(&world, Some(Effort::Low)).await;
    assert_eq!(asked.take(), [Value::Null]);
    world.finish().await;
}

#[rstest]
#[case(Method::POST, "/api/jobs", json!({"prompt": "p", "effort": "max"}))]
#[case(Method::PUT, "/api/settings", json!({"effort": "max"}))]
#[case(Method::POST, "/api/routines", json!({"name": "n", "trigger": {"type": "manual"},
    "action": {"type": "lightweight", "prompt": "p", "effort": "max"}}))]
#[case(Method::POST, "/api/routines", json!({"name": "n", "trigger": {"type": "manual"},
    "action": {"type": "full_job", "description": "p", "effort": "max"}}))]
#[tokio::test]
async fn another_word_is_refused(#[case] method: Method, #[case] path: &str, #[case] body: Value) {
    let world = World::new().await;
    let refused = Reply::of(world.user("ada").request(method, path).json(&body)).await.problem(ErrorCode::Invalid);
    let text = refused.body.to_string();
    assert!(["low", "medium", "high"].iter().all(|word| text.contains(word)), "{text}");
    world.finish().await;
}
