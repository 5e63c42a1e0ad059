//! The log: its destination, format and filter.
//!
//! Owns the process's only subscriber, installed once at the start. Never decides what is logged.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{self, MakeWriter},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use super::traces::Traces;
use config::{LogFormat, LogSettings};

/// Telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `RUST_LOG` is not a valid filter.
    #[error("RUST_LOG={filter}: {reason}")]
    Filter {
        /// The value of the variable.
        filter: String,
        /// Why it is invalid.
        reason: String,
    },
    /// The OTLP endpoint is invalid.
    #[error("OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}: {reason}")]
    Collector {
        /// The endpoint, without credentials.
        endpoint: String,
        /// Why it is invalid.
        reason: String,
    },
    /// The process already has a subscriber.
    #[error("the log is already initialized")]
    AlreadyInitialized,
}

/// Installs the process's subscriber: log lines to standard error, and spans to a collector if one is configured.
pub fn init(settings: &LogSettings, traces: Option<&Traces>) -> Result<(), TelemetryError> {
    let is_terminal = std::io::stderr().is_terminal();
    let formatter = match settings.format {
        LogFormat::Pretty => LogFormatter::Pretty { colour: is_terminal },
        LogFormat::Auto if is_terminal => LogFormatter::Pretty { colour: true },
        LogFormat::Auto | LogFormat::Json => LogFormatter::Json,
    };
    let subscriber = subscriber(&settings.filter, formatter, std::io::stderr, traces)?;
    subscriber.try_init().map_err(|_| TelemetryError::AlreadyInitialized)
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormatter {
    /// Human-readable text.
    Pretty { colour: bool },
    /// One JSON object per line.
    Json,
}

/// Libraries that are silent unless the filter names them.
const QUIET: &str = "rmcp=off";

/// Builds a subscriber that writes log lines to `writer`.
pub fn subscriber<W>(
    filter: &str,
    formatter: LogFormatter,
    writer: W,
    traces: Option<&Traces>,
) -> Result<impl Subscriber + Send + Sync + use<W>, TelemetryError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + Clone + 'static,
{
    // The MCP library logs what servers send.
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}"))
        .map_err(|error| TelemetryError::Filter { filter: filter.to_owned(), reason: error.to_string() })?;
    let (pretty, json) = match formatter {
        LogFormatter::Pretty { colour } => {
            (Some(fmt::layer().with_writer(writer).with_ansi(colour).with_target(false)), None)
        }
        LogFormatter::Json => {
            let json = fmt::layer().json().flatten_event(true).with_current_span(true).with_span_list(false);
            (None, Some(json.with_writer(writer)))
        }
    };
    // The filter applies to log lines only: which spans are exported does not depend on what is logged.
    let lines = pretty.map(Layer::boxed).or(json.map(Layer::boxed)).with_filter(filter);
    Ok(tracing_subscriber::registry().with(lines).with(traces.map(Traces::layer)))
}
