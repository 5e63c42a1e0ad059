//! The decisions about an attempt's connections to other hosts, and the bytes that they carry.
//!
//! Owns the counts that are not in the job's events yet. The first decision of a kind is stored by its caller at once;
//! repetitions and bytes are summed here until they are taken.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use protocol::{EgressDecision, EgressPhase, EventData, LimitName};

/// Bytes that all connections of a job may receive, and send. A job that installs a toolchain and its packages receives
/// some hundred MB; what it sends are requests.
const MAX_DOWN_MB: u64 = 2_048;
const MAX_UP_MB: u64 = 64;
const BYTES_PER_MB: u64 = 1024 * 1024;
/// Kinds of decisions of an attempt that are told apart. The decisions beyond are counted as of one host.
const MAX_KINDS: usize = 256;
/// The host of those.
const OTHER_HOSTS: &str = "*";

/// A kind of decisions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EgressKind {
    pub phase: EgressPhase,
    pub host: String,
    pub port: u16,
    pub decision: EgressDecision,
    /// The entry that allows it, or what refuses it.
    pub rule: String,
}

impl EgressKind {
    /// The event that adds these counts.
    pub(crate) fn event(self, count: u64, bytes_up: u64, bytes_down: u64) -> EventData {
        let Self { phase, host, port, decision, rule } = self;
        EventData::Egress { phase, host, port, decision, rule, count, bytes_up, bytes_down }
    }
}

/// The counts of one kind that are not stored yet.
#[derive(Debug, Default)]
pub struct EgressCounts {
    repetitions: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
}

impl EgressCounts {
    pub fn add_up(&self, bytes: u64) {
        self.bytes_up.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn add_down(&self, bytes: u64) {
        self.bytes_down.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The decisions of one attempt.
#[derive(Debug, Default)]
pub struct EgressMeter {
    kinds: Mutex<HashMap<EgressKind, Arc<EgressCounts>>>,
    is_summed: AtomicBool,
}

impl EgressMeter {
    /// Counts a decision. The first one of its kind is to be stored by the caller.
    pub(crate) fn count(&self, kind: EgressKind) -> (Arc<EgressCounts>, Option<EgressKind>) {
        let mut kinds = self.kinds.lock();
        let kind = if kinds.len() < MAX_KINDS || kinds.contains_key(&kind) {
            kind
        } else {
            EgressKind { host: OTHER_HOSTS.to_owned(), port: 0, rule: OTHER_HOSTS.to_owned(), ..kind }
        };
        if let Some(known) = kinds.get(&kind) {
            known.repetitions.fetch_add(1, Ordering::Relaxed);
            return (Arc::clone(known), None);
        }
        let counts = Arc::<EgressCounts>::default();
        kinds.insert(kind.clone(), Arc::clone(&counts));
        (counts, Some(kind))
    }

    /// The events of what was counted since the last call.
    pub(crate) fn take(&self) -> Vec<EventData> {
        let kinds = self.kinds.lock();
        let taken = kinds.iter().filter_map(|(kind, counts)| {
            let [count, up, down] = [&counts.repetitions, &counts.bytes_up, &counts.bytes_down]
                .map(|counter| counter.swap(0, Ordering::Relaxed));
            (count + up + down > 0).then(|| kind.clone().event(count, up, down))
        });
        taken.collect()
    }

    /// Whether a caller is to take the counts from now on, until the attempt is over. True the first time.
    pub fn begin_sums(&self) -> bool {
        !self.is_summed.swap(true, Ordering::Relaxed)
    }
}

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressDirection {
    /// Sent by the job.
    Up,
    /// Received by the job.
    Down,
}

impl EgressDirection {
    /// The name of its limit.
    pub const fn limit(self) -> LimitName {
        match self {
            Self::Up => LimitName::EgressUpMb,
            Self::Down => LimitName::EgressDownMb,
        }
    }

    pub const fn limit_mb(self) -> u64 {
        match self {
            Self::Up => MAX_UP_MB,
            Self::Down => MAX_DOWN_MB,
        }
    }
}

/// The bytes that all connections of a job have carried, in all its attempts.
#[derive(Debug, Default)]
pub struct EgressQuota {
    is_known: AtomicBool,
    up: DirectionQuota,
    down: DirectionQuota,
}

#[derive(Debug, Default)]
struct DirectionQuota {
    bytes: AtomicU64,
    is_reached: AtomicBool,
    is_recorded: AtomicBool,
}

impl EgressQuota {
    /// Whether the bytes of earlier processes are known.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// Adds the bytes of earlier processes, once.
    pub fn initialize(&self, up: u64, down: u64) {
        if !self.is_known.swap(true, Ordering::AcqRel) {
            self.up.bytes.fetch_add(up, Ordering::Relaxed);
            self.down.bytes.fetch_add(down, Ordering::Relaxed);
        }
    }

    /// Counts bytes. False once the limit is reached: nothing more is carried.
    pub fn take(&self, direction: EgressDirection, bytes: u64) -> bool {
        let quota = self.of(direction);
        let before = quota.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before + bytes <= direction.limit_mb() * BYTES_PER_MB;
        if !fits {
            quota.is_reached.store(true, Ordering::Release);
        }
        fits
    }

    /// The limit that is reached, if one is.
    pub fn reached(&self) -> Option<EgressDirection> {
        let is_full = |direction: &EgressDirection| {
            let quota = self.of(*direction);
            let is_used_up = quota.bytes.load(Ordering::Relaxed) >= direction.limit_mb() * BYTES_PER_MB;
            quota.is_reached.load(Ordering::Acquire) || is_used_up
        };
        [EgressDirection::Up, EgressDirection::Down].into_iter().find(is_full)
    }

    /// Whether the event of this limit is to be stored. True the first time.
    pub(crate) fn begin_record(&self, direction: EgressDirection) -> bool {
        !self.of(direction).is_recorded.swap(true, Ordering::Relaxed)
    }

    const fn of(&self, direction: EgressDirection) -> &DirectionQuota {
        match direction {
            EgressDirection::Up => &self.up,
            EgressDirection::Down => &self.down,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(host: &str) -> EgressKind {
        EgressKind {
            phase: EgressPhase::Agent,
            host: host.to_owned(),
            port: 443,
            decision: EgressDecision::Denied,
            rule: "egress.allow".to_owned(),
        }
    }

    #[test]
    fn the_first_decision_is_stored_at_once_and_repetitions_are_summed() {
        let meter = EgressMeter::default();
        let (counts, first) = meter.count(kind("a.example"));
        assert_eq!(first, Some(kind("a.example")));
        assert_eq!(meter.take(), []);
        assert_eq!(meter.count(kind("a.example")).1, None);
        counts.add_up(3);
        counts.add_down(5);
        assert_eq!(meter.take(), [kind("a.example").event(1, 3, 5)]);
        assert_eq!(meter.take(), []);
    }

    #[test]
    fn kinds_are_bounded() {
        let meter = EgressMeter::default();
        let stored = (0..10 * MAX_KINDS).filter_map(|n| meter.count(kind(&format!("h{n}.example"))).1).count();
        assert_eq!(stored, MAX_KINDS + 1);
        let others = EgressKind { host: "*".to_owned(), port: 0, rule: "*".to_owned(), ..kind("a.example") };
        assert_eq!(meter.take(), [others.event(9 * MAX_KINDS as u64 - 1, 0, 0)]);
    }

    #[test]
    fn a_limit_is_reached_in_its_direction_and_recorded_once() {
        let quota = EgressQuota::default();
        assert!(!quota.is_known());
        quota.initialize(63 * BYTES_PER_MB, 0);
        quota.initialize(63 * BYTES_PER_MB, 0);
        assert!(quota.take(EgressDirection::Up, BYTES_PER_MB - 1) && quota.reached().is_none());
        assert!(quota.take(EgressDirection::Down, 100 * BYTES_PER_MB) && quota.reached().is_none());
        assert!(!quota.take(EgressDirection::Up, 2));
        assert_eq!(quota.reached(), Some(EgressDirection::Up));
        assert!(quota.begin_record(EgressDirection::Up) && !quota.begin_record(EgressDirection::Up));
    }
}
