//! `gantry-worker probe`: one round trip over the socket, with which the orchestrator learns that this image's worker
//! can reach it from inside a sandbox.

use std::{path::Path, time::Duration};

use crate::{client::health, connection::TransportError};

const PROBE_TIMEOUT_SECONDS: u64 = 5;

/// The socket did not answer as an orchestrator does.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No answer.
    #[error("no answer on the socket")]
    Unreachable(#[source] TransportError),
    /// Another answer than 200.
    #[error("the socket answered {0} to a health check")]
    Unwell(u16),
}

/// `GET /health`.
pub async fn probe(socket: &Path) -> Result<(), ProbeError> {
    let limit = Duration::from_secs(PROBE_TIMEOUT_SECONDS);
    let status = health(socket, limit).await.map_err(ProbeError::Unreachable)?;
    if status.is_success() { Ok(()) } else { Err(ProbeError::Unwell(status.as_u16())) }
}
