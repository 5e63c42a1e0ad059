//! The worker's environment variables. No other module reads them.

use std::path::PathBuf;

use protocol::{JobId, PROXY_ADDRESS};

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
    /// Whether commands have variables for the egress proxy.
    pub has_egress: bool,
}

/// Addresses of the container itself.
const NO_PROXY: &str = "localhost,127.0.0.1,127.0.0.0/8,::1,[::1]";

impl ShellEnvironment {
    /// The variables that make programs use the egress proxy; none without it.
    pub(crate) fn egress_variables(&self) -> Vec<(&'static str, String)> {
        if !self.has_egress {
            return Vec::new();
        }
        let proxy = format!("http://{PROXY_ADDRESS}");
        let proxies = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
        let exceptions = ["no_proxy", "NO_PROXY"].map(|name| (name, NO_PROXY.to_owned()));
        // Node.js and cargo's git take no notice of the others.
        let switches = [("NODE_USE_ENV_PROXY", "1"), ("CARGO_NET_GIT_FETCH_WITH_CLI", "true")];
        let proxies = proxies.into_iter().map(|name| (name, proxy.clone()));
        proxies.chain(exceptions).chain(switches.map(|(name, value)| (name, value.to_owned()))).collect()
    }
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
                has_egress: false,
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
