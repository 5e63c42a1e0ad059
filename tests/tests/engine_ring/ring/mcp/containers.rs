//! The containers of MCP servers: their posture, whose they are, and when they end.

use std::{process::Command, time::Duration};

use chrono::DateTime;
use orchestrator::clock::ManualClock;
use serde_json::{Value, json};

use super::{CALL_TIME, HOSTILE, McpWorld, listed, must, until_offered, well};

#[tokio::test]
async fn the_container_meets_the_posture_without_a_worker() {
    let mcp = McpWorld::start(&[("srv", HOSTILE)]).await;
    let (_, worker) = mcp.job(&mcp.user("ada"), &["srv__inside"]).await;
    let inside = well(&worker, "srv__inside", "t1", json!({})).await;
    let found: Value = serde_json::from_str(&inside).unwrap();
    let none = "0000000000000000";
    let expected = json!({
        "CapEff": none, "CapBnd": none, "NoNewPrivs": "1", "Seccomp": "2", "Uid": "10001",
        // EROFS
        "root": 30, "interfaces": ["lo"], "gantry": false, "engine": false,
        "environment": ["HOME", "HOSTNAME", "LANG", "PATH"],
    });
    assert_eq!(found, expected);
    let shown = mcp.only_server().inspect();
    let host = &shown["HostConfig"];
    assert_eq!((&host["NetworkMode"], &host["ReadonlyRootfs"]), (&json!("none"), &json!(true)));
    assert_eq!((&host["CapDrop"], &host["Privileged"]), (&json!(["ALL"]), &json!(false)));
    assert_eq!((&host["PidsLimit"], &host["Memory"]), (&json!(128), &json!(512 * 1024 * 1024)));
    assert_eq!((&host["NanoCpus"], &host["LogConfig"]["Type"]), (&json!(1_000_000_000), &json!("none")));
    assert_eq!(shown["Mounts"], json!([]), "no worker socket, no workspace");
    assert_eq!(shown["Config"]["User"], "10001:10001");
    let options = host["SecurityOpt"].to_string();
    assert!(options.contains("no-new-privileges") && options.contains("seccomp="), "{options:.200}");
    worker.finish("done").await;
    mcp.finish().await;
}

#[tokio::test]
async fn users_do_not_share_a_container() {
    let mcp = McpWorld::start(&[("apart", HOSTILE)]).await;
    let (ada, bob) = (mcp.user("ada"), mcp.user("bob"));
    let (_, of_ada) = mcp.job(&ada, &["apart__echo"]).await;
    let (_, of_bob) = mcp.job(&bob, &["apart__echo"]).await;
    let (_, also_of_ada) = mcp.job(&ada, &["apart__echo"]).await;
    for (worker, text) in [(&of_ada, "a"), (&of_bob, "b"), (&also_of_ada, "c")] {
        assert_eq!(well(worker, "apart__echo", text, json!({"text": text})).await, text);
    }
    let owners: Vec<String> = mcp.servers().into_iter().map(|one| one.owner).collect();
    assert_eq!(owners, ["ada", "bob"], "one container for each user");
    assert_eq!(mcp.overview("apart").await["connections"], 2);
    for worker in [of_ada, of_bob, also_of_ada] {
        worker.finish("done").await;
    }
    mcp.finish().await;
}

#[tokio::test]
async fn a_list_of_known_tools_starts_no_container() {
    let mcp = McpWorld::start(&[("srv", HOSTILE)]).await;
    let (ada, bob) = (mcp.user("ada"), mcp.user("bob"));
    let (_, worker) = mcp.job(&ada, &["srv__echo", "srv__change"]).await;
    well(&worker, "srv__echo", "t1", json!({"text": "x"})).await;
    let tools = bob.get("/api/tools").await.expect(200).body["items"].clone();
    let echo = tools.as_array().unwrap().iter().find(|tool| tool["name"] == "srv__echo").unwrap().clone();
    assert_eq!((&echo["source"], &echo["requirement"]), (&json!("mcp:srv"), &json!("unless_auto_approved")));
    assert!(echo["parameters"]["properties"].get("text").is_some(), "{echo:#}");
    assert_eq!(mcp.only_server().owner, "ada");
    worker.finish("done").await;
    mcp.finish().await;
}

#[tokio::test]
async fn an_idle_container_ends_and_the_next_call_starts_another() {
    let clock = ManualClock::at(DateTime::from_timestamp(1_800_000_000, 0).unwrap());
    let mcp = McpWorld::build(&[("srv", HOSTILE)], CALL_TIME, Some(&clock)).await;
    for user in ["bob", "ada"] {
        let (_, worker) = mcp.job(&mcp.user(user), &["srv__echo"]).await;
        well(&worker, "srv__echo", "t1", json!({"text": "x"})).await;
        // Before the clock moves on, by which the job would be lost.
        worker.finish("done").await;
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(mcp.servers().len(), 2);
    clock.advance(Duration::from_secs(298));
    tests::until("the container that is idle for 5 minutes to be removed", async || mcp.servers().len() < 2).await;
    let first = mcp.only_server();
    assert_eq!((first.owner.as_str(), &mcp.overview("srv").await["connections"]), ("ada", &json!(1)), "not earlier");
    clock.advance(Duration::from_secs(1));
    tests::until("the other container to be removed", async || mcp.servers().is_empty()).await;
    let (_, worker) = mcp.job(&mcp.user("ada"), &["srv__echo"]).await;
    assert_eq!(well(&worker, "srv__echo", "t2", json!({"text": "again"})).await, "again");
    assert_ne!(mcp.only_server(), first);
    worker.finish("done").await;
    mcp.finish().await;
}

#[tokio::test]
async fn containers_end_with_the_process_and_leftovers_are_removed_at_the_start() {
    let mut mcp = McpWorld::start(&[("srv", HOSTILE)]).await;
    let (_, worker) = mcp.job(&mcp.user("carol"), &["srv__echo"]).await;
    well(&worker, "srv__echo", "t1", json!({"text": "x"})).await;
    mcp.only_server();
    worker.finish("done").await;
    mcp.world.stop().await;
    assert_eq!(mcp.servers(), [], "removed when the process drains");
    // What a process that was killed leaves behind.
    let instance = format!("gantry.instance-id={}", mcp.fixture.instance);
    let labels = ["gantry.managed=true", "gantry.role=mcp", "gantry.owner=carol", "gantry.mcp-server=srv", &instance];
    let labels = labels.iter().flat_map(|label| ["--label", label]);
    let name = format!("gantry-mcp-{}", protocol::JobId::generate().to_string().replace('-', ""));
    let mut left = Command::new("docker");
    left.args(["run", "--detach", "--name", &name]).args(labels);
    must(left.args(["--entrypoint", "sleep", &super::image(), "600"]));
    assert_eq!(mcp.servers().len(), 1);
    mcp.world.start().await;
    tests::until("the leftover to be removed", async || mcp.servers().is_empty()).await;
    mcp.finish().await;
}

#[tokio::test]
async fn a_program_that_is_missing_and_one_that_ends_are_reported() {
    let mcp = McpWorld::start(&[("absent", &["no-such-program"]), ("ends", &["true"]), ("good", HOSTILE)]).await;
    let names = ["absent__echo", "ends__echo", "good__echo"];
    let (_, worker) = mcp.job(&mcp.user("ada"), &names).await;
    // Servers that do not start affect no other.
    until_offered(&worker, &["good__echo"]).await;
    assert_eq!(well(&worker, "good__echo", "t1", json!({"text": "x"})).await, "x");
    for (server, cause) in [("absent", "does not have the program"), ("ends", "ended with exit code 0")] {
        tests::until(&format!("{server}: {cause}"), async || {
            mcp.overview(server).await["error"].as_str().is_some_and(|error| error.contains(cause))
        })
        .await;
    }
    worker.finish("done").await;
    mcp.finish().await;
}

/// A program that reads nothing and prints nothing.
const SILENT: &[&str] = &["sleep", "600"];

#[tokio::test]
async fn a_container_whose_server_does_not_answer_is_removed() {
    let mcp = McpWorld::start(&[("mute", SILENT)]).await;
    let ada = mcp.user("ada");
    let (id, worker) = mcp.job(&ada, &["mute__echo"]).await;
    assert!(listed(&worker).await.is_empty(), "the job does not wait for it");
    assert_eq!(mcp.only_server().owner, "ada");
    tests::until("the start to be given up", async || {
        let error = mcp.overview("mute").await["error"].clone();
        error.as_str().is_some_and(|error| error.contains("did not answer within 30 s"))
    })
    .await;
    assert_eq!(mcp.servers(), []);
    // Its worker was silent for too long to finish it.
    ada.cancel(id).await;
    ada.wait_for_end(id).await;
    mcp.finish().await;
}

#[tokio::test]
async fn a_container_that_is_being_started_ends_with_the_process() {
    let mut mcp = McpWorld::start(&[("mute", SILENT)]).await;
    let (_, worker) = mcp.job(&mcp.user("ada"), &["mute__echo"]).await;
    assert!(listed(&worker).await.is_empty(), "the job does not wait for it");
    mcp.only_server();
    worker.finish("done").await;
    mcp.world.stop().await;
    assert_eq!(mcp.servers(), []);
    mcp.world.start().await;
    mcp.finish().await;
}

/// Prints a secret of its user, and ends.
const UNSET: &str = "echo 'the header is adas-own-long-token' >&2; echo 'Error: GITHUB_TOKEN is not set' >&2; exit 3";
/// Refuses the handshake.
const REFUSES: &str = "read line; echo '{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{\"code\":-32603,\"message\":\"DATABASE_URL is not set\"}}'; sleep 600";

#[tokio::test]
async fn the_cause_of_a_server_that_does_not_start_is_shown() {
    let mcp = McpWorld::start(&[("unset", &["sh", "-c", UNSET]), ("refuses", &["sh", "-c", REFUSES])]).await;
    let ada = mcp.user("ada");
    ada.post("/api/secrets", &json!({"name": "own", "value": "adas-own-long-token"})).await.expect(201);
    let (_, worker) = mcp.job(&ada, &["unset__echo", "refuses__echo"]).await;
    let ended = "its program ended with exit code 3 and printed: Error: GITHUB_TOKEN is not set";
    let refused = "it answered the handshake with error -32603: DATABASE_URL is not set";
    for (server, cause) in [("unset", ended), ("refuses", refused)] {
        let reply = worker.tool(&format!("{server}__echo"), server, json!({})).await.expect(200).body;
        assert!(reply["error"]["message"].as_str().unwrap().contains(cause), "{reply:#}");
        let shown = mcp.overview(server).await;
        assert!(shown["error"].as_str().unwrap().contains(cause), "{shown:#}");
    }
    let printed = mcp.overview("unset").await["stderr"].clone();
    assert_eq!(printed, "the header is [redacted]\nError: GITHUB_TOKEN is not set");
    worker.finish("done").await;
    mcp.finish().await;
}
