//! Why a call to an MCP server has no answer, for the model and for the admin.
//!
//! No message contains anything that a server sent, except its own error message, without secrets, shortened and
//! neutralized.

use std::time::Duration;

use agent::{ToolError, elide, safety::neutralize};
use protocol::ToolErrorKind;

use super::redaction::Redaction;

/// Length of a server's own error message that is passed on.
const MAX_MESSAGE_BYTES: usize = 2_000;
/// JSON-RPC: invalid method parameters.
const INVALID_PARAMS: i64 = -32_602;

/// A call or a connection that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum McpError {
    /// There is no such server in the configuration.
    #[error("there is no MCP server {0}")]
    UnknownServer(String),
    /// It cannot be connected to, or an earlier attempt has just failed.
    #[error("the MCP server {server} is not available: {cause}{}", retry_note(*.retry_after))]
    Unavailable {
        server: String,
        cause: String,
        /// Time until the next attempt.
        retry_after: Option<Duration>,
    },
    /// A header needs a secret that is not stored, or that is not for the server's host.
    #[error("the MCP server {server} needs {}", missing_note(secret, not_for.as_deref(), *is_own))]
    MissingSecret {
        server: String,
        secret: String,
        /// The user who has to store it.
        owner: String,
        /// Whether this is the user who calls. Other users learn neither of the names.
        is_own: bool,
        /// The server's host, if the secret names other hosts only.
        not_for: Option<String>,
    },
    /// Its container cannot run.
    #[error("the MCP server {server} cannot run: {cause}")]
    Sandbox { server: String, cause: String },
    /// There are too many connections, all of them in use.
    #[error("too many MCP connections are in use; try again later")]
    TooManyConnections,
    /// The connection ended while a call waited. The call may have had its effect.
    #[error("the MCP server {server} closed the connection during the call{}", cause_note(.cause.as_deref()))]
    Closed {
        server: String,
        /// Why, if this side closed it.
        cause: Option<String>,
    },
    /// The server answered with an error of the protocol.
    #[error("the MCP server {server} answered with error {code}: {message}")]
    Answered {
        server: String,
        /// The JSON-RPC error code.
        code: i64,
        message: String,
    },
    /// The answer is not what the protocol says.
    #[error("the MCP server {server} sent an invalid answer")]
    InvalidAnswer { server: String },
    /// No answer within the time limit.
    #[error("the MCP server {server} did not answer within {} s{}", limit.as_secs(), closed_note(*is_closed))]
    TimedOut {
        server: String,
        limit: Duration,
        /// Whether it did not answer a ping either, so that this side closed the connection.
        is_closed: bool,
    },
    /// The caller stopped the call.
    #[error("stopped before the MCP server answered")]
    Stopped,
}

impl McpError {
    pub(super) fn answered(server: &str, code: i64, message: &str, redaction: &Redaction) -> Self {
        Self::Answered { server: server.to_owned(), code, message: Self::message(message, redaction) }
    }

    /// A server's own message as it is shown.
    pub(super) fn message(message: &str, redaction: &Redaction) -> String {
        // A part of a secret would not be found.
        neutralize(&elide(&redaction.text(message), MAX_MESSAGE_BYTES)).into_owned()
    }

    /// The error of a server whose program may have named the cause itself.
    pub(super) fn with_cause(self, own: Option<String>) -> Self {
        let Some(own) = own else { return self };
        match self {
            Self::Unavailable { server, cause, retry_after } => {
                Self::Unavailable { server, cause: format!("{cause}; {own}"), retry_after }
            }
            Self::TimedOut { server, limit, .. } => {
                let cause = format!("it did not answer within {} s; {own}", limit.as_secs());
                Self::Unavailable { server, cause, retry_after: None }
            }
            Self::Closed { server, cause: None } => Self::Closed { server, cause: Some(own) },
            other => other,
        }
    }

    /// The message for an admin, who may know whose secret is missing.
    pub(super) fn for_admin(&self) -> String {
        match self {
            Self::MissingSecret { server, secret, owner, not_for: None, .. } => {
                format!("the MCP server {server} needs the secret {secret} of {owner}, which is not stored")
            }
            Self::MissingSecret { server, secret, owner, not_for: Some(host), .. } => {
                format!("the MCP server {server} needs the secret {secret} of {owner}, which is not for {host}")
            }
            other => other.to_string(),
        }
    }

    /// How the model learns of it.
    pub const fn kind(&self) -> ToolErrorKind {
        match self {
            Self::Sandbox { .. } => ToolErrorKind::Sandbox,
            Self::MissingSecret { .. } => ToolErrorKind::NotAuthorized,
            Self::Answered { code: INVALID_PARAMS, .. } => ToolErrorKind::InvalidParameters,
            Self::UnknownServer(_) => ToolErrorKind::NotFound,
            Self::Stopped => ToolErrorKind::Failed,
            Self::Unavailable { .. }
            | Self::TooManyConnections
            | Self::Closed { .. }
            | Self::Answered { .. }
            | Self::InvalidAnswer { .. } => ToolErrorKind::External,
            Self::TimedOut { .. } => ToolErrorKind::Timeout,
        }
    }
}

impl From<McpError> for ToolError {
    fn from(error: McpError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

fn missing_note(secret: &str, not_for: Option<&str>, is_own: bool) -> String {
    match (is_own, not_for) {
        (true, None) => format!("the secret {secret}, which is not stored; set it with `gantry secret set {secret}`"),
        (true, Some(host)) => format!(
            "the secret {secret}, which is not for {host}; set it again with `gantry secret set {secret} --host {host}`, \
             and a --host for each other host that it is for"
        ),
        (false, None) => "a secret that is not stored; the operator must set it".to_owned(),
        (false, Some(_)) => "a secret that is not for its host; the operator must set it".to_owned(),
    }
}

fn retry_note(retry_after: Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |wait| format!("; it is tried again in {} s", wait.as_secs().max(1)))
}

const fn closed_note(is_closed: bool) -> &'static str {
    if is_closed { ", and no ping either; it is started or connected to again by the next call" } else { "" }
}

fn cause_note(cause: Option<&str>) -> String {
    cause.map_or_else(String::new, |cause| format!(": {cause}"))
}
