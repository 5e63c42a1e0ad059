//! `GET /metrics` on the public address: for admins, unless metrics are served on a separate address.

use axum::{extract::State, response::Response};
use protocol::ErrorCode;

use super::{PublicApi, caller::Admin};
use crate::{metrics::MetricsEndpoint, problem::ApiError};

/// Shows the metrics.
///
/// In the text format of Prometheus. Admins only.
#[utoipa::path(
    get, path = "/metrics", operation_id = "get_metrics", tag = "operation",
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "Metrics in the Prometheus text format."),
        (status = 404, description = "The metrics are served on a separate address."),
    )
)]
pub(super) async fn metrics(State(api): State<PublicApi>, Admin(_who): Admin) -> Result<Response, ApiError> {
    match &api.metrics_endpoint {
        MetricsEndpoint::Public(scrape) => scrape.read().await,
        MetricsEndpoint::Dedicated => {
            let detail = "metrics are served only on the address set by GANTRY_METRICS_BIND";
            Err(ApiError::new(ErrorCode::NotFound, detail))
        }
    }
}
