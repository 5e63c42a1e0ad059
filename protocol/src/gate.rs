//! Gates: tool calls of chat threads that wait for a person.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallId, GateId, ThreadId, names::wire_enum};

wire_enum! {
    /// What a gate waits for.
    pub enum GateKind {
        /// The approval of a tool call.
        Approval,
    }
}

wire_enum! {
    /// The state of a gate. It changes once.
    pub enum GateState {
        /// The call waits.
        Pending,
        /// The call was approved.
        Approved,
        /// The call was denied.
        Denied,
        /// No answer came in time, which is a denial.
        Expired,
    }
}

wire_enum! {
    /// A person's decision about a gate.
    pub enum GateDecision {
        /// The call runs.
        Approve,
        /// The call does not run; the model reads the reason.
        Deny,
        /// The call runs, and later calls of the tool run without asking.
        Always,
    }
}

wire_enum! {
    /// For what the decision `always` is remembered.
    #[derive(Default)]
    pub enum GateScope {
        /// For the thread.
        #[default]
        Thread,
        /// For all threads of the user: the tool's permission becomes `always_allow`.
        User,
    }
}

/// One item of `GET /api/gates`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gate {
    /// Its id.
    pub id: GateId,
    /// What it waits for.
    pub kind: GateKind,
    /// Its state.
    pub state: GateState,
    /// The thread whose turn waits.
    pub thread_id: ThreadId,
    /// The thread's owner.
    pub user_id: String,
    /// The tool call, as in the thread's messages; null for gates of earlier versions.
    #[serde(default)]
    pub call_id: Option<CallId>,
    /// The tool that would run.
    pub tool: String,
    /// The arguments of the call, without credentials: names of headers are shown, and values that are no credential.
    pub parameters: Value,
    /// SHA-256 of exactly the arguments that would run, in hexadecimal.
    pub parameters_digest: String,
    /// The model's reason for the call: its reasoning, else the text before the call. At most 2000 bytes; may be empty.
    pub reasoning: String,
    /// Whether the decision `always` can be remembered. Otherwise it counts as `approve`.
    pub can_be_remembered: bool,
    /// When the call was parked.
    pub created_at: DateTime<Utc>,
    /// When the gate expires.
    pub expires_at: DateTime<Utc>,
    /// When it was resolved, or when it expired.
    pub resolved_at: Option<DateTime<Utc>>,
    /// The user who resolved it; null if it has expired or its turn was stopped.
    pub resolved_by: Option<String>,
    /// The decision.
    pub decision: Option<GateDecision>,
    /// The reason for the decision.
    pub reason: Option<String>,
}

/// `POST /api/gates/{id}/resolve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResolveGate {
    /// The decision.
    pub decision: GateDecision,
    /// Why; the model reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For what `always` is remembered; by default for the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<GateScope>,
    /// The gate's `parameters_digest`. If it is given and differs, nothing changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_digest: Option<String>,
}

/// `POST /api/chat/approval` and `POST /api/chat/gate/resolve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResolveThreadGate {
    /// The id or the key of the thread whose gate is resolved.
    pub thread_id: String,
    /// The decision.
    pub decision: GateDecision,
    /// Why; the model reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For what `always` is remembered; by default for the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<GateScope>,
    /// The gate's `parameters_digest`. If it is given and differs, nothing changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_digest: Option<String>,
}

/// The answer to a resolution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GateResolution {
    /// The gate after the resolution.
    #[serde(flatten)]
    pub gate: Gate,
    /// Whether `always` was remembered.
    pub remembered: bool,
}

const DENIED: &str = "the user denied this call";
const DENIED_WITHOUT_REASON: &str = "the user denied this call; do not repeat it";
const EXPIRED: &str = "this call was not approved in time; continue without it";
const STOPPED: &str = "the user stopped the turn; the call was not run";

/// Why a call did not run that required approval. Displayed, it is the message of the call's error, which the model
/// reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotApproved<'a> {
    /// A person denied it.
    Denied {
        /// Their reason.
        reason: Option<&'a str>,
    },
    /// There was no answer in time.
    Expired,
    /// Its turn was stopped.
    Stopped,
}

impl<'a> NotApproved<'a> {
    /// Reads it from the output of a failed call. `None`: it failed for another reason.
    pub fn parse(output: &'a str) -> Option<Self> {
        match output.strip_prefix("error (not_authorized): ")? {
            DENIED_WITHOUT_REASON => Some(Self::Denied { reason: None }),
            EXPIRED => Some(Self::Expired),
            STOPPED => Some(Self::Stopped),
            message => message
                .strip_prefix(DENIED)
                .and_then(|rest| rest.strip_prefix(": "))
                .map(|reason| Self::Denied { reason: Some(reason) }),
        }
    }
}

impl fmt::Display for NotApproved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied { reason: None } => f.write_str(DENIED_WITHOUT_REASON),
            Self::Denied { reason: Some(reason) } => write!(f, "{DENIED}: {reason}"),
            Self::Expired => f.write_str(EXPIRED),
            Self::Stopped => f.write_str(STOPPED),
        }
    }
}
