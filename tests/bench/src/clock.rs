//! The wall clock, for the few figures that compare a moment here with a moment that the engine or the orchestrator
//! wrote down. Everything else is timed by [`std::time::Instant`].

use chrono::{DateTime, Utc};

/// Now, by the clock that the engine on this host has too.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures the real time, and owns this one reading of it")]
pub(crate) fn wall() -> DateTime<Utc> {
    Utc::now()
}

/// From one moment to another, in milliseconds; negative when the second was first.
pub(crate) fn milliseconds_between(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    (to - from).as_seconds_f64() * 1_000.0
}
