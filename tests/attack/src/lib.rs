//! Attacks on a running Gantry, and how it is watched meanwhile. The attack tests and the benchmark `contain` share it.
//!
//! Owns the scripts that run inside a hostile job, the attacks of a client of the public API, the sampling of the
//! orchestrator's process and the limits that the contract sets. Never starts an install, and never judges.

#![expect(clippy::missing_panics_doc, reason = "a harness fails by panicking")]

mod public;
mod token;
mod vitals;

pub use public::{Flood, Told, hold_heads, post_metadata, read_pages};
pub use token::TokenThief;
pub use vitals::{Readings, Vitals};

use std::time::Duration;

/// `python3 flood.py ATTACK SECONDS`: what a job does to its socket. Waits for `stolen.json`.
pub const FLOOD: (&str, &str) = ("flood.py", include_str!("scripts/flood.py"));
/// `python3 files.py ATTACK [NUMBER…]`: what a job does to its workspace.
pub const FILES: (&str, &str) = ("files.py", include_str!("scripts/files.py"));
/// `python3 forge.py`: a command that speaks in its worker's name. Needs [`FLOOD`] beside it, and waits for `stolen.json`.
pub const FORGE: (&str, &str) = ("forge.py", include_str!("scripts/forge.py"));
/// A script creates this file in its workspace when it begins.
pub const STARTED: &str = "started";

/// A victim's job takes at most so many times as long as without the attack.
pub const MAX_SLOWDOWN: f64 = 2.0;
/// `GET /healthz` answers within this time.
pub const MAX_HEALTH: Duration = Duration::from_millis(250);
/// The orchestrator's memory grows by at most so much, in megabytes of 10⁶ bytes.
pub const MAX_MEMORY_GROWTH_MB: u64 = 100;
/// The orchestrator's log grows by at most so much.
pub const MAX_LOG_GROWTH_BYTES: u64 = 2_000_000;

/// The value at this percentile of the samples (nearest rank); zero when there are none.
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
