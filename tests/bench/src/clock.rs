//! The wall clock, for the few results that compare a time here with a timestamp of the engine or the orchestrator.
//! Everything else is measured with [`std::time::Instant`].

use chrono::{DateTime, Utc};

/// The current time, on the same host clock as the engine's.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures the real time, and owns this one reading of it")]
pub(crate) fn wall() -> DateTime<Utc> {
    Utc::now()
}

/// Milliseconds from one time to another; negative if the second is earlier.
pub(crate) fn milliseconds_between(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    (to - from).as_seconds_f64() * 1_000.0
}
