//! Telemetry: the log, metrics and traces. Contents only.

mod error_chain;
mod log;
pub mod metrics;
pub mod traces;

pub use error_chain::error_chain;
pub use log::{LogFormatter, TelemetryError, init, subscriber};
