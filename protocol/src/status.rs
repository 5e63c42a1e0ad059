//! What the server can do now: the answer of `GET /api/status`, and the event of a change.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// Whether the server can run jobs, in one word and by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadinessState {
    /// As in `GET /readyz`: a sandbox that the operator disabled is no failure.
    pub ready: bool,
    /// Whether jobs can run in containers.
    pub sandbox_ready: bool,
    /// Whether at least one model provider is asked.
    pub model_ready: bool,
    /// Why something is not ready: a reason of the sandbox as in `GET /readyz`, `disk_full` or `model_unavailable`.
    pub reason: Option<String>,
}

/// The state of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerStatus {
    /// Whether jobs can run, as in `GET /readyz`.
    pub ready: bool,
    /// The sandbox.
    pub sandbox: SandboxStatus,
    /// The models.
    pub model: ModelStatus,
    /// Jobs that may run in containers at once.
    pub slots: SlotStatus,
    /// Jobs that wait for a slot.
    pub queued: u64,
    /// The file system of the workspaces; null if it does not answer.
    pub disk: Option<DiskStatus>,
    /// When the process started.
    pub started_at: DateTime<Utc>,
    /// Version of the orchestrator.
    pub version: String,
}

/// Whether jobs can run in containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "the names say it")]
pub struct SandboxStatus {
    pub ready: bool,
    /// Why not, as in `GET /readyz`.
    pub reason: Option<String>,
    /// Explanation of `reason`, with how to fix it.
    pub message: Option<String>,
}

/// Whether models answer, as seen by recent calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "the names say it")]
pub struct ModelStatus {
    pub ready: bool,
    /// The model of a job that names none.
    pub name: String,
    /// Why not.
    pub message: Option<String>,
}

/// Slots of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "the names say it")]
pub struct SlotStatus {
    pub total: u64,
    pub busy: u64,
}

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "the names say it")]
pub struct DiskStatus {
    pub free_bytes: u64,
    pub total_bytes: u64,
}
