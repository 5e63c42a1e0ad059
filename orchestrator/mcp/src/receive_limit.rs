//! How much a server may send: in one message, and in all between two requests.
//!
//! Owns the counters and the reason for closing a connection. A server that sends more is cut off while it is being
//! read.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Maximum size of one message. A screenshot as base64 fits; a model reads much less of a text.
pub(super) const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// What a server may send in addition to one message for each request: notifications, keep-alives and framing.
const EXTRA_BYTES: usize = 1024 * 1024;
/// What a server may send when several requests are in progress.
const MAX_ALLOWANCE_BYTES: usize = 4 * (MAX_MESSAGE_BYTES + EXTRA_BYTES);

/// The limit of one connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct ReceiveLimit(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    /// Bytes that the server may still send before the next request.
    left: AtomicUsize,
    /// Why this side closed the connection.
    cause: Mutex<Option<&'static str>>,
    /// Cancelled when the server has sent too much.
    exceeded: CancellationToken,
}

/// The server has sent too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct LimitExceeded(&'static str);

impl ReceiveLimit {
    /// The limit of a new connection.
    pub(super) fn new() -> Self {
        Self(Arc::new(Counters {
            left: AtomicUsize::new(EXTRA_BYTES),
            cause: Mutex::new(None),
            exceeded: CancellationToken::new(),
        }))
    }

    /// A request is sent: its answer is allowed.
    pub(super) fn allow_answer(&self) {
        let add = |left: usize| Some((left + MAX_MESSAGE_BYTES + EXTRA_BYTES).min(MAX_ALLOWANCE_BYTES));
        // The closure always returns a value.
        let _ = self.0.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Counts bytes that have arrived.
    pub(super) fn take(&self, bytes: usize) -> Result<(), LimitExceeded> {
        let taken = self.0.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| self.exceeded("it sent more than requests ask for"))
    }

    /// Checks the size of a message of which this much has arrived.
    pub(super) fn check_message(&self, bytes: usize) -> Result<(), LimitExceeded> {
        if bytes <= MAX_MESSAGE_BYTES {
            return Ok(());
        }
        Err(self.exceeded("it sent a message of more than 4 MiB"))
    }

    /// Returns when the server has sent too much.
    pub(super) async fn exceeded_limit(&self) {
        self.0.exceeded.cancelled().await;
    }

    /// Why this side closed the connection, if it did.
    pub(super) fn cause(&self) -> Option<&'static str> {
        *self.0.cause.lock()
    }

    fn exceeded(&self, cause: &'static str) -> LimitExceeded {
        self.0.cause.lock().get_or_insert(cause);
        self.0.exceeded.cancel();
        LimitExceeded(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_send_one_message_for_each_request() {
        let limit = ReceiveLimit::new();
        assert_eq!(limit.take(EXTRA_BYTES), Ok(()));
        assert!(limit.take(1).is_err());
        let limit = ReceiveLimit::new();
        limit.allow_answer();
        assert_eq!(limit.take(MAX_MESSAGE_BYTES + 2 * EXTRA_BYTES), Ok(()));
        assert_eq!(limit.cause(), None);
        assert!(limit.take(1).is_err());
        assert_eq!(limit.cause(), Some("it sent more than requests ask for"));
    }

    #[test]
    fn requests_add_up_to_a_maximum() {
        let limit = ReceiveLimit::new();
        for _ in 0..100 {
            limit.allow_answer();
        }
        assert_eq!(limit.take(MAX_ALLOWANCE_BYTES), Ok(()));
        assert!(limit.take(1).is_err());
    }

    #[test]
    fn a_message_has_a_maximum_size() {
        let limit = ReceiveLimit::new();
        assert_eq!(limit.check_message(MAX_MESSAGE_BYTES), Ok(()));
        assert!(limit.check_message(MAX_MESSAGE_BYTES + 1).is_err());
        assert_eq!(limit.cause(), Some("it sent a message of more than 4 MiB"));
    }
}
