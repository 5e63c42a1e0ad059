//! Where a model call stands that has no answer yet, for those who wait for it.

use tokio::time::Instant;

use super::ErrorKind;

/// The phase of a call at one provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallPhase {
    Asking {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Attempts in all, at most.
        of: u32,
    },
    /// An attempt failed, and the next one follows.
    Retrying {
        attempt: u32,
        /// Attempts in all, at most.
        of: u32,
        at: Instant,
        /// Why the last one failed.
        cause: ErrorKind,
    },
}
