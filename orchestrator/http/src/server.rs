//! The accept loop of every HTTP listener, TCP and Unix, with the limits of [`Policy`]. HTTP/1.1 only.
//!
//! Owns connections: how many there are, how long each may take, and what happens beyond a limit. Never knows what a path
//! means, and never parses a body.

mod admission;
mod bodies;
mod connection;
mod descriptors;
mod listener;
mod policy;
mod stream;

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    http::{HeaderValue, Method, header},
    response::Response,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use protocol::ErrorCode;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use self::{
    admission::{Admission, Busy, Recipient, Slot},
    bodies::BodyLimits,
    connection::{Deadline, TrackedBody},
    listener::{AcceptErrors, Accepted},
    stream::ConnectionStream,
};
pub use self::{
    bodies::{BodyBudget, BodyReservation},
    connection::ConnectionHandle,
    descriptors::{Descriptors, TooFewDescriptors, raise_descriptor_limit},
    listener::Listener,
    policy::{Overflow, Policy, SessionPolicy},
};
use super::problem::ApiError;
use telemetry::metrics::Metrics;

/// The head of a request, and what hyper buffers of an answer, for each connection. Browsers and proxies stay under 16 KiB.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Retry interval for a permit of the connections of all worker sockets.
const SHARE_RETRY: Duration = Duration::from_millis(50);

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// One listener's server.
#[derive(Debug)]
pub struct Server {
    pub policy: Policy,
    /// Body bytes of this listener alone; none where only the total counts.
    pub own_bodies: Option<BodyBudget>,
    /// Body bytes of all listeners of this kind.
    pub bodies: BodyBudget,
    /// Connections of all listeners of this kind; none where only the policy counts.
    pub connections: Option<Arc<Semaphore>>,
    /// Counts refusals.
    pub metrics: Metrics,
}

/// Shared by all connections of one listener.
struct Context {
    router: Router,
    admission: Arc<Admission>,
    bodies: Arc<BodyLimits>,
    metrics: Metrics,
}

impl Server {
    /// Serves until `stop` fires and all requests that had arrived by then are answered. Dropping the future closes all
    /// connections.
    pub async fn serve(self, listener: impl Into<Listener>, router: Router, stop: CancellationToken) {
        let listener = listener.into();
        let shares = self.connections;
        let context = Arc::new(Context {
            router,
            admission: Arc::new(Admission::new(self.policy)),
            bodies: Arc::new(BodyLimits { own: self.own_bodies, all: self.bodies }),
            metrics: self.metrics,
        });
        let mut connections = JoinSet::new();
        let mut errors = AcceptErrors::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                () = stop.cancelled() => break,
            };
            let accepted = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    errors.pause(&error).await;
                    continue;
                }
            };
            let slot = tokio::select! {
                slot = context.admission.admit() => slot,
                () = stop.cancelled() => break,
            };
            // Beyond the limit the connection is closed by being dropped.
            let Some(slot) = slot else {
                context.metrics.connection_refused();
                continue;
            };
            let share = tokio::select! {
                share = share_of(shares.as_ref()) => share,
                () = stop.cancelled() => break,
            };
            let (context, stop) = (Arc::clone(&context), stop.clone());
            slot.hold(share);
            connections.spawn(async move {
                match accepted {
                    Accepted::Tcp(stream, address) => context.serve(stream, Some(Peer(address)), slot, stop).await,
                    Accepted::Unix(stream) => context.serve(stream, None, slot, stop).await,
                }
            });
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }
}

/// Waits for one of the connections that all listeners of a kind share.
async fn share_of(shares: Option<&Arc<Semaphore>>) -> Option<tokio::sync::OwnedSemaphorePermit> {
    let shares = shares?;
    loop {
        if let Ok(share) = Arc::clone(shares).try_acquire_owned() {
            return Some(share);
        }
        sleep(SHARE_RETRY).await;
    }
}

/// Whether a request asks for another host: `CONNECT`, or the absolute form.
pub fn is_for_proxy<B>(request: &Request<B>) -> bool {
    request.method() == Method::CONNECT || request.uri().scheme().is_some()
}

impl Context {
    /// Drives one connection to its end.
    async fn serve<S>(self: Arc<Self>, stream: S, peer: Option<Peer>, slot: Slot, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Arc::clone(slot.connection());
        let stream = ConnectionStream::new(stream, Arc::clone(&connection), self.metrics.clone());
        let slot = Arc::new(slot);
        let context = Arc::clone(&self);
        let service = service_fn(move |request| {
            let (context, slot) = (Arc::clone(&context), Arc::clone(&slot));
            async move { Ok::<_, Infallible>(context.answer(request, peer, slot).await) }
        });
        let mut http = http1::Builder::new();
        // Deadlines are `Deadline`'s: hyper's own would close idle connections of a session, too.
        http.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_HEAD_BYTES);
        let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
        let mut deadline = pin!(Deadline::of(&connection));
        let mut is_draining = false;
        loop {
            tokio::select! {
                // The connection changes its phase while it is polled; its deadline is checked after that.
                biased;
                // A failed connection concerns its peer only.
                _ = &mut serving => return,
                () = deadline.as_mut() => return,
                () = connection.evicted() => {
                    // Its request may have arrived meanwhile.
                    if connection.may_be_evicted() {
                        return;
                    }
                }
                () = stop.cancelled(), if !is_draining => {
                    is_draining = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }

    /// The one entry point for requests of all listeners.
    async fn answer(&self, request: Request<Incoming>, peer: Option<Peer>, slot: Arc<Slot>) -> Response<TrackedBody> {
        let recipient = if is_for_proxy(&request) { Recipient::Proxy } else { Recipient::Router };
        let answering = match self.admission.enter(&slot, request.headers(), recipient) {
            Ok(answering) => answering,
            Err(busy) => return self.refuse(&busy, &slot),
        };
        let mut request = request.map(Body::new);
        // Held until the answer: the body stays in memory while its handler runs.
        let body = Arc::new(BodyReservation::new(Arc::clone(&self.bodies)));
        let extensions = request.extensions_mut();
        extensions.insert(Arc::clone(&body));
        extensions.insert(ConnectionHandle::new(&slot));
        if let Some(peer) = peer {
            extensions.insert(ConnectInfo(peer));
        }
        let mut response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if response.status().is_client_error() && !slot.connection().stays_open_after_refusal() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|body| TrackedBody::new(body, Some(answering)))
    }

    fn refuse(&self, busy: &Busy, slot: &Slot) -> Response<TrackedBody> {
        self.metrics.request_limited();
        slot.connection().request_answered(Instant::now());
        let error =
            ApiError::new(ErrorCode::RateLimited, "too many requests at once").with_retry_after(busy.retry_after);
        let mut response = error.render(&protocol::CallId::generate().0);
        if busy.close {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|body| TrackedBody::new(body, None))
    }
}

#[cfg(test)]
mod tests;
