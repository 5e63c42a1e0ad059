//! The seam to what makes containers.
//!
//! Owns the words: what is asked for, what is seen, how it fails. Never knows a container engine's API.

use std::{path::PathBuf, time::Duration};

use agent::BoxFuture;
use chrono::{DateTime, Utc};
use protocol::JobId;
use serde::Serialize;

/// Whether full jobs can run here, from a probe of the real thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SandboxReadiness {
    /// They can.
    Ready(EngineFacts),
    /// They cannot.
    NotReady {
        /// Why, typed.
        reason: ReadinessReason,
        /// What was found and what to do, for people.
        detail: String,
    },
}

/// Why no full job can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadinessReason {
    /// No answer, or not in time.
    EngineUnreachable,
    /// The job image is not on the engine.
    ImageMissing,
    /// The chosen runtime is not on the engine.
    RuntimeMissing,
    /// The engine does not honour the posture, or the image breaks it.
    PostureUnsupported,
    /// The operator said so.
    DisabledByConfig,
}

impl ReadinessReason {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EngineUnreachable => "engine_unreachable",
            Self::ImageMissing => "image_missing",
            Self::RuntimeMissing => "runtime_missing",
            Self::PostureUnsupported => "posture_unsupported",
            Self::DisabledByConfig => "disabled_by_config",
        }
    }
}

/// What a probe learned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EngineFacts {
    /// `docker`.
    pub engine: String,
    /// Its version.
    pub version: String,
    /// The API version spoken.
    pub api_version: String,
    /// The engine's host name.
    pub node: String,
    /// The runtime that jobs get.
    pub runtime: String,
    /// `1` or `2`: which limits can hold. Version 1 does not count the buffers of TCP and UDP sockets as a job's memory.
    pub cgroup_version: String,
    /// The job image's id.
    pub image_id: String,
    /// Digest of the posture (see `spec`).
    pub posture: String,
}

/// What a container is for: the label `gantry.role`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerRole {
    /// One attempt of one job.
    Job,
    /// Made in advance.
    Pool,
    /// Thrown away by a probe.
    Probe,
}

/// Per-container limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resources {
    /// Memory and memory+swap.
    pub memory_mb: u64,
    /// CPU share.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u32,
    /// Largest single file (ulimit `fsize`); the sweep holds the sum.
    pub disk_mb: u64,
}

/// What to start. Everything that is not here is the posture's, fixed in `spec`.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerSpec {
    /// `gantry-job-<id>-<attempt>`; asking twice for one name makes one container.
    pub name: String,
    /// The job.
    pub job_id: JobId,
    /// Its attempt.
    pub attempt: u32,
    /// The owner, for the label.
    pub owner: String,
    /// The label `gantry.created-at`.
    pub created_at: DateTime<Utc>,
    /// What it is for.
    pub role: ContainerRole,
    /// The image's name.
    pub image: String,
    /// Limits.
    pub resources: Resources,
    /// The run folder as the orchestrator sees it (with `worker.sock` and `token`); the engine maps it to its host.
    pub run_folder: PathBuf,
    /// The workspace folder as the orchestrator sees it.
    pub workspace: PathBuf,
    /// W3C trace context for `TRACEPARENT`.
    pub traceparent: Option<String>,
}

/// A container that was made by an earlier call, perhaps of an earlier process or version, and is to be taken up again.
///
/// It is identified by its name, its id where that is known, and its labels. Nothing here comes from today's settings: an
/// upgrade or a changed setting ends no running job.
#[derive(Debug, Clone, PartialEq)]
pub struct AdoptionSpec {
    /// `gantry-job-<id>-<attempt>`.
    pub name: String,
    /// The engine's id, where the job's row has it.
    pub id: Option<String>,
    /// The job.
    pub job_id: JobId,
    /// Its attempt.
    pub attempt: u32,
    /// The posture's digest on the job's row.
    pub posture: String,
    /// The limits on the job's row: what can be changed on a container that lives.
    pub resources: Resources,
}

/// What an adoption found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adoption {
    /// It runs, or has run: it is never started again.
    Adopted {
        /// The engine's id.
        id: String,
    },
    /// It was created and never started.
    NotStarted,
    /// The engine has no container of this name.
    NotFound,
}

/// A container of this instance as the engine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerView {
    /// Its name.
    pub name: String,
    /// The engine's id.
    pub id: String,
    /// From its label.
    pub job_id: Option<JobId>,
    /// From its label.
    pub attempt: u32,
    /// From its label.
    pub role: Option<ContainerRole>,
    /// What it does.
    pub status: ContainerStatus,
}

/// What a container does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerStatus {
    /// Made, not started.
    Created,
    /// Runs (or is paused).
    Running,
    /// Has ended.
    Exited {
        /// Its exit code; 128 + n for signal n.
        code: i64,
        /// Killed for memory (only the worker itself counts; a child's OOM leaves it running).
        oom_killed: bool,
    },
    /// The engine has no answer about it: it may run, and it may have ended.
    Unknown,
}

/// How an engine fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No answer, or not in time.
    #[error("the engine does not answer: {0}")]
    Unreachable(String),
    /// The image is not there.
    #[error("image {0} is not on the engine")]
    ImageMissing(String),
    /// The runtime is not there.
    #[error("runtime {0} is not on the engine")]
    RuntimeMissing(String),
    /// A container does not show its posture, or is not the one that was made. One that `create` met has been removed.
    #[error("the container does not meet the posture: {field} is {found}, must be {wanted}")]
    PostureMismatch {
        /// Inspect's name for it.
        field: String,
        /// What inspect said.
        found: String,
        /// What the posture wants.
        wanted: String,
    },
    /// It refused, for a reason that trying again does not change.
    #[error("the engine refused: {0}")]
    Refused(String),
    /// Anything else; trying again may help.
    #[error("engine error: {0}")]
    Other(String),
}

/// Makes containers that meet the posture, sees them, and ends them. Every verb may be asked twice.
pub trait Engine: Send + Sync {
    /// The full probe: ping, version, runtime, image, a throw-away container that shows the posture is honoured, and, once
    /// per image in the life of this value, a socket round trip with the image's worker. A later call repeats only the
    /// quick ones, unless the engine failed as a whole in between.
    fn probe(&self) -> BoxFuture<'_, SandboxReadiness>;

    /// Creates, checks against the posture, starts; gives the engine's id. A container of this name that was created and
    /// never started is replaced unless it is the same; one that runs or has run is adopted.
    fn create<'a>(&'a self, spec: &'a ContainerSpec) -> BoxFuture<'a, Result<String, EngineError>>;

    /// Takes up a container that is there. Never creates one, never starts one.
    fn adopt<'a>(&'a self, spec: &'a AdoptionSpec) -> BoxFuture<'a, Result<Adoption, EngineError>>;

    /// One container; none when the engine has no such name.
    fn observe<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<ContainerView>, EngineError>>;

    /// Every container of this instance, running or not.
    fn list(&self) -> BoxFuture<'_, Result<Vec<ContainerView>, EngineError>>;

    /// SIGTERM, then SIGKILL after `grace`. Ok means confirmed: it does not run (or is not there).
    fn stop<'a>(&'a self, name: &'a str, grace: Duration) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Freezes, then kills without grace. Ok means confirmed: it does not run.
    fn kill<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Freezes it. Ok means confirmed: nothing in it runs until it is thawed (or it does not run at all).
    fn pause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Thaws it. Ok means confirmed: it is not frozen.
    fn unpause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>>;

    /// The host's number of its first process; none when it does not run.
    fn pid<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<u32>, EngineError>>;

    /// The last `max_bytes` of what it printed.
    fn logs<'a>(&'a self, name: &'a str, max_bytes: usize) -> BoxFuture<'a, Result<String, EngineError>>;

    /// Removes it, running or not. Ok means confirmed: the engine has no such name.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Returns when something may have changed for a container of this instance since the last return (start, exit,
    /// oom, removal), or when the engine went away or came back. A hint without data; spurious returns are fine.
    fn changed(&self) -> BoxFuture<'_, ()>;
}
