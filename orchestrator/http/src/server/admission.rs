//! Admission of connections and requests of one listener. On a worker's socket those of the session are counted separately, so
//! that others can never use up the session's reserve.
//!
//! Owns the counts. Never closes a connection itself; it requests that the connection ends.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::http::{HeaderMap, header};
use base::rate_limit::Bucket;
use parking_lot::Mutex;
use protocol::SESSION_HEADER;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::{Instant, sleep},
};

use super::{
    connection::Connection,
    policy::{Overflow, Policy, SessionPolicy},
};
use base::digest::sha256_hex;

/// Maximum wait of a request beyond the limit of requests in flight.
const BUSY_RETRY: Duration = Duration::from_secs(1);
/// Maximum interval between two checks of a full listener.
const CAPACITY_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// One listener's counts.
#[derive(Debug)]
pub(super) struct Admission {
    policy: Policy,
    state: Mutex<State>,
    /// A connection ended, or became the session's.
    freed: Notify,
    started_at: Instant,
}

#[derive(Debug)]
struct State {
    next_id: u64,
    connections: usize,
    /// Connections without a session, the oldest first, and whether a request of theirs is in flight.
    others: BTreeMap<u64, Other>,
    requests: usize,
    other_requests: usize,
    rates: Option<Rates>,
    /// SHA-256 of the secret of the session on this socket.
    session_digest: Option<String>,
}

#[derive(Debug)]
struct Other {
    connection: Arc<Connection>,
    is_counted: bool,
}

#[derive(Debug)]
struct Rates {
    session: Bucket,
    others: Bucket,
    accepts: Bucket,
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Busy {
    pub(super) retry_after: Duration,
    /// The connection is closed, too.
    pub(super) close: bool,
}

/// The permit of a connection, released when it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    admission: Arc<Admission>,
    connection: Arc<Connection>,
    /// Its permit of the connections of all listeners of the kind, or its permits as a tunnel.
    permits: Mutex<Vec<OwnedSemaphorePermit>>,
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct Answering {
    slot: Arc<Slot>,
    is_counted: bool,
}

/// Whom a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recipient {
    /// This server.
    Router,
    /// Another host, by `CONNECT` or the absolute form: the egress proxy counts those of the session itself.
    Proxy,
}

enum Capacity {
    Available,
    /// Check again then, or when a connection ends.
    RetryAfter(Duration),
}

impl Admission {
    pub(super) fn new(policy: Policy) -> Self {
        let rates = policy.session.as_ref().map(|session| Rates {
            session: Bucket::full(session.session_rate, Duration::ZERO),
            others: Bucket::full(session.other_rate, Duration::ZERO),
            accepts: Bucket::full(session.accept_rate, Duration::ZERO),
        });
        let state = State {
            next_id: 0,
            connections: 0,
            others: BTreeMap::new(),
            requests: 0,
            other_requests: 0,
            rates,
            session_digest: None,
        };
        Self { policy, state: Mutex::new(state), freed: Notify::new(), started_at: Instant::now() }
    }

    /// Admits an accepted connection. `None` when it is to be closed.
    pub(super) async fn admit(self: &Arc<Self>) -> Option<Slot> {
        loop {
            let freed = self.freed.notified();
            let wait = {
                let mut state = self.state.lock();
                match self.capacity(&mut state) {
                    Capacity::Available => return Some(self.register(&mut state)),
                    Capacity::RetryAfter(_) if self.policy.overflow == Overflow::Close => return None,
                    Capacity::RetryAfter(wait) => wait,
                }
            };
            tokio::select! {
                () = freed => {}
                () = sleep(wait) => {}
            }
        }
    }

    /// Whether another connection can be admitted. On a worker's socket the oldest connection without a session is closed after a
    /// moment: a flood of such connections delays the worker's new one, and cannot keep it out.
    fn capacity(&self, state: &mut State) -> Capacity {
        let Some(session) = &self.policy.session else {
            return if state.connections < self.policy.max_connections {
                Capacity::Available
            } else {
                Capacity::RetryAfter(CAPACITY_RETRY_INTERVAL)
            };
        };
        let is_full = state.connections >= self.policy.max_connections
            || state.others.len() >= self.policy.max_connections - session.reserved_connections;
        if is_full {
            return Capacity::RetryAfter(evict_oldest(state, session));
        }
        let now = self.started_at.elapsed();
        let Some(rates) = &mut state.rates else { return Capacity::Available };
        match rates.accepts.take(session.accept_rate, 1, now) {
            Ok(()) => Capacity::Available,
            Err(wait) => Capacity::RetryAfter(wait),
        }
    }

    fn register(self: &Arc<Self>, state: &mut State) -> Slot {
        state.next_id += 1;
        state.connections += 1;
        let connection = Arc::new(Connection::new(state.next_id, &self.policy));
        if self.policy.session.is_some() {
            let other = Other { connection: Arc::clone(&connection), is_counted: false };
            state.others.insert(connection.id, other);
        }
        Slot { admission: Arc::clone(self), connection, permits: Mutex::default() }
    }

    /// Admits a request. A connection's first request is not held against the limits of those without a session when it may
    /// be the worker's: it brings a token and, once there is a session on this socket, that session's secret. One of the
    /// session that is for another host uses nothing of what is kept for the session, and is not counted here.
    pub(super) fn enter(&self, slot: &Arc<Slot>, headers: &HeaderMap, recipient: Recipient) -> Result<Answering, Busy> {
        let connection = &slot.connection;
        connection.request_started();
        let answering = |is_counted| Answering { slot: Arc::clone(slot), is_counted };
        let Some(session) = &self.policy.session else { return Ok(answering(false)) };
        let now = self.started_at.elapsed();
        let is_first = connection.is_first_request();
        let has_session = connection.has_session();
        let claim = (is_first && !has_session).then(|| Claim::of(headers));
        let proxied = (recipient == Recipient::Proxy).then(|| Claim::of(headers));
        let state = &mut *self.state.lock();
        if proxied.is_some_and(|claim| claim.is_session(state.session_digest.as_deref())) {
            return Ok(answering(false));
        }
        let may_be_session = has_session || claim.is_some_and(|claim| claim.may_be(state.session_digest.as_deref()));
        let is_other = !may_be_session;
        if let Some(rates) = &mut state.rates {
            if has_session {
                let taken = rates.session.take(session.session_rate, 1, now);
                taken.map_err(|retry_after| Busy { retry_after, close: false })?;
            } else if is_other {
                let taken = rates.others.take(session.other_rate, 1, now);
                taken.map_err(|retry_after| Busy { retry_after, close: true })?;
            }
        }
        let others_full = state.other_requests >= session.max_requests - session.reserved_requests;
        if state.requests >= session.max_requests || (is_other && others_full) {
            return Err(Busy { retry_after: BUSY_RETRY, close: !has_session });
        }
        state.requests += 1;
        if let Some(other) = state.others.get_mut(&connection.id) {
            other.is_counted = true;
            state.other_requests += 1;
        }
        Ok(answering(true))
    }
}

/// The credentials that a request presents.
struct Claim {
    has_token: bool,
    session_digest: Option<String>,
}

impl Claim {
    fn of(headers: &HeaderMap) -> Self {
        let session_digest = headers.get(SESSION_HEADER).map(|secret| sha256_hex(secret.as_bytes()));
        Self { has_token: headers.contains_key(header::AUTHORIZATION), session_digest }
    }

    /// Whether it is the session's.
    fn is_session(&self, session_digest: Option<&str>) -> bool {
        session_digest.is_some() && self.session_digest.as_deref() == session_digest
    }

    /// Whether it may be the session's, as far as that is known.
    fn may_be(&self, session_digest: Option<&str>) -> bool {
        self.has_token && (session_digest.is_none() || self.session_digest.as_deref() == session_digest)
    }
}

/// Requests the end of the oldest connection without a session, if its grace period is over and it has no request in flight.
/// Returns how long to wait before the next check.
fn evict_oldest(state: &State, session: &SessionPolicy) -> Duration {
    let idle = state.others.values().map(|other| &other.connection).find(|connection| !connection.is_answering());
    let Some(oldest) = idle else { return CAPACITY_RETRY_INTERVAL };
    let left = session.evict_after.saturating_sub(oldest.accepted_at.elapsed());
    if left.is_zero() {
        oldest.evict();
        return CAPACITY_RETRY_INTERVAL;
    }
    left
}

impl State {
    /// The connection's requests count as the session's from now on.
    fn forget_other(&mut self, id: u64) {
        if let Some(other) = self.others.remove(&id)
            && other.is_counted
        {
            self.other_requests -= 1;
        }
    }
}

impl Slot {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Keeps the connection's permit of all listeners for as long as it counts as a connection.
    pub(super) fn hold(&self, share: Option<OwnedSemaphorePermit>) {
        self.permits.lock().extend(share);
    }

    /// The connection no longer counts as one of this listener, and has these permits instead until it ends.
    pub(super) fn become_tunnel(&self, permits: impl IntoIterator<Item = OwnedSemaphorePermit>) {
        if self.connection.become_tunnel() {
            self.release();
        }
        self.permits.lock().extend(permits);
    }

    fn release(&self) {
        let mut state = self.admission.state.lock();
        state.connections -= 1;
        state.forget_other(self.connection.id);
        drop(state);
        self.permits.lock().clear();
        self.admission.freed.notify_one();
    }

    /// The connection is the session's with this SHA-256 of its secret, if it has one. True the first time.
    pub(super) fn assign_session(&self, session_digest: Option<&str>) -> bool {
        let fresh = self.connection.assign_session();
        if fresh {
            let mut state = self.admission.state.lock();
            state.forget_other(self.connection.id);
            if let Some(digest) = session_digest {
                state.session_digest = Some(digest.to_owned());
            }
            drop(state);
            self.admission.freed.notify_one();
        }
        fresh
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.connection.is_tunnel() {
            self.release();
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let Slot { admission, connection, .. } = &*self.slot;
        connection.request_answered(Instant::now());
        if !self.is_counted {
            return;
        }
        let mut state = admission.state.lock();
        state.requests -= 1;
        if let Some(other) = state.others.get_mut(&connection.id)
            && std::mem::take(&mut other.is_counted)
        {
            state.other_requests -= 1;
        }
    }
}
