//! The worker's environment variables. No other module reads them.

use std::path::PathBuf;

use protocol::JobId;

/// The settings of a worker, set by the orchestrator.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The id of the job.
    pub job_id: JobId,
    /// The path of the orchestrator's socket.
    pub socket: PathBuf,
    /// The path of the token file.
    pub token_file: PathBuf,
    /// The directory with the job's files.
    pub workspace: PathBuf,
    /// The W3C trace context of the attempt, sent with each request.
    pub traceparent: Option<String>,
    /// The environment of commands.
    pub shell: ShellEnvironment,
}

/// The environment of the commands that a job runs. It contains nothing from the worker's own environment.
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
    #[error("{0} is not set: gantry-worker is started by the orchestrator in a job's container")]
    Missing(&'static str),
    /// `GANTRY_JOB_ID` is invalid.
    #[error("GANTRY_JOB_ID is not a job id")]
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

    /// Reads only the path of the socket, for a probe.
    pub fn socket() -> Result<PathBuf, EnvironmentError> {
        variable("GANTRY_SOCKET").map(PathBuf::from).ok_or(EnvironmentError::Missing("GANTRY_SOCKET"))
    }
}

#[expect(clippy::disallowed_methods, reason = "this file is the worker's only reader of the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
