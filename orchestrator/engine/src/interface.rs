//! The `Engine` trait, its errors, and what a readiness probe reports.
//!
//! Never names a setting of a particular engine's API.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;

use super::{Adoption, AdoptionSpec, AttachedStreams, ContainerSpec, ContainerView, McpContainerSpec};

/// Whether jobs can run, from a probe with a real container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SandboxReadiness {
    /// Jobs can run.
    Ready(EngineFacts),
    /// No job can run.
    NotReady {
        reason: ReadinessReason,
        /// The finding and how to fix it, for the operator.
        detail: String,
    },
}

/// Why no job can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(into = "&'static str")]
#[strum(serialize_all = "snake_case")]
pub enum ReadinessReason {
    /// The engine does not answer, or not in time.
    EngineUnreachable,
    /// The job image is not on the engine.
    ImageMissing,
    /// The chosen runtime is not on the engine.
    RuntimeMissing,
    /// The engine does not honour the posture, or the image breaks it.
    PostureUnsupported,
    /// The operator disabled the sandbox.
    DisabledByConfig,
}

impl ReadinessReason {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Facts about the engine, from a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EngineFacts {
    /// `docker`.
    pub engine: String,
    pub version: String,
    /// The API version in use.
    pub api_version: String,
    /// The engine's host name.
    pub node: String,
    /// The runtime that jobs run under.
    pub runtime: String,
    /// All runtimes that the engine has, in order of name.
    pub runtimes: Vec<String>,
    /// `1` or `2`. Version 1 does not charge the buffers of TCP and UDP sockets to a job's memory.
    pub cgroup_version: String,
    /// The job image's id.
    pub image_id: String,
    pub posture: String,
}

/// Errors of a container engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No answer, or not in time.
    #[error("the engine does not answer: {0}")]
    Unreachable(String),
    /// The engine does not have the image.
    #[error("image {0} is not on the engine")]
    ImageMissing(String),
    /// The engine does not have the runtime.
    #[error("runtime {0} is not on the engine")]
    RuntimeMissing(String),
    /// A container does not match its posture, or is not the container that was created. `create` removes such a
    /// container.
    #[error("the container does not meet the posture: {field} is {found}, must be {wanted}")]
    PostureMismatch {
        /// The field's name in the inspect response.
        field: String,
        /// The value in the inspect response.
        found: String,
        /// The value that the posture requires.
        wanted: String,
    },
    /// A permanent refusal: a retry does not help.
    #[error("the engine refused: {0}")]
    Refused(String),
    /// Any other failure; a retry may help.
    #[error("engine error: {0}")]
    Other(String),
}

/// Creates containers that match the posture, observes them and ends them. Every method is idempotent.
pub trait Engine: Send + Sync {
    /// The full probe: ping, version, runtime, image, a temporary container that is compared with the posture, and,
    /// once per image and process, a socket round trip with the image's worker. A later call repeats only the quick
    /// checks, unless the engine has failed as a whole in between.
    fn probe(&self) -> BoxFuture<'_, SandboxReadiness>;

    /// Creates the container, compares it with the posture and starts it; returns the engine's id. An existing
    /// container of this name that was never started is replaced unless it is identical; one that runs or has run is
    /// adopted.
    fn create<'a>(&'a self, spec: &'a ContainerSpec) -> BoxFuture<'a, Result<String, EngineError>>;

    /// Creates a container for an MCP server, compares it with its posture, attaches to its standard streams and
    /// starts it. One that cannot be started is removed. A name that is taken is an error.
    fn start_mcp<'a>(&'a self, spec: &'a McpContainerSpec) -> BoxFuture<'a, Result<AttachedStreams, EngineError>>;

    /// Adopts an existing container. Never creates or starts one.
    fn adopt<'a>(&'a self, spec: &'a AdoptionSpec) -> BoxFuture<'a, Result<Adoption, EngineError>>;

    /// One container; `None` when the engine has none of this name.
    fn observe<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<ContainerView>, EngineError>>;

    /// Every container of this instance, running or not.
    fn list(&self) -> BoxFuture<'_, Result<Vec<ContainerView>, EngineError>>;

    /// SIGTERM, then SIGKILL after `grace`. `Ok` means confirmed: the container does not run or does not exist.
    fn stop<'a>(&'a self, name: &'a str, grace: Duration) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Pauses, then kills without grace. `Ok` means confirmed: the container does not run.
    fn kill<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Pauses the container. `Ok` means confirmed: nothing in it runs until it is unpaused, or it does not run at all.
    fn pause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Unpauses the container. `Ok` means confirmed: it is not paused.
    fn unpause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>>;

    /// The host PID of the container's first process; `None` when it does not run.
    fn pid<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<u32>, EngineError>>;

    /// The last `max_bytes` of the container's output.
    fn logs<'a>(&'a self, name: &'a str, max_bytes: usize) -> BoxFuture<'a, Result<String, EngineError>>;

    /// Removes the container, running or not. `Ok` means confirmed: the engine has none of this name.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Returns when a container of this instance may have changed since the last return (start, exit, OOM, removal), or
    /// when the engine became unreachable or reachable. Carries no data; spurious returns are harmless.
    fn changed(&self) -> BoxFuture<'_, ()>;
}
