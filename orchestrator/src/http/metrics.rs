//! `GET /metrics`: what a scraper reads, wherever it is asked for.
//!
//! Owns the answer and the listener of its own that gives it to anybody. Who may read it on the public address is the
//! public API's to say.

use axum::{
    Router,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

use super::problem::ApiError;
use crate::{store::Store, telemetry::metrics::Metrics};

/// Prometheus' text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a scrape reads.
#[derive(Clone)]
pub struct Scrape {
    /// What was counted.
    pub metrics: Metrics,
    /// What the database knows.
    pub store: Store,
}

/// Where the metrics are.
#[derive(Clone)]
pub enum MetricsDoor {
    /// On the public address, for admins.
    Here(Scrape),
    /// On their own address alone.
    Elsewhere,
}

impl Scrape {
    /// Reads everything, now.
    pub async fn read(&self) -> Result<Response, ApiError> {
        let text = self.metrics.render(&self.store.tally().await?);
        Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
    }
}

/// For a listener of its own.
pub fn router(scrape: Scrape) -> Router {
    Router::new().route("/metrics", get(read)).with_state(scrape)
}

async fn read(State(scrape): State<Scrape>) -> Result<Response, ApiError> {
    scrape.read().await
}
