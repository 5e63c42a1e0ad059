//! `GET /metrics` on the public address: for admins, unless the metrics have an address of their own.

use axum::{extract::State, response::Response};
use protocol::{ErrorCode, Problem};

use super::{PublicApi, caller::Admin};
use crate::http::{metrics::MetricsDoor, problem::ApiError};

/// Everything that is counted, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "operation",
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "Prometheus' text format."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "The metrics have an address of their own."),
    )
)]
pub(super) async fn metrics(State(api): State<PublicApi>, Admin(_who): Admin) -> Result<Response, ApiError> {
    match &api.metrics_door {
        MetricsDoor::Here(scrape) => scrape.read().await,
        MetricsDoor::Elsewhere => {
            let detail = "the metrics are on the address in GANTRY_METRICS_BIND alone";
            Err(ApiError::new(ErrorCode::NotFound, detail))
        }
    }
}
