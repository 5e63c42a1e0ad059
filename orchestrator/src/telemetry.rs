//! The log: where its lines go and how they look.
//!
//! Owns the one subscriber, set once at the start. Never decides what is worth a line.

pub mod metrics;
pub mod traces;

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{self, MakeWriter},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use self::traces::Traces;
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
    /// Nothing can be sent there.
    #[error("OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}: {reason}")]
    Collector {
        /// As given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A second subscriber in one process.
    #[error("the log is already set up")]
    Twice,
}

/// Sends the log to standard error, and its spans to a collector, if there is one.
pub fn init(settings: &LogSettings, traces: Option<&Traces>) -> Result<(), TelemetryError> {
    let terminal = std::io::stderr().is_terminal();
    let look = match settings.format {
        LogFormat::Pretty => Look::Pretty { colour: terminal },
        LogFormat::Auto if terminal => Look::Pretty { colour: true },
        LogFormat::Auto | LogFormat::Json => Look::Json,
    };
    subscriber(&settings.filter, look, std::io::stderr, traces)?.try_init().map_err(|_| TelemetryError::Twice)
}

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// For people.
    Pretty {
        /// On a terminal.
        colour: bool,
    },
    /// One object a line.
    Json,
}

/// What takes the log's events and writes them.
pub fn subscriber<W>(
    filter: &str,
    look: Look,
    writer: W,
    traces: Option<&Traces>,
) -> Result<impl Subscriber + Send + Sync + use<W>, TelemetryError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + Clone + 'static,
{
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| TelemetryError::Filter { filter: filter.to_owned(), reason: error.to_string() })?;
    // The model client logs what providers answer, at error level: it may hold model text, or a key that was refused.
    let filter = match "genai=off".parse() {
        Ok(never) => filter.add_directive(never),
        Err(_) => filter,
    };
    let (pretty, json) = match look {
        Look::Pretty { colour } => (Some(fmt::layer().with_writer(writer).with_ansi(colour).with_target(false)), None),
        Look::Json => {
            let json = fmt::layer().json().flatten_event(true).with_current_span(true).with_span_list(false);
            (None, Some(json.with_writer(writer)))
        }
    };
    // The filter is the lines': which spans go to a collector does not depend on what is logged.
    let lines = pretty.map(Layer::boxed).or(json.map(Layer::boxed)).with_filter(filter);
    Ok(tracing_subscriber::registry().with(lines).with(traces.map(Traces::layer)))
}
