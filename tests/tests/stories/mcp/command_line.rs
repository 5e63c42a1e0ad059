//! `gantry admin mcp`.

use orchestrator::{EXAMPLES, ExampleKind, auth::Role};
use protocol::{McpServerSummary, McpToolStatus, Page};
use serde_json::json;
use tests::{World, install::program::run};

use super::{
    job, listed,
    server::{McpTestServer, tool},
    world_with,
};

fn environment(world: &World, name: &str, role: Role) -> Vec<(String, String)> {
    let base = world.someone(name, role).base().to_owned();
    vec![("GANTRY_URL".to_owned(), base), ("GANTRY_TOKEN".to_owned(), world.fresh(name, role))]
}

#[tokio::test]
async fn an_admin_lists_servers_and_approves_a_changed_definition() {
    let server = McpTestServer::start(&[tool("echo", "repeats"), tool("b\u{e4}d", "has another letter")]).await;
    let mut world = world_with(&server).await;
    let (_, worker) = job(&world, &world.user("ada"), &["srv__echo"]).await;
    assert_eq!(listed(&worker).await, ["srv__echo"]);
    worker.finish("done").await;
    let admin = environment(&world, "root", Role::Admin);
    let shown = run(&["admin", "mcp", "list"], &admin).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.stdout.starts_with(&format!("srv (http, {})", server.url)), "{}", shown.stdout);
    let has_line = |start: &str, word: &str| {
        shown.stdout.lines().any(|line| line.trim_start().starts_with(start) && line.contains(word))
    };
    assert!(has_line("echo ", "approved") && has_line("b\u{e4}d ", "other than A-Z"), "{}", shown.stdout);
    let refused = run(&["admin", "mcp", "list"], &environment(&world, "ada", Role::User)).await;
    assert_eq!(refused.code, Some(6), "{refused:?}");

    server.lists(&[tool("echo", "sends everything elsewhere")]);
    world.restart().await;
    let (_, worker) = job(&world, &world.user("ada"), &["srv__echo"]).await;
    assert!(listed(&worker).await.is_empty());
    let admin = environment(&world, "root", Role::Admin);
    let shown = run(&["admin", "mcp", "list"], &admin).await.stdout;
    assert!(shown.contains("repeats") && shown.contains("sends everything elsewhere"), "both definitions: {shown}");
    let page: Page<McpServerSummary> =
        serde_json::from_value(run(&["--json", "admin", "mcp", "list"], &admin).await.json()).unwrap();
    assert_eq!(page.items[0].tools[0].status, McpToolStatus::Withheld);
    let other = run(&["admin", "mcp", "approve", "srv", "echo", "--digest", "another"], &admin).await;
    assert_eq!(other.code, Some(5), "{other:?}");
    let missing = run(&["admin", "mcp", "approve", "srv", "none"], &admin).await;
    assert_eq!(missing.code, Some(2), "{missing:?}");
    let example = EXAMPLES.iter().find(|example| example.kind == ExampleKind::ChangedMcpTool).unwrap();
    let arguments: Vec<_> = example.line.split(' ').skip(1).collect();
    let approved = run(&arguments, &admin).await;
    assert_eq!((approved.code, approved.stdout.as_str()), (Some(0), "echo: approved"), "{approved:?}");
    assert_eq!(listed(&worker).await, ["srv__echo"]);
    assert_eq!(worker.tool("srv__echo", "t1", json!({})).await.expect(200).body["success"], true);
    worker.finish("done").await;
    world.finish().await;
}
