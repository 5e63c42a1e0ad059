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
use tokio::sync::Mutex as AsyncMutex;

/// Bytes that all connections of a job may receive, and send. A job that installs a toolchain and its packages receives
/// some hundred MB; what it sends are requests.
const MAX_DOWN_MB: u64 = 2_048;
const MAX_UP_MB: u64 = 64;
const BYTES_PER_MB: u64 = 1024 * 1024;
/// Kinds of allowed and of denied decisions of an attempt that are told apart, each. Those beyond are counted as of one
/// host.
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
    /// Whether the first decision is stored. Locked while it is being stored, which further ones wait for.
    pub(crate) is_stored: AsyncMutex<bool>,
    repetitions: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
}

impl EgressCounts {
    pub(crate) fn add_repetition(&self) {
        self.repetitions.fetch_add(1, Ordering::Relaxed);
    }

    pub fn add_up(&self, bytes: u64) {
        self.bytes_up.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn add_down(&self, bytes: u64) {
        self.bytes_down.fetch_add(bytes, Ordering::Relaxed);
    }

    const fn counters(&self) -> [&AtomicU64; 3] {
        [&self.repetitions, &self.bytes_up, &self.bytes_down]
    }
}

/// What a kind's counts have gained. It is counted again when it is dropped without being stored.
pub(crate) struct Taken {
    kind: EgressKind,
    counts: Arc<EgressCounts>,
    /// Repetitions, bytes up and bytes down.
    added: [u64; 3],
}

impl Taken {
    pub(crate) fn event(&self) -> EventData {
        let [count, up, down] = self.added;
        self.kind.clone().event(count, up, down)
    }

    /// It is in the job's events.
    pub(crate) fn stored(mut self) {
        self.added = [0; 3];
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        for (counter, added) in self.counts.counters().into_iter().zip(self.added) {
            counter.fetch_add(added, Ordering::Relaxed);
        }
    }
}

/// The decisions of one attempt.
#[derive(Debug, Default)]
pub struct EgressMeter {
    kinds: Mutex<HashMap<EgressKind, Arc<EgressCounts>>>,
    /// Held from taking counts to storing them, so that the last ones are not stored after the job's end.
    pub(crate) summing: AsyncMutex<()>,
    is_summed: AtomicBool,
}

impl EgressMeter {
    /// The counts that a decision is added to, and the kind that they are of.
    pub(crate) fn counts_of(&self, kind: EgressKind) -> (EgressKind, Arc<EgressCounts>) {
        let mut kinds = self.kinds.lock();
        // A flood of refused hosts takes nothing from the allowed ones.
        let has_room = |of: &EgressDecision| kinds.keys().filter(|known| known.decision == *of).count() < MAX_KINDS;
        let kind = if kinds.contains_key(&kind) || has_room(&kind.decision) {
            kind
        } else {
            EgressKind { host: OTHER_HOSTS.to_owned(), port: 0, rule: OTHER_HOSTS.to_owned(), ..kind }
        };
        let counts = Arc::clone(kinds.entry(kind.clone()).or_default());
        (kind, counts)
    }

    /// What was counted since the last call.
    pub(crate) fn take(&self) -> Vec<Taken> {
        let kinds = self.kinds.lock();
        let taken = kinds.iter().filter_map(|(kind, counts)| {
            let added = counts.counters().map(|counter| counter.swap(0, Ordering::Relaxed));
            (added != [0; 3]).then(|| Taken { kind: kind.clone(), counts: Arc::clone(counts), added })
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

    /// Whether the event of this limit is to be stored. True the first time, and after [`Self::not_recorded`].
    pub(crate) fn begin_record(&self, direction: EgressDirection) -> bool {
        !self.of(direction).is_recorded.swap(true, Ordering::Relaxed)
    }

    /// The event could not be stored.
    pub(crate) fn not_recorded(&self, direction: EgressDirection) {
        self.of(direction).is_recorded.store(false, Ordering::Relaxed);
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
    fn counts_that_were_not_stored_are_put_back() {
        let meter = EgressMeter::default();
        let (_, counts) = meter.counts_of(kind("a.example"));
        assert!(meter.take().is_empty());
        counts.add_repetition();
        counts.add_up(3);
        for _ in 0..2 {
            counts.add_down(5);
            drop(meter.take());
        }
        let taken = meter.take();
        let events: Vec<_> = taken.iter().map(Taken::event).collect();
        assert_eq!(events, [kind("a.example").event(1, 3, 10)]);
        taken.into_iter().for_each(Taken::stored);
        assert!(meter.take().is_empty());
    }

    #[test]
    fn refused_kinds_are_bounded_and_leave_room_for_allowed_ones() {
        let meter = EgressMeter::default();
        for n in 0..10 * MAX_KINDS {
            meter.counts_of(kind(&format!("h{n}.example")));
        }
        assert_eq!(meter.kinds.lock().len(), MAX_KINDS + 1);
        let others = EgressKind { host: "*".to_owned(), port: 0, rule: "*".to_owned(), ..kind("a.example") };
        assert_eq!(meter.counts_of(kind("a.example")).0, others);
        let allowed = EgressKind { decision: EgressDecision::Allowed, ..kind("a.example") };
        assert_eq!(meter.counts_of(allowed.clone()).0, allowed);
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
