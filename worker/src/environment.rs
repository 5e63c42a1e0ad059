//! What the container's environment says: the only reader of it.

use std::path::PathBuf;

use protocol::JobId;

/// Where a job finds its orchestrator, its token and its files.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Which job.
    pub job_id: JobId,
    /// The orchestrator's socket.
    pub socket: PathBuf,
    /// The file that holds the token.
    pub token_file: PathBuf,
    /// The job's files.
    pub workspace: PathBuf,
    /// The trace this attempt belongs to (W3C), sent along with each request.
    pub traceparent: Option<String>,
    /// What a shell sees of it.
    pub shell: ShellEnvironment,
}

/// The environment of the commands that a job runs: nothing of the worker's own.
#[derive(Debug, Clone)]
pub struct ShellEnvironment {
    /// `HOME`.
    pub home: String,
    /// `PATH`.
    pub path: String,
    /// `LANG`.
    pub lang: String,
}

/// The environment does not say what it must.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// A variable is not there.
    #[error("{0} is not set: the worker is started by an orchestrator, in a job's container")]
    Missing(&'static str),
    /// A variable makes no sense.
    #[error("GANTRY_JOB_ID is not a job's id")]
    JobId(#[source] protocol::ParseIdError),
}

impl Environment {
    /// Reads it.
    pub fn read() -> Result<Self, EnvironmentError> {
        let required = |name| variable(name).ok_or(EnvironmentError::Missing(name));
        Ok(Self {
            job_id: required("GANTRY_JOB_ID")?.parse().map_err(EnvironmentError::JobId)?,
            socket: Self::socket()?,
            token_file: required("GANTRY_TOKEN_FILE")?.into(),
            workspace: required("GANTRY_WORKSPACE")?.into(),
            traceparent: variable("TRACEPARENT"),
            shell: ShellEnvironment {
                home: variable("HOME").unwrap_or_else(|| "/home/agent".to_owned()),
                path: variable("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".to_owned()),
                lang: variable("LANG").unwrap_or_else(|| "C.UTF-8".to_owned()),
            },
        })
    }

    /// The socket alone: all that a probe needs.
    pub fn socket() -> Result<PathBuf, EnvironmentError> {
        variable("GANTRY_SOCKET").map(PathBuf::from).ok_or(EnvironmentError::Missing("GANTRY_SOCKET"))
    }
}

#[expect(clippy::disallowed_methods, reason = "this file is the worker's only reader of the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
