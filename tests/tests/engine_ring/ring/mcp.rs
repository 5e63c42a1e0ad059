//! MCP servers in real containers: an orchestrator whose jobs are driven by the test, and whose MCP servers run on the
//! engine.

mod containers;
mod hostile;
mod official;

use std::{process::Command, time::Duration};

use orchestrator::{
    Environment,
    auth::Role,
    clock::ManualClock,
    config::{McpServerSettings, McpTransport},
};
use protocol::{ApprovalRequirement, JobId};
use serde_json::{Value, json};
use tests::{ManualWorker, User, World};

use super::setup::{Fixture, Image, must, run};

/// The variable that replaces the image built by `tests/run.sh --only images`.
const IMAGE_VARIABLE: &str = "GANTRY_TEST_MCP_IMAGE";

fn image() -> String {
    let set = Environment::from_process().get(IMAGE_VARIABLE).map(str::to_owned);
    set.unwrap_or_else(|| "gantry-test-mcp:test".to_owned())
}

/// The server of the test image that misbehaves as its tools are called.
const HOSTILE: &[&str] = &["mcp-hostile"];

/// Time for a call without a sign of life.
const CALL_TIME: Duration = Duration::from_mins(1);

/// An orchestrator with these servers.
struct McpWorld {
    world: World,
    fixture: Fixture,
}

/// A container of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Server {
    name: String,
    owner: String,
    id: String,
}

impl McpWorld {
    async fn start(servers: &[(&str, &[&str])]) -> Self {
        Box::pin(Self::build(servers, CALL_TIME, None)).await
    }

    /// `limit` is the time for a call without a sign of life.
    async fn build(servers: &[(&str, &[&str])], limit: Duration, clock: Option<&ManualClock>) -> Self {
        let (exists, output) = run(Command::new("docker").args(["image", "inspect", &image()]));
        assert!(exists, "the tests need the image {}; run tests/run.sh --only images: {output}", image());
        let fixture = Fixture::new(Image::Good);
        // Without a rate: tests call a tool until its server can be used again.
        let builder = World::builder().set("GANTRY_TOOL_RATE_BURST", 0).set("GANTRY_TOOL_RATE_PER_HOUR", 0);
        let builder = match clock {
            Some(clock) => builder.clock(clock),
            None => builder,
        };
        let mut world = builder.build().await;
        world.engine().run_mcp_servers_on(fixture.again(|_| {}));
        let settings = servers.iter().map(|(name, command)| settings(name, command, limit)).collect();
        world.restart_with(|config| config.mcp = settings).await;
        Self { world, fixture }
    }

    fn user(&self, name: &str) -> User {
        self.world.user(name)
    }

    /// A running job that may use these tools.
    async fn job(&self, user: &User, tools: &[&str]) -> (JobId, ManualWorker) {
        let id = user.create(json!({"prompt": "work", "tools": tools})).await;
        (id, self.world.manual_worker(id).await)
    }

    /// The containers of MCP servers on the engine.
    fn servers(&self) -> Vec<Server> {
        let instance = format!("label=gantry.instance-id={}", self.fixture.instance);
        let format = r#"{{.Label "gantry.mcp-server"}} {{.Label "gantry.owner"}} {{.ID}}"#;
        let role = "label=gantry.role=mcp";
        let listed = must(Command::new("docker").args([
            "ps",
            "-a",
            "--no-trunc",
            "--filter",
            &instance,
            "--filter",
            role,
            "--format",
            format,
        ]));
        let mut servers: Vec<Server> = listed.lines().map(Server::parse).collect();
        servers.sort();
        servers
    }

    /// The only container of an MCP server.
    fn only_server(&self) -> Server {
        let servers = self.servers();
        let [server] = servers.as_slice() else { panic!("one container: {servers:#?}") };
        server.clone()
    }

    /// The server's tools as an admin sees them.
    async fn overview(&self, server: &str) -> Value {
        let items =
            self.world.someone("root", Role::Admin).get("/api/admin/mcp").await.expect(200).body["items"].clone();
        items.as_array().unwrap().iter().find(|one| one["name"] == server).unwrap().clone()
    }

    /// Ends both. Fails if a container is left.
    async fn finish(self) {
        Box::pin(self.world.finish()).await;
        self.fixture.finish().await;
    }
}

impl Server {
    fn parse(line: &str) -> Self {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, owner, id] = fields.as_slice() else { panic!("three fields: {line}") };
        Self { name: (*name).to_owned(), owner: (*owner).to_owned(), id: (*id).to_owned() }
    }

    fn inspect(&self) -> Value {
        let text = must(Command::new("docker").args(["inspect", &self.id]));
        let mut all: Vec<Value> = serde_json::from_str(&text).unwrap();
        all.remove(0)
    }
}

fn settings(name: &str, command: &[&str], timeout: Duration) -> McpServerSettings {
    let command = command.iter().map(|part| (*part).to_owned()).collect();
    let transport = McpTransport::Stdio { image: image(), command };
    let requirement = ApprovalRequirement::UnlessAutoApproved;
    McpServerSettings { name: name.to_owned(), transport, requirement, timeout }
}

/// Calls a tool, which must answer, and returns the answer's text.
async fn well(worker: &ManualWorker, tool: &str, call: &str, arguments: Value) -> String {
    let reply = worker.tool(tool, call, arguments).await.expect(200).body;
    assert_eq!(reply["success"], true, "{reply:#}");
    reply["output"].as_str().unwrap().to_owned()
}

/// Waits until a job is offered these MCP tools, in any order: the first list does not wait for slow servers.
async fn until_offered(worker: &ManualWorker, names: &[&str]) {
    let mut expected = names.to_vec();
    expected.sort_unstable();
    tests::until(&format!("{names:?} to be offered"), async || {
        let mut offered = listed(worker).await;
        offered.sort();
        offered == expected
    })
    .await;
}

/// The names of the MCP tools that a job is offered.
async fn listed(worker: &ManualWorker) -> Vec<String> {
    let tools = worker.get("tools").await.expect(200).body["tools"].clone();
    let names = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.contains("__")).collect()
}
