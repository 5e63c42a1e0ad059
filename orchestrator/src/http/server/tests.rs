//! The accept loop over real sockets, with limits small enough to be reached at once.

use std::{path::PathBuf, sync::atomic::AtomicUsize};

use crate::rate_limit::Rate;
use axum::{
    Extension,
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
    routing::{get, post},
};
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
use crate::{auth::digest, http::extract::WorkerJson, telemetry::metrics::DbCounts};

/// Nothing here takes longer, or it does not come.
const PATIENCE: Duration = Duration::from_secs(20);
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
        parts.extensions.get::<ConnectionHandle>().unwrap().authenticated(Some(&digest(b"mine")));
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
        .route("/body", post(async |_: InSession, WorkerJson(text): WorkerJson<String>| text.len().to_string()))
        .layer(axum::extract::DefaultBodyLimit::max(32 << 20))
        .layer(Extension(waiting.clone()))
}

struct Running {
    folder: TempDir,
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
        authenticate_within: PATIENCE,
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
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(folder.path().join("worker.sock")).unwrap();
        let listener = socket.listen(64).unwrap();
        Self::start(folder, policy, own, listener)
    }

    fn start(folder: TempDir, policy: Policy, own: BodyBudget, listener: impl Into<Listener>) -> Self {
        let (waiting, metrics, stop) = (Waiting::default(), Metrics::default(), CancellationToken::new());
        let (bodies, connections) = (BodyBudget::workers(), None);
        let server = Server { policy, own_bodies: Some(own), bodies, connections, metrics: metrics.clone() };
        let mut tasks = JoinSet::new();
        tasks.spawn(server.serve(listener.into(), router(&waiting), stop.clone()));
        Self { folder, waiting, metrics, stop, tasks }
    }

    async fn public(policy: Policy) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self::start(tempfile::tempdir().unwrap(), policy, BodyBudget::public(), listener), address)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("worker.sock")
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
    timeout(PATIENCE, point).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

struct Client<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn send(&mut self, text: &str) {
        // A connection that was closed says so when it is read.
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

#[tokio::test]
async fn a_flood_of_connections_keeps_no_session_out() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    let mut flood = JoinSet::new();
    for _ in 0..8 {
        let path = running.path();
        flood.spawn(async move {
            let mut held = vec![];
            loop {
                match UnixStream::connect(&path).await {
                    // Half a request each.
                    Ok(mut stream) => {
                        let _ = stream.write_all(b"GET /health HT").await;
                        held.push(stream);
                    }
                    Err(_) => sleep(Duration::from_millis(1)).await,
                }
                held.truncate(200);
            }
        });
    }
    for _ in 0..50 {
        assert_status(&worker.get("/call", SECRET).await, 200);
        sleep(Duration::from_millis(5)).await;
    }
    // Nor does it keep the worker from connecting anew.
    let mut again = running.connect().await;
    assert_status(&again.get("/call", SECRET).await, 200);
    flood.shutdown().await;
    running.stopped().await;
}

#[tokio::test]
async fn a_session_has_no_more_connections_than_there_are() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut mine = vec![];
    for _ in 0..6 {
        let mut client = running.connect().await;
        assert_status(&client.get("/call", SECRET).await, 200);
        mine.push(client);
    }
    let mut one_more = running.connect().await;
    one_more.send(&format!("GET /call HTTP/1.1\r\nhost: a\r\n{SECRET}\r\n")).await;
    let none = timeout(Duration::from_millis(300), one_more.answer()).await;
    assert!(none.is_err(), "it waits: {none:?}");
    mine.pop();
    assert_status(&one_more.answer().await, 200);
    running.stopped().await;
}

#[tokio::test]
async fn twenty_thousand_attempts_leave_few_connections() {
    let mut policy = small_policy();
    session_of(&mut policy).accept_rate = Rate { burst: 50, per_hour: 100 * 3_600 };
    let running = Running::worker(policy, BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    let mut held = vec![];
    for attempt in 0..20_000 {
        // One that is beyond the backlog fails at once.
        if let Ok(stream) = UnixStream::connect(running.path()).await {
            held.push(stream);
        }
        if attempt % 1_000 == 0 {
            assert_status(&worker.get("/call", SECRET).await, 200);
        }
        tokio::task::yield_now().await;
    }
    assert!(held.len() < 5_000, "{} were accepted or wait", held.len());
    running.stopped().await;
}

#[tokio::test]
async fn half_a_head_is_given_up_in_time_and_so_is_silence() {
    let short = Duration::from_millis(200);
    let policy = Policy { head_timeout: short, idle_timeout: Some(short * 2), ..Policy::public(64) };
    let (running, address) = Running::public(policy).await;
    let mut silent = Client(TcpStream::connect(address).await.unwrap());
    let mut half = Client(TcpStream::connect(address).await.unwrap());
    let mut endless = Client(TcpStream::connect(address).await.unwrap());
    half.send("GET /health HTTP/1.1\r\nhost: a\r\nx").await;
    endless.send("GET /health HTTP/1.1\r\nhost: a\r\n").await;
    let since = Instant::now();
    let trickle = async {
        loop {
            endless.send("x: y\r\n").await;
            sleep(Duration::from_millis(20)).await;
            if endless.0.try_read(&mut [0; 1]).is_ok() {
                return;
            }
        }
    };
    tokio::join!(silent.is_closed(), half.is_closed(), within("the endless head to end", trickle));
    assert!(since.elapsed() >= short, "not before its time");
    // After a request the next one is waited for longer, and then no more.
    let mut idle = Client(TcpStream::connect(address).await.unwrap());
    assert_status(&idle.get("/health", "").await, 200);
    let since = Instant::now();
    sleep(short + Duration::from_millis(50)).await;
    assert_status(&idle.get("/health", "").await, 200);
    idle.is_closed().await;
    assert!(since.elapsed() >= short * 2, "{:?}", since.elapsed());
    running.stopped().await;
}

#[tokio::test]
async fn a_session_may_be_idle_and_others_may_not_stay() {
    let short = Duration::from_millis(200);
    let mut policy = Policy { head_timeout: short, ..small_policy() };
    session_of(&mut policy).authenticate_within = short;
    session_of(&mut policy).other_rate = Rate { burst: 1_000, per_hour: 3_600_000 };
    let running = Running::worker(policy, BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    let mut other = running.connect().await;
    let asking = async {
        // Requests that need no session give it no more time.
        while !other.get("/health", "").await.is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    within("the other connection to be closed", asking).await;
    sleep(short * 3).await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    running.stopped().await;
}

#[tokio::test]
async fn a_public_connection_beyond_the_limit_is_closed() {
    let (running, address) = Running::public(Policy { max_connections: 2, ..Policy::public(64) }).await;
    let mut clients = vec![];
    for _ in 0..2 {
        let mut client = Client(TcpStream::connect(address).await.unwrap());
        assert_status(&client.get("/health", "").await, 200);
        clients.push(client);
    }
    let mut beyond = Client(TcpStream::connect(address).await.unwrap());
    assert_eq!(beyond.get("/health", "").await, "");
    clients.pop();
    within("a place", async {
        loop {
            let mut client = Client(TcpStream::connect(address).await.unwrap());
            if !client.get("/health", "").await.is_empty() {
                return;
            }
        }
    })
    .await;
    assert!(running.metrics.render(&DbCounts::default()).contains("gantry_connections_refused_total 1"));
    running.stopped().await;
}

#[tokio::test]
async fn requests_without_a_session_are_few_and_then_the_connection_is_closed() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    let mut other = running.connect().await;
    for _ in 0..3 {
        assert_status(&other.get("/health", "").await, 200);
    }
    let answer = other.get("/health", "").await;
    assert_status(&answer, 429);
    assert!(answer.contains("retry-after: 1\r\n") && answer.contains("rate_limited"), "{answer}");
    other.is_closed().await;
    for _ in 0..20 {
        assert_status(&worker.get("/call", SECRET).await, 200);
    }
    // The session's calls on new connections are let in, though the others have used up their rate.
    assert_status(&running.connect().await.get("/call", SECRET).await, 200);
    running.stopped().await;
}

#[tokio::test]
async fn calls_with_the_token_and_another_secret_are_held_to_the_rate_of_those_without_a_session() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    // Before a session is established, the first request of each connection may be the worker's.
    for _ in 0..10 {
        let mut other = running.connect().await;
        assert_status(&other.get("/call", "authorization: Bearer good\r\n").await, 401);
        other.is_closed().await;
    }
    assert_status(&running.connect().await.get("/call", SECRET).await, 200);
    let mut statuses = vec![];
    for secret in ["", "x-gantry-session: forged\r\n"].repeat(5) {
        let mut other = running.connect().await;
        let answer = other.get("/call", &format!("authorization: Bearer good\r\n{secret}")).await;
        statuses.push(answer.split(' ').nth(1).unwrap_or_default().to_owned());
        other.is_closed().await;
    }
    assert_eq!(statuses[..3], ["401"; 3]);
    assert_eq!(statuses[4..], ["429"; 6], "the bucket may have got one back meanwhile");
    assert_status(&running.connect().await.get("/call", SECRET).await, 200);
    running.stopped().await;
}

#[tokio::test]
async fn a_session_that_asks_too_often_waits() {
    let mut policy = small_policy();
    session_of(&mut policy).session_rate = Rate { burst: 5, per_hour: 3_600 };
    let running = Running::worker(policy, BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    for _ in 0..6 {
        assert_status(&worker.get("/call", SECRET).await, 200);
    }
    assert_status(&worker.get("/call", SECRET).await, 429);
    // The connection stays.
    assert_status(&worker.get("/call", SECRET).await, 429);
    running.stopped().await;
}

#[tokio::test]
async fn requests_in_flight_have_a_limit_of_which_others_get_a_part() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut others = vec![];
    for count in 1..=2 {
        let mut other = running.connect().await;
        other.send("GET /open-wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
        running.waiting.until(count).await;
        others.push(other);
    }
    let mut one_more = running.connect().await;
    assert_status(&one_more.get("/health", "").await, 429);
    let mut mine = vec![];
    for count in 3..=4 {
        let mut worker = running.connect().await;
        worker.send(&format!("GET /wait HTTP/1.1\r\nhost: a\r\n{SECRET}\r\n")).await;
        running.waiting.until(count).await;
        mine.push(worker);
    }
    mine.push(running.connect().await);
    assert_status(&mine[2].get("/call", SECRET).await, 429);
    running.waiting.go.notify_waiters();
    for client in others.iter_mut().chain(&mut mine[..2]) {
        assert_status(&client.answer().await, 200);
    }
    running.stopped().await;
}

#[tokio::test]
async fn bodies_are_reserved_before_they_are_read() {
    let own = BodyBudget::of(4 << 20, 512 << 10, 1, 1);
    let running = Running::worker(small_policy(), own);
    let head = |length: usize| {
        format!(
            "POST /body HTTP/1.1\r\nhost: a\r\n{SECRET}content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    // Announced, not sent: it holds its room.
    let mut holder = running.connect().await;
    holder.send(&head(3 << 20)).await;
    holder.send("\"").await;
    let mut second = running.connect().await;
    second.send(&head(1 << 20)).await;
    let text = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let none = timeout(Duration::from_millis(300), second.0.write_all(text.as_bytes())).await;
    assert!(none.is_err(), "it is read before memory is available: {none:?}");
    drop(second);
    // A small one does not wait.
    let mut small = running.connect().await;
    small.send(&format!("{}\"abc\"", head(5))).await;
    assert!(small.answer().await.ends_with("\r\n\r\n3"));
    drop(holder);
    let mut third = running.connect().await;
    third.send(&head(1 << 20)).await;
    third.send(&text).await;
    let answer = third.answer().await;
    assert!(answer.ends_with(&format!("\r\n\r\n{}", (1 << 20) - 2)), "{answer}");
    running.stopped().await;
}

#[tokio::test]
async fn no_byte_of_a_body_is_read_of_a_call_that_is_refused() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut other = running.connect().await;
    other
        .send("POST /body HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 33554432\r\n\r\n")
        .await;
    assert_status(&other.answer().await, 401);
    other.is_closed().await;
    running.stopped().await;
}

#[tokio::test]
async fn only_http_1_is_spoken() {
    let (running, address) = Running::public(Policy::public(64)).await;
    let mut client = Client(TcpStream::connect(address).await.unwrap());
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0").await;
    let mut answer = vec![];
    within("the connection to be closed", client.0.read_to_end(&mut answer)).await.unwrap_or_default();
    // A server of HTTP/2 would send its settings: a frame of type 4.
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
    running.stopped().await;
}

#[tokio::test]
async fn what_is_being_answered_when_the_server_stops_is_answered() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut idle = running.connect().await;
    assert_status(&idle.get("/call", SECRET).await, 200);
    let mut worker = running.connect().await;
    worker.send(&format!("GET /wait HTTP/1.1\r\nhost: a\r\n{SECRET}\r\n")).await;
    running.waiting.until(1).await;
    running.stop.cancel();
    idle.is_closed().await;
    running.waiting.go.notify_waiters();
    let answer = worker.answer().await;
    assert_status(&answer, 200);
    worker.is_closed().await;
    running.stopped().await;
}
