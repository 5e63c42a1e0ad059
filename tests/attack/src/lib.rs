//! Attacks on a running Gantry, and measurements of their effects. Shared by the attack tests and the benchmark
//! `contain`.
//!
//! Owns the scripts that run inside a hostile job, the attacks of a client of the public API, the sampling of the
//! orchestrator's process and the limits that the contract sets. Never starts an install, and never judges.

#![expect(clippy::missing_panics_doc, reason = "a harness fails by panicking")]

mod public;
mod token;
mod vitals;

pub use public::{AttackCounts, Flood, hold_heads, post_metadata, read_pages};
pub use token::TokenCopier;
pub use vitals::{Readings, Vitals};

use std::time::Duration;

/// `python3 flood.py ATTACK SECONDS`: floods the job's socket. Waits for `stolen.json`.
pub const FLOOD: (&str, &str) = ("flood.py", include_str!("scripts/flood.py"));
/// `python3 files.py ATTACK [NUMBER…]`: attacks the disk through the job's workspace.
pub const FILES: (&str, &str) = ("files.py", include_str!("scripts/files.py"));
/// `python3 forge.py`: a command that impersonates its worker. Needs [`FLOOD`] in the same directory, and waits for
/// `stolen.json`.
pub const FORGE: (&str, &str) = ("forge.py", include_str!("scripts/forge.py"));
/// A script creates this file in its workspace when it starts.
pub const STARTED: &str = "started";

/// The maximum slowdown of a victim's job, as a factor.
pub const MAX_SLOWDOWN: f64 = 2.0;
/// The maximum duration of `GET /healthz`.
pub const MAX_HEALTH: Duration = Duration::from_millis(250);
/// The maximum growth of the orchestrator's memory, in megabytes of 10⁶ bytes.
pub const MAX_MEMORY_GROWTH_MB: u64 = 100;
/// The maximum growth of the orchestrator's log.
pub const MAX_LOG_GROWTH_BYTES: u64 = 2_000_000;

/// The nearest-rank percentile of the samples; zero if there are none.
pub fn percentile(samples: &[Duration], percent: usize) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort();
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_sample() {
        let samples: Vec<Duration> = (1..=10).map(Duration::from_millis).collect();
        assert_eq!([50, 95, 100].map(|p| percentile(&samples, p).as_millis()), [5, 10, 10]);
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
