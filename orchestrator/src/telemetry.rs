//! The log: where its lines go and how they look.
//!
//! Owns the one subscriber, set once at the start. Never decides what is worth a line.

pub mod metrics;

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::{LogFormat, LogSettings};

/// The log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `RUST_LOG` cannot be read.
    #[error("RUST_LOG={filter}: {reason}")]
    Filter {
        /// As given.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A second subscriber in one process.
    #[error("the log is already set up")]
    Twice,
}

/// Sends the log to standard error.
pub fn init(settings: &LogSettings) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(&settings.filter)
        .map_err(|error| TelemetryError::Filter { filter: settings.filter.clone(), reason: error.to_string() })?;
    let terminal = std::io::stderr().is_terminal();
    let pretty = match settings.format {
        LogFormat::Auto => terminal,
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    // The model client logs what providers answer, at error level: it may hold model text, or a key that was refused.
    let filter = match "genai=off".parse() {
        Ok(never) => filter.add_directive(never),
        Err(_) => filter,
    };
    let registry = tracing_subscriber::registry().with(filter);
    let set = if pretty {
        registry.with(fmt::layer().with_writer(std::io::stderr).with_ansi(terminal).with_target(false)).try_init()
    } else {
        let json = fmt::layer().json().flatten_event(true).with_current_span(true).with_span_list(false);
        registry.with(json.with_writer(std::io::stderr)).try_init()
    };
    set.map_err(|_| TelemetryError::Twice)
}
