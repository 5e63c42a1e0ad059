//! The run of an attempt's loop in this process: whether it has ended, and the signal that cuts it off.
//!
//! Only holds these two; `host_runs` begins and stops runs.

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
    cut_off: CancellationToken,
    ended: CancellationToken,
}

impl HostRun {
    /// How far it has got.
    pub(crate) fn state(&self) -> HostRunState {
        if self.ended.is_cancelled() { HostRunState::Ended } else { HostRunState::Running }
    }

    /// Records that it has ended.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }

    /// Returns once it has ended.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Ends it wherever it is.
    pub(crate) fn cut_off(&self) {
        self.cut_off.cancel();
    }

    /// Returns once it is to end wherever it is.
    pub(crate) async fn is_cut_off(&self) {
        self.cut_off.cancelled().await;
    }
}
