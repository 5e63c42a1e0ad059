//! Containers, independent of the engine: what is requested, what is observed, how one is adopted.
//!
//! Plain data. Never names a setting of a particular engine's API.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr, path::PathBuf};

use chrono::{DateTime, Utc};
use protocol::JobId;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

/// Exit code of a process that SIGKILL ended (128 + 9): also how the kernel's OOM killer ends the worker.
pub const SIGKILL_EXIT_CODE: i64 = 137;

/// The purpose of a container: the label `gantry.role`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, strum::EnumString, strum::IntoStaticStr)]
#[serde(into = "&'static str")]
#[strum(serialize_all = "snake_case")]
pub enum ContainerRole {
    /// One attempt of one job.
    Job,
    /// Created and removed by a readiness probe.
    Probe,
    /// An MCP server for one user.
    Mcp,
}

/// Per-container limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resources {
    /// Memory, and memory plus swap, in MiB.
    pub memory_mb: u64,
    /// CPUs; fractions are allowed.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u32,
    /// Size of the largest single file in MiB (ulimit `fsize`). The disk sweep enforces the total.
    pub disk_mb: u64,
}

/// A container to create and start. Every setting that is missing here is fixed by the posture.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerSpec {
    /// The container's name (see `protocol::ContainerName`). Creating the same name twice yields one container.
    pub name: String,
    pub job_id: JobId,
    pub attempt: u32,
    /// The job's owner, recorded as a label.
    pub owner: String,
    /// Recorded as the label `gantry.created-at`.
    pub created_at: DateTime<Utc>,
    pub role: ContainerRole,
    pub image: String,
    pub resources: Resources,
    /// The run directory (with `worker.sock` and `token`) as a path of the orchestrator; the engine maps it to its
    /// host.
    pub run_dir: PathBuf,
    /// The workspace directory as a path of the orchestrator.
    pub workspace: PathBuf,
    /// W3C trace context for `TRACEPARENT`.
    pub traceparent: Option<String>,
    /// Names that resolve inside the container, to loopback addresses.
    pub hosts: BTreeMap<String, Ipv4Addr>,
}

/// A container to create and start whose program is an MCP server. It has no directory of the host, and no worker.
#[derive(Debug, Clone, PartialEq)]
pub struct McpContainerSpec {
    /// The container's name (see `protocol::ContainerName`). A name is used once.
    pub name: String,
    /// The server's name, recorded as a label.
    pub server: String,
    /// The user whom it works for, recorded as a label.
    pub owner: String,
    /// Recorded as the label `gantry.created-at`.
    pub created_at: DateTime<Utc>,
    pub image: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    pub resources: Resources,
}

/// The standard streams of a running container. Its input ends when this is dropped.
pub struct AttachedStreams {
    /// Standard input.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// Standard output.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Standard error. The engine discards it once this is dropped; until then the program waits for a reader.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
}

impl fmt::Debug for AttachedStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedStreams").finish_non_exhaustive()
    }
}

/// A container that an earlier call created, possibly in an earlier process or version, and that is to be adopted.
///
/// It is identified by its name, its labels and, where known, its id. Nothing here comes from the current settings: an
/// upgrade or a changed setting ends no running job.
#[derive(Debug, Clone, PartialEq)]
pub struct AdoptionSpec {
    pub name: String,
    /// The engine's id, where the job's row has it.
    pub id: Option<String>,
    pub job_id: JobId,
    pub attempt: u32,
    /// The posture's digest on the job's row.
    pub posture: String,
    /// The limits on the job's row. They can be changed on a running container, so they are compared.
    pub resources: Resources,
}

/// The outcome of an adoption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adoption {
    /// The container runs or has run. It is never started again.
    Adopted { id: String },
    /// The container was created and never started.
    NotStarted,
    /// The engine has no container of this name.
    NotFound,
}

/// A container of this instance as the engine reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerView {
    pub name: String,
    pub id: String,
    /// The job in its label.
    pub job_id: Option<JobId>,
    /// The attempt in its label.
    pub attempt: u32,
    /// The role in its label.
    pub role: Option<ContainerRole>,
    pub status: ContainerStatus,
}

/// The state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerStatus {
    /// Created, not started.
    Created,
    Running,
    Exited {
        /// Exit code; 128 + n for signal n.
        code: i64,
        /// Killed for memory. Only the worker itself counts: the OOM kill of a child leaves the container running.
        oom_killed: bool,
    },
    /// The engine does not answer for this container: it may be running or may have ended.
    Unknown,
}
