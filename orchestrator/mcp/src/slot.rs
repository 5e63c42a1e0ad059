//! The place of one connection: that of a server and a user, whether it is open or not.
//!
//! Owns when a connection that failed may be opened again.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use protocol::McpTransportKind;

use super::{connection::Connection, error::McpError, server::ConfiguredServer};
use base::clock::Clock;

/// Wait after the first failure; doubled with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// A connection that ends by itself earlier counts as a failure.
const STABLE: Duration = Duration::from_secs(10);

/// The place of one connection.
pub(super) struct Slot {
    pub(super) kind: McpTransportKind,
    pub(super) user: String,
    pub(super) state: Arc<tokio::sync::Mutex<SlotState>>,
    pub(super) usage: Mutex<Usage>,
    /// Changes of the list of tools that the server has reported.
    pub(super) changes: Arc<AtomicU64>,
}

/// The connection, and the failures before it.
#[derive(Default)]
pub(super) struct SlotState {
    pub(super) connection: Option<Arc<Connection>>,
    failures: u32,
    retry_at: Option<Duration>,
    last_error: Option<McpError>,
}

/// What decides whether the connection may be ended.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// Whether it counts as a connection: it is open, or being opened.
    pub(super) is_open: bool,
    pub(super) calls: usize,
    /// Monotonic time.
    pub(super) last_used: Duration,
}

/// A call in progress, also while its connection is being opened. The connection does not end for idleness until it is
/// dropped.
pub(super) struct ActiveCall {
    pub(super) slot: Arc<Slot>,
    clock: Clock,
}

impl Slot {
    /// A slot without a connection.
    pub(super) fn new(kind: McpTransportKind, user: &str) -> Arc<Self> {
        Arc::new(Self {
            kind,
            user: user.to_owned(),
            state: Arc::default(),
            usage: Mutex::default(),
            changes: Arc::default(),
        })
    }

    /// Counts a call until the result is dropped.
    pub(super) fn begin_call(self: &Arc<Self>, clock: &Clock) -> ActiveCall {
        self.usage.lock().calls += 1;
        ActiveCall { slot: Arc::clone(self), clock: clock.clone() }
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        let mut usage = self.slot.usage.lock();
        usage.calls = usage.calls.saturating_sub(1);
        usage.last_used = self.clock.monotonic();
    }
}

impl SlotState {
    /// The error of a call that comes before the next attempt; none if a connection may be opened now.
    pub(super) fn refusal(&self, server: &ConfiguredServer, now: Duration) -> Option<McpError> {
        let wait = self.retry_at?.checked_sub(now).filter(|wait| !wait.is_zero())?;
        let (server, retry_after) = (server.name.clone(), Some(wait));
        Some(match &self.last_error {
            Some(McpError::Sandbox { cause, .. }) => McpError::Sandbox { server, cause: cause.clone() },
            Some(McpError::Unavailable { cause, .. }) => {
                McpError::Unavailable { server, cause: cause.clone(), retry_after }
            }
            Some(error) => McpError::Unavailable { server, cause: error.to_string(), retry_after },
            None => McpError::Unavailable { server, cause: "it ended by itself".to_owned(), retry_after },
        })
    }

    pub(super) fn opened(&mut self, connection: &Arc<Connection>) {
        self.connection = Some(Arc::clone(connection));
        (self.failures, self.retry_at, self.last_error) = (self.failures / 2, None, None);
    }

    /// The connection could not be opened.
    pub(super) fn failed(&mut self, error: &McpError, now: Duration) {
        self.back_off(Some(error.clone()), now);
    }

    /// Takes the connection out. One that ended by itself soon after it was opened counts as a failure.
    pub(super) fn take(&mut self, now: Duration) -> Option<Arc<Connection>> {
        let connection = self.connection.take()?;
        if !connection.is_open() && now.saturating_sub(connection.opened_at) < STABLE {
            self.back_off(connection.limit_error(), now);
        }
        Some(connection)
    }

    fn back_off(&mut self, error: Option<McpError>, now: Duration) {
        let wait = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(10)).min(MAX_BACKOFF);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + wait);
        self.last_error = error;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{McpServerSettings, McpTransport};

    fn server() -> ConfiguredServer {
        let transport = McpTransport::Stdio { image: "i".to_owned(), command: vec!["c".to_owned()] };
        let requirement = protocol::ApprovalRequirement::Never;
        let (name, timeout) = ("srv".to_owned(), Duration::from_mins(1));
        ConfiguredServer::new(&McpServerSettings { name, transport, requirement, timeout }).unwrap()
    }

    #[test]
    fn waits_grow_with_failures_up_to_a_maximum() {
        let (server, mut state, mut now) = (server(), SlotState::default(), Duration::ZERO);
        let error = McpError::Sandbox { server: "srv".to_owned(), cause: "no image".to_owned() };
        assert_eq!(state.refusal(&server, now), None);
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            state.failed(&error, now);
            let wait = Duration::from_secs(expected);
            assert_eq!(
                state.refusal(&server, now + wait.saturating_sub(Duration::from_millis(1))),
                Some(error.clone())
            );
            now += wait;
            assert_eq!(state.refusal(&server, now), None);
        }
    }

    #[test]
    fn a_call_counts_until_it_is_dropped() {
        let slot = Slot::new(McpTransportKind::Stdio, "ada");
        let clock = Clock::system();
        let (first, second) = (slot.begin_call(&clock), slot.begin_call(&clock));
        drop(first);
        assert_eq!(slot.usage.lock().calls, 1);
        drop(second);
        assert_eq!(slot.usage.lock().calls, 0);
        assert!(slot.usage.lock().last_used <= clock.monotonic());
    }
}
