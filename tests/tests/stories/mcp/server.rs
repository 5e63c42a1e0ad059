//! An MCP server over HTTP that does what a test says, also what no server should do.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, post},
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

/// Bytes that a flood sends: more than any limit.
const FLOOD_BYTES: usize = 50 * 1024 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;
/// Time in which the beginning of an answer is sent.
const FLUSH_TIME: Duration = Duration::from_millis(20);

/// How the server answers a request.
#[derive(Debug, Clone)]
pub(crate) enum Behaviour {
    /// This result.
    Result(Value),
    /// This JSON-RPC error.
    Error(i64, String),
    /// This HTTP status and body, once.
    StatusOnce(u16, &'static str),
    /// No answer.
    Hang,
    /// The connection ends within the answer.
    Die,
    /// 50 MB of one answer.
    Flood,
    /// The answer to another request.
    WrongId,
    /// A redirect to this URL.
    Redirect(String),
    /// The same page with a new cursor, always.
    Endless(Value),
    /// A body with this content type, or none. `@` stands for the id of the request.
    Raw(Option<&'static str>, &'static [u8]),
    /// An event stream with this text, which then breaks, ends or stays open.
    Stream(String, StreamEnd),
}

/// What becomes of an event stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StreamEnd {
    Breaks,
    Ends,
    StaysOpen,
    /// The text is sent again and again.
    Repeats,
}

#[derive(Debug, Default)]
struct Script {
    behaviours: BTreeMap<String, Behaviour>,
    requests: Vec<(String, Value)>,
    authorization: Vec<String>,
}

/// The server.
pub(crate) struct McpTestServer {
    pub(crate) url: String,
    pub(crate) address: String,
    script: Arc<Mutex<Script>>,
    _task: JoinSet<()>,
}

/// A definition with this name and description.
pub(crate) fn tool(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description,
           "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}})
}

/// A result with this text.
pub(crate) fn text(text: &str) -> Behaviour {
    Behaviour::Result(json!({"content": [{"type": "text", "text": text}]}))
}

impl McpTestServer {
    pub(crate) async fn start(tools: &[Value]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let script = Arc::new(Mutex::new(Script::default()));
        let router = Router::new()
            .route("/mcp", post(answer).get(stream_of_server).delete(StatusCode::OK))
            .route("/moved", any(async || (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "/mcp")])))
            .with_state(Arc::clone(&script));
        let mut task = JoinSet::new();
        task.spawn(async move { axum::serve(listener, router).await.unwrap() });
        let server = Self { url: format!("http://{address}/mcp"), address, script, _task: task };
        server.lists(tools);
        server
    }

    /// The tools that it lists from now on.
    pub(crate) fn lists(&self, tools: &[Value]) {
        self.on("tools/list", Behaviour::Result(json!({"tools": tools})));
    }

    /// How it answers this method, or the calls of this tool (`call:NAME`).
    pub(crate) fn on(&self, what: &str, behaviour: Behaviour) {
        self.script.lock().unwrap().behaviours.insert(what.to_owned(), behaviour);
    }

    /// The parameters of every request with this method.
    pub(crate) fn requests(&self, method: &str) -> Vec<Value> {
        let script = self.script.lock().unwrap();
        script.requests.iter().filter(|(name, _)| name == method).map(|(_, params)| params.clone()).collect()
    }

    /// The values of the header `Authorization`, without repetitions.
    pub(crate) fn authorization(&self) -> Vec<String> {
        let mut seen = self.script.lock().unwrap().authorization.clone();
        seen.dedup();
        seen
    }
}

async fn answer(State(script): State<Arc<Mutex<Script>>>, headers: HeaderMap, Json(request): Json<Value>) -> Response {
    let method = request["method"].as_str().unwrap_or("response").to_owned();
    let behaviour = {
        let mut script = script.lock().unwrap();
        script.requests.push((method.clone(), request["params"].clone()));
        if let Some(value) = headers.get(header::AUTHORIZATION) {
            script.authorization.push(value.to_str().unwrap().to_owned());
        }
        let of_tool = format!("call:{}", request["params"]["name"].as_str().unwrap_or_default());
        let key = if method == "tools/call" { of_tool } else { method.clone() };
        match script.behaviours.get(&key).cloned() {
            once @ Some(Behaviour::StatusOnce(..)) => {
                script.behaviours.remove(&key);
                once
            }
            behaviour => behaviour,
        }
    };
    if request.get("id").is_none() {
        return StatusCode::ACCEPTED.into_response();
    }
    let id = request["id"].clone();
    let default = || match method.as_str() {
        "initialize" => Behaviour::Result(json!({
            "protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {"listChanged": true}},
            "serverInfo": {"name": "test", "version": "1"}
        })),
        "tools/call" => text(&request["params"]["arguments"].to_string()),
        _ => Behaviour::Error(-32_601, "no such method".to_owned()),
    };
    respond(behaviour.unwrap_or_else(default), id).await
}

/// The server's own event stream: the behaviour of `GET`. Without one it has none.
async fn stream_of_server(State(script): State<Arc<Mutex<Script>>>) -> Response {
    let behaviour = {
        let mut script = script.lock().unwrap();
        script.requests.push(("GET".to_owned(), Value::Null));
        script.behaviours.get("GET").cloned()
    };
    match behaviour {
        Some(behaviour) => respond(behaviour, Value::Null).await,
        None => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

async fn respond(behaviour: Behaviour, id: Value) -> Response {
    let of_id = |id: Value, result: Value| Json(json!({"jsonrpc": "2.0", "id": id, "result": result}));
    let session = [("mcp-session-id", "s1")];
    match behaviour {
        Behaviour::Result(result) => (session, of_id(id, result)).into_response(),
        Behaviour::Error(code, message) => {
            Json(json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})).into_response()
        }
        Behaviour::StatusOnce(status, body) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        Behaviour::Hang => {
            tokio::time::sleep(Duration::from_hours(1)).await;
            StatusCode::OK.into_response()
        }
        Behaviour::Die => {
            let parts =
                [Ok(Bytes::from_static(b"event: message\ndata: {\"jsonrpc\"")), Err(std::io::Error::other("died"))];
            ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream::iter(parts))).into_response()
        }
        Behaviour::Flood => {
            let chunk = Bytes::from(vec![b'x'; CHUNK_BYTES]);
            let head =
                Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":""#));
            let chunks = std::iter::once(head).chain(std::iter::repeat_n(chunk, FLOOD_BYTES / CHUNK_BYTES));
            let body = Body::from_stream(stream::iter(chunks.map(Ok::<_, Infallible>)));
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Behaviour::WrongId => of_id(json!(999_999), json!({"content": []})).into_response(),
        Behaviour::Redirect(url) => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, url)]).into_response(),
        Behaviour::Stream(text, end) => {
            let text = Bytes::from(text);
            let end = match end {
                // After the head and the text were sent.
                StreamEnd::Breaks => {
                    stream::once(tokio::time::sleep(FLUSH_TIME)).map(|()| Err(std::io::Error::other("broke"))).boxed()
                }
                StreamEnd::Repeats => stream::repeat(text.clone()).map(Ok).boxed(),
                StreamEnd::Ends => stream::empty().boxed(),
                StreamEnd::StaysOpen => stream::pending().boxed(),
            };
            ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream::iter([Ok(text)]).chain(end)))
                .into_response()
        }
        Behaviour::Endless(tools) => {
            let cursor = format!("after {id}");
            of_id(id, json!({"tools": tools, "nextCursor": cursor})).into_response()
        }
        Behaviour::Raw(content_type, body) => {
            let body = body.split(|byte| *byte == b'@').collect::<Vec<_>>().join(id.to_string().as_bytes());
            let mut response = Response::new(Body::from(body));
            if let Some(content_type) = content_type {
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            }
            response
        }
    }
}
