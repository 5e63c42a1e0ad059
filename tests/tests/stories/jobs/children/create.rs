//! `create_job`: what a child gets, how many there may be, and that a call creates one.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock, engine::ReadinessReason};
use protocol::{ChatContent, Job, Source, ThreadState, ToolErrorKind};
use serde_json::{Value, json};
use tests::{User, World, install::program, script_of};

use super::{call, create, end, finish, id_of, parent_of};
use crate::chat;

#[tokio::test]
async fn a_child_has_its_parents_settings_and_is_created_once_for_each_call() {
    let world = World::builder().set("GANTRY_EGRESS_CEILING", "a.example,b.example").build().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let limits = json!({"max_children": 2, "memory_mb": 512, "max_tokens": 5_000, "timeout_seconds": 600});
    let tools = json!(["create_job", "job_status", "echo", "memory_write"]);
    let mut body =
        json!({"prompt": "work", "limits": limits, "tools": tools, "approve": ["memory_write"], "priority": 3});
    body["egress"] = json!({"allow": ["a.example"]});
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
    assert_eq!(child.egress.clone().map(|egress| egress.allow), Some(vec!["a.example".to_owned()]));
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
    let listed = program::run(&["job", "list", "--parent", &parent[28..]], &environment).await.stdout;
    assert!(listed.contains(&id[28..]) && !listed.contains(&parent[28..]), "{listed}");
    // The beginning of what tables show is enough as well.
    let shown = program::run(&["job", "show", &id[28..35]], &environment).await.stdout;
    assert!(shown.contains(&id), "{shown}");
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
async fn a_child_has_the_files_and_the_plan_of_the_call_and_its_parents_image() {
    let world = World::builder().set("GANTRY_SANDBOX_IMAGES", "other:1").build().await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 1).await;
    let files = json!([{"path": "a/b.txt", "content": "text"}]);
    let asked = |image: &str| json!({"prompt": "part", "files": files, "plan": true, "image": image});
    let (kind, message) = call(&worker, "t1", "create_job", asked("other:1")).await.unwrap_err();
    assert!(kind == ToolErrorKind::InvalidParameters && message.starts_with("image: "), "{message}");
    let image = ada.job(worker.job).await.container.expect("a container").image;
    let child = id_of(&call(&worker, "t2", "create_job", asked(&image)).await.unwrap());
    let below = world.manual_worker(child).await;
    assert!(below.job().await.plan);
    assert_eq!(ada.bytes(&format!("/api/jobs/{child}/files/a/b.txt")).await, b"text");
    end(below, &ada).await;
    end(worker, &ada).await;
    world.finish().await;
}

#[tokio::test]
async fn a_job_names_the_jobs_below_it_by_a_part_of_their_ids() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 2).await;
    let first = create(&worker, "t1", json!({})).await;
    let text = first.to_string();
    // The id of the parent begins alike.
    for (call_id, part) in [("t2", &text[..4]), ("t3", &text[28..]), ("t4", &text[28..32])] {
        let status = call(&worker, call_id, "job_status", json!({"job_id": part})).await.unwrap();
        assert_eq!(id_of(&status), first, "{part}");
    }
    let parent = worker.job.to_string().split_off(28);
    let (kind, _) = call(&worker, "t5", "job_status", json!({"job_id": parent})).await.unwrap_err();
    assert_eq!(kind, ToolErrorKind::NotFound);
    let second = create(&worker, "t6", json!({})).await;
    let (kind, message) = call(&worker, "t7", "cancel_job", json!({"job_id": text[..4]})).await.unwrap_err();
    let lists = |id: protocol::JobId| message.contains(&id.to_string());
    assert!(kind == ToolErrorKind::InvalidParameters && lists(first) && lists(second), "{message}");
    assert!(!lists(worker.job), "{message}");
    for id in [first, second] {
        finish(&world, &ada, id).await;
    }
    end(worker, &ada).await;
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
async fn a_call_that_a_crash_interrupted_finds_the_child_that_it_created() {
    let mut world = World::new().await;
    let worker = parent_of(&world, &world.user("ada"), 2).await;
    let parent = worker.job;
    let arguments = json!({"prompt": "a part", "wait": false});
    let child = id_of(&call(&worker, "t1", "create_job", arguments.clone()).await.unwrap());
    world.stop().await;
    // The state that a process leaves behind when it dies between the child's row and the record of the reply.
    let open =
        "UPDATE tool_calls SET success = NULL, output = NULL, duration_ms = NULL, reply = NULL WHERE call_id = 't1'";
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
