//! `GET /metrics`: the response to a scrape, and the router of the metrics' own listener.
//!
//! That listener has no authentication. Access on the public address is checked by the public API.

use axum::{
    Router,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

use super::problem::ApiError;
use store::Store;
use telemetry::metrics::Metrics;

/// The Prometheus text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The sources of a scrape.
#[derive(Clone)]
pub struct Scrape {
    pub metrics: Metrics,
    /// Counts from the database.
    pub store: Store,
}

/// Where the metrics are served.
#[derive(Clone)]
pub enum MetricsEndpoint {
    /// On the public address, for admins.
    Public(Scrape),
    /// Only on their own address.
    Dedicated,
}

impl Scrape {
    /// Renders all metrics.
    pub async fn read(&self) -> Result<Response, ApiError> {
        let text = self.metrics.render(&self.store.counts().await?);
        Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
    }
}

/// The router of the metrics' own listener.
pub fn router(scrape: Scrape) -> Router {
    Router::new().route("/metrics", get(read)).with_state(scrape)
}

async fn read(State(scrape): State<Scrape>) -> Result<Response, ApiError> {
    scrape.read().await
}
