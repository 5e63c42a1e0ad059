//! Official servers from their registries, called by jobs.

use std::process::Command;

use orchestrator::config::{McpServerSettings, McpTransport};
use protocol::ApprovalRequirement;
use serde_json::json;
use tests::{ManualWorker, World};

use super::{CALL_TIME, McpWorld, image, must, run, until_offered, well};

const EVERYTHING: [&str; 4] =
    ["everything__echo", "everything__get-sum", "everything__get-tiny-image", "everything__get-env"];

#[tokio::test]
async fn server_everything_works() {
    let mcp = McpWorld::start(&[("everything", &["mcp-server-everything", "stdio"])]).await;
    let (_, worker) = mcp.job(&mcp.user("ada"), &EVERYTHING).await;
    call_everything(&worker).await;
    worker.finish("done").await;
    mcp.finish().await;
}

/// A server over HTTP in a container that publishes its port on this host. Removed when it is dropped.
struct PublishedServer {
    container: String,
    address: String,
}

impl PublishedServer {
    fn start(command: &[&str], port: u16) -> Self {
        let container = format!("gantry-test-mcp-http-{}", std::process::id());
        let mut started = Command::new("docker");
        started.args(["run", "--detach", "--name", &container, "--publish", &format!("127.0.0.1::{port}"), &image()]);
        must(started.args(command));
        let published = must(Command::new("docker").args(["port", &container, &port.to_string()]));
        let address = published.lines().next().unwrap().trim().to_owned();
        Self { container, address }
    }
}

impl Drop for PublishedServer {
    fn drop(&mut self) {
        run(Command::new("docker").args(["rm", "--force", &self.container]));
    }
}

#[tokio::test]
async fn server_everything_works_over_http() {
    let server = PublishedServer::start(&["mcp-server-everything", "streamableHttp"], 3001);
    let mut world = World::builder().set("GANTRY_EGRESS_CEILING", &server.address).build().await;
    let url = format!("http://{}/mcp", server.address);
    let transport = McpTransport::Http { url, headers: [].into(), secrets_of: None };
    let requirement = ApprovalRequirement::UnlessAutoApproved;
    let settings = McpServerSettings { name: "everything".to_owned(), transport, requirement, timeout: CALL_TIME };
    world.restart_with(|config| config.mcp = vec![settings]).await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "tools": EVERYTHING})).await;
    let worker = world.manual_worker(id).await;
    call_everything(&worker).await;
    worker.finish("done").await;
    Box::pin(world.finish()).await;
}

/// Calls tools of `server-everything`.
async fn call_everything(worker: &ManualWorker) {
    until_offered(worker, &EVERYTHING).await;
    assert_eq!(well(worker, "everything__echo", "t1", json!({"message": "hello"})).await, "Echo: hello");
    let sum = well(worker, "everything__get-sum", "t2", json!({"a": 2, "b": 40})).await;
    assert!(sum.contains("42"), "{sum}");
    let image = well(worker, "everything__get-tiny-image", "t3", json!({})).await;
    assert!(image.contains("[image, image/png, ") && image.contains("not shown]"), "{image}");
    let environment = well(worker, "everything__get-env", "t4", json!({})).await;
    assert!(environment.contains("PATH") && !environment.contains("GANTRY"), "{environment}");
    let reply = worker.tool("everything__get-sum", "t5", json!({"a": "two"})).await.expect(200).body;
    assert_eq!(reply["error"]["kind"], "invalid_parameters", "{reply:#}");
}

#[tokio::test]
async fn server_time_works() {
    let mcp = McpWorld::start(&[("time", &["mcp-server-time", "--local-timezone=Etc/UTC"])]).await;
    let (_, worker) = mcp.job(&mcp.user("ada"), &["time__get_current_time", "time__convert_time"]).await;
    let now = well(&worker, "time__get_current_time", "t1", json!({"timezone": "Etc/UTC"})).await;
    assert!(now.contains("\"datetime\""), "{now}");
    let noon = json!({"source_timezone": "Etc/UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"});
    let converted = well(&worker, "time__convert_time", "t2", noon).await;
    assert!(converted.contains("21:00:00+09:00"), "{converted}");
    let reply = worker.tool("time__get_current_time", "t3", json!({"timezone": "Nowhere/Town"})).await.expect(200).body;
    assert_eq!(reply["success"], false, "{reply:#}");
    worker.finish("done").await;
    mcp.finish().await;
}

/// A clone in the server's own temporary file system, because its image is read-only.
const GIT: &str = "git clone --quiet /srv/repository ~/work && exec mcp-server-git --repository ~/work";

#[tokio::test]
async fn server_git_works() {
    let mcp = McpWorld::start(&[("git", &["sh", "-c", GIT])]).await;
    let names = ["git__git_status", "git__git_log", "git__git_create_branch", "git__git_checkout"];
    let (_, worker) = mcp.job(&mcp.user("ada"), &names).await;
    let repository = json!({"repo_path": "/home/agent/work"});
    let log = well(&worker, "git__git_log", "t1", repository.clone()).await;
    assert!(log.contains("The first commit"), "{log}");
    let branch = json!({"repo_path": "/home/agent/work", "branch_name": "other"});
    well(&worker, "git__git_create_branch", "t2", branch.clone()).await;
    well(&worker, "git__git_checkout", "t3", branch).await;
    let status = well(&worker, "git__git_status", "t4", repository).await;
    assert!(status.contains("On branch other"), "{status}");
    let reply = worker.tool("git__git_log", "t5", json!({"repo_path": "/"})).await.expect(200).body;
    assert_eq!(reply["success"], false, "{reply:#}");
    worker.finish("done").await;
    mcp.finish().await;
}
