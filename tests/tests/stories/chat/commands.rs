//! Commands in messages.

use orchestrator::engine::ReadinessReason;
use protocol::{ChatContent, ChatHistory, Job, JobState, JobSummary, Page, Placement, Source};
use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor as _};
use tests::{Reply, User, World, script_of};

use super::{answers, history, notices, send, turn};

/// The last text that Gantry has written.
fn last_notice(history: &ChatHistory) -> &str {
    notices(history).last().copied().unwrap_or_default()
}

async fn command(user: &User, text: &str) -> String {
    send(user, text).await;
    last_notice(&history(user).await).to_owned()
}

pub(super) async fn only_job(user: &User) -> JobSummary {
    let page: Page<JobSummary> = user.get("/api/jobs").await.expect(200).json();
    let [job] = <[JobSummary; 1]>::try_from(page.items).expect("one job");
    job
}

#[tokio::test]
async fn a_job_that_is_made_in_a_chat_posts_its_end_there() {
    let world = World::new().await;
    let ada = world.user("ada");
    let created = command(&ada, "/job count the lines").await;
    let job = only_job(&ada).await;
    assert!(created.contains(&job.id.to_string()) && created.contains("count the lines"), "{created}");
    let whole: Job = ada.job(job.id).await;
    assert_eq!((whole.source, whole.prompt.as_str()), (Source::Chat, "count the lines"));
    let status = command(&ada, "/status").await;
    assert!(status.contains("This thread is idle.") && status.contains(&job.id.to_string()), "{status}");
    let worker = world.manual_worker(job.id).await;
    worker.finish("There are 42 lines.").await;
    ada.wait_for_end(job.id).await;
    let posted = history(&ada).await;
    let [ChatContent::Job { job_id, state: JobState::Completed, content, .. }] = &posted
        .messages
        .iter()
        .map(|message| &message.content)
        .filter(|content| content.role() == "job")
        .cloned()
        .collect::<Vec<_>>()[..]
    else {
        panic!("{posted:#?}")
    };
    assert_eq!((*job_id, content.as_str()), (job.id, "There are 42 lines."));
    assert!(command(&ada, "/status").await.contains("You have no unfinished jobs."));
    world.finish().await;
}

#[rstest]
#[case::before_its_job("BEFORE INSERT ON jobs")]
#[case::before_its_answer("BEFORE INSERT ON chat_messages WHEN NEW.role = 'system'")]
#[tokio::test]
async fn a_command_that_failed_after_its_message_was_stored_is_done_once_by_its_repetition(#[case] fails: &str) {
    let world = World::new().await;
    let ada = world.user("ada");
    let repeat = async || {
        let request = ada.request(Method::POST, "/api/chat/send").header("Idempotency-Key", "k1");
        Reply::of(request.json(&json!({"content": "/job count the lines"}))).await
    };
    let mut database = world.database().await;
    let trigger = format!("CREATE TRIGGER fails {fails} BEGIN SELECT RAISE(ABORT, 'no'); END");
    database.execute(AssertSqlSafe(trigger)).await.unwrap();
    for _ in 0..2 {
        repeat().await.expect(503);
    }
    assert_eq!(notices(&history(&ada).await), Vec::<&str>::new());
    database.execute("DROP TRIGGER fails").await.unwrap();
    for _ in 0..2 {
        repeat().await.expect(202);
        let (job, history) = (only_job(&ada).await, history(&ada).await);
        assert_eq!(history.messages.len(), 2, "the command and its answer: {history:#?}");
        assert!(last_notice(&history).contains(&job.id.to_string()), "{history:#?}");
    }
    let job = only_job(&ada).await.id;
    ada.cancel(job).await.expect(202);
    ada.wait_for_end(job).await;
    world.finish().await;
}

#[tokio::test]
async fn a_job_is_cancelled_by_a_part_of_its_id() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    send(&ada, "/job work").await;
    let job = only_job(&ada).await.id;
    let digits = job.to_string().replace('-', "");
    let part = &digits[24..];
    assert!(command(&bob, &format!("/cancel {job}")).await.starts_with("You have no job"));
    assert!(command(&ada, "/cancel 12").await.starts_with("Usage: /cancel ID"));
    let text = command(&ada, &format!("/cancel {part}")).await;
    assert!(text.contains("cancelled"), "{text}");
    ada.wait_for_end(job).await;
    assert!(command(&ada, &format!("/cancel {part}")).await.ends_with("is already cancelled."));
    world.finish().await;
}

#[tokio::test]
async fn a_part_of_several_ids_lists_them() {
    let world = World::new().await;
    let ada = world.user("ada");
    for prompt in ["/job one", "/job two"] {
        send(&ada, prompt).await;
    }
    let page: Page<JobSummary> = ada.get("/api/jobs").await.expect(200).json();
    let ids: Vec<String> = page.items.iter().map(|job| job.id.to_string()).collect();
    // Ids begin with the time.
    let text = command(&ada, &format!("/cancel {}", &ids[0][..4])).await;
    assert!(ids.len() == 2 && ids.iter().all(|id| text.contains(id)) && text.contains("one"), "{text}");
    for id in &ids {
        assert!(command(&ada, &format!("/cancel {}", &id[24..])).await.contains("cancelled"));
        ada.wait_for_end(id.parse().unwrap()).await;
    }
    let help = command(&ada, "/help").await;
    assert!(help.contains("the first or last characters of its id"), "{help}");
    world.finish().await;
}

#[tokio::test]
async fn where_there_is_no_sandbox_a_job_is_refused_with_the_reason() {
    let world = World::builder().not_ready(ReadinessReason::EngineUnreachable).build().await;
    let ada = world.user("ada");
    let text = command(&ada, "/job work").await;
    assert!(text.starts_with("The job was not created:") && text.contains("engine_unreachable"), "{text}");
    world.finish().await;
}

#[tokio::test]
async fn where_the_sandbox_is_disabled_a_job_runs_without_a_container() {
    let world = World::builder().set("GANTRY_SANDBOX", "disabled").build().await;
    let ada = world.user("ada");
    command(&ada, "/job work").await;
    let job = ada.wait_for(only_job(&ada).await.id, JobState::Completed).await;
    assert_eq!((job.source, job.placement), (Source::Chat, Placement::Host));
    let posted = history(&ada).await;
    let is_posted = posted.messages.iter().any(|message| {
        matches!(&message.content, ChatContent::Job { job_id, state: JobState::Completed, .. } if *job_id == job.id)
    });
    assert!(is_posted, "{posted:#?}");
    world.finish().await;
}

#[tokio::test]
async fn the_tool_of_a_chat_creates_such_a_job_too() {
    let script = script_of(&[
        json!({"when": {"prompt": "a part"}, "reply": {"text": "the part is done"}}),
        json!({"when": {"last_message": "make a job"}, "reply": {"tool_calls":
            [{"name": "create_job", "arguments": {"prompt": "a part", "wait": true}}]}}),
        json!({"reply": {"text": "{{tool_result}}"}}),
    ]);
    let world = World::builder().set("GANTRY_SANDBOX", "disabled").script(script).build().await;
    let ada = world.user("ada");
    let permission = ada.request(reqwest::Method::PUT, "/api/tools/create_job/permission");
    tests::Reply::of(permission.json(&json!({"permission": "always_allow"}))).await.expect(200);
    let history = turn(&ada, "make a job").await;
    let job = ada.wait_for(only_job(&ada).await.id, JobState::Completed).await;
    assert_eq!((job.source, job.placement), (Source::Tool, Placement::Host));
    assert!(answers(&history).last().is_some_and(|text| text.contains("the part is done")), "{history:#?}");
    world.finish().await;
}

#[tokio::test]
async fn help_lists_the_commands_and_so_does_an_unknown_one() {
    let world = World::new().await;
    let ada = world.user("ada");
    let help = command(&ada, "/help").await;
    assert!(help.contains("/job TEXT") && help.contains("/compact"), "{help}");
    let unknown = command(&ada, "/dance now").await;
    assert!(unknown.starts_with("/dance is not a command.") && unknown.contains("/job TEXT"), "{unknown}");
    assert_eq!(command(&ada, "/stop").await, "There is no turn to stop.");
    assert_eq!(command(&ada, "/job").await, "Usage: /job TEXT");
    // With a space before it, it is a message.
    assert_eq!(answers(&turn(&ada, " /help").await), ["You said:  /help"]);
    world.finish().await;
}

#[tokio::test]
async fn a_new_conversation_has_nothing_of_the_old_one() {
    let script = script_of(&[json!({"reply": {"text": "{{turn}}: {{prompt}}"}})]);
    let world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let old = turn(&ada, "one").await.thread.id;
    let new = send(&ada, "/new").await.thread_id;
    assert_ne!(new, old);
    let history = turn(&ada, "two").await;
    assert_eq!((history.thread.id, answers(&history)), (new, vec!["1: two"]));
    assert_eq!(super::history_of(&ada, &old.to_string()).await.thread.key, None);
    world.finish().await;
}

#[tokio::test]
async fn compact_summarises_the_older_messages() {
    let rules = [
        json!({"when": {"system": "summarise"}, "reply": {"text": "They spoke of ships."}}),
        json!({"when": {"last_message": "what was it?"}, "reply": {"text": "turn {{turn}}"}}),
        json!({"reply": {"text": "ok"}}),
    ];
    let world = World::builder().script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    assert_eq!(notices(&turn(&ada, "/compact").await), ["There is nothing to summarise yet."]);
    for text in ["ships", "more ships", "even more ships"] {
        turn(&ada, text).await;
    }
    let history = turn(&ada, "/compact").await;
    assert_eq!(last_notice(&history), "The older messages were summarised for the model.");
    let history = turn(&ada, "what was it?").await;
    assert_eq!(answers(&history).last(), Some(&"turn 2"), "{history:#?}");
    world.finish().await;
}
