//! Traces: the spans of the log's subscriber, sent to an OpenTelemetry collector when one is configured, and the context that
//! makes one trace of what a request, the dispatcher and a job's worker do.
//!
//! The only importer of OpenTelemetry. Sends nothing unless told where to, waits for nobody, and puts nobody's words on a span.

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

use super::TelemetryError;
use crate::config::mask_urls;

/// The header, as W3C Trace Context has it.
pub const TRACEPARENT: &str = "traceparent";
/// Whose spans go: not those of libraries, the exporter's own client among them.
const OURS: [&str; 2] = ["orchestrator", "agent"];
/// Where a collector takes traces (OTLP/HTTP, "Default endpoint paths").
const TRACES_PATH: &str = "/v1/traces";

/// Names are made and parents looked for only when somebody will see them.
static KEPT: AtomicBool = AtomicBool::new(false);

/// Where the spans go.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends spans, in batches and in the background, to a collector: `http://host:4318`, without a path. What the collector does
    /// not take in time is dropped.
    pub fn to(endpoint: &str) -> Result<Self, TelemetryError> {
        let wrong =
            |reason: &str| TelemetryError::Collector { endpoint: mask_urls(endpoint), reason: reason.to_owned() };
        let url = format!("{}{TRACES_PATH}", endpoint.trim_end_matches('/'));
        let parsed = url.parse::<axum::http::Uri>().map_err(|error| wrong(&error.to_string()))?;
        let port_is_fine = parsed.port().is_none_or(|port| port.as_str().parse::<u16>().is_ok());
        if !matches!(parsed.scheme_str(), Some("http" | "https")) || !port_is_fine {
            return Err(wrong("must be a collector's address such as http://127.0.0.1:4318"));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(url)
            .with_protocol(Protocol::HttpBinary)
            .build()
            .map_err(|error| wrong(&error.to_string()))?;
        let resource = Resource::builder()
            .with_service_name("gantry")
            .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        KEPT.store(true, Ordering::Relaxed);
        Ok(Self(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
    }

    /// Takes the log's spans.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let ours = OURS.into_iter().map(|target| (target, LevelFilter::INFO));
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("gantry"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(ours.collect::<Targets>())
    }

    /// Sends what waits; blocks until then, or until the exporter gives up (5 s).
    pub fn finish(&self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// Whether spans go anywhere.
pub fn are_kept() -> bool {
    KEPT.load(Ordering::Relaxed)
}

/// The current span's context as a `traceparent`; none when no traces are kept.
pub fn current() -> Option<String> {
    if !are_kept() {
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

/// Makes a span that has not begun a child of a `traceparent`. One that is none is no parent.
pub fn follow(span: &Span, traceparent: Option<&str>) {
    if let Some(parent) = traceparent.filter(|_| are_kept()) {
        let carrier = HashMap::from([(TRACEPARENT.to_owned(), parent.to_owned())]);
        // Only a span that nobody records cannot have a parent.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&carrier));
    }
}

/// What a request's span says of it (OpenTelemetry semantic conventions, HTTP server).
pub fn answered(span: &Span, method: &str, route: &str, status: u16) {
    if !are_kept() {
        return;
    }
    span.set_attribute("http.request.method", method.to_owned());
    span.set_attribute("http.route", route.to_owned());
    span.set_attribute("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.set_status(Status::error("the answer was an error of ours"));
    }
}
