//! The contexts of calls, and the executor of a chat turn.

use std::path::PathBuf;

use agent::{Admission, CallResult, Decision, RecordError, ToolError};
use chrono::DateTime;
use protocol::{CallId, InstanceId, JobState, ToolErrorKind, WorkId};
use serde_json::json;

use super::*;
use base::digest::sha256_hex;
use dispatch::Sandbox;
use domain::{chat::ThreadRef, job::sample};
use egress::{EgressPolicy, system_look_up};
use engine::{Docker, DockerSettings, Engine};
use mcp::{McpClient, McpParts};
use secrets::{KeySource, Secrets};
use store::{AuditEntry, CallKey, Delivery, NewToolCall, NotificationFilter, Sent, SentMessage};

#[test]
fn the_context_of_a_call_is_its_jobs() {
    let job = sample::job(JobState::InProgress).with_brief(|brief| {
        brief.limits.max_children = 2;
        brief.tools = Some(vec!["echo".to_owned()]);
    });
    let context = job_context(&job);
    assert_eq!(context.owner.as_str(), job.brief.user_id);
    assert_eq!((context.work, context.max_children), (WorkId::Job(job.id), 2));
    assert_eq!((context.only, context.egress), (job.brief.tools.clone(), EgressView::default()));
}

#[test]
fn jobs_can_be_allowed_the_job_tools_that_are_not_denied_to_them() {
    for name in NAMES_FOR_JOBS {
        assert_eq!(agent::is_denied_to_jobs(name), name == "create_job", "{name}");
    }
    assert!(agent::is_denied_to_jobs("job_prompt") && !NAMES_FOR_JOBS.contains(&"job_prompt"));
}

/// The tools, over a store in this directory.
async fn tools(directory: &tempfile::TempDir) -> (BuiltinTools, Arc<Secrets>) {
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    let secrets = Secrets::open(store.clone(), &KeySource::DataDir(directory.path().to_owned())).await.unwrap();
    let secrets = Arc::new(secrets);
    let egress = EgressClient::new(Arc::new(EgressPolicy::new(&[], vec![]).unwrap()), system_look_up());
    let mcp = without_mcp_servers(&store, &egress, &secrets);
    let detectors = LeakDetectors::new(Arc::clone(&secrets)).unwrap();
    let hooks = Arc::new(Hooks::new(&[], &[], detectors.clone(), Clock::system()).unwrap());
    let services = ToolServices {
        store,
        clock: Clock::system(),
        rates: ToolRates { burst: 60, per_second: 1, per_hour: 1_000 },
        egress,
        mcp,
        detectors,
        hooks,
        drain: CancellationToken::new(),
    };
    (BuiltinTools::new(services).unwrap(), secrets)
}

fn without_mcp_servers(store: &Store, egress: &EgressClient, secrets: &Arc<Secrets>) -> McpTools {
    // Makes no call until a container is needed.
    let engine: Arc<dyn Engine> = Arc::new(Docker::connect(DockerSettings {
        host: None,
        instance_id: InstanceId::nil(),
        image: String::new(),
        runtime: None,
        run_dir: PathBuf::new(),
        inet_datagrams: false,
    }));
    let (sandbox, _prober) = Sandbox::disabled(Arc::clone(&engine), Clock::system());
    let parts = McpParts {
        egress: egress.clone(),
        secrets: Arc::clone(secrets),
        detectors: LeakDetectors::new(Arc::clone(secrets)).unwrap(),
        engine,
        sandbox: Arc::new(sandbox),
        clock: Clock::system(),
    };
    McpTools::new(Arc::new(McpClient::new(&[], parts).unwrap()), store.clone(), Clock::system())
}

/// A turn of a new thread.
async fn turn(store: &Store) -> TurnKey {
    let message = SentMessage {
        user: "ada".to_owned(),
        thread: ThreadRef::main(),
        content: "hello".to_owned(),
        delivery: Delivery::Queue,
        key: None,
        audit: AuditEntry::by_operator("chat.send", DateTime::UNIX_EPOCH),
    };
    let sent = store.send_chat_message(message).await.unwrap();
    let Sent::Stored(receipt) = sent else { panic!("{sent:?}") };
    TurnKey { thread: receipt.thread_id, turn: 1 }
}

async fn finish(admission: Admission) -> Result<CallResult, RecordError> {
    admission.finish(&CancellationToken::new()).await
}

fn id(id: &str) -> CallId {
    CallId(id.to_owned())
}

fn kind(result: &CallResult) -> Option<ToolErrorKind> {
    result.failure().map(|failure| failure.kind)
}

#[tokio::test]
async fn the_calls_of_a_chat_turn_are_checked_recorded_and_run_once() {
    let directory = tempfile::tempdir().unwrap();
    let (tools, secrets) = tools(&directory).await;
    let store = tools.calls.store.clone();
    let turn = turn(&store).await;
    let entry = AuditEntry::by_operator("secret.set", DateTime::UNIX_EPOCH);
    secrets.set("ada", "KEY", &"correct-horse-battery".into(), None, &entry).await.unwrap();
    let executor = tools.executor_for_turn("ada", turn, Some(AllowList::new())).await.unwrap();
    let echo = json!({"message": "it is correct-horse-battery"});
    let echoed = finish(executor.admit(id("t1"), "echo", echo.clone()).await).await.unwrap();
    assert_eq!(echoed.output, "it is [redacted]");
    // A repeated id is the same call, or an error.
    let again = finish(executor.admit(id("t1"), "echo", echo).await).await.unwrap();
    assert_eq!(again.to_reply(), echoed.to_reply());
    let other = finish(executor.admit(id("t1"), "echo", json!({"message": "other"})).await).await;
    assert!(matches!(other, Err(RecordError::IdReused)), "{other:?}");
    let shell = finish(executor.admit(id("t2"), "shell", json!({"command": "id"})).await).await.unwrap();
    assert_eq!(kind(&shell), Some(ToolErrorKind::NotFound), "there are no container tools in a chat");
    let message = json!({"content": "hi"});
    let asked = executor.admit(id("t3"), "message", message.clone()).await;
    assert!(matches!(asked.decision, Decision::Ask { .. }), "{asked:?}");
    let denied = ToolError::new(ToolErrorKind::NotAuthorized, "the user denied this call");
    let denied = finish(executor.refuse(id("t3"), "message", message.clone(), denied).await).await.unwrap();
    assert_eq!(kind(&denied), Some(ToolErrorKind::NotAuthorized));
    // Approved after it was denied: the recorded answer stays.
    let late = finish(executor.admit_approved(id("t3"), "message", message.clone()).await).await.unwrap();
    assert_eq!(late.to_reply(), denied.to_reply());
    let approved = finish(executor.admit_approved(id("t4"), "message", message).await).await.unwrap();
    assert!(approved.success(), "{approved:?}");
    let filter = NotificationFilter { user: "ada".to_owned(), limit: 10, ..NotificationFilter::default() };
    assert_eq!(store.notifications(&filter).await.unwrap().len(), 1, "sent once");
    store.close().await;
}

#[tokio::test]
async fn a_call_of_a_chat_turn_that_a_restart_interrupts_is_never_run_again() {
    let directory = tempfile::tempdir().unwrap();
    let (tools, _secrets) = tools(&directory).await;
    let store = tools.calls.store.clone();
    let turn = turn(&store).await;
    let executor = tools.executor_for_turn("ada", turn, Some(AllowList::new())).await.unwrap();
    let message = json!({"content": "hi"});
    let open = NewToolCall {
        key: CallKey { execution: turn.into(), call_id: id("t1") },
        request_digest: sha256_hex(&[b"message\0", message.to_string().as_bytes()].concat()),
        at: Clock::system().now(),
        tool: "message".to_owned(),
        input: message.clone(),
        reasoning: None,
        estimated_cost_micro_usd: 0,
        is_repeatable: false,
        max_calls: Some(10),
    };
    store.open_tool_call(&open).await.unwrap();
    assert_eq!(store.close_interrupted_tool_calls().await.unwrap(), 1);
    let result = finish(executor.admit_approved(id("t1"), "message", message).await).await.unwrap();
    assert!(result.output.contains("interrupted"), "{result:?}");
    store.close().await;
}
