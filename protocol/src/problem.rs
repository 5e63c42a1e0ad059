//! RFC 9457 problems: the one shape of an error on every wire, and its stable codes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident => $text:literal, $status:literal, $title:literal;)+) => {
        /// Stable codes of the API's errors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $(#[doc = $title] $(#[$doc])* $variant,)+
            /// A code of a newer server, for clients only. `Problem::kind` ends with its name.
            Unknown,
        }

        impl ErrorCode {
            /// Every code that a server sends.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The name on the wire.
            pub const fn as_str(self) -> &'static str { match self { $(Self::$variant => $text,)+ Self::Unknown => "unknown" } }
            /// The HTTP status it comes with.
            pub const fn status(self) -> u16 { match self { $(Self::$variant => $status,)+ Self::Unknown => 500 } }
            /// A human-readable title, the same for every problem with this code.
            pub const fn title(self) -> &'static str { match self { $(Self::$variant => $title,)+ Self::Unknown => "Unknown error" } }
            /// From the name on the wire.
            pub fn parse(text: &str) -> Self { match text { $($text => Self::$variant,)+ _ => Self::Unknown } }
        }
    };
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::parse(&String::deserialize(deserializer)?))
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ErrorCode {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .enum_values(Some(Self::ALL.iter().map(|code| code.as_str())))
            .description(Some("Stable codes of the API's errors."))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ErrorCode {}

codes! {
    /// The body or a header cannot be read.
    BadRequest => "bad_request", 400, "Malformed request";
    /// Missing, invalid, expired or revoked token.
    Unauthorized => "unauthorized", 401, "Not authenticated";
    Forbidden => "forbidden", 403, "Not allowed for this role";
    /// A browser's session counts on this server's own pages only.
    CrossOrigin => "cross_origin", 403, "Request of another site";
    HookDenied => "hook_denied", 403, "Refused by a hook";
    TokenBudget => "token_budget", 403, "Token budget spent";
    CostBudget => "cost_budget", 403, "Cost budget spent";
    IterationLimit => "iteration_limit", 403, "Iteration limit reached";
    /// Missing, or another user's.
    NotFound => "not_found", 404, "Not found";
    MethodNotAllowed => "method_not_allowed", 405, "Method not allowed";
    RequestTimeout => "request_timeout", 408, "Request took too long";
    JobFinished => "job_finished", 409, "Job has finished";
    NotFinished => "not_finished", 409, "Job has not finished";
    /// Only failed and cancelled jobs restart.
    NotRestartable => "not_restartable", 409, "Job cannot be restarted";
    /// Only submitted jobs are accepted or rejected.
    NotSubmitted => "not_submitted", 409, "Job is not submitted";
    JobCancelled => "job_cancelled", 409, "Job is being cancelled";
    CallIdReused => "call_id_reused", 409, "Call id used with another request";
    /// A newer attempt of the job has begun.
    Fenced => "fenced", 409, "Attempt superseded";
    /// Only a held job that is pending is started.
    NotHeld => "not_held", 409, "Job is not held";
    /// A directory, a link or something else where a file is asked for.
    NotAFile => "not_a_file", 409, "Not a file";
    /// A file, a link or something else where a directory is asked for.
    NotADirectory => "not_a_directory", 409, "Not a directory";
    /// The job runs without a container, so it has no files.
    NoWorkspace => "no_workspace", 409, "Job has no workspace";
    /// Prompts wait that the worker has not fetched.
    PromptsWaiting => "prompts_waiting", 409, "Prompts are waiting";
    PromptsClosed => "prompts_closed", 409, "Prompts closed";
    GateResolved => "gate_resolved", 409, "Gate is resolved";
    GateExpired => "gate_expired", 409, "Gate has expired";
    /// The call has other parameters than those that the caller has decided about.
    GateDigestMismatch => "gate_digest_mismatch", 409, "Gate has other parameters";
    /// The user has a routine with this name.
    NameTaken => "name_taken", 409, "Name is taken";
    WebhookPathTaken => "webhook_path_taken", 409, "Webhook path is taken";
    RoutineDisabled => "routine_disabled", 409, "Routine is disabled";
    RoutineBusy => "routine_busy", 409, "Routine is busy";
    RoutineSkipped => "routine_skipped", 409, "Firing was skipped";
    AutomationDisabled => "automation_disabled", 409, "Automation is disabled";
    RunFinished => "run_finished", 409, "Run has ended";
    Conflict => "conflict", 409, "Conflict";
    WorkspaceGone => "workspace_gone", 410, "Workspace no longer kept";
    /// The object has changed since the version that `If-Match` names.
    PreconditionFailed => "precondition_failed", 412, "Precondition failed";
    TooLarge => "too_large", 413, "Too large";
    UnsupportedMediaType => "unsupported_media_type", 415, "Unsupported media type";
    /// The file ends before the range that is asked for.
    RangeNotSatisfiable => "range_not_satisfiable", 416, "Range not satisfiable";
    /// The `Host` is not one of this server's.
    MisdirectedRequest => "misdirected_request", 421, "Misdirected request";
    Invalid => "invalid", 422, "Invalid";
    NotAvailable => "not_available", 422, "Not available";
    PresetUnknown => "preset_unknown", 422, "Unknown preset";
    UnpricedModel => "unpriced_model", 422, "Model has no price";
    /// A secret's value that ordinary text contains; `force` stores it.
    WeakSecret => "weak_secret", 422, "Weak secret";
    IdempotencyMismatch => "idempotency_mismatch", 422, "Idempotency key used with another request";
    /// A search over all users found nothing in the time it may take; `detail` says what to add.
    QueryTooBroad => "query_too_broad", 422, "Query too broad";
    RateLimited => "rate_limited", 429, "Too many requests";
    /// A defect of the server; the log has it under the request id.
    Internal => "internal", 500, "Internal error";
    /// No model answered.
    LlmError => "llm_error", 502, "Model call failed";
    /// The disk is full, or nearly so.
    InsufficientStorage => "insufficient_storage", 507, "Insufficient storage";
    UserStorageFull => "user_storage_full", 507, "User storage full";
    /// No sandbox; `reason` says why.
    SandboxUnavailable => "sandbox_unavailable", 503, "Sandbox unavailable";
    /// The server is shutting down or its database is unavailable.
    Unavailable => "unavailable", 503, "Temporarily unavailable";
}

/// The prefix of a problem's `type`; the code follows.
const TYPE_PREFIX: &str = "urn:gantry:problem:";

/// `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// `urn:gantry:problem:<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same for each problem of this code.
    pub title: String,
    /// The response's status.
    pub status: u16,
    /// An explanation, and what to do.
    pub detail: String,
    /// The stable name of the error.
    pub code: ErrorCode,
    /// The cause, where the code has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The request's id, which is also in `X-Request-Id` and the log.
    pub request_id: String,
    /// Errors by field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

impl Problem {
    /// The name of the error, also if this version does not know its code.
    pub fn code_name(&self) -> &str {
        match self.code {
            ErrorCode::Unknown => self.kind.strip_prefix(TYPE_PREFIX).unwrap_or(&self.kind),
            code => code.as_str(),
        }
    }
}

/// An error in one field of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// The field's path, with dots and indexes.
    pub field: String,
    /// The problem, and the valid values.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_problem_with_an_unknown_code_keeps_its_other_fields() {
        let problem: Problem = serde_json::from_value(json!({
            "type": "urn:gantry:problem:of_a_newer_server", "title": "T", "status": 409, "detail": "D",
            "code": "of_a_newer_server", "reason": "R", "request_id": "I",
        }))
        .unwrap();
        assert_eq!((problem.code, problem.code_name()), (ErrorCode::Unknown, "of_a_newer_server"));
        assert_eq!((problem.detail.as_str(), problem.reason.as_deref()), ("D", Some("R")));
    }

    #[test]
    fn each_code_is_parsed_from_its_name() {
        for code in ErrorCode::ALL {
            let json = serde_json::to_value(code).unwrap();
            assert_eq!(json, code.as_str());
            assert_eq!(serde_json::from_value::<ErrorCode>(json).unwrap(), *code);
        }
        assert!(!ErrorCode::ALL.contains(&ErrorCode::Unknown));
    }
}
