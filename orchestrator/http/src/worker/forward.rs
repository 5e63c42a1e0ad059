//! The egress proxy: requests of a worker for other hosts, by `CONNECT` or in absolute form, on the socket of its job.
//!
//! Owns the order of the decisions: session, target, limits, policy, connection, protocol. Each decision is an event before
//! anything is carried. Never routes such a request to the worker API, and never opens a session for one.

mod plain;
mod refusal;
mod traffic;

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{
        HeaderMap, Method, Response, StatusCode, Uri,
        uri::{Authority, Scheme},
    },
    middleware::Next,
    response::IntoResponse as _,
};
use dispatch::{Attempt, EgressCounts, EgressKind, IngestError};
use egress::{Destination, EgressDenied, EgressError, Hello, HelloReader, Host, Protocol, is_name_of};
use http_body_util::Empty;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use protocol::{CallId, EgressDecision, EgressPhase};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional_with_sizes},
    net::TcpStream,
    time::{sleep, timeout},
};
use tracing::Instrument as _;

use self::{
    refusal::{Refusal, RefusalKind},
    traffic::{Metered, Traffic},
};
use super::{WorkerApi, caller::check_proxy_caller};
use crate::server::{ConnectionHandle, is_for_proxy};

pub use self::traffic::Tunnels;

/// What is buffered in each direction of a tunnel.
const TUNNEL_BUFFER_BYTES: usize = 32 * 1024;
/// Maximum time until the first bytes of a tunnel have shown what it is for.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until a decision is stored: many connections may wait for the same one.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the sums of an attempt's decisions and bytes.
const SUM_INTERVAL: Duration = Duration::from_secs(10);
/// A fatal TLS alert: access denied.
const TLS_ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
/// Characters of a target in an event that are no host.
const MAX_TARGET_CHARS: usize = 253;

/// What a request is for.
enum Asked {
    Tunnel(OnUpgrade),
    /// One response. The request is checked, as it goes on.
    Request(Box<axum::http::Request<Empty<Bytes>>>),
}

/// The proxy of one attempt.
#[derive(Clone)]
struct Proxy {
    api: WorkerApi,
    attempt: Arc<Attempt>,
}

/// Passes requests for this server on, and answers those for other hosts.
pub async fn intercept(State(api): State<WorkerApi>, request: Request, next: Next) -> Response<Body> {
    if !is_for_proxy(&request) {
        return next.run(request).await;
    }
    let extensions = request.extensions();
    let parts = extensions.get::<Arc<Attempt>>().cloned().zip(extensions.get::<ConnectionHandle>().cloned());
    // Only sockets of attempts are served.
    let Some((attempt, connection)) = parts else { return StatusCode::NOT_FOUND.into_response() };
    if let Err(error) = check_proxy_caller(&api, request.headers(), &attempt).await {
        // It is outside the layers that render errors.
        return error.render(&CallId::generate().0);
    }
    let proxy = Proxy { api, attempt };
    proxy.sum_from_now_on();
    match proxy.answer(request, connection).await {
        Ok(response) => response,
        Err(refusal) => refusal.response(),
    }
}

impl Proxy {
    async fn answer(&self, request: Request, connection: ConnectionHandle) -> Result<Response<Body>, Refusal> {
        // Runs to its end although the client disconnects: what is decided, looked up and dialled has its event.
        let opening = {
            let (proxy, connection) = (self.clone(), connection.clone());
            async move { proxy.open(request, &connection).await }
        };
        let opened = self.api.tasks.spawn(opening.in_current_span()).await;
        let (to, upstream, asked) = opened.map_err(|error| Refusal::unrecorded(&error))??;
        let upgrade = match asked {
            Asked::Request(request) => return plain::forward_one(self, *request, upstream, connection).await,
            Asked::Tunnel(upgrade) => upgrade,
        };
        let proxy = self.clone();
        self.api.tasks.spawn(async move {
            // It has the tunnel's permits.
            let _connection = connection;
            proxy.carry(upgrade, to, upstream).await;
            proxy.store_limit().await;
        });
        Ok(Response::new(Body::empty()))
    }

    /// Decides about a request and connects to its destination.
    async fn open(
        &self,
        mut request: Request,
        connection: &ConnectionHandle,
    ) -> Result<(Destination, Metered<TcpStream>, Asked), Refusal> {
        let to = match target(&request) {
            Ok(to) => to,
            Err(refusal) => return Err(self.refuse_target(request.uri().clone(), refusal).await),
        };
        let asked = if request.method() == Method::CONNECT {
            Ok(Asked::Tunnel(hyper::upgrade::on(&mut request)))
        } else if Protocol::of_port(to.port) == Protocol::Http {
            plain::checked(request, &to).map(|request| Asked::Request(Box::new(request)))
        } else {
            Err(Refusal::new(RefusalKind::Forbidden, "http.port", PLAIN_PORT))
        };
        match asked {
            Ok(asked) => Ok((to.clone(), self.connect(&to, connection).await?, asked)),
            Err(refusal) => Err(self.refuse(&to, refusal).await),
        }
    }

    /// Decides about a destination and connects to it.
    async fn connect(&self, to: &Destination, connection: &ConnectionHandle) -> Result<Metered<TcpStream>, Refusal> {
        if self.attempt.stop_cause().is_some() {
            return Err(self.refuse(to, Refusal::ending()).await);
        }
        let quota = &self.attempt.limits().egress_quota;
        if !quota.is_known() {
            let job = self.attempt.key().job;
            let (up, down) = self.api.store.egress_bytes(job).await.map_err(|error| Refusal::unrecorded(&error))?;
            quota.initialize(up, down);
        }
        if let Some(direction) = quota.reached() {
            self.store_limit().await;
            return Err(self.refuse(to, Refusal::limit(direction)).await);
        }
        let Some(permits) = self.api.tunnels.permits(&self.attempt) else {
            return Err(self.refuse(to, Refusal::no_tunnel()).await);
        };
        // From here on its permits count it: dialling may take a while.
        connection.become_tunnel(permits);
        let allow = self.attempt.record().brief.egress_view().allow;
        let rules = self.api.egress.policy().rules_of_job(&allow);
        let resolved = tokio::select! {
            resolved = self.api.egress.resolve(&rules, to, &self.attempt.limits().look_ups) => resolved,
            () = self.ending() => return Err(self.refuse(to, Refusal::ending()).await),
        };
        if let Err(EgressError::Denied(denied)) = &resolved {
            return Err(self.refuse(to, Refusal::denied(denied)).await);
        }
        let rule = rules.rule_of(to).unwrap_or_default();
        let counts = self.record(to, EgressDecision::Allowed, rule).await?;
        let unreachable = |error: EgressError| Refusal::unreachable(&error);
        let stream = tokio::select! {
            // Of an attempt that is over no event is stored.
            biased;
            () = self.ending() => return Err(Refusal::ending()),
            dialled = self.api.egress.connect(to, resolved.map_err(unreachable)?) => dialled.map_err(unreachable)?,
        };
        let traffic = Arc::new(Traffic::new(Arc::clone(&self.attempt), counts));
        Ok(Metered::new(stream, traffic))
    }

    /// Returns once nothing more is to be opened.
    async fn ending(&self) {
        tokio::select! {
            _ = self.attempt.stopped() => {}
            () = self.api.drain.cancelled() => {}
        }
    }

    /// Carries a tunnel to its end.
    async fn carry(&self, upgrade: OnUpgrade, to: Destination, upstream: Metered<TcpStream>) {
        let traffic = Arc::clone(upstream.traffic());
        let carried = async {
            let Ok(Ok(client)) = timeout(HELLO_TIMEOUT, upgrade).await else { return };
            match Protocol::of_port(to.port) {
                Protocol::Http => plain::serve(self, client, to, upstream).await,
                Protocol::Tls => self.carry_tls(client, to, upstream).await,
            }
        };
        tokio::select! {
            () = carried => {}
            () = traffic.over(&self.api.drain) => {}
        }
    }

    async fn carry_tls(&self, client: Upgraded, to: Destination, mut upstream: Metered<TcpStream>) {
        let mut client = TokioIo::new(client);
        let hello = timeout(HELLO_TIMEOUT, read_hello(&mut client)).await;
        let (name, received) = match hello {
            Ok(Received::Hello(name, received)) => (name, received),
            // Programs race two connections, and leave one.
            Ok(Received::Nothing) => return,
            // Not even a whole message in its time.
            Err(_) => {
                self.refuse(&to, Refusal::new(RefusalKind::Forbidden, "tls.hello", "no TLS")).await;
                return;
            }
            Ok(Received::Other) => {
                self.refuse(&to, Refusal::new(RefusalKind::Forbidden, "tls.hello", "no TLS")).await;
                // Its answer may not arrive; the connection ends in any case.
                let _ = client.write_all(&TLS_ACCESS_DENIED).await;
                return;
            }
        };
        if !is_name_of(name.as_deref(), &to.host) {
            self.refuse(&to, Refusal::new(RefusalKind::Forbidden, "tls.sni", "another name")).await;
            let _ = client.write_all(&TLS_ACCESS_DENIED).await;
            return;
        }
        if upstream.write_all(&received).await.is_err() {
            return;
        }
        // A failed connection concerns its two ends only.
        let _ =
            copy_bidirectional_with_sizes(&mut client, &mut upstream, TUNNEL_BUFFER_BYTES, TUNNEL_BUFFER_BYTES).await;
    }

    /// Records a refusal.
    async fn refuse(&self, to: &Destination, refusal: Refusal) -> Refusal {
        match self.record(to, EgressDecision::Denied, refusal.rule().to_owned()).await {
            Ok(_) => refusal.about(to),
            Err(unrecorded) => unrecorded,
        }
    }

    /// Records the refusal of a target that names no host.
    async fn refuse_target(&self, uri: Uri, refusal: Refusal) -> Refusal {
        let target = uri.authority().map_or_else(|| uri.to_string(), ToString::to_string);
        let host = target.chars().take(MAX_TARGET_CHARS).collect();
        match self.record_kind(host, 0, EgressDecision::Denied, refusal.rule().to_owned()).await {
            Ok(_) => refusal,
            Err(unrecorded) => unrecorded,
        }
    }

    async fn record(
        &self,
        to: &Destination,
        decision: EgressDecision,
        rule: String,
    ) -> Result<Arc<EgressCounts>, Refusal> {
        self.record_kind(to.host.to_string(), to.port, decision, rule).await
    }

    /// Counts a decision; what cannot be recorded is not carried.
    async fn record_kind(
        &self,
        host: String,
        port: u16,
        decision: EgressDecision,
        rule: String,
    ) -> Result<Arc<EgressCounts>, Refusal> {
        let kind = EgressKind { phase: EgressPhase::Agent, host, port, decision, rule };
        let recording = self.api.ingestion.record_egress(&self.attempt, self.api.clock.now(), kind);
        match timeout(RECORD_TIMEOUT, recording).await {
            Ok(Ok(counts)) => Ok(counts),
            Ok(Err(IngestError::QuotaReached)) => Err(Refusal::no_event_left()),
            Ok(Err(error)) => Err(Refusal::unrecorded(&error)),
            Err(elapsed) => Err(Refusal::unrecorded(&elapsed)),
        }
    }

    /// Stores the sums of the attempt's decisions every 10 s until it is over. At its end they are stored with the report.
    fn sum_from_now_on(&self) {
        if !self.attempt.egress.begin_sums() {
            return;
        }
        let proxy = self.clone();
        self.api.tasks.spawn(async move {
            let mut is_over = false;
            while !is_over {
                is_over = tokio::select! {
                    () = sleep(SUM_INTERVAL) => !proxy.attempt.is_live(),
                    // Its connections end, and nothing is stored once its job has.
                    _ = proxy.attempt.stopped() => true,
                    () = proxy.api.drain.cancelled() => true,
                };
                proxy.store_sums(is_over).await;
            }
        });
    }

    async fn store_sums(&self, is_last: bool) {
        self.report(self.api.ingestion.record_egress_sums(&self.attempt, self.api.clock.now(), is_last).await);
    }

    /// Stores that a limit of bytes is reached, once.
    async fn store_limit(&self) {
        self.report(self.api.ingestion.record_egress_limit(&self.attempt, self.api.clock.now()).await);
    }

    fn report(&self, stored: Result<(), IngestError>) {
        if let Err(error) = stored {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(job.id = %self.attempt.key().job, error, "what a job's connections carried is not recorded");
        }
    }
}

const PLAIN_PORT: &str = "plain HTTP is allowed on port 80 only; use https";

/// The beginning of a tunnel.
enum Received {
    /// The name in a `ClientHello`, and all bytes that came.
    Hello(Option<String>, Vec<u8>),
    /// The client has closed it without a byte.
    Nothing,
    Other,
}

async fn read_hello(client: &mut TokioIo<Upgraded>) -> Received {
    let mut reader = HelloReader::default();
    let mut buffer = [0; 4096];
    let mut has_begun = false;
    loop {
        let count = client.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            return if has_begun { Received::Other } else { Received::Nothing };
        }
        has_begun = true;
        match reader.read(&buffer[..count]) {
            Hello::Incomplete => {}
            Hello::Complete(name) => return Received::Hello(name, reader.into_received()),
            Hello::Invalid => return Received::Other,
        }
    }
}

/// The destination that a request names.
fn target(request: &Request) -> Result<Destination, Refusal> {
    if request.method() == Method::CONNECT {
        return authority(request.uri(), None);
    }
    if request.uri().scheme() != Some(&Scheme::HTTP) {
        return Err(Refusal::new(RefusalKind::Invalid, "scheme", "only http:// is accepted; use CONNECT for TLS"));
    }
    authority(request.uri(), Some(80))
}

fn authority(uri: &Uri, default_port: Option<u16>) -> Result<Destination, Refusal> {
    let invalid = |detail: String| Refusal::new(RefusalKind::Invalid, "host", &detail);
    let text = uri.authority().map(Authority::as_str).unwrap_or_default();
    parse_destination(text, default_port).map_err(invalid)
}

/// Parses `host:port`. Without a default the port must be there.
fn parse_destination(text: &str, default_port: Option<u16>) -> Result<Destination, String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let parsed = port.parse().ok().filter(|parsed: &u16| *parsed > 0 && parsed.to_string() == port);
            (host, parsed)
        }
        _ => (text, default_port),
    };
    let host = Host::parse(host).map_err(|error| format!("the host {error}"))?;
    let port = port.ok_or("the port must be a number from 1 to 65535")?;
    Ok(Destination { host, port })
}

/// The one value of a header; `None` if it is missing, occurs twice or is no text.
fn single<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

impl Refusal {
    fn denied(denied: &EgressDenied) -> Self {
        Self::new(RefusalKind::Forbidden, denied.rule(), &denied.to_string())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("a.example:443", None, Some("a.example:443"))]
    #[case("A.example:8443", None, Some("a.example:8443"))]
    #[case("[2001:db8::1]:443", None, Some("[2001:db8::1]:443"))]
    #[case("a.example", Some(80), Some("a.example:80"))]
    #[case("[2001:db8::1]", Some(80), Some("[2001:db8::1]:80"))]
    #[case("a.example", None, None)]
    #[case("a.example:", Some(80), None)]
    #[case("a.example:0", None, None)]
    #[case("a.example:+443", None, None)]
    #[case("a.example:0443", None, None)]
    #[case("a.example:65536", None, None)]
    #[case("user@a.example:443", None, None)]
    #[case("a.example.:443", None, None)]
    #[case("2130706433:443", None, None)]
    #[case("0x7f.1:443", None, None)]
    #[case("0177.0.0.1:443", None, None)]
    #[case("[::ffff:127.0.0.1%25lo]:443", None, None)]
    #[case("a.example:443:443", None, None)]
    #[case("", None, None)]
    fn targets_have_one_form(#[case] text: &str, #[case] port: Option<u16>, #[case] expected: Option<&str>) {
        let parsed = parse_destination(text, port).ok().map(|to| to.to_string());
        assert_eq!(parsed.as_deref(), expected);
    }
}
