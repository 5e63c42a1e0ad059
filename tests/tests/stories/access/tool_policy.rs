//! Tool permissions of a user and the operator's policy: what they hide, and what they refuse.

use orchestrator::auth::Role;
use protocol::{AdminToolPolicy, ErrorCode, ToolCallReply, ToolErrorKind};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Connection as _;
use tests::{ManualWorker, User, World};

use crate::worker_api::running_job;

const POLICY: &str = "/api/admin/tool-policy";

async fn put(user: &User, path: &str, body: &Value) -> tests::Reply {
    tests::Reply::of(user.request(Method::PUT, path).json(body)).await
}

async fn permit(user: &User, tool: &str, permission: &str) -> tests::Reply {
    put(user, &format!("/api/tools/{tool}/permission"), &json!({"permission": permission})).await
}

/// The tools that a user sees, each with its permission.
async fn tools(user: &User) -> Vec<(String, String)> {
    let page = user.get("/api/tools").await.expect(200).body;
    let text = |tool: &Value, name: &str| tool[name].as_str().unwrap().to_owned();
    page["items"].as_array().unwrap().iter().map(|tool| (text(tool, "name"), text(tool, "permission"))).collect()
}

async fn names(user: &User) -> Vec<String> {
    tools(user).await.into_iter().map(|(name, _)| name).collect()
}

/// The tools that a job's worker is offered.
async fn offered(worker: &ManualWorker) -> Vec<String> {
    let list = worker.get("tools").await.expect(200).body;
    let mut names: Vec<String> =
        list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The kind of error of a worker's call of `echo`; none if it succeeds.
async fn echo(worker: &ManualWorker, call_id: &str) -> Option<ToolErrorKind> {
    let reply = worker.tool("echo", call_id, json!({"message": "hi"})).await.expect(200).json::<ToolCallReply>();
    reply.error.map(|failure| failure.kind)
}

#[tokio::test]
async fn a_tool_that_its_user_disables_is_hidden_and_refused_at_once() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let (worker, bobs) = (running_job(&world, &ada).await, running_job(&world, &bob).await);
    assert_eq!(echo(&worker, "t1").await, None);
    let set = permit(&ada, "echo", "disabled").await.expect(200).body;
    assert_eq!([&set["name"], &set["permission"], &set["requirement"]], ["echo", "disabled", "never"]);
    permit(&ada, "shell", "disabled").await.expect(200);
    for (user, worker, is_disabled) in [(&ada, &worker, true), (&bob, &bobs, false)] {
        let offered = offered(worker).await;
        for tool in ["echo", "shell"] {
            assert_eq!(offered.iter().any(|name| name == tool), !is_disabled, "{tool}: {offered:?}");
        }
        let assigned = worker.job().await.tools;
        assert_eq!(assigned.iter().any(|tool| tool.name == "shell"), !is_disabled);
        // Its user still sees it, to enable it again.
        let seen = tools(user).await;
        let permission = if is_disabled { "disabled" } else { "default" };
        assert!(seen.contains(&("echo".to_owned(), permission.to_owned())), "{seen:?}");
    }
    assert_eq!(echo(&worker, "t2").await, Some(ToolErrorKind::NotAuthorized));
    assert_eq!(echo(&bobs, "t2").await, None);
    let actions = ada.get(&format!("/api/jobs/{}/actions", worker.job)).await.expect(200).body;
    assert_eq!(actions["items"][1]["success"], false, "a refused call has its row: {actions:#}");
    permit(&ada, "echo", "default").await.expect(200);
    assert_eq!(echo(&worker, "t3").await, None);
    for (user, worker) in [(&ada, worker), (&bob, bobs)] {
        let id = worker.job;
        worker.finish("done").await;
        user.wait_for_end(id).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn tool_list_has_what_the_caller_is_offered() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "tools": ["echo", "shell", "tool_list"]})).await;
    let worker = world.manual_worker(id).await;
    let listed = async |call_id: &str| {
        let reply = worker.tool("tool_list", call_id, json!({})).await.expect(200).json::<ToolCallReply>();
        let output: Value = serde_json::from_str(reply.output.as_ref().and_then(Value::as_str).unwrap()).unwrap();
        let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
        output["items"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(listed("t1").await, ["echo", "shell", "tool_list"]);
    permit(&ada, "echo", "disabled").await.expect(200);
    assert_eq!(listed("t2").await, ["shell", "tool_list"]);
    assert_eq!(offered(&worker).await, ["shell", "tool_list"]);
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    world.finish().await;
}

#[tokio::test]
async fn a_tool_that_the_operator_disables_does_not_exist_for_its_users() {
    let world = World::new().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let (worker, bobs) = (running_job(&world, &ada).await, running_job(&world, &bob).await);
    let policy = json!({"disabled_tools": ["time"], "user_disabled_tools": {"ada": ["echo", "shell"]}});
    put(&root, POLICY, &policy).await.expect(200);
    assert_eq!(root.get(POLICY).await.expect(200).body, policy);
    let is_there = |list: &[String], name: &str| list.iter().any(|tool| tool == name);
    for list in [names(&ada).await, offered(&worker).await] {
        assert!(!is_there(&list, "echo") && !is_there(&list, "time") && !is_there(&list, "shell"), "{list:?}");
        assert!(is_there(&list, "json") && is_there(&list, "read_file"), "{list:?}");
    }
    for list in [names(&bob).await, offered(&bobs).await] {
        assert!(is_there(&list, "echo") && !is_there(&list, "time") && is_there(&list, "shell"), "{list:?}");
    }
    assert_eq!(echo(&worker, "t1").await, Some(ToolErrorKind::NotFound));
    assert_eq!(echo(&bobs, "t1").await, None);
    permit(&ada, "echo", "always_allow").await.problem(ErrorCode::NotFound);
    put(&root, POLICY, &json!({})).await.expect(200);
    assert_eq!(root.get(POLICY).await.expect(200).json::<AdminToolPolicy>(), AdminToolPolicy::default());
    assert_eq!(echo(&worker, "t2").await, None);
    for (user, worker) in [(&ada, worker), (&bob, bobs)] {
        let id = worker.job;
        worker.finish("done").await;
        user.wait_for_end(id).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn an_invalid_stored_policy_leaves_only_what_never_needs_approval() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let worker = running_job(&world, &ada).await;
    let expected: Vec<String> = [
        "echo",
        "glob",
        "grep",
        "job_events",
        "job_status",
        "json",
        "list_dir",
        "list_jobs",
        "memory_read",
        "memory_search",
        "memory_tree",
        "read_file",
        "routine_history",
        "routine_list",
        "time",
        "tool_list",
    ]
    .map(str::to_owned)
    .into();
    for document in [r#"{"disabled": 1}"#, r#"["time"]"#, "not JSON"] {
        let mut database = world.database().await;
        sqlx::query(
            "INSERT OR REPLACE INTO tool_policy (id, document, updated_at) VALUES (1, $1, '2026-11-22T12:00:00Z')",
        )
        .bind(document)
        .execute(&mut database)
        .await
        .unwrap();
        database.close().await.unwrap();
        assert_eq!(offered(&worker).await, expected, "{document}");
        // A job may not list the names of secrets.
        let mut seen = names(&ada).await;
        seen.retain(|name| name != "secret_list");
        assert_eq!(seen, expected, "{document}");
    }
    let message = worker.tool("message", "t1", json!({"content": "hi"})).await.json::<ToolCallReply>();
    assert_eq!(message.error.map(|failure| failure.kind), Some(ToolErrorKind::NotAuthorized));
    assert_eq!(echo(&worker, "t2").await, None);
    root.get(POLICY).await.problem(ErrorCode::Conflict);
    put(&root, POLICY, &json!({})).await.expect(200);
    assert!(offered(&worker).await.contains(&"message".to_owned()));
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn changes_need_the_role_and_are_audited() {
    let world = World::new().await;
    let (ada, viewer, root) =
        (world.user("ada"), world.someone("eve", Role::Viewer), world.someone("root", Role::Admin));
    permit(&viewer, "echo", "disabled").await.problem(ErrorCode::Forbidden);
    viewer.get("/api/tools").await.expect(200);
    put(&ada, POLICY, &json!({"disabled_tools": ["echo"]})).await.problem(ErrorCode::Forbidden);
    ada.get(POLICY).await.problem(ErrorCode::Forbidden);
    permit(&ada, "no_such_tool", "disabled").await.problem(ErrorCode::NotFound);
    permit(&ada, "echo", "sometimes").await.problem(ErrorCode::Invalid);
    put(&root, POLICY, &json!({"disabled": ["echo"]})).await.problem(ErrorCode::Invalid);
    let large = json!({"disabled_tools": vec!["x".repeat(100); 400]});
    put(&root, POLICY, &large).await.problem(ErrorCode::Invalid);
    permit(&ada, "echo", "ask_each_time").await.expect(200);
    put(&root, POLICY, &json!({"disabled_tools": ["time"]})).await.expect(200);
    let entries = root.get("/api/audit?limit=200").await.expect(200).body;
    let done: Vec<(&str, &str)> = entries["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["outcome"] == "done")
        .map(|entry| (entry["action"].as_str().unwrap(), entry["user"].as_str().unwrap()))
        .collect();
    assert_eq!(done, [("tool.policy", "root"), ("tool.permission", "ada")]);
    assert_eq!(root.get(POLICY).await.body["disabled_tools"], json!(["time"]));
    world.finish().await;
}

#[tokio::test]
async fn the_command_line_shows_and_changes_permissions_and_policy() {
    let world = World::new().await;
    let ada = world.user("ada");
    let as_user = |name: &str, role| {
        vec![("GANTRY_URL".to_owned(), ada.base().to_owned()), ("GANTRY_TOKEN".to_owned(), world.fresh(name, role))]
    };
    let (user, admin) = (as_user("ada", Role::User), as_user("root", Role::Admin));
    let set = tests::install::program::run(&["tool", "permission", "echo", "ask_each_time"], &user).await;
    assert_eq!((set.code, set.stdout.as_str()), (Some(0), "echo: ask_each_time"), "{set:?}");
    let list = tests::install::program::run(&["tool", "list"], &user).await.stdout;
    let line = list.lines().find(|line| line.trim_start().starts_with("shell ")).unwrap_or_default();
    assert!(line.contains("sandbox") && line.contains("unless_auto_approved"), "{list:?}");
    let missing = tests::install::program::run(&["tool", "permission", "no such", "disabled"], &user).await;
    assert_eq!(missing.code, Some(4), "{missing:?}");
    let refused = tests::install::program::run(&["admin", "tool-policy"], &user).await;
    assert_eq!(refused.code, Some(6), "{refused:?}");
    let file = world.directory().join("policy.json");
    let policy = json!({"disabled_tools": ["shell"], "user_disabled_tools": {"ada": ["echo", "time"]}});
    std::fs::write(&file, policy.to_string()).unwrap();
    let set = tests::install::program::run(&["admin", "tool-policy", file.to_str().unwrap()], &admin).await;
    assert_eq!(set.stdout, "disabled for everyone: shell\ndisabled for ada: echo, time", "{set:?}");
    assert_eq!(tests::install::program::run(&["--json", "admin", "tool-policy"], &admin).await.json(), policy);
    std::fs::write(&file, "[]").unwrap();
    let invalid = tests::install::program::run(&["admin", "tool-policy", file.to_str().unwrap()], &admin).await;
    assert_eq!(invalid.code, Some(2), "{invalid:?}");
    world.finish().await;
}
