//! How a command ends: its error and its exit code.

use std::io;

use protocol::{ErrorCode, Job, JobReason, JobState, Problem};

use crate::{config::ConfigError, telemetry::TelemetryError};

/// The process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// It worked.
    Fine,
    /// The job failed, or a local step did.
    Failed,
    /// Wrong usage, configuration or request.
    Usage,
    /// No server, or none for this token.
    Unreachable,
    /// No such thing.
    NotFound,
    /// Not in its present state.
    Conflict,
    /// The job ran out of its time.
    TimedOut,
    /// Ctrl-C.
    Interrupted,
    /// The reader of our output went away: as SIGPIPE ends a program. What was followed is not known to have ended well.
    ClosedOutput,
}

impl Exit {
    /// As documented in `--help`.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
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

    /// For a job that was followed to its end.
    pub(super) fn of_job(job: &Job) -> Self {
        match (job.state, job.reason) {
            (JobState::Failed, Some(JobReason::WallClock)) => Self::TimedOut,
            (JobState::Failed | JobState::Cancelled, _) => Self::Failed,
            _ => Self::Fine,
        }
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// Asked for wrongly.
    #[error("{0}")]
    Usage(String),
    /// Configured wrongly.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The log is configured wrongly.
    #[error("{0}")]
    Telemetry(#[from] TelemetryError),
    /// Something here failed.
    #[error("{0}")]
    Failed(String),
    /// The server did not answer.
    #[error("cannot reach {url}: {cause}; is the server running, and is GANTRY_URL right?")]
    Unreachable {
        /// What was asked.
        url: String,
        /// Why, in one line.
        cause: String,
    },
    /// The server answered something that is not Gantry's.
    #[error("{url} does not answer like a Gantry server: {cause}")]
    NotGantry {
        /// What was asked.
        url: String,
        /// What came.
        cause: String,
    },
    /// The server refused.
    #[error("{}", format_problem(.0))]
    Refused(Box<Problem>),
    /// Standard output is gone.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

fn format_problem(problem: &Problem) -> String {
    let reason = problem.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
    // The first field is in the detail already.
    let rest: Vec<_> = problem.errors.iter().skip(1).map(|e| format!("; {}: {}", e.field, e.message)).collect();
    let advice = match problem.code {
        ErrorCode::Unauthorized => "; set GANTRY_TOKEN to a token that is made where the server runs: `gantry token create`, with compose.yaml's stack \
                 `docker/compose.sh exec -T gantry gantry token create --user NAME`"
                .to_owned(),
        ErrorCode::Internal => format!(" (request {})", problem.request_id),
        _ => String::new(),
    };
    super::text::one_line(&format!("{}{reason}: {}{}{advice}", problem.title, problem.detail, rest.concat()))
}

impl CliError {
    /// With its cause in the same line.
    pub(super) fn failed(what: &str, cause: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {cause}"))
    }

    /// The reader of our output went away, which is its right.
    pub(super) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The exit code that says so.
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Config(_) | Self::Telemetry(_) => Exit::Usage,
            Self::Failed(_) | Self::Output(_) => Exit::Failed,
            Self::Unreachable { .. } | Self::NotGantry { .. } => Exit::Unreachable,
            Self::Refused(problem) => match problem.status {
                404 | 410 => Exit::NotFound,
                409 => Exit::Conflict,
                400 | 405 | 413 | 415 | 422 => Exit::Usage,
                _ => Exit::Unreachable,
            },
        }
    }
}
