//! The accept loop over real sockets, with limits small enough to be reached at once.

mod connections;
mod requests;

use std::{path::PathBuf, sync::atomic::AtomicUsize};

use axum::{
    Extension,
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
    routing::{get, post},
};
use base::rate_limit::Rate;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixSocket, UnixStream},
    sync::Notify,
    task::JoinSet,
    time::timeout,
};

use protocol::SESSION_HEADER;

use super::{policy::SessionPolicy, *};
use base::digest::sha256_hex;
use telemetry::metrics::DbCounts;

use crate::extract::WorkerJson;

/// Nothing here takes longer, or it does not come.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
const SECRET: &str = "authorization: Bearer good\r\nx-gantry-session: mine\r\n";

/// A stand-in for the worker's identity: a call with the good token and the first secret is the session's.
struct InSession;

impl<S: Send + Sync> FromRequestParts<S> for InSession {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, StatusCode> {
        let says = |name: &str, value: &str| parts.headers.get(name).is_some_and(|given| given == value);
        if !says("authorization", "Bearer good") || !says(SESSION_HEADER, "mine") {
            return Err(StatusCode::UNAUTHORIZED);
        }
        parts.extensions.get::<ConnectionHandle>().unwrap().authenticated(Some(&sha256_hex(b"mine")));
        Ok(Self)
    }
}

/// Requests at `/wait` stay until they are let go.
#[derive(Clone, Default)]
struct Waiting {
    arrived: Arc<AtomicUsize>,
    go: Arc<Notify>,
}

impl Waiting {
    async fn until(&self, count: usize) {
        within("requests to arrive", async {
            while self.arrived.load(std::sync::atomic::Ordering::SeqCst) < count {
                sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }
}

async fn wait(Extension(waiting): Extension<Waiting>) -> &'static str {
    let go = waiting.go.notified();
    waiting.arrived.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    go.await;
    "gone on"
}

fn router(waiting: &Waiting) -> Router {
    Router::new()
        .route("/health", get(async || "ok"))
        .route("/call", get(async |_: InSession| "called"))
        .route("/wait", get(async |_: InSession, waiting| wait(waiting).await))
        .route("/open-wait", get(wait))
        .route("/body", post(async |_: InSession, body: WorkerJson<String>| body.value.len().to_string()))
        .layer(axum::extract::DefaultBodyLimit::max(32 << 20))
        .layer(Extension(waiting.clone()))
}

struct Running {
    directory: TempDir,
    waiting: Waiting,
    metrics: Metrics,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

fn small_policy() -> Policy {
    let session = SessionPolicy {
        reserved_connections: 2,
        max_requests: 4,
        reserved_requests: 2,
        authenticate_within: WAIT_TIMEOUT,
        evict_after: Duration::from_millis(50),
        session_rate: Rate { burst: 1_000, per_hour: 3_600_000 },
        other_rate: Rate { burst: 3, per_hour: 3_600 },
        accept_rate: Rate { burst: 10_000, per_hour: 36_000_000 },
    };
    Policy { max_connections: 6, session: Some(session), ..Policy::worker(64) }
}

fn session_of(policy: &mut Policy) -> &mut SessionPolicy {
    policy.session.as_mut().unwrap()
}

impl Running {
    fn worker(policy: Policy, own: BodyBudget) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(directory.path().join("worker.sock")).unwrap();
        let listener = socket.listen(64).unwrap();
        Self::start(directory, policy, own, listener)
    }

    fn start(directory: TempDir, policy: Policy, own: BodyBudget, listener: impl Into<Listener>) -> Self {
        let (waiting, metrics, stop) = (Waiting::default(), Metrics::default(), CancellationToken::new());
        let (bodies, connections) = (BodyBudget::workers(), None);
        let server = Server { policy, own_bodies: Some(own), bodies, connections, metrics: metrics.clone() };
        let mut tasks = JoinSet::new();
        tasks.spawn(server.serve(listener.into(), router(&waiting), stop.clone()));
        Self { directory, waiting, metrics, stop, tasks }
    }

    async fn public(policy: Policy) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self::start(tempfile::tempdir().unwrap(), policy, BodyBudget::public(), listener), address)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("worker.sock")
    }

    async fn connect(&self) -> Client<UnixStream> {
        // A full backlog refuses at once.
        let connected = within("a connection", async {
            loop {
                match UnixStream::connect(self.path()).await {
                    Ok(stream) => return stream,
                    Err(_) => sleep(Duration::from_millis(2)).await,
                }
            }
        });
        Client(connected.await)
    }

    async fn stopped(mut self) {
        self.stop.cancel();
        within("the server to stop", self.tasks.join_next()).await;
    }
}

async fn within<T>(what: &str, point: impl Future<Output = T>) -> T {
    timeout(WAIT_TIMEOUT, point).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

struct Client<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn send(&mut self, text: &str) {
        // Reading from a closed connection returns end-of-file or an error.
        let _ = self.0.write_all(text.as_bytes()).await;
    }

    async fn get(&mut self, path: &str, headers: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n")).await;
        self.answer().await
    }

    /// An answer with a short body; empty when the connection was closed instead.
    async fn answer(&mut self) -> String {
        let mut answer = String::new();
        let mut buffer = [0; 4096];
        within("an answer", async {
            loop {
                let read = self.0.read(&mut buffer).await.unwrap_or(0);
                answer.push_str(&String::from_utf8_lossy(&buffer[..read]));
                if read == 0 || is_whole(&answer) {
                    return;
                }
            }
        })
        .await;
        answer
    }

    async fn is_closed(&mut self) {
        within("the connection to be closed", async {
            let mut buffer = [0; 4096];
            while self.0.read(&mut buffer).await.unwrap_or(0) > 0 {}
        })
        .await;
    }
}

fn is_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    length.is_none_or(|length| body.len() >= length)
}

#[track_caller]
fn assert_status(answer: &str, status: u16) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer:?} is not {status}");
}
