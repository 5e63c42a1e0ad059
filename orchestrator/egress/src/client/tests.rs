//! The client against servers on loopback addresses, which the ceiling of each test names.

use std::sync::Mutex;

use axum::{
    Router,
    extract::{ConnectInfo, Path, State},
    http::{HeaderMap as Headers, StatusCode as Status, header},
    response::{IntoResponse, Response as Answer},
    routing::any,
};
use rstest::rstest;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

use super::*;
use crate::{encoding::tests::encoded, system_look_up};

/// A server that records the paths of its requests.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    _task: JoinSet<()>,
}

type Seen = Arc<Mutex<Vec<String>>>;

impl Server {
    async fn at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Seen::default();
        let router = Router::new().route("/{*path}", any(answer)).with_state(Arc::clone(&seen));
        let mut task = JoinSet::new();
        task.spawn(async move {
            axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await.unwrap();
        });
        Self { address, seen, _task: task }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// `/redirect/<n>/<url>` redirects to the URL after n redirects to itself; `/bytes/<n>` has a body of that length, `/port`
/// the client's port, `/accepted` the encodings that the request accepts, compressed.
async fn answer(
    State(seen): State<Seen>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    Path(path): Path<String>,
    headers: Headers,
) -> Answer {
    let credentials = if headers.contains_key(header::AUTHORIZATION) { " with credentials" } else { "" };
    seen.lock().unwrap().push(format!("{path}{credentials}"));
    let parts: Vec<&str> = path.splitn(3, '/').collect();
    match parts[..] {
        ["redirect", "0", to] => (Status::FOUND, [(header::LOCATION, to.to_owned())]).into_response(),
        ["redirect", "nowhere"] => (Status::FOUND, [(header::LOCATION, "")]).into_response(),
        ["redirect", n, to] => {
            let next = format!("/redirect/{}/{to}", n.parse::<u32>().unwrap() - 1);
            (Status::FOUND, [(header::LOCATION, next)]).into_response()
        }
        ["accepted"] => {
            let accepted = headers.get(header::ACCEPT_ENCODING).map(|value| value.to_str().unwrap().to_owned());
            ([(header::CONTENT_ENCODING, "deflate")], encoded("zlib", accepted.unwrap_or_default().as_bytes()))
                .into_response()
        }
        ["port"] => client.port().to_string().into_response(),
        ["bytes", n] => "x".repeat(n.parse().unwrap()).into_response(),
        _ => (Status::OK, [("x-odd", "1")], path).into_response(),
    }
}

/// A resolver with these answers, one after the other; the last one stays. It counts its calls.
fn look_up(answers: &[&[&str]]) -> (LookUp, Arc<Mutex<usize>>) {
    let answers: Vec<Vec<IpAddr>> =
        answers.iter().map(|answer| answer.iter().map(|address| address.parse().unwrap()).collect()).collect();
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let look_up: LookUp = Arc::new(move |_name, _| {
        let mut calls = counted.lock().unwrap();
        let answer = answers[(*calls).min(answers.len() - 1)].clone();
        *calls += 1;
        Box::pin(async move { Ok(answer) })
    });
    (look_up, calls)
}

fn client(ceiling: &[String], look_up: LookUp) -> EgressClient {
    EgressClient::new(Arc::new(EgressPolicy::new(ceiling, vec![]).unwrap()), look_up)
}

/// A time that is over soon, and not before a server on this host has sent its headers.
const SHORT: Duration = Duration::from_millis(500);

const LIMITS: ResponseLimits = ResponseLimits { body_bytes: 1_000, time: Duration::from_secs(30) };

async fn get(client: &EgressClient, url: &str) -> Result<OutboundResponse, EgressError> {
    let mut request = OutboundRequest::new("GET", url).unwrap();
    request.header("Authorization", "Bearer x").unwrap();
    client.send(&client.policy().rules(), request, LIMITS, &mut Vec::new()).await
}

#[tokio::test]
async fn the_address_that_was_checked_is_the_one_that_is_dialled() {
    let named = Server::at("127.0.0.1:0").await;
    let port = named.address.port();
    // Another address of this host, with the same port: what a rebinding attack is after.
    let internal = Server::at(&format!("127.0.0.2:{port}")).await;
    let (look_up, calls) = look_up(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let client = client(&[format!("a.example:{port}"), named.address.to_string()], look_up);
    let url = format!("http://a.example:{port}/first");
    let response = get(&client, &url).await.unwrap();
    assert_eq!(
        (response.status, response.body.as_slice(), response.body_end),
        (200, b"first".as_slice(), BodyEnd::Complete)
    );
    assert!(response.headers.contains(&("x-odd".to_owned(), "1".to_owned())), "{:?}", response.headers);
    assert_eq!(*calls.lock().unwrap(), 1, "a name is resolved once for a request");
    let denied = get(&client, &url).await.unwrap_err();
    assert!(matches!(&denied, EgressError::Denied(EgressDenied::Address { .. })), "{denied}");
    assert!(internal.seen().is_empty(), "{:?}", internal.seen());
    assert_eq!(named.seen(), ["first with credentials"]);
}

#[tokio::test]
async fn connections_are_kept_for_one_caller_while_the_addresses_are_allowed() {
    let server = Server::at("127.0.0.1:0").await;
    let port = server.address.port();
    let url = format!("http://a.example:{port}/port");
    let ceiling = [format!("a.example:{port}"), server.address.to_string(), format!("127.0.0.3:{port}")];
    let two = &["127.0.0.1", "127.0.0.3"];
    let (look_up, calls) = look_up(&[two, &["127.0.0.3", "127.0.0.1"], two, &["127.0.0.1"], &["169.254.169.254"]]);
    let client = client(&ceiling, look_up);
    let (one, other) = (client.keeping_connections(), client.keeping_connections());
    let mut ports = Vec::new();
    for client in [&one, &one, &other, &one] {
        ports.push(get(client, &url).await.unwrap().body);
    }
    assert!(ports[0] == ports[1] && ports[0] != ports[2], "{ports:?}");
    assert_ne!(ports[0], ports[3], "the addresses have changed");
    let denied = get(&one, &url).await.unwrap_err();
    assert!(matches!(&denied, EgressError::Denied(EgressDenied::Address { .. })), "{denied}");
    assert_eq!(*calls.lock().unwrap(), 5, "each request is decided");
}

#[rstest]
#[case(&["127.0.0.1", "169.254.169.254"])]
#[case(&["127.0.0.1", "::1"])]
#[case(&["::ffff:127.0.0.1"])]
#[case(&["10.0.0.1"])]
#[case(&["0.0.0.0"])]
#[tokio::test]
async fn one_refused_address_refuses_the_name(#[case] answer: &[&str]) {
    let server = Server::at("127.0.0.1:0").await;
    let port = server.address.port();
    let (look_up, _) = look_up(&[answer]);
    let client = client(&[format!("*:{port}"), server.address.to_string()], look_up);
    let denied = get(&client, &format!("http://a.example:{port}/x")).await.unwrap_err();
    assert!(matches!(&denied, EgressError::Denied(EgressDenied::Address { .. })), "{denied}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn an_address_in_a_url_is_decided_like_a_resolved_one() {
    let server = Server::at("127.0.0.1:0").await;
    let port = server.address.port();
    let (look_up, calls) = look_up(&[&["1.1.1.1"]]);
    let anything = client(&[format!("*:{port}")], Arc::clone(&look_up));
    let url = format!("http://{}/x", server.address);
    assert!(matches!(get(&anything, &url).await, Err(EgressError::Denied(_))));
    let named = client(&[server.address.to_string()], look_up);
    assert_eq!(get(&named, &url).await.unwrap().status, 200);
    assert_eq!(*calls.lock().unwrap(), 0);
}

#[tokio::test]
async fn each_redirect_is_decided_again() {
    let server = Server::at("127.0.0.1:0").await;
    let (look_up, _) = look_up(&[&["169.254.169.254"]]);
    let client = client(&["b.example:80".to_owned(), server.address.to_string()], look_up);
    for (to, expected) in [
        ("http://c.example/x".to_owned(), "not allowed by the operator"),
        ("http://169.254.169.254/latest/meta-data".to_owned(), "not allowed by the operator"),
        ("http://b.example/x".to_owned(), "link-local"),
        ("file:///etc/passwd".to_owned(), "begin with"),
        ("http://bob:pw@b.example/".to_owned(), "user or password"),
    ] {
        let url = format!("http://{}/redirect/0/{to}", server.address);
        let error = get(&client, &url).await.unwrap_err();
        let EgressError::Redirect(_) = &error else { panic!("{to}: {error}") };
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[rstest]
#[case(0, true)]
#[case(4, true)]
#[case(5, false)]
#[tokio::test]
async fn at_most_five_redirects_are_followed(#[case] more: u32, #[case] arrives: bool) {
    let server = Server::at("127.0.0.1:0").await;
    let (look_up, _) = look_up(&[&["127.0.0.1"]]);
    let client = client(&[server.address.to_string()], look_up);
    let result = get(&client, &format!("http://{}/redirect/{more}//arrived", server.address)).await;
    match result {
        Ok(response) => assert!(arrives && response.status == 200, "{response:?}"),
        Err(EgressError::TooManyRedirects) => assert!(!arrives && server.seen().len() == 6, "{:?}", server.seen()),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn an_empty_location_is_no_redirect() {
    let server = Server::at("127.0.0.1:0").await;
    let (look_up, _) = look_up(&[&["127.0.0.1"]]);
    let client = client(&[server.address.to_string()], look_up);
    let response = get(&client, &format!("http://{}/redirect/nowhere", server.address)).await.unwrap();
    assert_eq!((response.status, response.redirected_to, server.seen().len()), (302, None, 1));
}

#[tokio::test]
async fn another_host_does_not_get_the_credentials() {
    let (first, second) = (Server::at("127.0.0.1:0").await, Server::at("127.0.0.1:0").await);
    let (look_up, _) = look_up(&[&["127.0.0.1"]]);
    let client = client(&[first.address.to_string(), second.address.to_string()], look_up);
    let url = format!("http://{}/redirect/0/http://{}/arrived", first.address, second.address);
    assert_eq!(get(&client, &url).await.unwrap().status, 200);
    assert_eq!(second.seen(), ["arrived"]);
    assert!(first.seen()[0].ends_with(" with credentials"));
}

#[rstest]
#[case(999, 999, BodyEnd::Complete)]
#[case(1_000, 1_000, BodyEnd::Complete)]
#[case(1_001, 1_000, BodyEnd::TooLarge)]
#[case(500_000, 1_000, BodyEnd::TooLarge)]
#[tokio::test]
async fn a_large_body_is_cut(#[case] bytes: usize, #[case] kept: usize, #[case] end: BodyEnd) {
    let server = Server::at("127.0.0.1:0").await;
    let (look_up, _) = look_up(&[&["127.0.0.1"]]);
    let client = client(&[server.address.to_string()], look_up);
    let response = get(&client, &format!("http://{}/bytes/{bytes}", server.address)).await.unwrap();
    assert_eq!((response.body.len(), response.body_end), (kept, end));
}

/// A server that sends these bytes for a request, and closes the connection or keeps it open.
async fn raw_server(answer: &'static [u8], closes: bool) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let _request = connection.read(&mut [0; 4_096]).await.unwrap();
        connection.write_all(answer).await.unwrap();
        if !closes {
            std::future::pending::<()>().await;
        }
    });
    (address, task)
}

#[rstest]
#[case(true, BodyEnd::BrokenOff)]
#[case(false, BodyEnd::TimedOut(SHORT))]
#[tokio::test]
async fn a_body_that_ends_early_is_kept(#[case] closes: bool, #[case] end: BodyEnd) {
    let (address, _task) = raw_server(b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nid=7", closes).await;
    let client = client(&[address.to_string()], system_look_up());
    let request = OutboundRequest::new("POST", &format!("http://{address}/x")).unwrap();
    let limits = if closes { LIMITS } else { ResponseLimits { time: SHORT, ..LIMITS } };
    let response = client.send(&client.policy().rules(), request, limits, &mut Vec::new()).await.unwrap();
    assert_eq!((response.status, response.body.as_slice(), response.body_end), (201, b"id=7".as_slice(), end));
}

#[tokio::test]
async fn a_request_without_an_answer_may_have_been_carried_out() {
    let (address, _task) = raw_server(b"HTTP/1.1 201 Cre", false).await;
    let client = client(&[address.to_string()], system_look_up());
    let request = OutboundRequest::new("POST", &format!("http://{address}/x")).unwrap();
    let limits = ResponseLimits { time: SHORT, ..LIMITS };
    let error = client.send(&client.policy().rules(), request, limits, &mut Vec::new()).await.unwrap_err();
    let expected = format!("{address} did not answer within 0.5 s; the request may have been carried out");
    assert_eq!(error.to_string(), expected);
}

#[rstest]
#[case(None, "gzip, deflate, br")]
#[case(Some("bytes=0-9"), "identity")]
#[tokio::test]
async fn a_compressed_body_is_accepted_and_decoded(#[case] range: Option<&str>, #[case] accepted: &str) {
    let (first, second) = (Server::at("127.0.0.1:0").await, Server::at("127.0.0.1:0").await);
    let (look_up, _) = look_up(&[&["127.0.0.1"]]);
    let client = client(&[first.address.to_string(), second.address.to_string()], look_up);
    let url = match range {
        None => format!("http://{}/redirect/0/http://{}/accepted", first.address, second.address),
        Some(_) => format!("http://{}/accepted", first.address),
    };
    let mut request = OutboundRequest::new("GET", &url).unwrap();
    if let Some(range) = range {
        request.header("Range", range).unwrap();
    }
    let mut records = Vec::new();
    let response = client.send(&client.policy().rules(), request, LIMITS, &mut records).await.unwrap();
    assert_eq!((String::from_utf8(response.body).unwrap().as_str(), response.undecoded), (accepted, None));
    assert_eq!(
        records.last().unwrap().bytes_down,
        encoded("zlib", accepted.as_bytes()).len() as u64,
        "what was received"
    );
}

#[tokio::test]
async fn errors_do_not_show_the_url() {
    let closed = Server::at("127.0.0.1:0").await.address;
    let (none, _) = look_up(&[&[]]);
    let client = client(&[closed.to_string(), "a.example".to_owned()], none);
    let unreachable = get(&client, &format!("http://{closed}/x?key=hunter2")).await.unwrap_err();
    assert!(matches!(unreachable, EgressError::Transport { .. }));
    let unresolved = get(&client, "https://a.example/x?key=hunter2").await.unwrap_err();
    assert!(matches!(unresolved, EgressError::Unresolved(_)));
    for error in [unreachable, unresolved] {
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}
