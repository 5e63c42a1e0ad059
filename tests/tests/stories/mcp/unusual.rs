//! Servers that keep to the protocol loosely: what can be read of their lists and answers is used.

use rstest::rstest;
use serde_json::{Value, json};
use tests::install::program;

use super::{
    job, listed, overview,
    server::{Behaviour, McpTestServer, tool},
    world_with,
};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// A tool whose definition has this field besides the usual ones, or instead of one.
fn tool_with(name: &str, field: &str, value: Value) -> Value {
    let mut tool = tool(name, "is unusual");
    tool[field] = value;
    tool
}

/// A schema with this many levels.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!({"type": "string"}), |inner, _| json!({"type": "object", "properties": {"a": inner}}))
}

#[tokio::test]
async fn a_tool_that_cannot_be_read_is_refused_alone() {
    let tools = [
        tool("echo", "repeats"),
        tool_with("nothing", "inputSchema", Value::Null),
        tool_with("anything", "inputSchema", json!(true)),
        tool_with("deep", "inputSchema", nested(70)),
        tool_with("dangling", "inputSchema", json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/None"}}})),
        Value::Null,
        json!({"description": "has no name"}),
        tool("last", "repeats, too"),
    ];
    let server = McpTestServer::start(&tools).await;
    let world = world_with(&server).await;
    let ada = world.user("ada");
    let (_, worker) = job(&world, &ada, &["srv__echo", "srv__last", "srv__deep"]).await;
    assert_eq!(listed(&worker).await, ["srv__echo", "srv__last"]);
    let expected = [
        ("nothing", "its parameter schema is not an object"),
        ("anything", "its parameter schema is not an object"),
        ("deep", "its definition is nested too deeply"),
        ("dangling", "its parameter schema refers to #/$defs/None, which it does not contain"),
        ("#6", "its definition is not an object"),
        ("#7", "it has no name"),
    ];
    let shown = ada.get("/api/tools").await.expect(200).body["unavailable"].clone();
    let of_tool = |(name, reason): (&str, &str)| json!({"server": "srv", "tool": name, "reason": reason});
    assert_eq!(shown, Value::from_iter(expected.map(of_tool)), "{shown:#}");
    let seen = overview(&world).await;
    let refused: Vec<_> = seen.iter().filter(|(_, status, _)| status == "refused").collect();
    assert_eq!(refused.len(), expected.len(), "{seen:#?}");
    let token = world.fresh("ada", orchestrator::auth::Role::User);
    let variables = [("GANTRY_URL", ada.base().to_owned()), ("GANTRY_TOKEN", token)];
    let output = program::run(&["tool", "list"], &variables.map(|(name, value)| (name.to_owned(), value))).await.stdout;
    assert!(output.contains("without the tool deep of srv: its definition is nested too deeply"), "{output}");
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn fields_that_a_tool_does_not_need_are_left_out() {
    let tools = [
        tool_with("hints", "annotations", json!({"readOnlyHint": "yes"})),
        tool_with("icons", "icons", json!([{"src": 5}])),
        tool_with("title", "title", json!(["a", "b"])),
        tool_with("nulls", "inputSchema", json!({"type": "object", "properties": null, "required": null})),
        tool_with("untyped", "inputSchema", json!({"properties": {"count": {"type": "integer"}}})),
    ];
    let server = McpTestServer::start(&tools).await;
    let world = world_with(&server).await;
    let names = ["srv__hints", "srv__icons", "srv__nulls", "srv__title", "srv__untyped"];
    let (_, worker) = job(&world, &world.user("ada"), &names).await;
    let offered = worker.get("tools").await.expect(200).body["tools"].clone();
    assert_eq!(super::names(&offered), names, "{offered:#}");
    assert_eq!(offered[2]["parameters"], json!({"type": "object"}));
    assert_eq!(offered[4]["parameters"]["type"], "object");
    for (index, name) in names.into_iter().enumerate() {
        let reply = worker.tool(name, &format!("t{index}"), json!({})).await.expect(200).body;
        assert_eq!(reply["success"], true, "{reply:#}");
    }
    let reply = worker.tool("srv__untyped", "bad", json!({"count": "many"})).await.expect(200).body;
    assert_eq!(reply["error"]["kind"], "invalid_parameters", "{reply:#}");
    worker.finish("done").await;
    world.finish().await;
}

#[rstest]
#[case::an_unknown_block(
    json!({"content": [{"type": "video", "data": "x"}, {"type": "text", "text": "after"}]}),
    json!("[video: not shown]\nafter")
)]
#[case::a_block_without_its_text(
    json!({"content": [{"type": "text", "text": 5}, null, {"type": "text", "text": "after"}]}),
    json!("[text: not shown]\n[content: not shown]\nafter")
)]
#[case::an_image_without_a_type(
    json!({"content": [{"type": "image", "data": "aaaa"}]}),
    json!("[image, 3 bytes: not shown]")
)]
#[case::odd_annotations(
    json!({"content": [{"type": "text", "text": "well", "annotations": {"priority": "high"}}]}),
    json!("well")
)]
#[case::a_text_for_a_list(json!({"content": "just a text"}), json!("just a text"))]
#[case::a_block_for_a_list(json!({"content": {"type": "text", "text": "one block"}}), json!("one block"))]
#[case::deep_content(
    json!({"content": [{"type": "text", "text": "before", "x": nested(70)}, {"type": "text", "text": "after"}]}),
    json!("[content: not shown]\nafter")
)]
#[case::deep_structure(
    json!({"content": [{"type": "text", "text": "before"}], "structuredContent": nested(70)}),
    json!("before\n[structured content: not shown]")
)]
#[tokio::test]
async fn the_readable_parts_of_an_answer_are_passed_on(#[case] result: Value, #[case] expected: Value) {
    let server = McpTestServer::start(&[tool("echo", "repeats")]).await;
    server.on("call:echo", Behaviour::Result(result));
    let world = world_with(&server).await;
    let (_, worker) = job(&world, &world.user("ada"), &["srv__echo"]).await;
    let reply = worker.tool("srv__echo", "t1", json!({})).await.expect(200).body;
    assert_eq!((&reply["success"], &reply["output"]), (&json!(true), &expected), "{reply:#}");
    worker.finish("done").await;
    world.finish().await;
}

const LATIN: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"id\":@,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"caf\xe9\"}]}}";
const LATIN_EVENT: &[u8] =
    b"data: {\"jsonrpc\":\"2.0\",\"id\":@,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"caf\xe9\"}]}}\n\n";
const MARKED: &[u8] =
    b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":@,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"well\"}]}}";
const MARKED_EVENT: &[u8] =
    b"\xef\xbb\xbfdata: {\"jsonrpc\":\"2.0\",\"id\":@,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"well\"}]}}\n\n";
const PLAIN: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":@,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"well\"}]}}";
const NO_BLANK_LINE: &[u8] =
    b"event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":@,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"well\"}]}}\n";
const OTHER_EVENTS: &[u8] =
    b"data: hello\n\ndata: {}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":@,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"well\"}]}}\n\n";

#[rstest]
#[case::json_in_latin_1(Some(JSON), LATIN, "caf\u{fffd}")]
#[case::an_event_in_latin_1(Some(EVENTS), LATIN_EVENT, "caf\u{fffd}")]
#[case::json_with_a_mark(Some(JSON), MARKED, "well")]
#[case::an_event_with_a_mark(Some(EVENTS), MARKED_EVENT, "well")]
#[case::no_content_type(None, PLAIN, "well")]
#[case::plain_text(Some("text/plain; charset=utf-8"), PLAIN, "well")]
#[case::no_blank_line_at_the_end(Some(EVENTS), NO_BLANK_LINE, "well")]
#[case::events_that_are_no_messages(Some(EVENTS), OTHER_EVENTS, "well")]
#[tokio::test]
async fn the_encoding_of_an_answer_ends_no_connection(
    #[case] content_type: Option<&'static str>,
    #[case] body: &'static [u8],
    #[case] expected: &str,
) {
    let server = McpTestServer::start(&[tool("echo", "repeats"), tool("other", "repeats")]).await;
    server.on("call:echo", Behaviour::Raw(content_type, body));
    let world = world_with(&server).await;
    let (_, worker) = job(&world, &world.user("ada"), &["srv__echo", "srv__other"]).await;
    let reply = worker.tool("srv__echo", "t1", json!({})).await.expect(200).body;
    assert_eq!((&reply["success"], &reply["output"]), (&json!(true), &json!(expected)), "{reply:#}");
    let reply = worker.tool("srv__other", "t2", json!({"text": "x"})).await.expect(200).body;
    assert_eq!(reply["success"], true, "{reply:#}");
    assert_eq!(server.requests("initialize").len(), 1, "the connection goes on");
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_handshake_with_events_that_are_no_messages_succeeds() {
    let server = McpTestServer::start(&[tool("echo", "repeats")]).await;
    let body = b"data: hello\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":@,\"result\":{\"protocolVersion\":\"2025-06-18\",\
        \"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"caf\xe9\",\"version\":\"1\"}}}\n";
    server.on("initialize", Behaviour::Raw(Some(EVENTS), body));
    let world = world_with(&server).await;
    let (_, worker) = job(&world, &world.user("ada"), &["srv__echo"]).await;
    assert_eq!(listed(&worker).await, ["srv__echo"]);
    worker.finish("done").await;
    world.finish().await;
}

#[rstest]
#[case::empty("", 1)]
#[case::repeated("again", 2)]
#[tokio::test]
async fn a_cursor_that_leads_no_further_ends_the_list(#[case] cursor: &str, #[case] requests: usize) {
    let server = McpTestServer::start(&[]).await;
    let page = json!({"tools": [tool("echo", "repeats")], "nextCursor": cursor});
    server.on("tools/list", Behaviour::Result(page));
    let world = world_with(&server).await;
    let (_, worker) = job(&world, &world.user("ada"), &["srv__echo"]).await;
    assert_eq!(listed(&worker).await, ["srv__echo"]);
    assert_eq!(server.requests("tools/list").len(), requests);
    worker.finish("done").await;
    world.finish().await;
}

/// `@modelcontextprotocol/server-everything` answers so to a session that it does not know any more (typescript-sdk#1476).
const NO_SESSION: &str =
    r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}"#;

#[rstest]
#[case::as_specified(404, "")]
#[case::as_an_invalid_request(400, NO_SESSION)]
#[tokio::test]
async fn a_session_that_the_server_has_lost_is_opened_again(#[case] status: u16, #[case] body: &'static str) {
    let server = McpTestServer::start(&[tool("echo", "repeats")]).await;
    let world = world_with(&server).await;
    let ada = world.user("ada");
    let (_, worker) = job(&world, &ada, &["srv__echo"]).await;
    assert_eq!(worker.tool("srv__echo", "c1", json!({"text": "a"})).await.expect(200).body["success"], true);
    let (handshakes, lists) = (server.requests("initialize").len(), server.requests("tools/list").len());
    server.on("call:echo", Behaviour::StatusOnce(status, body));
    let reply = worker.tool("srv__echo", "c2", json!({"text": "b"})).await.expect(200).body;
    assert_eq!(reply["success"], true, "{reply:#}");
    assert_eq!(server.requests("initialize").len(), handshakes + 1);
    // It may be another program than before.
    tests::until("the list to be read again", async || {
        ada.get("/api/tools").await.expect(200);
        server.requests("tools/list").len() > lists
    })
    .await;
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn an_error_of_http_is_shown_with_its_own_words() {
    let server = McpTestServer::start(&[tool("echo", "repeats")]).await;
    let world = world_with(&server).await;
    let (_, worker) = job(&world, &world.user("ada"), &["srv__echo"]).await;
    server.on("call:echo", Behaviour::StatusOnce(403, "Access is only allowed at localhost:7407"));
    let reply = worker.tool("srv__echo", "c1", json!({})).await.expect(200).body;
    let message = reply["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("HTTP status 403: Access is only allowed at localhost:7407"), "{reply:#}");
    assert!(!message.contains("closed the connection"), "{message}");
    worker.finish("done").await;
    world.finish().await;
}
