//! Calls of the tool by jobs and others, against a server on a loopback address that the ceiling names.

use std::{net::SocketAddr, sync::Arc};

use agent::{ApprovalContext, ToolContext, ToolPolicy};
use axum::{Router, body::Bytes, http::HeaderMap, routing::any};
use protocol::{CallId, EgressView, JobId, ThreadId, UserId, WorkId};
use rstest::rstest;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::*;
use base::clock::Clock;
use egress::{EgressPolicy, system_look_up};
use secrets::{KeySource, LeakDetectors, Secrets};
use store::Store;

/// A server that answers with the headers and the body of the request.
async fn server() -> (SocketAddr, JoinSet<()>) {
    let echo = async |headers: HeaderMap, body: Bytes| {
        let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        format!("{}|{}|{}", header("x-key"), header("content-type"), String::from_utf8_lossy(&body))
    };
    let never = async || std::future::pending::<()>().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/echo", any(echo)).route("/never", any(never));
    let mut task = JoinSet::new();
    task.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (address, task)
}

/// The tool, over a store in a directory.
struct Scene {
    tool: Http,
    _directory: tempfile::TempDir,
}

impl std::ops::Deref for Scene {
    type Target = Http;

    fn deref(&self) -> &Http {
        &self.tool
    }
}

async fn tool(ceiling: &[String]) -> Scene {
    let policy = EgressPolicy::new(ceiling, vec![]).unwrap();
    let client = EgressClient::new(Arc::new(policy), system_look_up());
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    let secrets = Secrets::open(store.clone(), &KeySource::DataDir(directory.path().to_owned())).await.unwrap();
    let detectors = LeakDetectors::new(Arc::new(secrets)).unwrap();
    Scene { tool: Http { client, log: EgressLog { store, clock: Clock::system(), detectors } }, _directory: directory }
}

fn invocation(work: WorkId, allow: Vec<String>, arguments: Value) -> Invocation {
    let context = ToolContext {
        owner: UserId::default(),
        work,
        approval: ApprovalContext::autonomous(),
        policy: ToolPolicy::default(),
        only: None,
        egress: EgressView { enabled: !allow.is_empty(), allow },
        max_children: 0,
    };
    Invocation {
        call_id: CallId("t1".to_owned()),
        arguments,
        context: Arc::new(context),
        stop: CancellationToken::new(),
    }
}

#[tokio::test]
async fn a_request_arrives_as_it_was_asked_for() {
    let (address, _task) = server().await;
    let tool = tool(&[address.to_string()]).await;
    let url = format!("http://{address}/echo");
    for (body, expected) in [
        (json!("hi"), "k|text/plain; charset=utf-8|hi"),
        (json!("[hi"), "k|text/plain; charset=utf-8|[hi"),
        (json!(" {\"a\": 1}"), "k|application/json| {\"a\": 1}"),
        (json!({"a": 1}), "k|application/json|{\"a\":1}"),
        (Value::Null, "k||"),
    ] {
        let arguments = json!({"method": "POST", "url": url, "headers": {"X-Key": "k"}, "body": body});
        let output = tool.call(invocation(WorkId::Thread(ThreadId::nil()), vec![], arguments)).await.unwrap();
        assert!(output.success);
        assert_eq!((&output.content["status"], &output.content["body"]), (&json!(200), &json!(expected)));
    }
}

#[rstest]
#[case(true, vec!["SERVER"], None)]
#[case(true, vec![], Some("not in the job's egress.allow"))]
#[case(true, vec!["a.example"], Some("not in the job's egress.allow"))]
#[case(false, vec![], None)]
#[tokio::test]
async fn a_job_is_held_to_its_list(#[case] is_job: bool, #[case] allow: Vec<&str>, #[case] refused: Option<&str>) {
    let (address, _task) = server().await;
    let tool = tool(&[address.to_string(), "a.example".to_owned()]).await;
    let allow = allow.iter().map(|entry| entry.replace("SERVER", &address.to_string())).collect();
    let work = if is_job { WorkId::Job(JobId::nil()) } else { WorkId::Thread(ThreadId::nil()) };
    let arguments = json!({"method": "GET", "url": format!("http://{address}/echo")});
    let result = tool.call(invocation(work, allow, arguments)).await;
    match (result, refused) {
        (Ok(output), None) => assert_eq!(output.content["status"], 200),
        (Err(error), Some(text)) => {
            assert_eq!(error.0.kind, ToolErrorKind::NotAuthorized);
            assert!(error.0.message.contains(text), "{error}");
        }
        (result, _) => panic!("{result:?}"),
    }
}

#[rstest]
#[case(json!({"method": "GET", "url": "ftp://a.example"}), ToolErrorKind::InvalidParameters)]
#[case(json!({"method": "GET", "url": "http://127.1/"}), ToolErrorKind::InvalidParameters)]
#[case(json!({"method": "GET", "url": "https://a.example", "headers": {"X-A\u{200b}": "b"}}), ToolErrorKind::InvalidParameters)]
#[case(json!({"method": "GET", "url": "https://bob:pw@a.example"}), ToolErrorKind::InvalidParameters)]
#[case(json!({"method": "GET", "url": "https://a.example", "headers": {"Host": "b"}}), ToolErrorKind::InvalidParameters)]
#[case(json!({"method": "TRACE", "url": "https://a.example"}), ToolErrorKind::InvalidParameters)]
#[case(json!({"method": "GET", "url": "https://b.example"}), ToolErrorKind::NotAuthorized)]
#[case(json!({"method": "GET", "url": "https://127.0.0.1"}), ToolErrorKind::NotAuthorized)]
#[case(json!({"method": "GET", "url": "https://name.invalid"}), ToolErrorKind::External)]
#[tokio::test]
async fn an_error_says_what_kind_it_is(#[case] arguments: Value, #[case] expected: ToolErrorKind) {
    let tool = tool(&["a.example".to_owned(), "*.invalid".to_owned()]).await;
    let checked = tool.check(&arguments);
    let error = tool.call(invocation(WorkId::Thread(ThreadId::nil()), vec![], arguments)).await.unwrap_err();
    assert_eq!(error.0.kind, expected, "{error}");
    // Only the call knows whether a name has an address.
    assert_eq!(checked.err(), Some(error).filter(|_| expected != ToolErrorKind::External));
}

#[rstest]
#[case(b"HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\nid=7", Ok("id=7"))]
#[case(b"HTTP/1.1 2", Err("the request may have been carried out"))]
#[tokio::test]
async fn a_response_that_breaks_off_is_no_unsent_request(
    #[case] answer: &'static [u8],
    #[case] expected: Result<&str, &str>,
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    server.spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let _request = connection.read(&mut [0; 4_096]).await.unwrap();
        connection.write_all(answer).await.unwrap();
    });
    let tool = tool(&[address.to_string()]).await;
    let arguments = json!({"method": "POST", "url": format!("http://{address}/x"), "body": "x"});
    let result = tool.call(invocation(WorkId::Thread(ThreadId::nil()), vec![], arguments)).await;
    match (result, expected) {
        (Ok(output), Ok(body)) => {
            assert_eq!((&output.content["body"], &output.content["status"]), (&json!(body), &json!(201)));
            let note = &output.content["note"];
            assert_eq!((output.truncated, note), (true, &json!("the response broke off")));
        }
        (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
        (result, _) => panic!("{result:?}"),
    }
}

#[tokio::test]
async fn a_call_ends_when_it_is_stopped() {
    let (address, _task) = server().await;
    let arguments = json!({"method": "GET", "url": format!("http://{address}/never")});
    let invocation = invocation(WorkId::Thread(ThreadId::nil()), vec![], arguments);
    let stop = invocation.stop.clone();
    let tool = tool(&[address.to_string()]).await;
    let (result, ()) = tokio::join!(tool.call(invocation), async { stop.cancel() });
    assert_eq!(result.unwrap_err().0.kind, ToolErrorKind::Failed);
}

#[tokio::test]
async fn the_declaration_keeps_to_the_contract() {
    let tool = tool(&[]).await;
    let spec = tool.spec();
    assert_eq!((LIMITS.time, LIMITS.body_bytes), (Duration::from_secs(30), 5 << 20));
    assert!(spec.timeout > LIMITS.time, "the tool ends the call itself");
    assert_eq!(spec.approval, ApprovalRequirement::UnlessAutoApproved);
}
