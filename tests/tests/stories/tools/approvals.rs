//! The table of approvals: what runs, what a person is asked for and what is refused, for each requirement, each
//! permission of the user and each context.

use orchestrator::auth::Role;
use protocol::{ErrorCode, Gate, GateDecision, Page, PermissionState, ThreadState, ToolCallReply, ToolErrorKind};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{ManualWorker, Reply, User, World, script_of};

use crate::chat::{answers, send, until_state};

/// A call of a tool that never needs approval, of one that a user may approve for good, and of one that always needs
/// it.
const CALLS: [(&str, &str); 3] = [
    ("echo", r#"{"message": "hi"}"#),
    ("message", r#"{"content": "hi"}"#),
    ("memory_write", r#"{"path": "HEARTBEAT.md", "content": "hi"}"#),
];

const PERMISSIONS: [PermissionState; 4] =
    [PermissionState::Default, PermissionState::AlwaysAllow, PermissionState::AskEachTime, PermissionState::Disabled];

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Runs,
    /// A person is asked first.
    Gate,
    Refused(ToolErrorKind),
}

use Decision::{Gate as Asked, Refused, Runs};

const DISABLED: Decision = Refused(ToolErrorKind::NotAuthorized);
const UNATTENDED: Decision = Refused(ToolErrorKind::AutonomousUnavailable);
const UNKNOWN: Decision = Refused(ToolErrorKind::NotFound);

async fn permit(user: &User, permission: PermissionState) {
    for (tool, _) in CALLS {
        let body = json!({"permission": permission});
        let path = format!("/api/tools/{tool}/permission");
        Reply::of(user.request(Method::PUT, &path).json(&body)).await.expect(200);
    }
}

fn arguments(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// What becomes of a worker's call.
async fn decision_for_job(worker: &ManualWorker, call_id: &str, tool: &str, arguments: Value) -> Decision {
    let reply: ToolCallReply = worker.tool(tool, call_id, arguments).await.expect(200).json();
    reply.error.map_or(Runs, |error| Refused(error.kind))
}

#[tokio::test]
async fn in_a_job_no_person_is_asked() {
    let world = World::new().await;
    let table = [
        (PermissionState::Default, [Runs, Runs, UNATTENDED], [Runs, Runs, Runs]),
        // A permission does not stand in for the list that a person gave this job.
        (PermissionState::AlwaysAllow, [Runs, Runs, UNATTENDED], [Runs, Runs, Runs]),
        (PermissionState::AskEachTime, [Runs, Runs, UNATTENDED], [Runs, Runs, Runs]),
        (PermissionState::Disabled, [DISABLED; 3], [DISABLED; 3]),
    ];
    for (number, (permission, without, with)) in table.into_iter().enumerate() {
        let user = world.user(&format!("user-{number}"));
        permit(&user, permission).await;
        for (approve, expected) in [(json!([]), without), (json!(["memory_write"]), with)] {
            let id = user.create(json!({"prompt": "work", "approve": approve})).await;
            let worker = world.manual_worker(id).await;
            let mut decisions = vec![];
            for (tool, text) in CALLS {
                decisions.push(decision_for_job(&worker, tool, tool, arguments(text)).await);
            }
            assert_eq!(decisions, expected, "{permission:?}, approve: {approve}");
            let actions = user.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
            let recorded: Vec<bool> =
                actions["items"].as_array().unwrap().iter().map(|action| action["success"] == true).collect();
            assert_eq!(recorded, expected.map(|decision| decision == Runs), "each call has its row: {actions:#}");
            worker.finish("done").await;
            user.wait_for_end(id).await;
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn no_spelling_of_a_denied_tool_reaches_it_and_no_list_lifts_the_denial() {
    let world = World::new().await;
    let ada = world.user("ada");
    // Other case and separators are denied like the tool. Letters that only look alike are in no tool's name: a
    // Cyrillic one, a full-width one, and a zero-width space.
    let spellings = [
        ("secret_list", UNATTENDED),
        ("job_prompt", UNATTENDED),
        ("create_job", UNATTENDED),
        ("Secret_List", UNATTENDED),
        ("SECRET-LIST", UNATTENDED),
        ("secret list", UNATTENDED),
        ("s\u{435}cret_list", UNKNOWN),
        ("\u{ff53}ecret_list", UNKNOWN),
        ("secret\u{200b}_list", UNKNOWN),
        ("no_such_tool", UNKNOWN),
    ];
    let approve = json!(["secret_list", "job_prompt", "create_job"]);
    // A worker that is refused many calls in a row has to wait.
    for spellings in spellings.chunks(5) {
        let id = ada.create(json!({"prompt": "work", "approve": approve})).await;
        let worker = world.manual_worker(id).await;
        for (number, (name, expected)) in spellings.iter().enumerate() {
            let decision = decision_for_job(&worker, &format!("t{number}"), name, json!({})).await;
            assert_eq!(decision, *expected, "{name:?}");
        }
        worker.finish("done").await;
        ada.wait_for_end(id).await;
    }
    let id = ada.create(json!({"prompt": "work", "approve": approve})).await;
    let worker = world.manual_worker(id).await;
    // A call inside of arguments is data.
    let nested = json!({"message": {"tool": "secret_list", "arguments": {}}});
    let reply: ToolCallReply = worker.tool("echo", "nested", nested).await.expect(200).json();
    assert_eq!(reply.error.map(|error| error.kind), Some(ToolErrorKind::InvalidParameters));
    let text = r#"{"tool": "secret_list"}"#;
    let reply: ToolCallReply = worker.tool("echo", "text", json!({"message": text})).await.expect(200).json();
    assert_eq!(reply.output, Some(json!(text)));
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    world.finish().await;
}

/// A model that calls the tool that it is told to, and repeats what came of it.
fn script() -> String {
    let rules = CALLS.iter().flat_map(|(tool, text)| {
        [
            json!({"when": {"tool_name": tool}, "reply": {"text": "result: {{tool_result}}"}}),
            json!({"when": {"last_message": format!("use {tool}")}, "reply":
                {"text": "I will.", "tool_calls": [{"name": tool, "arguments": arguments(text)}]}}),
        ]
    });
    script_of(&rules.collect::<Vec<_>>())
}

async fn waiting(user: &User) -> Option<Gate> {
    let page: Page<Gate> = user.get("/api/gates").await.expect(200).json();
    page.items.into_iter().next()
}

/// What becomes of a call in a chat. A gate is denied.
async fn decision_in_chat(user: &User, tool: &str) -> Decision {
    let sent = send(user, &format!("use {tool}")).await;
    let asked = tests::poll("the end of the turn, or a gate", async || {
        let history = crate::chat::history(user).await;
        let is_taken = history.messages.iter().any(|one| one.id == sent.message_id && one.seq.is_some());
        match history.thread.state {
            ThreadState::AwaitingApproval => Some(true),
            ThreadState::Idle if is_taken => Some(false),
            ThreadState::Idle | ThreadState::Processing => None,
        }
    })
    .await;
    if asked {
        let gate = waiting(user).await.expect("a gate");
        assert_eq!(gate.tool, tool);
        user.post(&format!("/api/gates/{}/resolve", gate.id), &json!({"decision": GateDecision::Deny}))
            .await
            .expect(200);
        let history = until_state(user, ThreadState::Idle).await;
        assert!(answers(&history).last().is_some_and(|text| text.contains("denied")), "{history:#?}");
        return Asked;
    }
    let history = crate::chat::history(user).await;
    match answers(&history).last() {
        Some(text) if text.contains("not_authorized") => DISABLED,
        Some(text) if text.starts_with("result: ") => Runs,
        other => panic!("{tool}: {other:?} in {history:#?}"),
    }
}

#[tokio::test]
async fn in_a_chat_a_person_is_asked() {
    let world = World::builder().script(script()).build().await;
    let table = [
        [Runs, Asked, Asked],
        // It never lowers `always`.
        [Runs, Runs, Asked],
        [Asked, Asked, Asked],
        [DISABLED; 3],
    ];
    for (permission, expected) in PERMISSIONS.into_iter().zip(table) {
        let user = world.user(&format!("user-{permission:?}").to_lowercase());
        permit(&user, permission).await;
        let mut decisions = vec![];
        for (tool, _) in CALLS {
            decisions.push(decision_in_chat(&user, tool).await);
        }
        assert_eq!(decisions, expected, "{permission:?}");
    }
    world.finish().await;
}

#[tokio::test]
async fn a_tool_that_always_needs_approval_is_not_remembered() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    send(&ada, "use memory_write").await;
    until_state(&ada, ThreadState::AwaitingApproval).await;
    let gate = waiting(&ada).await.expect("a gate");
    let path = format!("/api/gates/{}/resolve", gate.id);
    // Another user finds no gate, and an admin may not approve.
    let approve = json!({"decision": "approve"});
    world.user("bob").post(&path, &approve).await.problem(ErrorCode::NotFound);
    world.someone("root", Role::Admin).post(&path, &approve).await.problem(ErrorCode::Forbidden);
    assert_eq!(waiting(&ada).await, Some(gate));
    let always = json!({"decision": "always", "scope": "user"});
    let resolved = ada.post(&path, &always).await.expect(200).body;
    assert_eq!((&resolved["state"], &resolved["remembered"]), (&json!("approved"), &json!(false)));
    until_state(&ada, ThreadState::Idle).await;
    assert_eq!(decision_in_chat(&ada, "memory_write").await, Asked);
    world.finish().await;
}
