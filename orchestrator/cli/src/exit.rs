//! The errors and exit codes of commands.

use std::io;

use protocol::{ErrorCode, GateId, Job, JobReason, JobState, Problem, RpcError};
use serde_json::{Value, json};

/// The process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success,
    /// The job failed, or a local step did.
    Failed,
    /// Invalid usage, configuration or request.
    Usage,
    /// The server is unreachable, overloaded or failed: a retry may succeed.
    Unreachable,
    /// Job, file or document not found.
    NotFound,
    /// Not possible in the current state.
    Conflict,
    /// The token is missing or invalid, or its role may not do this.
    Unauthorized,
    /// The job exceeded its time limit, or the time of a wait is up.
    TimedOut,
    /// Interrupted with Ctrl-C.
    Interrupted,
    /// Standard output was closed, as with SIGPIPE. The outcome of a followed job is unknown.
    ClosedOutput,
}

impl Exit {
    /// The numeric code, as documented in `--help`.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::NotFound => 4,
            Self::Conflict => 5,
            Self::Unauthorized => 6,
            Self::TimedOut => 124,
            Self::Interrupted => 130,
            Self::ClosedOutput => 141,
        }
    }

    /// The exit code for a response with an error status.
    pub const fn of_status(status: u16) -> Self {
        match status {
            404 | 410 => Self::NotFound,
            409 | 412 => Self::Conflict,
            401 | 403 => Self::Unauthorized,
            400 | 405 | 413 | 415 | 422 => Self::Usage,
            _ => Self::Unreachable,
        }
    }

    /// The exit code for a job that was followed to its end.
    pub fn of_job(job: &Job) -> Self {
        match (job.state, job.reason) {
            (JobState::Failed, Some(JobReason::WallClock)) => Self::TimedOut,
            (JobState::Failed | JobState::Cancelled, _) => Self::Failed,
            _ => Self::Success,
        }
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Configuration(String),
    /// There is nothing with the name that was given.
    #[error("{0}")]
    NotFound(String),
    /// A local step failed.
    #[error("{0}")]
    Failed(String),
    /// A tool call of a chat waits for approval.
    #[error("a call of {tool} waits for approval: run `gantry gate approve {gate}` or `gantry gate deny {gate}`")]
    ApprovalRequired { tool: String, gate: GateId },
    /// The server did not respond.
    #[error(
        "cannot reach {url}: {cause}; check that the server is running and that its URL is correct (--url, GANTRY_URL or `gantry context show`)"
    )]
    Unreachable {
        url: String,
        /// The cause, in one line.
        cause: String,
    },
    /// The response is not from a Gantry server.
    #[error("{url} is not a Gantry server: {cause}")]
    NotGantry { url: String, cause: String },
    /// The server refused the request.
    #[error("{}", format_problem(.0))]
    Refused(Box<Problem>),
    /// A call over JSON-RPC failed.
    #[error("{}", super::client::rpc::describe(.0))]
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
        ErrorCode::Unauthorized => {
            "; create a token with `gantry token create` where the server runs and pass it to `gantry login`, or set \
                 GANTRY_TOKEN; for the Compose stack use `docker/gantry` without --url, which manages the token"
                .to_owned()
        }
        ErrorCode::Internal => format!(" (request {})", problem.request_id),
        _ => String::new(),
    };
    // Some details say all that the title does: `Run has ended: the run has ended`.
    let is_repeated = problem.detail.to_lowercase().contains(&problem.title.to_lowercase());
    let title = if is_repeated && reason.is_empty() { String::new() } else { format!("{}{reason}: ", problem.title) };
    super::output::text::one_line(&format!("{title}{}{}{advice}", problem.detail, rest.concat()))
}

impl CliError {
    /// A local failure with its cause.
    pub fn failed(what: &str, cause: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {cause}"))
    }

    /// The error as JSON: `code`, `title` and `detail`, as in the API's problems, and the exit code. A problem keeps
    /// its other fields.
    pub fn to_json(&self) -> Value {
        let mut value = match self {
            Self::Refused(problem) => serde_json::to_value(problem).unwrap_or_default(),
            Self::Call(error) => {
                let code = error.data.as_ref().map_or("rpc_error", |data| data.code.as_str());
                json!({"code": code, "title": "The call failed", "detail": error.message, "rpc_code": error.code})
            }
            _ => {
                let (code, title) = self.local_code();
                json!({"code": code, "title": title, "detail": self.to_string()})
            }
        };
        if let Self::ApprovalRequired { gate, .. } = self {
            value["gate_id"] = json!(gate);
        }
        value["exit_code"] = self.exit().code().into();
        value
    }

    /// The code and title of an error that no server reported.
    const fn local_code(&self) -> (&'static str, &'static str) {
        match self {
            Self::Usage(_) => ("usage", "Invalid usage"),
            Self::Configuration(_) => ("configuration", "Invalid configuration"),
            Self::NotFound(_) => ("not_found", "Not found"),
            Self::Unreachable { .. } => ("unreachable", "The server cannot be reached"),
            Self::NotGantry { .. } => ("not_gantry", "Not a Gantry server"),
            Self::Output(_) => ("output", "Cannot write the output"),
            Self::ApprovalRequired { .. } => ("approval_required", "Approval required"),
            Self::Failed(_) | Self::Refused(_) | Self::Call(_) => ("failed", "The command failed"),
        }
    }

    /// Whether standard output was closed by its reader.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The exit code of the error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Configuration(_) => Exit::Usage,
            Self::NotFound(_) => Exit::NotFound,
            Self::Failed(_) | Self::ApprovalRequired { .. } | Self::Output(_) => Exit::Failed,
            Self::Unreachable { .. } | Self::NotGantry { .. } => Exit::Unreachable,
            Self::Refused(problem) => Exit::of_status(problem.status),
            Self::Call(error) => super::client::rpc::exit_of(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_the_same_shape_in_json() {
        let problem = json!({"type": "t", "title": "Not allowed", "status": 403, "detail": "role", "code": "forbidden",
            "request_id": "r"});
        let errors = [
            CliError::Usage("u".to_owned()),
            CliError::NotFound("n".to_owned()),
            CliError::Unreachable { url: "u".to_owned(), cause: "c".to_owned() },
            CliError::Refused(serde_json::from_value(problem).unwrap()),
            CliError::Call(Box::new(RpcError { code: -32602, message: "m".to_owned(), data: None })),
            CliError::ApprovalRequired { tool: "t".to_owned(), gate: GateId::nil() },
        ];
        let mut shapes = Vec::new();
        for error in errors {
            let value = error.to_json();
            let text = |name: &str| value[name].as_str().unwrap_or_else(|| panic!("{name}: {value}")).to_owned();
            let _ = (text("title"), text("detail"));
            shapes.push((text("code"), value["exit_code"].as_u64().unwrap()));
        }
        let wanted = [
            ("usage", 2),
            ("not_found", 4),
            ("unreachable", 3),
            ("forbidden", 6),
            ("rpc_error", 2),
            ("approval_required", 1),
        ];
        assert_eq!(shapes, wanted.map(|(code, exit)| (code.to_owned(), exit)));
    }

    #[test]
    fn a_title_that_the_detail_repeats_is_left_out() {
        let text = |title: &str, detail: &str| {
            let problem = json!({"type": "t", "title": title, "status": 409, "detail": detail, "code": "conflict",
                "request_id": "r"});
            CliError::Refused(serde_json::from_value(problem).unwrap()).to_string()
        };
        assert_eq!(text("Run has ended", "the run has ended"), "the run has ended");
        assert_eq!(text("Invalid", "prompt: must not be empty"), "Invalid: prompt: must not be empty");
    }
}
