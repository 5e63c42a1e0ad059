//! Layers around every endpoint: request ids, host check, body limits, panics, error responses, the request's log line, headers.
//!
//! Owns what is the same for all endpoints. Never authenticates: a handler sets the caller in `RequestContext`.

use std::{
    any::Any,
    convert::Infallible,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::HttpBody as _,
    extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts, MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use base::rate_limit::{Bucket, Rate};
use parking_lot::Mutex;
use protocol::ErrorCode;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::{Instrument, debug, field::display, info, info_span, warn};

use super::{
    problem::{ApiError, ErrorExtension},
    server::Peer,
};
use auth::Identity;
use telemetry::{
    metrics::{self, Metrics},
    traces,
};

const MAX_REQUEST_ID_BYTES: usize = 128;
/// Characters of an id that an answer repeats.
const MAX_SHOWN_ID_CHARS: usize = 64;
/// Health checks would be most of the log.
const HEALTH_ROUTES: [&str; 2] = ["/healthz", "/readyz"];
/// Log lines about server errors caused by requests of containers: a burst of ten, then one per second.
const UNTRUSTED_ERROR_LINES: Rate = Rate { burst: 10, per_hour: 3_600 };
/// The listener side of worker sockets.
pub const WORKER_SIDE: &str = "worker";
static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The layers of one listener.
#[derive(Debug, Clone)]
pub struct ServerLayers {
    /// As in the configuration: `host` for any port, or `host:port`, in lower case. `None` disables the check (worker sockets).
    pub allowed_hosts: Option<Vec<String>>,
    /// Maximum size of a body, unless a route sets its own `DefaultBodyLimit`.
    pub body_limit_bytes: usize,
    /// Name of the listener in the metrics.
    pub side: &'static str,
    /// Counts requests.
    pub metrics: Metrics,
}

/// Facts about the request, for handlers and the log.
#[derive(Debug, Clone)]
pub struct RequestContext {
    id: Arc<str>,
    from: Option<Peer>,
    caller: Arc<OnceLock<Identity>>,
}

impl RequestContext {
    fn new(id: &str, from: Option<Peer>) -> Self {
        Self { id: id.into(), from, caller: Arc::default() }
    }

    /// The request id in `X-Request-Id`, in problems and in the log.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Sets the caller, for the log and the audit.
    pub fn identify(&self, caller: &Identity) {
        // The identity does not change within a request.
        let _ = self.caller.set(caller.clone());
    }

    /// The caller, if known.
    pub fn caller(&self) -> Option<&Identity> {
        self.caller.get()
    }

    /// The address of the client; none on a worker socket.
    pub fn from(&self) -> Option<Peer> {
        self.from
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_else(|| Self::new("none", None)))
    }
}

impl ServerLayers {
    /// Whether requests can come from commands in a container.
    fn is_untrusted(&self) -> bool {
        self.side == WORKER_SIDE
    }

    /// Applies the layers to all of `router`, including unknown paths.
    pub fn apply(self, router: Router) -> Router {
        router
            .layer(DefaultBodyLimit::max(self.body_limit_bytes))
            .layer(CatchPanicLayer::custom(panicked))
            .layer(middleware::from_fn_with_state(Arc::new(LayerState::new(self)), handle))
    }
}

/// The state that requests share.
struct LayerState {
    layers: ServerLayers,
    /// Limits log lines about server errors of an untrusted side.
    error_lines: Mutex<Bucket>,
    since: Instant,
}

impl LayerState {
    fn new(layers: ServerLayers) -> Self {
        let error_lines = Mutex::new(Bucket::full(UNTRUSTED_ERROR_LINES, Duration::ZERO));
        Self { layers, error_lines, since: Instant::now() }
    }

    /// Whether a server error may be logged.
    fn may_warn(&self) -> bool {
        let mut lines = self.error_lines.lock();
        !self.layers.is_untrusted() || lines.take(UNTRUSTED_ERROR_LINES, 1, self.since.elapsed()).is_ok()
    }
}

async fn handle(State(state): State<Arc<LayerState>>, mut request: Request, next: Next) -> Response {
    let layers = &state.layers;
    let started = Instant::now();
    let from = request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| *peer);
    let context = RequestContext::new(&request_id(request.headers()), from);
    request.extensions_mut().insert(context.clone());
    let method = request.method().clone();
    // The route pattern, so that no id and no query (which may contain a token) gets into the log.
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched".into(), |path| path.as_str().to_owned());
    // A span's name cannot be set later.
    let name = traces::is_enabled().then(|| format!("{} {route}", metrics::known_method(method.as_str())));
    let span =
        info_span!("request", otel.kind = name.as_ref().map(|_| "server"), otel.name = name, request.id = context.id());
    traces::set_parent(&span, header_text(request.headers(), traces::TRACEPARENT));
    let uri = request.uri().clone();
    let response = match check_host(layers, request.headers(), request.uri()) {
        Ok(()) => next.run(request).instrument(span.clone()).await,
        Err(error) => error.into_response(),
    };
    let _entered = span.clone().entered();
    let mut response = render_error(response, &state, &context, || object_of(&route, uri.path()));
    if let Ok(id) = HeaderValue::from_str(context.id()) {
        response.headers_mut().insert(&REQUEST_ID, id);
    }
    set_security_headers(response.headers_mut());
    let took = started.elapsed();
    let status = response.status().as_u16();
    layers.metrics.http_request(metrics::HttpRequest {
        side: layers.side,
        method: method.as_str(),
        route: &route,
        status,
        duration: took,
    });
    traces::record_response(&span, metrics::known_method(method.as_str()), &route, status);
    let answered = Answered { route: &route, status, took, bytes: response.body().size_hint().exact() };
    log_request(layers, &method, &answered, &context);
    response
}

/// The response, for the log.
struct Answered<'a> {
    route: &'a str,
    status: u16,
    took: Duration,
    /// Unknown for a stream.
    bytes: Option<u64>,
}

/// The one line per request.
fn log_request(layers: &ServerLayers, method: &Method, answered: &Answered<'_>, context: &RequestContext) {
    let Answered { route, status, took, bytes } = *answered;
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let user = context.caller().map_or("-", |caller| caller.user.as_str());
    let from = context.from().map(|Peer(address)| display(address.ip()));
    let (request_id, side) = (context.id(), layers.side);
    // Requests of a container must not fill the log.
    if layers.is_untrusted() || HEALTH_ROUTES.contains(&route) {
        debug!(target: "gantry::request", method = %method, route, status, duration_ms, bytes, user, from, request_id, side, "request");
    } else {
        info!(target: "gantry::request", method = %method, route, status, duration_ms, bytes, user, from, request_id, side, "request");
    }
}

/// Renders the error of a handler, or of a layer or the router that answered with a status only. The one place where an error is
/// logged.
fn render_error(
    mut response: Response,
    state: &LayerState,
    context: &RequestContext,
    object: impl FnOnce() -> Option<String>,
) -> Response {
    let error = response.extensions_mut().remove::<ErrorExtension>();
    let error = match error {
        Some(ErrorExtension(error)) => error,
        None if has_own_body(&response) => return response,
        None => match ApiError::for_status(response.status()) {
            Some(error) => Arc::new(error),
            None => return response,
        },
    };
    if error.code() == ErrorCode::Fenced {
        state.layers.metrics.request_fenced();
    }
    let causes = error.causes();
    if error.status().is_server_error() && state.may_warn() {
        let causes = causes.as_deref().unwrap_or("-");
        warn!(code = error.code().as_str(), detail = error.detail(), causes, "request failed");
    } else {
        let causes = causes.as_deref().unwrap_or("-");
        debug!(code = error.code().as_str(), detail = error.detail(), causes, "request refused");
    }
    let mut problem = error.render_about(context.id(), object);
    // Headers that the router or a layer has set (`Allow`) are kept.
    for (name, value) in response.headers() {
        if *name != header::CONTENT_TYPE && *name != header::CONTENT_LENGTH && !problem.headers().contains_key(name) {
            problem.headers_mut().append(name, value.clone());
        }
    }
    problem
}

/// What a path names, with its id as it was asked for: `job 7` of `/api/jobs/7/events`. `None` where the route has no id, or
/// several.
fn object_of(route: &str, path: &str) -> Option<String> {
    let mut parameters = route.split('/').enumerate().filter(|(_, segment)| segment.starts_with('{'));
    let (at, _) = parameters.next().filter(|_| parameters.next().is_none())?;
    let kind = route.split('/').nth(at.checked_sub(1)?)?.strip_suffix('s')?;
    let id: String = path.split('/').nth(at)?.chars().take(MAX_SHOWN_ID_CHARS).collect();
    Some(format!("{kind} {id}"))
}

fn has_own_body(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    kind.contains("json") || kind.starts_with("text/html")
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn request_id(headers: &HeaderMap) -> String {
    let given = header_text(headers, REQUEST_ID.as_str());
    let sane = |id: &&str| (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    // A call id has the same form as a request id.
    given.filter(sane).map_or_else(|| protocol::CallId::generate().0, str::to_owned)
}

fn check_host(layers: &ServerLayers, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    let Some(allowed) = &layers.allowed_hosts else { return Ok(()) };
    let refused = || {
        ApiError::new(
            ErrorCode::MisdirectedRequest,
            "Host not allowed; the operator can add it to GANTRY_ALLOWED_HOSTS",
        )
    };
    let mut named = headers.get_all(header::HOST).iter();
    let host = match (uri.authority(), named.next(), named.next()) {
        (Some(authority), _, None) => authority.as_str(),
        (None, Some(host), None) => host.to_str().map_err(|_| refused())?,
        (_, None, _) | (_, _, Some(_)) => return Err(refused()),
    };
    if is_allowed(allowed, host) { Ok(()) } else { Err(refused()) }
}

fn is_allowed(allowed: &[String], host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let (name, port) = match host.rsplit_once(':') {
        // The colons of an IPv6 address are inside its brackets.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host.as_str(), None),
    };
    // A name with a final dot is the same name.
    let name = name.strip_suffix('.').unwrap_or(name);
    let host = port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
    is_port && allowed.iter().any(|entry| entry == name || *entry == host)
}

fn set_security_headers(headers: &mut HeaderMap) {
    let always = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in always {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Unless the handler has set its own (a page, a stream, an asset).
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let nothing = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(nothing);
}

#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(cause: Box<dyn Any + Send>) -> Response {
    let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| cause.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
    ApiError::internal(format!("a handler panicked: {text}")).into_response()
}

#[cfg(test)]
mod tests;
