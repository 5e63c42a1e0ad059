//! `GET /healthz`: the process is alive.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

/// Liveness.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    /// Always `ok`.
    status: &'static str,
    /// Version of the orchestrator.
    version: &'static str,
}

/// Checks that the process is alive.
///
/// No token is needed. `GET /readyz` tells whether jobs can run.
#[utoipa::path(get, path = "/healthz", operation_id = "get_health", tag = "health", security(()),
    responses((status = 200, body = Health, description = "The process is alive.")))]
pub(super) async fn health() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}
