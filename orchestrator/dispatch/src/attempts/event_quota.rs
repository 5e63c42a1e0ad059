//! How many bytes of events one job may write in all, beside the rate, so that a long flood ends too.
//!
//! Counted in memory; what is stored already is read from the database once. Over the quota, log-like kinds are no
//! longer stored while the conversation and the calls are; far over it, nothing is.

use parking_lot::Mutex;
use protocol::EventKind;

/// Bytes of a job's events with all kinds in them: some 2,500 commands that each print the 100 kB that are kept.
pub(crate) const MAX_EVENT_BYTES: u64 = 256 * 1024 * 1024;
/// Bytes of a job's events in any case: the conversation and the calls may fill four times as much.
pub const MAX_EVENT_BYTES_HARD: u64 = 4 * MAX_EVENT_BYTES;

/// The bytes of events that one job has written; none until they were read from the database.
#[derive(Debug, Default)]
pub struct EventQuota {
    written: Mutex<Option<u64>>,
}

/// Which events of a batch may be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventAllowance {
    All,
    /// Only the conversation and the calls.
    EssentialOnly,
    None,
}

impl EventQuota {
    /// Whether the bytes written before are known.
    pub fn is_known(&self) -> bool {
        self.written.lock().is_some()
    }

    /// Sets the bytes written before, unless they are known.
    pub fn initialize(&self, bytes: u64) {
        self.written.lock().get_or_insert(bytes);
    }

    /// Which events of a batch of this size may be stored. Does not count them: [`Self::count_stored`] does, once they
    /// are stored.
    pub(crate) fn allowance(&self, bytes: u64) -> EventAllowance {
        let written = self.written.lock().unwrap_or(0);
        if written + bytes > MAX_EVENT_BYTES_HARD {
            EventAllowance::None
        } else if written >= MAX_EVENT_BYTES {
            EventAllowance::EssentialOnly
        } else {
            EventAllowance::All
        }
    }

    /// Counts bytes that were stored. Returns whether they have reached the quota: the job is notified.
    pub(crate) fn count_stored(&self, bytes: u64) -> bool {
        let mut written = self.written.lock();
        let written = written.get_or_insert(0);
        let before = *written;
        *written = before + bytes;
        before < MAX_EVENT_BYTES && *written >= MAX_EVENT_BYTES
    }
}

/// Whether events of this kind are needed to resume or understand a job.
pub(crate) fn is_essential(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Log | EventKind::Status | EventKind::Reasoning | EventKind::Egress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_is_notified_once_then_only_essential_events_are_stored_and_finally_none() {
        let quota = EventQuota::default();
        assert!(!quota.is_known());
        quota.initialize(MAX_EVENT_BYTES - 10);
        assert!(quota.is_known());
        assert!(!quota.count_stored(9));
        assert_eq!(quota.allowance(20), EventAllowance::All);
        assert!(quota.count_stored(20));
        assert_eq!(quota.allowance(1), EventAllowance::EssentialOnly);
        assert!(!quota.count_stored(1));
        assert_eq!(quota.allowance(MAX_EVENT_BYTES_HARD), EventAllowance::None);
        assert_eq!(quota.allowance(1), EventAllowance::EssentialOnly, "a smaller batch still fits");
    }

    #[test]
    fn events_that_are_not_stored_use_up_nothing() {
        let quota = EventQuota::default();
        quota.initialize(MAX_EVENT_BYTES);
        for _ in 0..5 {
            assert_eq!(quota.allowance(MAX_EVENT_BYTES), EventAllowance::EssentialOnly);
        }
    }

    #[test]
    fn a_job_notified_before_a_restart_is_not_notified_again() {
        let quota = EventQuota::default();
        quota.initialize(MAX_EVENT_BYTES + 1);
        assert_eq!(quota.allowance(1), EventAllowance::EssentialOnly);
        assert!(!quota.count_stored(1));
    }

    #[test]
    fn the_conversation_and_the_calls_are_essential() {
        let kept: Vec<&str> = EventKind::ALL
            .iter()
            .filter(|kind| {
                !matches!(kind, EventKind::State | EventKind::LlmCall | EventKind::Egress | EventKind::Result)
            })
            .filter(|kind| is_essential(**kind))
            .map(|kind| kind.as_str())
            .collect();
        assert_eq!(kept, ["message", "plan", "tool_use", "tool_result", "limit"]);
    }
}
