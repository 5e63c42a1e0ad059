//! The state of one connection: its phase, its deadline, and whether it belongs to a session.
//!
//! Owns the deadlines. Never counts connections or requests; that is `admission`'s.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    admission::{Answering, Slot},
    policy::Policy,
};

/// How long the end of a response of another host may make no progress: as long as a tunnel may be idle.
const TUNNEL_FLUSH_TIMEOUT: Duration = Duration::from_mins(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The head of a request is due, or has begun to arrive.
    Head(Instant),
    /// A request is being answered.
    Answering,
    /// The connection is between two requests.
    Idle(Instant),
}

/// One connection's state.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) accepted_at: Instant,
    phase: Mutex<Phase>,
    has_session: AtomicBool,
    has_sent_request: AtomicBool,
    /// It carries a connection to another host, and is counted there.
    is_tunnel: AtomicBool,
    evicted: Notify,
    head_timeout: Duration,
    idle_timeout: Option<Duration>,
    /// When a connection without a session is closed.
    authenticate_by: Option<Instant>,
}

impl Connection {
    pub(super) fn new(id: u64, policy: &Policy) -> Self {
        let accepted_at = Instant::now();
        Self {
            id,
            accepted_at,
            phase: Mutex::new(Phase::Head(accepted_at)),
            has_session: AtomicBool::new(false),
            has_sent_request: AtomicBool::new(false),
            is_tunnel: AtomicBool::new(false),
            evicted: Notify::new(),
            head_timeout: policy.head_timeout,
            idle_timeout: policy.idle_timeout,
            authenticate_by: policy.session.as_ref().map(|session| accepted_at + session.authenticate_within),
        }
    }

    /// Bytes arrived.
    pub(super) fn received(&self) {
        let mut phase = self.phase.lock();
        if matches!(*phase, Phase::Idle(_)) {
            *phase = Phase::Head(Instant::now());
        }
    }

    /// The peer is reading the rest of a response.
    pub(super) fn progressed(&self, now: Instant) {
        let mut phase = self.phase.lock();
        if matches!(*phase, Phase::Idle(_)) {
            *phase = Phase::Idle(now);
        }
    }

    /// A request's head has arrived.
    pub(super) fn request_started(&self) {
        *self.phase.lock() = Phase::Answering;
    }

    /// The response has been passed on to hyper.
    pub(super) fn request_answered(&self, now: Instant) {
        *self.phase.lock() = Phase::Idle(now);
    }

    pub(super) fn is_answering(&self) -> bool {
        *self.phase.lock() == Phase::Answering
    }

    /// True the first time.
    pub(super) fn is_first_request(&self) -> bool {
        !self.has_sent_request.swap(true, Ordering::Relaxed)
    }

    pub(super) fn has_session(&self) -> bool {
        self.has_session.load(Ordering::Acquire)
    }

    /// True the first time.
    pub(super) fn assign_session(&self) -> bool {
        !self.has_session.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.is_tunnel.load(Ordering::Acquire)
    }

    /// True the first time.
    pub(super) fn become_tunnel(&self) -> bool {
        !self.is_tunnel.swap(true, Ordering::AcqRel)
    }

    /// Whether it stays open after a request that was refused.
    pub(super) fn stays_open_after_refusal(&self) -> bool {
        self.authenticate_by.is_none() || self.has_session()
    }

    /// Whether it can be closed without losing a request or a response. The owner of a tunnel decides for itself.
    pub(super) fn may_be_evicted(&self) -> bool {
        self.is_tunnel() || (!self.has_session() && !self.is_answering())
    }

    /// Closes it.
    pub(super) fn evict(&self) {
        self.evicted.notify_one();
    }

    /// Returns when it is to be closed in favour of another connection.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Its deadline; none while a request is being answered.
    fn deadline(&self) -> Option<Instant> {
        let by_phase = match *self.phase.lock() {
            Phase::Answering => return None,
            // The last bytes of a response may still be on their way.
            Phase::Idle(since) if self.is_tunnel() => return Some(since + TUNNEL_FLUSH_TIMEOUT),
            Phase::Head(since) => Some(since + self.head_timeout),
            Phase::Idle(since) => self.idle_timeout.map(|timeout| since + timeout),
        };
        let by_session = self.authenticate_by.filter(|_| !self.has_session());
        by_phase.into_iter().chain(by_session).min()
    }
}

/// Resolves at a connection's deadline. To be polled after the connection itself, in the same task, because polling the
/// connection changes its phase.
pub(super) struct Deadline<'a> {
    connection: &'a Connection,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<'a> Deadline<'a> {
    pub(super) fn of(connection: &'a Connection) -> Self {
        Self { connection, timer: None }
    }
}

impl Future for Deadline<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(deadline) = self.connection.deadline() else { return Poll::Pending };
            // A deadline that moved is checked when the timer fires, so that a request need not reset the timer.
            match &mut self.timer {
                Some((at, timer)) if *at > deadline => {
                    timer.as_mut().reset(deadline);
                    *at = deadline;
                }
                Some(_) => {}
                none => *none = Some((deadline, Box::pin(sleep_until(deadline)))),
            }
            let Some((at, timer)) = &mut self.timer else { return Poll::Pending };
            ready!(timer.as_mut().poll(cx));
            if *at >= deadline {
                return Poll::Ready(());
            }
            *at = deadline;
            timer.as_mut().reset(deadline);
        }
    }
}

/// A connection as handlers see it.
#[derive(Debug, Clone)]
pub struct ConnectionHandle(Arc<Slot>);

impl ConnectionHandle {
    pub(super) fn new(slot: &Arc<Slot>) -> Self {
        Self(Arc::clone(slot))
    }

    /// A request of the worker's session, with this SHA-256 of its secret, came through it: from now on it has the session's
    /// limits. None where the attempt needs no session. True the first time.
    pub fn authenticated(&self, session_digest: Option<&str>) -> bool {
        self.0.assign_session(session_digest)
    }

    /// From now on it carries a connection to another host, and no longer counts as a connection of its listener. It keeps
    /// these permits until it has ended and this handle is dropped.
    pub fn become_tunnel(&self, permits: impl IntoIterator<Item = OwnedSemaphorePermit>) {
        self.0.become_tunnel(permits);
    }

    /// Closes a tunnel, whatever is on its way.
    pub fn close(&self) {
        self.0.connection().evict();
    }
}

/// An answer's body; the request is in flight until it ends.
pub(super) struct TrackedBody {
    body: Body,
    _answering: Option<Answering>,
}

impl TrackedBody {
    pub(super) fn new(body: Body, answering: Option<Answering>) -> Self {
        Self { body, _answering: answering }
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
