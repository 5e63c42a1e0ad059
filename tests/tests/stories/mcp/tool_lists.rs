//! Lists of tools with all tools of a server, and lists that add to the built-in tools.

use protocol::{ErrorCode, JobId, RoutineRun};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{ManualWorker, User, World, routines::triggered, script_of};

use super::{
    job, listed,
    server::{McpTestServer, tool},
    settings, world_with,
};
use crate::routines::create;

fn tools(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| tool(name, "repeats")).collect()
}

async fn called(worker: &ManualWorker, name: &str, call_id: &str, arguments: Value) -> Value {
    worker.tool(name, call_id, arguments).await.expect(200).body
}

#[tokio::test]
async fn all_tools_of_a_server_are_those_that_it_had_when_the_attempt_began() {
    let server = McpTestServer::start(&tools(&["one", "two"])).await;
    let mut world = world_with(&server).await;
    let body = json!({"prompt": "work", "tools": ["srv__*", "echo", "create_job"], "limits": {"max_children": 1}});
    let id = world.user("ada").create(body).await;
    let worker = world.manual_worker(id).await;
    let at_the_start = ["create_job", "echo", "srv__one", "srv__two"];
    assert_eq!(listed(&worker).await, at_the_start);

    server.lists(&tools(&["one", "two", "three"]));
    world.restart().await;
    let (ada, worker) = (world.user("ada"), world.manual_worker(id).await);
    let (_, other) = job(&world, &ada, &["srv__*"]).await;
    assert_eq!(listed(&other).await, ["srv__one", "srv__three", "srv__two"]);
    assert_eq!(listed(&worker).await, at_the_start);
    let refused = called(&worker, "srv__three", "t1", json!({})).await;
    assert_eq!(refused["error"]["kind"], "not_found", "{refused:#}");
    let refused = called(&worker, "srv__*", "t2", json!({})).await;
    assert_eq!(refused["error"]["kind"], "not_found", "{refused:#}");
    let reply = called(&worker, "srv__two", "t3", json!({"text": "hello"})).await;
    assert_eq!(reply["success"], true, "{reply:#}");

    let reply = called(&worker, "create_job", "t4", json!({"prompt": "a part", "tools": ["srv__*"]})).await;
    let created: Value = serde_json::from_str(reply["output"].as_str().unwrap()).unwrap();
    let child: JobId = serde_json::from_value(created["job_id"].clone()).unwrap();
    let below = world.manual_worker(child).await;
    assert_eq!(listed(&below).await, ["srv__one", "srv__two"], "a child has no more than its parent");
    for (id, worker) in [(child, below), (id, worker), (other.job, other)] {
        worker.finish("done").await;
        ada.wait_for_end(id).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_list_of_additions_leaves_the_built_in_tools() {
    let server = McpTestServer::start(&tools(&["one", "two"])).await;
    let world = world_with(&server).await;
    let ada = world.user("ada");
    let plain = world.manual_worker(ada.create_job("work").await).await;
    let built_in = listed(&plain).await;
    for (list, of_server) in [(["+srv__*"], "srv__one srv__two"), (["+srv__two"], "srv__two")] {
        let (_, worker) = job(&world, &ada, &list).await;
        let (others, rest): (Vec<_>, Vec<_>) =
            listed(&worker).await.into_iter().partition(|name| name.starts_with("srv__"));
        assert_eq!((others.join(" ").as_str(), &rest), (of_server, &built_in));
        worker.finish("done").await;
    }
    plain.finish("done").await;
    world.finish().await;
}

/// Posts an invalid list of tools to each place that takes one.
async fn refused(user: &User, list: &Value, code: ErrorCode) -> String {
    let action = |kind: &str, text: &str| json!({"type": kind, text: "p", "use_tools": true, "tools": list});
    let job = user.post("/api/jobs", &json!({"prompt": "p", "tools": list})).await.problem(code);
    let mut full_job = action("full_job", "description");
    full_job.as_object_mut().unwrap().remove("use_tools");
    for action in [action("lightweight", "prompt"), full_job] {
        let routine = json!({"name": "r", "trigger": {"type": "manual"}, "action": action});
        let reply = user.post("/api/routines", &routine).await.problem(ErrorCode::Invalid);
        let errors = reply.body["errors"].as_array().unwrap();
        assert_eq!(errors[0]["message"], job.body["errors"][0]["message"]);
        let field = job.fields()[0].to_owned();
        assert_eq!(reply.fields()[0], format!("action.{field}"));
    }
    format!("{}: {}", job.fields()[0], job.body["errors"][0]["message"].as_str().unwrap())
}

#[tokio::test]
async fn a_list_that_narrows_and_adds_is_refused_with_what_to_do() {
    let server = McpTestServer::start(&tools(&["one"])).await;
    let world = world_with(&server).await;
    let ada = world.user("ada");
    let mixed = refused(&ada, &json!(["echo", "+srv__*"]), ErrorCode::Invalid).await;
    assert!(mixed.starts_with("tools: ") && mixed.ends_with("write + before every entry or before none"), "{mixed}");
    let unknown = refused(&ada, &json!(["+echo", "+none__*"]), ErrorCode::NotAvailable).await;
    assert!(unknown.starts_with("tools[1]: "), "{unknown}");
    let no_server = refused(&ada, &json!(["ec*"]), ErrorCode::Invalid).await;
    assert!(no_server.starts_with("tools[0]: ") && no_server.contains("SERVER__*"), "{no_server}");
    assert!(ada.jobs().await.is_empty());
    world.finish().await;
}

#[rstest]
#[case::only_the_server(json!(["srv__*"]), true, false)]
#[case::the_server_added(json!(["+srv__*"]), true, true)]
#[case::no_list(Value::Null, false, true)]
#[tokio::test]
async fn a_run_has_the_tools_of_its_list(#[case] list: Value, #[case] has_server: bool, #[case] has_built_in: bool) {
    let server = McpTestServer::start(&tools(&["one"])).await;
    let calls = json!([{"name": "srv__one", "arguments": {}}, {"name": "echo", "arguments": {"message": "m"}}]);
    let script = script_of(&[
        json!({"when": {"tool_name": "echo"}, "reply": {"text": "ROUTINE_OK"}}),
        json!({"reply": {"tool_calls": calls}}),
    ]);
    let mut world = World::builder().script(script).build().await;
    let servers = vec![settings("srv", &server)];
    world.restart_with(|config| config.mcp = servers).await;
    let ada = world.user("ada");
    let mut action = json!({"type": "lightweight", "prompt": "p", "use_tools": true});
    if !list.is_null() {
        action["tools"] = list;
    }
    let run: RoutineRun = triggered(&ada, create(&ada, "r", action).await).await;
    let page = ada.get(&format!("/api/runs/{}/actions?limit=200", run.id)).await.expect(200).body;
    let of = |tool: &str| {
        page["items"].as_array().unwrap().iter().find(|one| one["tool"] == tool).unwrap()["success"] == true
    };
    assert_eq!((of("srv__one"), of("echo")), (has_server, has_built_in), "{page:#}");
    world.finish().await;
}
