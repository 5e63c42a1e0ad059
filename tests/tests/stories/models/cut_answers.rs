//! Answers that the output limit of the model cuts: of jobs, runs and chats.

use protocol::{CUT_NOTE, CreateJob, Job, JobState, RunStatus};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{World, routines::triggered, script_of};

use crate::{
    chat::{answers, roles, turn},
    routines::create,
};

/// A model that writes half of an answer, and then this.
fn script(second: &Value) -> String {
    script_of(&[
        json!({"when": {"last_message": "was cut at the output limit"}, "reply": second}),
        json!({"reply": {"text": "Half of it,", "finish_reason": "length", "chunk_chars": 3}}),
    ])
}

/// What the second call answers, the answer of both, and whether that is cut.
fn cases() -> [(Value, String, bool); 2] {
    let rest = " and the rest.";
    [
        (json!({"text": rest, "chunk_chars": 4}), format!("Half of it,{rest}"), false),
        (json!({"text": rest, "finish_reason": "length"}), format!("Half of it,{rest}\n\n{CUT_NOTE}"), true),
    ]
}

#[rstest]
#[case::in_a_worker(false)]
#[case::in_this_process(true)]
#[tokio::test]
async fn a_job_continues_a_cut_answer_once(#[case] in_process: bool) {
    for (second, text, cut) in cases() {
        let world = World::builder().script(script(&second));
        let world = if in_process { world.set("GANTRY_SANDBOX", "disabled") } else { world.processes() };
        let world = world.build().await;
        let ada = world.user("ada");
        let request = CreateJob { prompt: "p".to_owned(), ..CreateJob::default() };
        let id = world.submit("ada", request).await.unwrap();
        let job: Job = ada.wait_for_end(id).await;
        assert_eq!((job.state, job.usage.llm_calls), (JobState::Completed, 2), "{job:#?}");
        let result = ada.get(&format!("/api/jobs/{id}")).await.expect(200).body["result"].clone();
        assert_eq!((&result["text"], result.get("cut")), (&json!(text), cut.then_some(&json!(true))), "{result:#}");
        world.finish().await;
    }
}

#[rstest]
#[case(false)]
#[case(true)]
#[tokio::test]
async fn a_run_continues_a_cut_answer_once(#[case] use_tools: bool) {
    for (second, text, cut) in cases() {
        let world = World::builder().script(script(&second)).build().await;
        let ada = world.user("ada");
        let action = json!({"type": "lightweight", "prompt": "Check.", "use_tools": use_tools});
        let routine = create(&ada, "long", action).await;
        let run = triggered(&ada, &routine).await;
        assert_eq!((run.status, run.result_summary), (RunStatus::Attention, Some(text)));
        let shown = ada.get(&format!("/api/runs/{}", run.id)).await.expect(200).body;
        assert_eq!(shown.get("cut"), cut.then_some(&json!(true)), "{shown:#}");
        let listed = ada.get(&format!("/api/routines/{routine}/runs")).await.expect(200).body;
        assert_eq!(listed["items"][0].get("cut"), shown.get("cut"), "{listed:#}");
        world.finish().await;
    }
}

/// Both parts are one message, and for readers of the stream one answer.
#[tokio::test]
async fn a_turn_continues_a_cut_answer_once() {
    for (second, text, _) in cases() {
        let world = World::builder().script(script(&second)).build().await;
        let ada = world.user("ada");
        let mut stream = ada.chat_stream("/api/chat/events", None).await;
        let history = turn(&ada, "tell me").await;
        assert_eq!((answers(&history), roles(&history)), (vec![text.as_str()], vec!["user", "assistant"]));
        let (mut pieces, mut starts) = (String::new(), 0);
        loop {
            let message = stream.next().await.expect("the stream goes on");
            match (message.event.as_str(), message.data["kind"].as_str()) {
                ("delta", Some("start")) => starts += 1,
                ("delta", Some("text")) => pieces.push_str(message.data["text"].as_str().unwrap()),
                ("message", _) if message.data["role"] == "assistant" => break,
                _ => {}
            }
        }
        assert_eq!((starts, pieces.as_str()), (1, "Half of it, and the rest."));
        // The next turn reads what was said.
        assert!(turn(&ada, "and now?").await.messages.len() > 2);
        world.finish().await;
    }
}
