//! The container's environment variables. The only reader of them.

use std::path::PathBuf;

use protocol::JobId;

/// The settings of a worker, which the orchestrator sets on its container.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The job.
    pub job_id: JobId,
    /// The orchestrator's socket.
    pub socket: PathBuf,
    /// The file that holds the token.
    pub token_file: PathBuf,
    /// The folder of the job's files.
    pub workspace: PathBuf,
    /// The trace this attempt belongs to (W3C), sent along with each request.
    pub traceparent: Option<String>,
    /// The variables that commands get.
    pub shell: ShellEnvironment,
}

/// The environment of the commands that a job runs; it has nothing of the worker's own.
#[derive(Debug, Clone)]
pub struct ShellEnvironment {
    /// `HOME`.
    pub home: String,
    /// `PATH`.
    pub path: String,
    /// `LANG`.
    pub lang: String,
}

/// A required variable is missing or invalid.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// A variable is not set.
    #[error("{0} is not set: the worker is started by an orchestrator, in a job's container")]
    Missing(&'static str),
    /// `GANTRY_JOB_ID` is invalid.
    #[error("GANTRY_JOB_ID is not a job's id")]
    JobId(#[source] protocol::ParseIdError),
}

impl Environment {
    /// Reads the environment of this process.
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

    /// Reads the socket's path alone, which is all that a probe needs.
    pub fn socket() -> Result<PathBuf, EnvironmentError> {
        variable("GANTRY_SOCKET").map(PathBuf::from).ok_or(EnvironmentError::Missing("GANTRY_SOCKET"))
    }
}

#[expect(clippy::disallowed_methods, reason = "this file is the worker's only reader of the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
