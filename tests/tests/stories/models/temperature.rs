//! The temperature of every kind of work, as a provider reads it.

use std::sync::{Arc, Mutex};

use protocol::CreateJob;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{Reply, User, World, routines::triggered};

use super::upstream::{Answer, Upstream};
use crate::{chat::turn, routines::create};

/// The temperatures of the requests.
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
        seen.0.lock().unwrap().push(request["temperature"].clone());
        (Answer::Text("Fine.".to_owned()), json!({"prompt_tokens": 10, "completion_tokens": 5}))
    })
    .await;
    (upstream, asked)
}

async fn run_job(world: &World, user: &User, plan: bool) {
    let request = CreateJob { prompt: "p".to_owned(), plan: Some(plan), ..CreateJob::default() };
    let id = world.submit("ada", request).await.unwrap();
    user.wait_for_end(id).await;
}

#[rstest]
#[case::jobs_in_the_server(true)]
#[case::jobs_in_containers(false)]
#[tokio::test]
async fn the_users_temperature_is_sent_by_all_work_and_only_lightweight_runs_have_another(#[case] on_host: bool) {
    let (upstream, asked) = provider().await;
    let world = if on_host { upstream.world().set("GANTRY_SANDBOX", "disabled") } else { upstream.world().processes() };
    let world = world.build().await;
    let ada = world.user("ada");
    let run = create(&ada, "run", json!({"type": "lightweight", "prompt": "Check."})).await;
    let job = create(&ada, "job", json!({"type": "full_job", "description": "Check."})).await;
    for (chosen, in_runs) in [(None, 0.3), (Some(0.75), 0.75), (Some(0.0), 0.0)] {
        let settings = ada.request(Method::PUT, "/api/settings").json(&json!({"temperature": chosen}));
        Reply::of(settings).await.expect(200);
        turn(&ada, "hello").await;
        assert_eq!(asked.take(), [json!(chosen)], "a chat");
        triggered(&ada, &run).await;
        assert_eq!(asked.take(), [json!(in_runs)], "a lightweight run");
        triggered(&ada, &job).await;
        assert_eq!(asked.take(), [json!(chosen)], "a routine's job");
        run_job(&world, &ada, false).await;
        assert_eq!(asked.take(), [json!(chosen)], "a job");
        run_job(&world, &ada, true).await;
        assert_eq!(asked.take(), [Value::Null, json!(chosen)], "a plan, and the work");
    }
    // Another user's work has another temperature.
    turn(&world.user("bob"), "hello").await;
    assert_eq!(asked.take(), [Value::Null]);
    world.finish().await;
}
