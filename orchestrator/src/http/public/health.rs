//! `GET /healthz`: the process is alive.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

/// Alive.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    /// Always `ok`.
    status: &'static str,
    /// Of the orchestrator.
    version: &'static str,
}

/// Says that the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()),
    responses((status = 200, body = Health, description = "Alive.")))]
pub(super) async fn health() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}
