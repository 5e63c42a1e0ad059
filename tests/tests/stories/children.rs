//! Child jobs: created by a job's tool within its settings, in the slot of a parent that waits, and ended with it.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock, engine::ReadinessReason};
use protocol::{
    ChatContent, Job, JobId, JobReason, JobState, Source, ThreadState, ToolCallReply, ToolErrorKind, UsageLine,
};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{ManualWorker, User, World, install::program, script_of};
use tokio::task::JoinSet;

use crate::chat;

/// A running job that may have this many jobs below it.
async fn parent_of(world: &World, user: &User, max_children: u32) -> ManualWorker {
    let id = user.create(json!({"prompt": "work", "limits": {"max_children": max_children}})).await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    worker
}

/// The result of a tool call: its output as JSON, or its error.
async fn call(
    worker: &ManualWorker,
    call_id: &str,
    tool: &str,
    arguments: Value,
) -> Result<Value, (ToolErrorKind, String)> {
    let reply: ToolCallReply = worker.tool(tool, call_id, arguments).await.expect(200).json();
    match reply.error {
        Some(failure) => Err((failure.kind, failure.message)),
        None => Ok(serde_json::from_str(reply.output.as_ref().and_then(Value::as_str).expect("output")).expect("JSON")),
    }
}

fn id_of(output: &Value) -> JobId {
    serde_json::from_value(output["job_id"].clone()).expect("an id")
}

/// Creates a child, which must succeed.
async fn create(worker: &ManualWorker, call_id: &str, arguments: Value) -> JobId {
    let mut with_prompt = json!({"prompt": "a part of the work"});
    with_prompt.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
    id_of(&call(worker, call_id, "create_job", with_prompt).await.expect("the child is created"))
}

/// A call in the background.
fn begin(
    worker: &ManualWorker,
    call_id: &'static str,
    tool: &'static str,
    arguments: Value,
) -> JoinSet<Result<Value, (ToolErrorKind, String)>> {
    let worker = worker.clone();
    let mut calls = JoinSet::new();
    calls.spawn(async move { call(&worker, call_id, tool, arguments).await });
    calls
}

async fn result(mut calls: JoinSet<Result<Value, (ToolErrorKind, String)>>) -> Value {
    let done = tests::within("the result of a call", calls.join_next()).await;
    done.expect("a call").expect("it does not panic").expect("it succeeds")
}

/// The child of a job, once there is one.
async fn child_of(user: &User, parent: JobId) -> JobId {
    tests::poll("a child", async || {
        user.jobs().await.into_iter().find(|job| job.parent_id == Some(parent)).map(|job| job.id)
    })
    .await
}

async fn finish(world: &World, user: &User, id: JobId) -> Job {
    world.manual_worker(id).await.finish("done").await;
    user.wait_for_end(id).await
}

/// Ends a job with success.
async fn end(worker: ManualWorker, user: &User) {
    let id = worker.job;
    worker.finish("done").await;
    user.wait_for_end(id).await;
}

#[tokio::test]
async fn a_child_has_its_parents_settings_and_is_created_once_for_each_call() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let limits = json!({"max_children": 2, "memory_mb": 512, "max_tokens": 5_000, "timeout_seconds": 600});
    let tools = json!(["create_job", "job_status", "echo", "memory_write"]);
    let body = json!({"prompt": "work", "limits": limits, "tools": tools, "approve": ["memory_write"], "priority": 3});
    let parent = ada.create(body).await;
    let worker = world.manual_worker(parent).await;
    let offered = worker.get("tools").await.expect(200).body["tools"].to_string();
    assert!(offered.contains("create_job") && !offered.contains("job_prompt"), "{offered}");
    let arguments = json!({"prompt": "a part", "title": "Part one"});
    let first = call(&worker, "t1", "create_job", arguments.clone()).await.unwrap();
    let id = id_of(&first);
    assert_eq!(first, json!({"job_id": id, "state": first["state"]}));
    assert_eq!(call(&worker, "t1", "create_job", arguments).await.unwrap(), first, "the recorded reply");

    let (above, child) = (ada.job(parent).await, ada.job(id).await);
    assert_eq!((child.parent_id, child.source, child.title.as_str()), (Some(parent), Source::Tool, "Part one"));
    assert_eq!((child.user_id.as_str(), child.priority), ("ada", 3));
    assert_eq!(child.limits, protocol::Limits { max_children: 1, ..above.limits });
    let below = world.manual_worker(id).await;
    let assignment = below.job().await;
    assert_eq!(assignment.approve, ["memory_write"]);
    let mut names: Vec<String> = assignment.tools.into_iter().map(|tool| tool.name).collect();
    names.sort();
    assert_eq!(names, ["create_job", "echo", "job_status", "memory_write"]);
    assert_eq!(ada.jobs().await.len(), 2, "one call creates one child");
    is_shown_with_its_parent(&world, &ada, &child).await;
    let entries = root.get(&format!("/api/audit?job={id}")).await.expect(200).body;
    let entry = &entries["items"][0];
    assert_eq!(
        (&entry["action"], &entry["role"], &entry["user"]),
        (&json!("job.create"), &json!("agent"), &json!("ada"))
    );
    below.finish("done").await;
    ada.wait_for_end(id).await;
    worker.finish("done").await;
    ada.wait_for_end(parent).await;
    world.finish().await;
}

/// In the list of its parent's children, and with `gantry job`.
async fn is_shown_with_its_parent(world: &World, user: &User, child: &Job) {
    let parent = child.parent_id.expect("a parent");
    for (of, ids) in [(parent, vec![json!(child.id)]), (child.id, vec![])] {
        let page = user.get(&format!("/api/jobs?parent={of}")).await.expect(200).body;
        let listed: Vec<Value> = page["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect();
        assert_eq!(listed, ids);
    }
    assert_eq!(user.get("/api/jobs?parent=part").await.expect(422).fields(), ["parent"]);
    let bob = world.user("bob").get(&format!("/api/jobs?parent={parent}")).await.expect(200).body;
    assert_eq!(bob["items"], json!([]));
    let variables = [("GANTRY_URL", user.base().to_owned()), ("GANTRY_TOKEN", world.fresh("ada", Role::User))];
    let environment = variables.map(|(name, value)| (name.to_owned(), value));
    let (parent, id) = (parent.to_string(), child.id.to_string());
    let shown = program::run(&["job", "show", &parent], &environment).await.stdout;
    assert!(shown.contains(&format!("child           {id} ")) && shown.contains(&child.title), "{shown}");
    let shown = program::run(&["job", "show", &id], &environment).await.stdout;
    assert!(shown.contains(&format!("parent          {parent}")), "{shown}");
    let listed = program::run(&["job", "list", "--parent", &parent], &environment).await.stdout;
    assert!(listed.contains(&id) && !listed.contains(&parent), "{listed}");
}

#[tokio::test]
async fn a_child_cannot_have_more_than_its_parent() {
    let world = World::builder().set("GANTRY_TOOL_RATE_BURST", 0).build().await;
    let ada = world.user("ada");
    let limits = json!({"max_children": 1, "memory_mb": 512, "max_tokens": 5_000});
    let parent = ada.create(json!({"prompt": "work", "limits": limits, "tools": ["create_job", "echo"]})).await;
    let worker = world.manual_worker(parent).await;
    for (call_id, arguments, field) in [
        ("t1", json!({"prompt": "part", "limits": {"memory_mb": 513}}), "limits.memory_mb: "),
        ("t2", json!({"prompt": "part", "limits": {"max_tokens": 5_001}}), "limits.max_tokens: "),
        ("t3", json!({"prompt": "part", "limits": {"max_children": 1}}), "limits.max_children: "),
        ("t4", json!({"prompt": "part", "tools": ["echo", "shell"]}), "tools[1]: "),
        ("t5", json!({"prompt": " "}), "prompt: "),
    ] {
        let (kind, message) = call(&worker, call_id, "create_job", arguments).await.unwrap_err();
        assert_eq!(kind, ToolErrorKind::InvalidParameters);
        assert!(message.starts_with(field), "{message}");
    }
    let (kind, _) = call(&worker, "t6", "job_prompt", json!({"job_id": parent, "content": "hi"})).await.unwrap_err();
    assert_eq!(kind, ToolErrorKind::AutonomousUnavailable);
    assert_eq!(ada.jobs().await.len(), 1);
    let child = create(&worker, "t7", json!({"limits": {"memory_mb": 256}, "tools": ["echo"]})).await;
    assert_eq!(ada.job(child).await.limits.memory_mb, 256);
    finish(&world, &ada, child).await;
    let (kind, message) = call(&worker, "t8", "create_job", json!({"prompt": "part"})).await.unwrap_err();
    assert!(kind == ToolErrorKind::NotAuthorized && message.contains("limits.max_children = 1"), "{message}");
    worker.finish("done").await;
    ada.wait_for_end(parent).await;
    world.finish().await;
}

#[tokio::test]
async fn simultaneous_calls_create_exactly_as_many_children_as_are_allowed() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 8).set("GANTRY_TOOL_RATE_BURST", 0).build().await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 3).await;
    let ids: Vec<String> = (0..10).map(|n| format!("t{n}")).collect();
    let calls = ids.iter().map(|id| call(&worker, id, "create_job", json!({"prompt": "part"})));
    let (created, refused): (Vec<_>, Vec<_>) =
        futures_util::future::join_all(calls).await.into_iter().partition(Result::is_ok);
    assert_eq!((created.len(), refused.len()), (3, 7));
    assert!(refused.iter().all(|refused| matches!(refused, Err((ToolErrorKind::NotAuthorized, _)))), "{refused:?}");
    assert_eq!(ada.jobs().await.len(), 4);
    for child in created {
        finish(&world, &ada, id_of(&child.unwrap())).await;
    }
    end(worker, &ada).await;
    world.finish().await;
}

#[tokio::test]
async fn a_limit_of_children_counts_the_jobs_below_them() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 3).await;
    let first = create(&worker, "t1", json!({})).await;
    let below = world.manual_worker(first).await;
    assert_eq!(below.job().await.limits.max_children, 2);
    let lower = create(&below, "t1", json!({})).await;
    let second = create(&worker, "t2", json!({})).await;
    for worker in [&worker, &below] {
        let (kind, _) = call(worker, "t9", "create_job", json!({"prompt": "part"})).await.unwrap_err();
        assert_eq!(kind, ToolErrorKind::NotAuthorized);
    }
    assert_eq!(ada.job(lower).await.parent_id, Some(first));
    for id in [lower, second] {
        finish(&world, &ada, id).await;
    }
    below.finish("done").await;
    ada.wait_for_end(first).await;
    end(worker, &ada).await;
    world.finish().await;
}

#[tokio::test]
async fn children_are_nested_three_deep() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 8).build().await;
    let ada = world.user("ada");
    let mut workers = vec![parent_of(&world, &ada, 10).await];
    for _ in 0..3 {
        let id = create(workers.last().unwrap(), "t1", json!({})).await;
        let worker = world.manual_worker(id).await;
        worker.job().await;
        workers.push(worker);
    }
    let lowest = workers.last().unwrap();
    let (kind, _) = call(lowest, "t1", "create_job", json!({"prompt": "part"})).await.unwrap_err();
    assert_eq!(kind, ToolErrorKind::AutonomousUnavailable, "the lowest job is not offered the tool");
    for worker in workers.into_iter().rev() {
        end(worker, &ada).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_parent_that_waits_lends_its_only_slot_to_its_children() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let worker = parent_of(&world, &ada, 2).await;
    let parent = worker.job;
    let bobs = bob.create_job("work").await;
    // More of ada's jobs than are read from a user's queue.
    let mut queued = vec![];
    for _ in 0..4 {
        queued.push(ada.create_job("later").await);
    }
    for (call_id, text) in [("t1", "one"), ("t2", "two")] {
        let waits = begin(&worker, call_id, "create_job", json!({"prompt": "a part", "wait": true}));
        let child = tests::poll("the child", async || {
            let open = |job: &protocol::JobSummary| job.parent_id == Some(parent) && !job.state.is_finished();
            ada.jobs().await.into_iter().find(open).map(|job| job.id)
        })
        .await;
        let below = world.manual_worker(child).await;
        assert_eq!(bob.job(bobs).await.state, JobState::Pending, "a slot is lent to no other job");
        below.record_message(1, "so far").await.expect(200);
        below.finish(text).await;
        let output = result(waits).await;
        assert_eq!((&output["state"], &output["result"]), (&json!("completed"), &json!(text)), "{output}");
        assert_eq!((&output["job_id"], &output["usage"]["llm_calls"]), (&json!(child), &json!(0)));
    }
    worker.finish("both").await;
    ada.wait_for_end(parent).await;
    for (user, id) in [(&bob, bobs)].into_iter().chain(queued.into_iter().map(|id| (&ada, id))) {
        finish(&world, user, id).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_call_that_waits_answers_with_the_state_after_50_seconds() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder()
        .clock(&time)
        .set("GANTRY_LEASE_SECONDS", 3600)
        .set("GANTRY_STUCK_AFTER_SECONDS", 30)
        .build()
        .await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 1).await;
    let parent = worker.job;
    let mut waits = begin(&worker, "t1", "create_job", json!({"prompt": "a part", "wait": true}));
    let child = child_of(&ada, parent).await;
    let below = world.manual_worker(child).await;
    below.job().await;
    for (seq, seconds) in [(1, 25), (2, 24)] {
        time.advance(Duration::from_secs(seconds));
        below.record_message(seq, "still at work").await.expect(200);
        world.engine().until_listed_again().await;
        world.engine().until_listed_again().await;
    }
    assert_eq!(ada.job(parent).await.state, JobState::InProgress, "a job whose call waits is not stuck");
    assert!(waits.try_join_next().is_none(), "it waits for the whole time");
    time.advance(Duration::from_secs(1));
    assert_eq!(result(waits).await, json!({"job_id": child, "state": "in_progress"}));
    let waits = begin(&worker, "t2", "job_status", json!({"job_id": child, "wait": true}));
    below.finish("the part").await;
    let output = result(waits).await;
    assert_eq!((&output["state"], &output["result"]), (&json!("completed"), &json!("the part")), "{output}");
    worker.finish("done").await;
    assert_eq!(ada.wait_for_end(parent).await.repair_attempts, 0);
    world.finish().await;
}

#[rstest]
#[case::cancelled("cancel")]
#[case::failed("fail")]
#[case::completed("complete")]
#[tokio::test]
async fn the_end_of_a_job_cancels_all_jobs_below_it(#[case] end: &str) {
    // Three for one user.
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 4).build().await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 4).await;
    let parent = worker.job;
    let first = create(&worker, "t1", json!({})).await;
    let below = world.manual_worker(first).await;
    let lower = create(&below, "t1", json!({})).await;
    let lowest = world.manual_worker(lower).await;
    let queued = create(&lowest, "t1", json!({})).await;
    match end {
        "cancel" => {
            ada.cancel(parent).await.expect(202);
        }
        "fail" => {
            worker.report(json!({"outcome": "failed", "reason": "internal", "text": ""})).await.expect(200);
            worker.exit(0);
        }
        _ => worker.finish("done").await,
    }
    for id in [first, lower, queued] {
        let job = ada.wait_for(id, JobState::Cancelled).await;
        assert_eq!(job.reason, Some(JobReason::CancelledByParent));
        world.engine().until_removed(id).await;
    }
    ada.wait_for_end(parent).await;
    let again = ada.post(&format!("/api/jobs/{first}/restart"), &json!({})).await.expect(201).json::<Job>();
    assert_eq!((again.parent_id, again.restarted_from), (None, Some(first)), "no job waits for it");
    finish(&world, &ada, again.id).await;
    world.finish().await;
}

#[tokio::test]
async fn a_waiting_parent_is_cancelled_with_its_child() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 1).await;
    let waits = begin(&worker, "t1", "create_job", json!({"prompt": "a part", "wait": true}));
    let child = child_of(&ada, worker.job).await;
    world.engine().until_running(child).await;
    ada.cancel(worker.job).await.expect(202);
    for id in [worker.job, child] {
        ada.wait_for(id, JobState::Cancelled).await;
    }
    drop(waits);
    world.finish().await;
}

#[tokio::test]
async fn a_job_reaches_only_the_jobs_below_it() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (worker, other) = (parent_of(&world, &ada, 3).await, parent_of(&world, &ada, 1).await);
    let child = create(&worker, "t1", json!({"title": "Child"})).await;
    let below = world.manual_worker(child).await;
    let lower = create(&below, "t1", json!({})).await;
    let mut calls = 0;
    let mut ask = async |worker: &ManualWorker, tool: &str, id: JobId| {
        calls += 1;
        call(worker, &format!("q{calls}"), tool, json!({"job_id": id})).await
    };
    for tool in ["job_status", "job_events", "cancel_job"] {
        for (worker, id) in [(&worker, worker.job), (&worker, other.job), (&below, worker.job), (&other, child)] {
            assert_eq!(ask(worker, tool, id).await.unwrap_err().0, ToolErrorKind::NotFound, "{tool}");
        }
    }
    assert_eq!(ask(&worker, "job_status", lower).await.unwrap()["state"], "in_progress");
    below.record_message(1, &"long ".repeat(2_000)).await.expect(200);
    let events = ask(&worker, "job_events", child).await.unwrap();
    let message = events["items"].as_array().unwrap().iter().find(|event| event["kind"] == "message").unwrap();
    let text = message["data"]["content"].as_str().unwrap();
    assert!(text.starts_with("long long") && text.len() <= 2_000, "{}", text.len());
    let page = call(&worker, "p1", "job_events", json!({"job_id": child, "limit": 1})).await.unwrap();
    assert_eq!((page["items"].as_array().map(Vec::len), &page["next_after"]), (Some(1), &json!(1)));
    let page = call(&worker, "p2", "job_events", json!({"job_id": child, "limit": 1, "after": 1})).await.unwrap();
    assert_eq!(page["items"][0]["seq"], 2);
    let listed = call(&worker, "l1", "list_jobs", json!({})).await.unwrap();
    let ids: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|item| &item["job_id"]).collect();
    assert_eq!(ids, [&json!(lower), &json!(child)]);
    assert_eq!(call(&below, "l1", "list_jobs", json!({"state": "failed"})).await.unwrap(), json!({"items": []}));

    assert_eq!(ask(&worker, "cancel_job", child).await.unwrap()["cancel_requested"], true);
    for id in [child, lower] {
        let job = ada.wait_for(id, JobState::Cancelled).await;
        assert_eq!(job.reason, Some(JobReason::CancelledByParent));
    }
    let status = ask(&worker, "job_status", child).await.unwrap();
    assert_eq!((&status["reason"], &status["partial"]), (&json!("cancelled_by_parent"), &json!("long ".repeat(2_000))));
    assert_eq!(ask(&worker, "cancel_job", child).await.unwrap()["state"], "cancelled");
    for worker in [worker, other] {
        end(worker, &ada).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_call_that_a_crash_interrupted_finds_the_child_that_it_created() {
    let mut world = World::new().await;
    let worker = parent_of(&world, &world.user("ada"), 2).await;
    let parent = worker.job;
    let arguments = json!({"prompt": "a part", "wait": false});
    let child = id_of(&call(&worker, "t1", "create_job", arguments.clone()).await.unwrap());
    world.stop().await;
    // The state that a process leaves behind when it dies between the child's row and the record of the reply.
    let open =
        "UPDATE job_actions SET success = NULL, output = NULL, duration_ms = NULL, reply = NULL WHERE call_id = 't1'";
    let opened = sqlx::query(open).execute(&mut world.database().await).await.unwrap();
    assert_eq!(opened.rows_affected(), 1);
    world.start().await;
    let (ada, worker) = (world.user("ada"), world.manual_worker(parent).await);
    assert_eq!(id_of(&call(&worker, "t1", "create_job", arguments.clone()).await.unwrap()), child);
    assert_eq!(ada.jobs().await.len(), 2);
    let calls = ada.get(&format!("/api/jobs/{parent}/actions")).await.expect(200).body;
    assert_eq!((calls["items"].as_array().map(Vec::len), &calls["items"][0]["success"]), (Some(1), &json!(true)));
    finish(&world, &ada, child).await;
    end(worker, &ada).await;
    world.finish().await;
}

#[tokio::test]
async fn without_a_sandbox_no_child_is_stored() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).set("GANTRY_LEASE_SECONDS", 3600).build().await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 1).await;
    world.engine().not_ready(ReadinessReason::ImageMissing);
    time.advance(Duration::from_secs(2));
    let (kind, message) = call(&worker, "t1", "create_job", json!({"prompt": "part"})).await.unwrap_err();
    assert!(kind == ToolErrorKind::Sandbox && message.starts_with("image_missing: "), "{message}");
    assert_eq!(ada.jobs().await.len(), 1);
    world.engine().ready();
    time.advance(Duration::from_secs(2));
    let child = create(&worker, "t2", json!({})).await;
    finish(&world, &ada, child).await;
    end(worker, &ada).await;
    world.finish().await;
}

#[tokio::test]
async fn a_job_that_a_chat_creates_with_a_tool_posts_its_end_there() {
    let call = json!([{"name": "create_job", "arguments": {"prompt": "count the lines", "title": "Lines"}}]);
    let rules = [
        json!({"when": {"tool_name": "create_job"}, "reply": {"text": "It is at work."}}),
        json!({"reply": {"text": "I make a job.", "tool_calls": call}}),
    ];
    let world = World::builder().script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    chat::send(&ada, "how many lines?").await;
    chat::until_state(&ada, ThreadState::AwaitingApproval).await;
    assert!(ada.jobs().await.is_empty(), "a person is asked before there is a job");
    chat::send(&ada, "yes").await;
    let history = chat::until_state(&ada, ThreadState::Idle).await;
    assert_eq!(chat::answers(&history).last(), Some(&"It is at work."));
    let [job] = &ada.jobs().await[..] else { panic!("{history:#?}") };
    assert_eq!((job.source, job.parent_id, job.title.as_str()), (Source::Tool, None, "Lines"));
    world.manual_worker(job.id).await.finish("There are 42 lines.").await;
    ada.wait_for_end(job.id).await;
    let posted = chat::history(&ada).await;
    let ends: Vec<_> = posted.messages.iter().filter(|message| message.content.role() == "job").collect();
    let [&ChatContent::Job { job_id, ref content, .. }] = ends.iter().map(|end| &end.content).collect::<Vec<_>>()[..]
    else {
        panic!("{posted:#?}")
    };
    assert_eq!((job_id, content.as_str()), (job.id, "There are 42 lines."));
    world.finish().await;
}

/// Each answer uses 300 input and 100 output tokens.
fn token_script() -> String {
    script_of(&[json!({"reply": {"text": "ok", "usage": {"input_tokens": 300, "output_tokens": 100}}})])
}

#[tokio::test]
async fn a_child_draws_on_its_parents_budget_and_is_counted_once() {
    let world = World::builder().script(token_script()).build().await;
    let ada = world.user("ada");
    let parent = ada.create(json!({"prompt": "work", "limits": {"max_children": 2, "max_tokens": 1_300}})).await;
    let worker = world.manual_worker(parent).await;
    let child = create(&worker, "t1", json!({})).await;
    let below = world.manual_worker(child).await;
    let lower = create(&below, "t1", json!({})).await;
    let lowest = world.manual_worker(lower).await;
    for worker in [&worker, &below, &lowest] {
        worker.complete_llm("c1", "short").await;
    }
    // 1 200 of 1 300 tokens are used. The next call gets the rest, and further calls are refused.
    below.complete_llm("c2", "short").await;
    for worker in [&worker, &below, &lowest] {
        worker.ask("c9", "short").await.problem(protocol::ErrorCode::TokenBudget);
    }
    for worker in [lowest, below, worker] {
        end(worker, &ada).await;
    }
    let usage = async |by: &str| -> Vec<UsageLine> {
        let page = ada.get(&format!("/api/usage?by={by}")).await.expect(200).body;
        serde_json::from_value(page["items"].clone()).unwrap()
    };
    let total = |lines: &[UsageLine]| lines.iter().map(|line| line.llm_calls).sum::<u64>();
    let tokens = |lines: &[UsageLine]| lines.iter().map(|line| line.input_tokens).sum::<u64>();
    for by in ["day", "model", "job"] {
        let lines = usage(by).await;
        assert_eq!((total(&lines), tokens(&lines)), (4, 1_200), "{by}");
    }
    world.finish().await;
}
