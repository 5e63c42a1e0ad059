//! Connections of jobs to other hosts: what the egress proxy carries, what it refuses, and what both leave in the events.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use axum::{
    Router,
    http::{HeaderMap, Method, Uri},
    routing::any,
};
use orchestrator::egress::LookUp;
use protocol::{EgressDecision, EventData, JobId};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{ManualWorker, User, World, within};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

/// A job that may reach `a.example`, whose address is a server of the test.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) ada: User,
    pub(crate) job: JobId,
    pub(crate) worker: ManualWorker,
    /// What the TLS port has received, for each connection.
    pub(crate) received: mpsc::UnboundedReceiver<Vec<u8>>,
    /// The names that were looked up, each when its look-up begins.
    pub(crate) looked_up: mpsc::UnboundedReceiver<String>,
    /// Look-ups of `slow.example` end with a permit.
    pub(crate) slow: Arc<Semaphore>,
    _servers: JoinSet<()>,
}

/// A loopback address that no other test uses, so that its ports 80 and 443 are free.
fn unique_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn listener(address: Ipv4Addr, port: u16) -> TcpListener {
    let bound = TcpListener::bind(SocketAddr::from((address, port))).await;
    bound.expect("a port below 1024, which needs root or net.ipv4.ip_unprivileged_port_start=0")
}

/// Answers with the request as it arrived.
async fn shown(method: Method, uri: Uri, headers: HeaderMap) -> String {
    let mut lines: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))).collect();
    lines.sort();
    format!("{method} {uri} [{}]", lines.join(", "))
}

impl Scene {
    pub(crate) async fn new(allow: &[&str]) -> Self {
        let address = unique_address();
        let (tls, http) = (listener(address, 443).await, listener(address, 80).await);
        let (seen, received) = mpsc::unbounded_channel();
        let mut servers = JoinSet::new();
        servers.spawn(echo(tls, seen));
        servers.spawn(async move { drop(axum::serve(http, Router::new().fallback(any(shown))).await) });
        let (asked, looked_up) = mpsc::unbounded_channel();
        let slow = Arc::new(Semaphore::new(0));
        let answers = Arc::clone(&slow);
        let look_up: LookUp = Arc::new(move |name: String, of_caller| {
            let answers = Arc::clone(&answers);
            let _ = asked.send(name.clone());
            let address = match name.as_str() {
                "private.example" => IpAddr::from([10, 0, 0, 1]),
                "metadata.example" => IpAddr::from([169, 254, 169, 254]),
                _ => IpAddr::from(address),
            };
            Box::pin(async move {
                let _of_caller = of_caller;
                if name == "slow.example" {
                    answers.acquire().await.unwrap().forget();
                }
                Ok(vec![address])
            })
        });
        let ceiling = format!("*,*:80,*:22,{address}:443,{address}:80");
        let world = World::builder().set("GANTRY_EGRESS_CEILING", ceiling).look_up(look_up).build().await;
        let ada = world.user("ada");
        let job = ada.create(json!({"prompt": "work", "egress": {"allow": allow}})).await;
        let worker = world.manual_worker(job).await;
        worker.job().await;
        Self { world, ada, job, worker, received, looked_up, slow, _servers: servers }
    }

    /// The decisions in the events: `host:port`, the decision and its rule.
    pub(crate) async fn decisions(&self) -> Vec<(String, EgressDecision, String)> {
        let events = self.ada.events(self.job).await.into_iter();
        let decision = |data| match data {
            EventData::Egress { host, port, decision, rule, .. } => Some((format!("{host}:{port}"), decision, rule)),
            _ => None,
        };
        events.filter_map(|event| decision(event.data)).collect()
    }

    /// Waits until something was refused by this rule.
    pub(crate) async fn until_refused(&self, rule: &str) {
        let refused = |data: &EventData| match data {
            EventData::Egress { decision, rule: by, .. } => *decision == EgressDecision::Denied && by == rule,
            _ => false,
        };
        self.ada.wait_for_event(self.job, rule, |event| refused(&event.data)).await;
    }

    pub(crate) async fn finish(self) {
        self.worker.finish("done").await;
        self.ada.wait_for_end(self.job).await;
        self.world.finish().await;
    }

    /// A connection on which a tunnel was asked for, and the answer.
    pub(crate) async fn connect(&self, to: &str) -> (UnixStream, String) {
        let mut stream = ask(&self.worker, to).await;
        let head = head(&mut stream).await;
        (stream, head)
    }

    /// An open tunnel.
    pub(crate) async fn tunnel(&self, to: &str) -> UnixStream {
        let (stream, head) = self.connect(to).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        stream
    }

    /// The whole answer to a request on a new connection. `SESSION` stands for the headers of the session.
    async fn answer(&self, request: &str) -> String {
        let mut stream = self.worker.connect().await;
        let request = request.replace("SESSION", &self.worker.proxy_headers());
        stream.write_all(request.as_bytes()).await.unwrap();
        rest(&mut stream).await
    }
}

/// A connection on which a worker has asked for a tunnel.
pub(crate) async fn ask(worker: &ManualWorker, to: &str) -> UnixStream {
    let mut stream = worker.connect().await;
    let headers = worker.proxy_headers();
    let request = format!("CONNECT {to} HTTP/1.1\r\nhost: {to}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Records the first bytes of each connection and sends everything back.
async fn echo(listener: TcpListener, seen: mpsc::UnboundedSender<Vec<u8>>) {
    let mut connections = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let seen = seen.clone();
        connections.spawn(async move {
            let mut buffer = vec![0; 64 * 1024];
            let mut is_first = true;
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                if std::mem::take(&mut is_first) {
                    let _ = seen.send(buffer[..count].to_vec());
                }
                if stream.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        });
    }
}

pub(crate) async fn head(stream: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("the head of an answer", stream.read_u8()).await.expect("an answer"));
    }
    String::from_utf8(head).unwrap()
}

/// Everything up to the end of the connection.
pub(crate) async fn rest(stream: &mut UnixStream) -> String {
    let mut rest = Vec::new();
    // A connection that is reset has ended, too.
    let _ = within("the end of the connection", stream.read_to_end(&mut rest)).await;
    String::from_utf8_lossy(&rest).into_owned()
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// A TLS `ClientHello` that asks for this name.
pub(crate) fn hello(name: &str) -> Vec<u8> {
    let extension = |kind: u16, content: &[u8]| [kind.to_be_bytes().to_vec(), with_length(content)].concat();
    let server_name = extension(0, &with_length(&[vec![0], with_length(name.as_bytes())].concat()));
    let extensions = with_length(&[server_name, extension(13, &with_length(&[4, 3]))].concat());
    let body = [vec![3, 3], vec![7; 32], vec![0], with_length(&[0x13, 1]), vec![1, 0], extensions].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let handshake = [vec![1], length[1..].to_vec(), body].concat();
    [vec![22, 3, 1], with_length(&handshake)].concat()
}

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways_and_they_are_counted() {
    let mut scene = Scene::new(&["a.example"]).await;
    let sent = [hello("a.example"), b"ping".to_vec()].concat();
    for _ in 0..2 {
        let mut tunnel = scene.tunnel("a.example:443").await;
        tunnel.write_all(&sent).await.unwrap();
        let mut back = vec![0; sent.len()];
        within("the bytes to come back", tunnel.read_exact(&mut back)).await.unwrap();
        assert_eq!(back, sent);
        assert_eq!(scene.received.recv().await.unwrap()[..10], sent[..10]);
        tunnel.shutdown().await.unwrap();
        assert_eq!(rest(&mut tunnel).await, "");
    }
    assert!(scene.connect("b.example:443").await.1.starts_with("HTTP/1.1 403 "));
    let path = format!("/api/jobs/{}/egress", scene.job);
    let during = scene.ada.get(&path).await.expect(200).body;
    assert_eq!((&during["phase"], &during["is_complete"]), (&json!("agent"), &json!(false)));
    let (ada, job) = (scene.ada.clone(), scene.job);
    scene.worker.clone().finish("done").await;
    ada.wait_for_end(job).await;
    let bytes = sent.len() * 2;
    let expected = json!({
        "phase": "agent",
        "allowed": ["a.example"],
        "counters": [
            {"phase": "agent", "host": "b.example", "port": 443, "decision": "denied", "rule": "egress.allow",
             "count": 1, "bytes_up": 0, "bytes_down": 0},
            {"phase": "agent", "host": "a.example", "port": 443, "decision": "allowed", "rule": "a.example:443",
             "count": 2, "bytes_up": bytes, "bytes_down": bytes},
        ],
        "is_complete": true,
    });
    assert_eq!(ada.get(&path).await.expect(200).body, expected);
    scene.world.user("bob").get(&path).await.expect(404);
    scene.world.finish().await;
}

#[rstest]
#[case::other_host("b.example:443", 403, Some("egress.allow"))]
#[case::name_below("x.a.example:443", 403, Some("egress.allow"))]
#[case::other_port("a.example:22", 403, Some("egress.allow"))]
#[case::address("127.0.0.1:443", 403, Some("egress.allow"))]
#[case::metadata("169.254.169.254:80", 403, Some("egress.allow"))]
#[case::loopback_name("localhost:443", 403, Some("egress.allow"))]
#[case::mapped("[::ffff:127.0.0.1]:443", 403, Some("egress.allow"))]
#[case::listed_name_of_a_private_address("private.example:443", 403, Some("a private address"))]
#[case::listed_name_of_the_metadata_service("metadata.example:443", 403, Some("a link-local address"))]
#[case::decimal("2130706433:443", 400, Some("host"))]
#[case::hex("0x7f000001:443", 400, Some("host"))]
#[case::octal("0177.0.0.1:443", 400, Some("host"))]
#[case::trailing_dot("a.example.:443", 400, Some("host"))]
#[case::userinfo("x@a.example:443", 400, Some("host"))]
#[case::no_port("a.example", 400, Some("host"))]
// No target of HTTP at all.
#[case::nul("a.example\0:443", 400, None)]
#[tokio::test]
async fn another_target_is_refused(#[case] to: &str, #[case] status: u16, #[case] rule: Option<&str>) {
    let mut scene = Scene::new(&["a.example", "private.example", "metadata.example"]).await;
    let (mut stream, head) = scene.connect(to).await;
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    let text = rest(&mut stream).await;
    if let Some(rule) = rule {
        assert!(head.contains(&format!("x-gantry-egress: denied; rule={rule}\r\n")), "{head}");
        assert_eq!(text.lines().count(), 1, "{text}");
        let host = if status == 403 { to.to_owned() } else { "the host".to_owned() };
        assert!(text.contains(&host) || text.contains("the port"), "{text}");
    }
    let decisions = scene.decisions().await;
    let denied: Vec<&str> = decisions.iter().map(|(_, _, rule)| rule.as_str()).collect();
    assert_eq!(denied, rule.into_iter().collect::<Vec<_>>());
    assert!(decisions.iter().all(|(_, decision, _)| *decision == EgressDecision::Denied));
    assert!(scene.received.try_recv().is_err(), "nothing was dialled");
    scene.finish().await;
}

#[rstest]
#[case::other_name(hello("b.example"), "tls.sni")]
#[case::no_tls(b"GET / HTTP/1.1\r\nhost: a.example\r\n\r\n".to_vec(), "tls.hello")]
#[case::ssh(b"SSH-2.0-x\r\n".to_vec(), "tls.hello")]
#[tokio::test]
async fn a_tunnel_must_begin_with_the_name_of_its_host(#[case] first: Vec<u8>, #[case] rule: &str) {
    let mut scene = Scene::new(&["a.example"]).await;
    let mut tunnel = scene.tunnel("a.example:443").await;
    tunnel.write_all(&first).await.unwrap();
    rest(&mut tunnel).await;
    scene.until_refused(rule).await;
    assert!(scene.received.try_recv().is_err(), "nothing was sent to the host");
    scene.finish().await;
}

#[tokio::test]
async fn plain_http_goes_on_without_the_headers_of_its_connection() {
    let scene = Scene::new(&["a.example:80"]).await;
    let request = "GET http://a.example/x/../%2e?y HTTP/1.1\r\nSESSIONhost: a.example\r\naccept: text/html\r\n\
                   connection: upgrade, http2-settings, x-hop\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\nx-hop: 1\r\n\r\n";
    let expected = "GET /x/../%2e?y [accept: text/html, host: a.example]";
    let answer = scene.answer(request).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(expected), "{answer}");
    // The same inside a tunnel, as the names in the container come: one request after the other.
    let mut tunnel = scene.tunnel("a.example:80").await;
    for _ in 0..2 {
        let inside = request.replace("SESSION", "proxy-authorization: x\r\n").replace("http://a.example", "");
        tunnel.write_all(inside.as_bytes()).await.unwrap();
        let head = head(&mut tunnel).await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let mut body = vec![0; expected.len()];
        within("the body", tunnel.read_exact(&mut body)).await.unwrap();
        assert_eq!(String::from_utf8(body).unwrap(), expected);
    }
    drop(tunnel);
    assert!(scene.decisions().await.iter().all(|(_, decision, _)| *decision == EgressDecision::Allowed));
    scene.finish().await;
}

#[rstest]
#[case::post("POST / HTTP/1.1\r\nhost: a.example\r\n\r\n", "403", "http.method")]
#[case::trace("TRACE / HTTP/1.1\r\nhost: a.example\r\n\r\n", "403", "http.method")]
#[case::second_connect("CONNECT b.example:443 HTTP/1.1\r\nhost: b.example\r\n\r\n", "403", "http.connect")]
#[case::http2("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "403", "http.version")]
#[case::two_hosts("GET / HTTP/1.1\r\nhost: a.example\r\nhost: b.example\r\n\r\n", "400", "http.host")]
#[case::other_host("GET / HTTP/1.1\r\nhost: b.example\r\n\r\n", "400", "http.host")]
#[case::other_target("GET http://b.example/ HTTP/1.1\r\nhost: a.example\r\n\r\n", "400", "http.host")]
#[case::control("GET / HTTP/1.1\r\nhost: a.example\r\nx: a\x01b\r\n\r\n", "400", "http.request")]
#[case::smuggled(
    "GET / HTTP/1.1\r\nhost: a.example\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "400",
    "http.body"
)]
#[case::smuggled_the_other_way(
    "GET / HTTP/1.1\r\nhost: a.example\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "400",
    "http.body"
)]
#[tokio::test]
async fn another_request_inside_a_tunnel_is_refused(#[case] request: &str, #[case] status: &str, #[case] rule: &str) {
    let scene = Scene::new(&["a.example:80", "b.example"]).await;
    let mut tunnel = scene.tunnel("a.example:80").await;
    tunnel.write_all(request.as_bytes()).await.unwrap();
    let answer = rest(&mut tunnel).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    scene.until_refused(rule).await;
    scene.finish().await;
}

#[rstest]
#[case::post(
    "POST http://a.example/ HTTP/1.1\r\nSESSIONhost: a.example\r\ncontent-length: 0\r\n\r\n",
    403,
    "http.method"
)]
#[case::two_hosts(
    "GET http://a.example/ HTTP/1.1\r\nSESSIONhost: a.example\r\nhost: a.example\r\n\r\n",
    400,
    "http.host"
)]
#[case::other_host("GET http://a.example/ HTTP/1.1\r\nSESSIONhost: b.example\r\n\r\n", 400, "http.host")]
#[case::unlisted("GET http://b.example/ HTTP/1.1\r\nSESSIONhost: b.example\r\n\r\n", 403, "egress.allow")]
#[case::other_port("GET http://a.example:443/ HTTP/1.1\r\nSESSIONhost: a.example:443\r\n\r\n", 403, "http.port")]
#[case::https("GET https://a.example/ HTTP/1.1\r\nSESSIONhost: a.example\r\n\r\n", 400, "scheme")]
#[case::file("GET ftp://a.example/ HTTP/1.1\r\nSESSIONhost: a.example\r\n\r\n", 400, "scheme")]
#[tokio::test]
async fn another_request_in_absolute_form_is_refused(#[case] request: &str, #[case] status: u16, #[case] rule: &str) {
    let scene = Scene::new(&["a.example:80", "a.example"]).await;
    let answer = scene.answer(request).await;
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    assert!(answer.contains(&format!("x-gantry-egress: denied; rule={rule}\r\n")), "{answer}");
    scene.until_refused(rule).await;
    scene.finish().await;
}

#[tokio::test]
async fn the_proxy_serves_the_session_only_and_a_job_without_a_list_reaches_nothing() {
    let scene = Scene::new(&[]).await;
    let (_, head) = scene.connect("a.example:443").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    for worker in [scene.worker.with_session(None), scene.worker.with_session(Some("another-secret-of-a-command"))] {
        let mut stream = ask(&worker, "a.example:443").await;
        assert!(rest(&mut stream).await.starts_with("HTTP/1.1 401 "));
    }
    // The absolute form is never a call of the worker API, whatever its path is.
    let path = format!("GET http://gantry/worker/{}/job HTTP/1.1\r\nSESSIONhost: gantry\r\n\r\n", scene.job);
    assert!(scene.answer(&path).await.starts_with("HTTP/1.1 403 "));
    let assignment = scene.worker.job().await;
    assert!(!assignment.egress.enabled && assignment.egress_names.is_empty());
    assert!(scene.world.engine().containers()[0].spec.hosts.is_empty());
    scene.finish().await;
}

#[tokio::test]
async fn the_hosts_of_a_list_have_addresses_in_the_container() {
    let scene = Scene::new(&["b.example", "*.c.example", "a.example:80", "b.example:80"]).await;
    let names = serde_json::to_value(scene.worker.job().await.egress_names).unwrap();
    let expected = json!([
        {"host": "b.example", "port": 443, "address": "127.0.64.1"},
        {"host": "a.example", "port": 80, "address": "127.0.64.2"},
        {"host": "b.example", "port": 80, "address": "127.0.64.1"},
    ]);
    assert_eq!(names, expected);
    let hosts: Value = serde_json::to_value(&scene.world.engine().containers()[0].spec.hosts).unwrap();
    assert_eq!(hosts, json!({"a.example": "127.0.64.2", "b.example": "127.0.64.1"}));
    scene.finish().await;
}

#[tokio::test]
async fn a_preset_stands_for_its_hosts_as_they_were_when_the_job_was_created() {
    let presets = "egress_ceiling = ['*', 'preset:local']\n[egress.presets]\nlocal = ['a.example', '*.b.example:80']\n";
    let world = World::builder().config_file(presets).build().await;
    let ada = world.user("ada");
    let body = |allow: &str| json!({"prompt": "work", "egress": {"allow": [allow, "a.example"], "hosts": ["*"]}});
    let id = ada.create(body("preset:local")).await;
    let job = ada.get(&format!("/api/jobs/{id}")).await.expect(200).body;
    let hosts = json!(["a.example", "*.b.example:80"]);
    assert_eq!(job["egress"], json!({"allow": ["preset:local", "a.example"], "inject": [], "hosts": hosts}));
    assert_eq!(ada.get(&format!("/api/jobs/{id}/egress")).await.expect(200).body["allowed"], hosts);
    let worker = world.manual_worker(id).await;
    let assignment = worker.job().await;
    assert_eq!(json!(assignment.egress.allow), hosts);
    assert_eq!(assignment.egress_names.len(), 1);
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    let refused = ada.post("/api/jobs", &body("preset:npm")).await.expect(422).body;
    assert_eq!(
        (&refused["code"], &refused["errors"][0]["field"]),
        (&json!("preset_unknown"), &json!("egress.allow[0]"))
    );
    assert!(refused["errors"][0]["message"].as_str().unwrap().contains("[egress.presets]"), "{refused}");
    world.finish().await;
}
