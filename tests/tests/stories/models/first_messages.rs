//! How the conversations of chats, runs and jobs begin: the user's document about the assistant, and the title of a job.

use std::sync::{Arc, Mutex};

use protocol::{CreateJob, Job};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{Reply, World, routines::triggered};

use super::upstream::{Answer, Upstream};
use crate::{chat::turn, routines::create};

/// The requests to the provider.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<Value>>>);

impl Asked {
    /// The only request since the last call of this.
    fn take_one(&self) -> Value {
        let [request] = std::mem::take(&mut *self.0.lock().unwrap()).try_into().expect("one request");
        request
    }
}

fn content(request: &Value, index: usize) -> &str {
    request["messages"][index]["content"].as_str().unwrap()
}

/// A world whose jobs run in the server, or in containers.
async fn world(on_host: bool) -> (World, Upstream, Asked) {
    let asked = Asked::default();
    let seen = asked.clone();
    let upstream = Upstream::start(move |request| {
        seen.0.lock().unwrap().push(request.clone());
        (Answer::Text("Fine.".to_owned()), json!({"prompt_tokens": 10, "completion_tokens": 5}))
    })
    .await;
    let builder = upstream.world().set("GANTRY_LLM_MODELS", "large-model").set("GANTRY_DEFAULTS_MODEL", "large-model");
    let builder = if on_host { builder.set("GANTRY_SANDBOX", "disabled") } else { builder.processes() };
    (builder.build().await, upstream, asked)
}

/// Runs a job of ada's. Returns it as it is shown.
async fn run_job(world: &World, title: Option<&str>, prompt: &str) -> Job {
    let title = title.map(str::to_owned);
    let request = CreateJob { prompt: prompt.to_owned(), title, ..CreateJob::default() };
    let id = world.submit("ada", request).await.unwrap();
    world.user("ada").wait_for_end(id).await
}

#[rstest]
#[case::jobs_in_the_server(true)]
#[case::jobs_in_containers(false)]
#[tokio::test]
async fn the_document_about_the_assistant_opens_all_prompts_but_those_of_containers(#[case] on_host: bool) {
    const IDENTITY: &str = "Your name is Marvin.";
    let (world, _upstream, asked) = world(on_host).await;
    let ada = world.user("ada");
    let document = ada.request(Method::PUT, "/api/memory?path=IDENTITY.md").json(&json!({"content": IDENTITY}));
    assert!(Reply::of(document).await.status.is_success());
    let run = create(&ada, "run", json!({"type": "lightweight", "prompt": "Check."})).await;
    let job = create(&ada, "job", json!({"type": "full_job", "description": "Check."})).await;
    let opening = format!("{IDENTITY}\n\nYou ");
    let begins = |request: &Value| content(request, 0).starts_with(&opening);
    turn(&ada, "hello").await;
    let request = asked.take_one();
    assert!(begins(&request) && request["model"] == "small-model", "a chat: {request:#}");
    triggered(&ada, &run).await;
    let request = asked.take_one();
    assert!(begins(&request) && request["model"] == "small-model", "a lightweight run: {request:#}");
    for is_routine in [true, false] {
        if is_routine {
            triggered(&ada, &job).await;
        } else {
            run_job(&world, None, "work").await;
        }
        let request = asked.take_one();
        assert_eq!(begins(&request), on_host, "{request:#}");
        assert_eq!(request.to_string().contains("Marvin"), on_host, "{request:#}");
        assert_eq!(request["model"], "large-model", "the operator's default for jobs");
    }
    world.finish().await;
}

#[rstest]
#[case::jobs_in_the_server(true)]
#[case::jobs_in_containers(false)]
#[tokio::test]
async fn a_title_opens_the_prompt_of_a_job_unless_the_prompt_begins_with_it(#[case] on_host: bool) {
    let (world, _upstream, asked) = world(on_host).await;
    for (title, prompt, expected) in [
        (None, "Tidy up.\n\nThen rest.", "Tidy up.\n\nThen rest."),
        (Some("Tidy up"), "Tidy up.", "Tidy up."),
        (Some("Nightly report"), "Tidy up.", "# Nightly report\n\nTidy up."),
    ] {
        let job = run_job(&world, title, prompt).await;
        assert_eq!(job.prompt, prompt);
        let request = asked.take_one();
        assert_eq!((content(&request, 1), request["messages"].as_array().map(Vec::len)), (expected, Some(2)));
    }
    world.finish().await;
}
