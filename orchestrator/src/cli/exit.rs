//! The errors and exit codes of commands.

use std::io;

use protocol::{ErrorCode, Job, JobReason, JobState, Problem, RpcError};

use crate::{config::ConfigError, telemetry::TelemetryError};

/// The process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// Success.
    Success,
    /// The job failed, or a local step did.
    Failed,
    /// Invalid usage, configuration or request.
    Usage,
    /// The server is unreachable, or refuses the token.
    Unreachable,
    /// Job, file or document not found.
    NotFound,
    /// Not possible in the current state.
    Conflict,
    /// The job exceeded its time limit.
    TimedOut,
    /// Interrupted with Ctrl-C.
    Interrupted,
    /// Standard output was closed, as with SIGPIPE. The outcome of a followed job is unknown.
    ClosedOutput,
}

impl Exit {
    /// The numeric code, as documented in `--help`.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::NotFound => 4,
            Self::Conflict => 5,
            Self::TimedOut => 124,
            Self::Interrupted => 130,
            Self::ClosedOutput => 141,
        }
    }

    /// The exit code for a response with an error status.
    pub(super) const fn of_status(status: u16) -> Self {
        match status {
            404 | 410 => Self::NotFound,
            409 | 412 => Self::Conflict,
            400 | 405 | 413 | 415 | 422 => Self::Usage,
            _ => Self::Unreachable,
        }
    }

    /// The exit code for a job that was followed to its end.
    pub(super) fn of_job(job: &Job) -> Self {
        match (job.state, job.reason) {
            (JobState::Failed, Some(JobReason::WallClock)) => Self::TimedOut,
            (JobState::Failed | JobState::Cancelled, _) => Self::Failed,
            _ => Self::Success,
        }
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// Invalid usage.
    #[error("{0}")]
    Usage(String),
    /// Invalid configuration.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Invalid log configuration.
    #[error("{0}")]
    Telemetry(#[from] TelemetryError),
    /// There is nothing with the name that was given.
    #[error("{0}")]
    NotFound(String),
    /// A local step failed.
    #[error("{0}")]
    Failed(String),
    /// The server did not respond.
    #[error("cannot reach {url}: {cause}; check that the server is running and that GANTRY_URL is correct")]
    Unreachable {
        /// The URL.
        url: String,
        /// The cause, in one line.
        cause: String,
    },
    /// The response is not from a Gantry server.
    #[error("{url} is not a Gantry server: {cause}")]
    NotGantry {
        /// The URL.
        url: String,
        /// What the response was.
        cause: String,
    },
    /// The server refused the request.
    #[error("{}", format_problem(.0))]
    Refused(Box<Problem>),
    /// A call over JSON-RPC failed.
    #[error("{}", super::rpc::describe(.0))]
    Call(Box<RpcError>),
    /// Writing to standard output failed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

fn format_problem(problem: &Problem) -> String {
    let reason = problem.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
    // The detail already contains the first field.
    let rest: Vec<_> = problem.errors.iter().skip(1).map(|e| format!("; {}: {}", e.field, e.message)).collect();
    let advice = match problem.code {
        ErrorCode::Unauthorized => "; set GANTRY_TOKEN to a token that `gantry token create` has printed where the server runs; for the Compose \
                 stack use `docker/gantry`, which manages the token"
                .to_owned(),
        ErrorCode::Internal => format!(" (request {})", problem.request_id),
        _ => String::new(),
    };
    super::text::one_line(&format!("{}{reason}: {}{}{advice}", problem.title, problem.detail, rest.concat()))
}

impl CliError {
    /// A local failure with its cause.
    pub(super) fn failed(what: &str, cause: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {cause}"))
    }

    /// Whether standard output was closed by its reader.
    pub(super) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The exit code of the error.
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Config(_) | Self::Telemetry(_) => Exit::Usage,
            Self::NotFound(_) => Exit::NotFound,
            Self::Failed(_) | Self::Output(_) => Exit::Failed,
            Self::Unreachable { .. } | Self::NotGantry { .. } => Exit::Unreachable,
            Self::Refused(problem) => Exit::of_status(problem.status),
            Self::Call(error) => super::rpc::exit_of(error),
        }
    }
}
