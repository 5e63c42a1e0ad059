//! `gantry-worker probe`: one round trip over the socket, by which the orchestrator checks that the image's worker can
//! reach it from inside a sandbox.

use std::{path::Path, time::Duration};

use crate::{client::health, connection::TransportError};

const PROBE_TIMEOUT_SECONDS: u64 = 5;

/// The health check failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There was no response.
    #[error("no response on the socket")]
    Unreachable(#[source] TransportError),
    /// The response was not a success.
    #[error("health check failed with status {0}")]
    Unhealthy(u16),
}

/// Sends `GET /health`.
pub async fn probe(socket: &Path) -> Result<(), ProbeError> {
    let limit = Duration::from_secs(PROBE_TIMEOUT_SECONDS);
    let status = health(socket, limit).await.map_err(ProbeError::Unreachable)?;
    if status.is_success() { Ok(()) } else { Err(ProbeError::Unhealthy(status.as_u16())) }
}
