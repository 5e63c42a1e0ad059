//! The run of a host job's loop, as its attempt has it. A run ends by itself, or is cut off.

use tokio_util::sync::CancellationToken;

/// How far a run has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostRunState {
    Running,
    /// It has ended, with or without a report.
    Ended,
}

/// A run. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostRun {
    /// Cancelled when it is to end wherever it is.
    pub(crate) cut_off: CancellationToken,
    /// Cancelled once it has ended.
    pub(crate) ended: CancellationToken,
}

impl HostRun {
    pub(crate) fn state(&self) -> HostRunState {
        if self.ended.is_cancelled() { HostRunState::Ended } else { HostRunState::Running }
    }
}
