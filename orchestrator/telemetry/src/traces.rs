//! Traces: exports spans to an OpenTelemetry collector if one is configured, and propagates the trace context between a
//! request, the dispatcher and a job's worker.
//!
//! The only importer of OpenTelemetry. Never blocks on the collector, and puts no prompt or model text on a span.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
};

use opentelemetry::{
    propagation::TextMapPropagator as _,
    trace::{Status, TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing::{Span, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use super::{OWN_TARGETS, TelemetryError};
use base::mask_urls;

/// The W3C Trace Context header.
pub const TRACEPARENT: &str = "traceparent";
/// The path that a collector receives traces on (OTLP/HTTP, "Default URL paths").
const OTLP_TRACES_PATH: &str = "/v1/traces";

/// Whether an exporter exists: span names and parents cost nothing otherwise.
static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// The exporter of spans.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Exports spans in batches, in the background, to a collector such as `http://host:4318`, without a path. Spans
    /// that the collector does not accept in time are dropped.
    pub fn new(endpoint: &str) -> Result<Self, TelemetryError> {
        let invalid =
            |reason: &str| TelemetryError::Collector { endpoint: mask_urls(endpoint), reason: reason.to_owned() };
        let url = format!("{}{OTLP_TRACES_PATH}", endpoint.trim_end_matches('/'));
        let parsed = url.parse::<axum::http::Uri>().map_err(|error| invalid(&error.to_string()))?;
        let is_valid_port = parsed.port().is_none_or(|port| port.as_str().parse::<u16>().is_ok());
        if !matches!(parsed.scheme_str(), Some("http" | "https")) || !is_valid_port {
            return Err(invalid("must be a collector's URL such as http://127.0.0.1:4318"));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(url)
            .with_protocol(Protocol::HttpBinary)
            .build()
            .map_err(|error| invalid(&error.to_string()))?;
        let resource = Resource::builder()
            .with_service_name("gantry")
            .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        IS_ENABLED.store(true, Ordering::Relaxed);
        Ok(Self(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
    }

    /// The layer that exports the spans of a subscriber.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        // Without libraries, such as the exporter's own HTTP client.
        let targets = OWN_TARGETS.into_iter().map(|target| (target, LevelFilter::INFO));
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("gantry"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(targets.collect::<Targets>())
    }

    /// Exports the buffered spans. Blocks until that is done or the exporter times out (5 s).
    pub fn shutdown(&self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

/// Whether spans are exported.
pub fn is_enabled() -> bool {
    IS_ENABLED.load(Ordering::Relaxed)
}

/// The current span's context as a `traceparent`; none if spans are not exported.
pub fn current_traceparent() -> Option<String> {
    if !is_enabled() {
        return None;
    }
    let context = Span::current().context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// Makes a span that has not been entered a child of a `traceparent`. An invalid one is ignored.
pub fn set_parent(span: &Span, traceparent: Option<&str>) {
    if let Some(parent) = traceparent.filter(|_| is_enabled()) {
        let carrier = HashMap::from([(TRACEPARENT.to_owned(), parent.to_owned())]);
        // Fails only for a span that is not recorded.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&carrier));
    }
}

/// Sets the attributes of a request's span (OpenTelemetry semantic conventions, HTTP server).
pub fn record_response(span: &Span, method: &str, route: &str, status: u16) {
    if !is_enabled() {
        return;
    }
    span.set_attribute("http.request.method", method.to_owned());
    span.set_attribute("http.route", route.to_owned());
    span.set_attribute("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.set_status(Status::error("internal server error"));
    }
}
