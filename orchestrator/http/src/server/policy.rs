//! The limits of a listener: connections, time and requests. The numbers are the contract's (sandbox, Worker API; api,
//! Identity).
//!
//! Owns numbers only. Never counts anything.

use std::time::Duration;

use base::rate_limit::Rate;

/// Connections of the public listener, and of the metrics' own.
const PUBLIC_CONNECTIONS: usize = 4_096;
/// Connections of one worker socket, where the descriptors suffice.
const WORKER_CONNECTIONS: usize = 64;
/// Longest time from the first byte of a request to the end of its head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time between two requests of a public connection.
const PUBLIC_IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// Connections, and requests in flight, that only a session may use.
const SESSION_RESERVE: usize = 8;
/// Requests in flight on one worker socket.
const WORKER_REQUESTS: usize = 16;
/// Calls of a session: 4,000 a second, 8,000 at once.
const SESSION_CALLS: Rate = Rate { burst: 8_000, per_hour: 4_000 * 3_600 };
/// Requests on connections without a session: 20 a second.
const OTHER_REQUESTS: Rate = Rate { burst: 20, per_hour: 20 * 3_600 };
/// New connections of one worker socket. A worker keeps its own open; accepting one costs some 50 µs, so a flood of them takes
/// at most 2 % of a core.
const WORKER_ACCEPTS: Rate = Rate { burst: 1_000, per_hour: 400 * 3_600 };
/// A connection without a session that is older than this may be closed in favour of a waiting one: a worker sends its request
/// right after connecting.
const EVICT_AFTER: Duration = Duration::from_millis(250);

/// The treatment of a connection beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// It is accepted and closed.
    Close,
    /// Nothing is accepted until another one has ended.
    Wait,
}

/// A listener's limits.
#[derive(Debug, Clone)]
pub struct Policy {
    pub max_connections: usize,
    /// The treatment of further connections.
    pub overflow: Overflow,
    /// Timeout of a request's head.
    pub head_timeout: Duration,
    /// Idle timeout between two requests; none for no timeout.
    pub idle_timeout: Option<Duration>,
    /// The limits that distinguish a worker's session from others; none on listeners without sessions.
    pub session: Option<SessionPolicy>,
}

/// The limits of a worker's socket that distinguish its session from other clients in the container.
#[derive(Debug, Clone)]
pub struct SessionPolicy {
    /// Connections that only the session may use.
    pub reserved_connections: usize,
    pub max_requests: usize,
    /// Requests in flight that only the session may use.
    pub reserved_requests: usize,
    /// A connection without an authenticated request by then is closed.
    pub authenticate_within: Duration,
    /// A connection without a session may be closed after this to make room.
    pub evict_after: Duration,
    pub session_rate: Rate,
    /// All other requests together.
    pub other_rate: Rate,
    /// New connections.
    pub accept_rate: Rate,
}

impl Policy {
    /// The policy of the public listener and the metrics listener, with this many descriptors.
    pub fn public(descriptors: usize) -> Self {
        Self {
            max_connections: descriptors.min(PUBLIC_CONNECTIONS),
            overflow: Overflow::Close,
            head_timeout: HEAD_TIMEOUT,
            idle_timeout: Some(PUBLIC_IDLE_TIMEOUT),
            session: None,
        }
    }

    /// The policy of a worker's socket, with this many descriptors.
    pub fn worker(descriptors: usize) -> Self {
        let max_connections = descriptors.min(WORKER_CONNECTIONS);
        Self {
            max_connections,
            overflow: Overflow::Wait,
            head_timeout: HEAD_TIMEOUT,
            idle_timeout: None,
            session: Some(SessionPolicy {
                reserved_connections: SESSION_RESERVE.min(max_connections / 2),
                max_requests: WORKER_REQUESTS,
                reserved_requests: SESSION_RESERVE,
                authenticate_within: HEAD_TIMEOUT,
                evict_after: EVICT_AFTER,
                session_rate: SESSION_CALLS,
                other_rate: OTHER_REQUESTS,
                accept_rate: WORKER_ACCEPTS,
            }),
        }
    }
}
