//! How an attempt without a report is recorded: its reason, its message, and whether another attempt may help.

use std::time::Duration;

use domain::job::AttemptFailure;
use engine::SIGKILL_EXIT_CODE;
use protocol::JobReason;

/// The message of a job that does not start because the sandbox is disabled.
pub(crate) const SANDBOX_DISABLED: &str = "the sandbox is disabled by the operator";

/// The failure of an attempt that cannot continue because the sandbox is disabled.
pub(super) fn sandbox_disabled() -> AttemptFailure {
    AttemptFailure { reason: JobReason::SandboxUnavailable, message: SANDBOX_DISABLED.to_owned(), is_retryable: false }
}

/// The failure of an attempt whose container does not exist.
pub(crate) fn vanished() -> AttemptFailure {
    AttemptFailure {
        reason: JobReason::WorkerLost,
        message: "the container is gone and its worker never reported".to_owned(),
        is_retryable: true,
    }
}

/// The failure of an attempt whose loop in this process ended without a report. Its tools may have had effects.
pub(super) fn host_run_ended() -> AttemptFailure {
    AttemptFailure {
        reason: JobReason::Internal,
        message: "the job's loop ended without a report; see the orchestrator's log".to_owned(),
        is_retryable: false,
    }
}

/// The failure of an attempt whose worker exited.
pub(super) fn exited(code: i64, oom_killed: bool) -> AttemptFailure {
    match (oom_killed, code) {
        (true, SIGKILL_EXIT_CODE) => AttemptFailure {
            reason: JobReason::OomKilled,
            message: "the worker ran out of memory; raise limits.memory_mb or process less data at once".to_owned(),
            is_retryable: false,
        },
        (_, 0) => AttemptFailure {
            reason: JobReason::WorkerLost,
            message: "the worker ended without a report".to_owned(),
            is_retryable: true,
        },
        _ => AttemptFailure {
            reason: JobReason::WorkerCrashed,
            message: format!("the worker ended with exit code {code} and without a report"),
            is_retryable: false,
        },
    }
}

/// The failure of an attempt whose worker did not call within the start timeout.
pub(super) fn never_called(start_timeout: Duration) -> AttemptFailure {
    AttemptFailure {
        reason: JobReason::StartTimeout,
        message: format!("the worker did not call within {} s of its start", start_timeout.as_secs()),
        is_retryable: true,
    }
}

/// The failure of an attempt that is stuck after as many repairs as are allowed.
pub(super) fn repairs_exhausted(message: Option<&str>, repairs: u32) -> AttemptFailure {
    let message = match message {
        Some(message) => format!("{message}, after {repairs} repairs"),
        None => format!("stuck after {repairs} repairs"),
    };
    AttemptFailure { reason: JobReason::Stuck, message, is_retryable: false }
}
