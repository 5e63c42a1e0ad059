//! Plain HTTP through the egress proxy: each request is read, checked and written again.
//!
//! Owns what a request may be and which headers go on. A request has no body here: `GET` and `HEAD` need none, and a length
//! that two parsers could read differently does not exist.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
        uri::{PathAndQuery, Scheme},
    },
};
use egress::Destination;
use http_body::{Frame, SizeHint};
use http_body_util::Empty;
use hyper::{
    body::Incoming,
    client::conn::http1::{Builder as ClientBuilder, Connection, SendRequest},
    server::conn::http1::Builder,
    service::service_fn,
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use protocol::SESSION_HEADER;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, join},
    net::TcpStream,
    sync::Mutex,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    HELLO_TIMEOUT, Proxy, parse_destination,
    refusal::{Refusal, RefusalKind},
    single,
    traffic::Metered,
};
use crate::server::ConnectionHandle;

const PORT: u16 = 80;
/// The head of a request or response, and what is buffered of a body.
const BUFFER_BYTES: usize = 64 * 1024;
/// How a client begins that speaks HTTP/2 without asking.
const HTTP2_BEGINNING: &[u8] = b"PRI";
/// Headers of one connection, besides those that `Connection` names, and what a request through a proxy carries for it.
const REMOVED: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    SESSION_HEADER,
];

type Upstream = SendRequest<Empty<Bytes>>;
type UpstreamConnection = Connection<TokioIo<Metered<TcpStream>>, Empty<Bytes>>;

/// Answers one request in absolute form. Its connection ends with the response.
pub(super) async fn forward_one(
    proxy: &Proxy,
    request: Request<Empty<Bytes>>,
    upstream: Metered<TcpStream>,
    connection: ConnectionHandle,
) -> Result<Response<Body>, Refusal> {
    let traffic = Arc::clone(upstream.traffic());
    let (mut sender, driver) = open(upstream).await?;
    let answered = CancellationToken::new();
    let guard = answered.clone().drop_guard();
    let proxy = proxy.clone();
    proxy.api.tasks.clone().spawn(async move {
        let driving = async {
            // The response has the error.
            let _ = driver.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = driving => {}
            () = answered.cancelled() => {}
            () = traffic.over(&proxy.api.drain) => connection.close(),
        }
        proxy.store_limit().await;
    });
    let mut response = exchange(&mut sender, request).await?.map(|body| ForwardedBody { body, _guard: Some(guard) });
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(response.map(Body::new))
}

/// Answers the requests inside a tunnel, on one connection to its host. Both end together.
pub(super) async fn serve(proxy: &Proxy, client: Upgraded, to: Destination, upstream: Metered<TcpStream>) {
    let mut client = TokioIo::new(client);
    let Ok(Some(first)) = timeout(HELLO_TIMEOUT, first_bytes(&mut client)).await else { return };
    if first == HTTP2_BEGINNING {
        let refusal = Refusal::new(RefusalKind::Forbidden, "http.version", "HTTP/2 is not accepted");
        proxy.refuse(&to, refusal).await;
        let _ = client.write_all(b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n").await;
        return;
    }
    let Ok((sender, driver)) = open(upstream).await else { return };
    let sender = Arc::new(Mutex::new(sender));
    let service = service_fn(|request: Request<Incoming>| {
        let (sender, to) = (Arc::clone(&sender), &to);
        async move { Ok::<_, Infallible>(answer(proxy, request, to, &sender).await) }
    });
    let (read, write) = tokio::io::split(client);
    let client = join(std::io::Cursor::new(first).chain(read), write);
    let mut serving = pin!(Builder::new().max_buf_size(BUFFER_BYTES).serve_connection(TokioIo::new(client), service));
    let mut driver = pin!(driver);
    let mut is_closed = false;
    let served = loop {
        tokio::select! {
            served = serving.as_mut() => break served,
            // A response in progress is still sent.
            _ = driver.as_mut(), if !is_closed => {
                is_closed = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    };
    if served.is_err_and(|error| error.is_parse()) {
        proxy.refuse(&to, Refusal::new(RefusalKind::Invalid, "http.request", "no request")).await;
    }
}

async fn answer(
    proxy: &Proxy,
    request: Request<Incoming>,
    to: &Destination,
    sender: &Mutex<Upstream>,
) -> Response<Body> {
    let request = match checked(request, to) {
        Ok(request) => request,
        Err(refusal) => return proxy.refuse(to, refusal).await.response(),
    };
    match exchange(&mut *sender.lock().await, request).await {
        Ok(response) => response.map(|body| Body::new(ForwardedBody { body, _guard: None })),
        Err(refusal) => refusal.response(),
    }
}

/// As many bytes as tell HTTP/2 from HTTP/1.1.
async fn first_bytes(client: &mut TokioIo<Upgraded>) -> Option<Vec<u8>> {
    let mut first = vec![0; HTTP2_BEGINNING.len()];
    client.read_exact(&mut first).await.ok()?;
    Some(first)
}

async fn open(upstream: Metered<TcpStream>) -> Result<(Upstream, UpstreamConnection), Refusal> {
    let opened = ClientBuilder::new().max_buf_size(BUFFER_BYTES).handshake(TokioIo::new(upstream)).await;
    opened.map_err(|error| unreachable(&error))
}

fn unreachable(error: &hyper::Error) -> Refusal {
    Refusal::new(RefusalKind::Unreachable, "unreachable", &format!("the host did not answer: {error}"))
}

/// Sends a checked request and returns its response without the headers of the connection.
async fn exchange(sender: &mut Upstream, request: Request<Empty<Bytes>>) -> Result<Response<Incoming>, Refusal> {
    sender.ready().await.map_err(|error| unreachable(&error))?;
    let mut response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Refusal::new(RefusalKind::Unreachable, "unreachable", "the host changed the protocol"));
    }
    let closes = response.version() != Version::HTTP_11 || names_close(response.headers());
    let length = response.headers().get(header::CONTENT_LENGTH).cloned();
    remove_connection_headers(response.headers_mut());
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
    }
    if closes {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    *response.version_mut() = Version::HTTP_11;
    Ok(response)
}

fn names_close(headers: &HeaderMap) -> bool {
    named_by_connection(headers).any(|name| name == "close")
}

fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = String> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase())
}

fn remove_connection_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = named_by_connection(headers).filter_map(|name| name.parse().ok()).collect();
    for name in named {
        headers.remove(name);
    }
    for name in REMOVED {
        headers.remove(name);
    }
}

/// The request as it goes on, if it may.
pub(super) fn checked<B>(request: Request<B>, to: &Destination) -> Result<Request<Empty<Bytes>>, Refusal> {
    let (head, _) = request.into_parts();
    check_method(&head.method)?;
    check_host(&head.uri, &head.headers, to)?;
    check_body(&head.headers)?;
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    if !path.as_str().starts_with('/') {
        return Err(Refusal::new(RefusalKind::Invalid, "http.request", "the path must begin with /"));
    }
    let mut headers = head.headers;
    remove_connection_headers(&mut headers);
    let host = if to.port == PORT { to.host.to_string() } else { to.to_string() };
    let invalid = || Refusal::new(RefusalKind::Invalid, "http.request", "the request cannot be passed on");
    headers.insert(header::HOST, HeaderValue::try_from(host).map_err(|_| invalid())?);
    let mut checked = Request::new(Empty::new());
    *checked.method_mut() = head.method;
    *checked.uri_mut() = Uri::from(path);
    *checked.headers_mut() = headers;
    Ok(checked)
}

fn check_method(method: &Method) -> Result<(), Refusal> {
    match *method {
        Method::GET | Method::HEAD => Ok(()),
        Method::CONNECT => {
            Err(Refusal::new(RefusalKind::Forbidden, "http.connect", "CONNECT is not accepted in a tunnel"))
        }
        _ => {
            let detail = format!("{method} is not allowed; plain HTTP has GET and HEAD, use https for others");
            Err(Refusal::new(RefusalKind::Forbidden, "http.method", &detail))
        }
    }
}

/// `Host`, and the authority of the absolute form, must be the destination.
fn check_host(uri: &Uri, headers: &HeaderMap, to: &Destination) -> Result<(), Refusal> {
    let invalid = |detail: &str| Err(Refusal::new(RefusalKind::Invalid, "http.host", detail));
    let is_target = |text: &str| parse_destination(text, Some(PORT)).is_ok_and(|named| named == *to);
    if uri.scheme().is_some_and(|scheme| *scheme != Scheme::HTTP)
        || uri.authority().is_some_and(|authority| !is_target(authority.as_str()))
    {
        return invalid("the request names another host than its connection");
    }
    match single(headers, header::HOST.as_str()) {
        Some(host) if is_target(host) => Ok(()),
        Some(_) => invalid("the header Host names another host than the connection"),
        None => invalid("a request must have one header Host"),
    }
}

fn check_body(headers: &HeaderMap) -> Result<(), Refusal> {
    let is_empty = headers.get_all(header::CONTENT_LENGTH).iter().all(|length| length == "0");
    if is_empty && !headers.contains_key(header::TRANSFER_ENCODING) {
        return Ok(());
    }
    Err(Refusal::new(RefusalKind::Invalid, "http.body", "a request must have no body"))
}

/// A response's body.
struct ForwardedBody {
    body: Incoming,
    /// Ends the connection to the host with it.
    _guard: Option<DropGuard>,
}

impl HttpBody for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use egress::Host;
    use rstest::rstest;

    use super::*;

    fn check(method: &str, uri: &str, headers: &[(&str, &str)]) -> Result<Request<Empty<Bytes>>, String> {
        let to = Destination { host: Host::parse("a.example").unwrap(), port: PORT };
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        checked(request.body(()).unwrap(), &to).map_err(|refusal| refusal.rule().to_owned())
    }

    #[rstest]
    #[case("GET", "/x?y=%2e%2e/../z", &[("host", "a.example")])]
    #[case("HEAD", "http://a.example/x?y=%2e%2e/../z", &[("host", "A.example:80")])]
    #[case("GET", "http://a.example:80/x?y=%2e%2e/../z", &[("host", "a.example"), ("content-length", "0")])]
    fn a_request_goes_on_with_its_path_as_it_is(
        #[case] method: &str,
        #[case] uri: &str,
        #[case] headers: &[(&str, &str)],
    ) {
        let request = check(method, uri, headers).unwrap();
        assert_eq!((request.method().as_str(), request.uri().to_string()), (method, "/x?y=%2e%2e/../z".to_owned()));
        assert_eq!(request.headers().len(), 1);
        assert_eq!(request.headers()[header::HOST], "a.example");
    }

    #[rstest]
    #[case::two_hosts("GET", "/", &[("host", "a.example"), ("host", "a.example")], "http.host")]
    #[case::no_host("GET", "/", &[], "http.host")]
    #[case::other_host("GET", "/", &[("host", "b.example")], "http.host")]
    #[case::other_port("GET", "/", &[("host", "a.example:8080")], "http.host")]
    #[case::userinfo("GET", "/", &[("host", "x@a.example")], "http.host")]
    #[case::trailing_dot("GET", "/", &[("host", "a.example.")], "http.host")]
    #[case::other_target("GET", "http://b.example/", &[("host", "a.example")], "http.host")]
    #[case::other_scheme("GET", "https://a.example/", &[("host", "a.example")], "http.host")]
    #[case::trace("TRACE", "/", &[("host", "a.example")], "http.method")]
    #[case::post("POST", "/", &[("host", "a.example")], "http.method")]
    #[case::options("OPTIONS", "*", &[("host", "a.example")], "http.method")]
    #[case::connect("CONNECT", "b.example:443", &[("host", "b.example")], "http.connect")]
    #[case::two_lengths("GET", "/", &[("host", "a.example"), ("transfer-encoding", "chunked"), ("content-length", "5")], "http.body")]
    #[case::chunked("GET", "/", &[("host", "a.example"), ("transfer-encoding", "chunked")], "http.body")]
    #[case::length("GET", "/", &[("host", "a.example"), ("content-length", "5")], "http.body")]
    #[case::no_path("GET", "*", &[("host", "a.example")], "http.request")]
    fn other_requests_are_refused(
        #[case] method: &str,
        #[case] uri: &str,
        #[case] headers: &[(&str, &str)],
        #[case] rule: &str,
    ) {
        assert_eq!(check(method, uri, headers).unwrap_err(), rule);
    }

    #[test]
    fn headers_of_the_connection_and_of_the_session_stay_here() {
        let headers = [
            ("host", "a.example"),
            ("connection", "Upgrade, HTTP2-Settings, x-hop"),
            ("connection", "x-other"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABk"),
            ("x-hop", "1"),
            ("x-other", "1"),
            ("x-gantry-session", "s"),
            ("proxy-authorization", "Bearer t"),
            ("accept", "text/html"),
            ("authorization", "kept"),
        ];
        let request = check("GET", "/", &headers).unwrap();
        let mut names: Vec<&str> = request.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "authorization", "host"]);
    }
}
