//! RFC 9457 problems: the one shape of an error on every wire, and its stable codes.

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident => $text:literal, $status:literal, $title:literal;)+) => {
        /// Stable codes of the API's errors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode { $($(#[$doc])* $variant),+ }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The name on the wire.
            pub const fn as_str(self) -> &'static str { match self { $(Self::$variant => $text),+ } }
            /// The HTTP status it comes with.
            pub const fn status(self) -> u16 { match self { $(Self::$variant => $status),+ } }
            /// A human-readable title, the same for every problem with this code.
            pub const fn title(self) -> &'static str { match self { $(Self::$variant => $title),+ } }
        }
    };
}

codes! {
    /// The body or a header cannot be read.
    BadRequest => "bad_request", 400, "Malformed request";
    /// No token, or one that is not good.
    Unauthorized => "unauthorized", 401, "Not authenticated";
    /// The role does not allow it.
    Forbidden => "forbidden", 403, "Not allowed for this role";
    /// The job's token budget is spent.
    TokenBudget => "token_budget", 403, "Token budget spent";
    /// The job's cost budget is spent.
    CostBudget => "cost_budget", 403, "Cost budget spent";
    /// The job has made the model calls it may.
    IterationLimit => "iteration_limit", 403, "Iteration limit reached";
    /// Missing, or another user's.
    NotFound => "not_found", 404, "Not found";
    /// The path exists, the method does not.
    MethodNotAllowed => "method_not_allowed", 405, "Method not allowed";
    /// The body took too long to arrive.
    RequestTimeout => "request_timeout", 408, "Request took too long";
    /// The job has finished.
    JobFinished => "job_finished", 409, "Job has finished";
    /// Only failed and cancelled jobs restart.
    NotRestartable => "not_restartable", 409, "Job cannot be restarted";
    /// Only submitted jobs are accepted or rejected.
    NotSubmitted => "not_submitted", 409, "Job is not submitted";
    /// The job is to stop.
    JobCancelled => "job_cancelled", 409, "Job is being cancelled";
    /// The call's name is that of another call.
    CallIdReused => "call_id_reused", 409, "Call id used with another request";
    /// An older attempt of the job.
    Fenced => "fenced", 409, "Attempt is over";
    /// Only a held job that is pending is started.
    NotHeld => "not_held", 409, "Job is not held";
    /// A directory, a link or something else where a file is asked for.
    NotAFile => "not_a_file", 409, "Not a file";
    /// A file, a link or something else where a directory is asked for.
    NotADirectory => "not_a_directory", 409, "Not a directory";
    /// Prompts wait that the worker has not fetched.
    PromptsWaiting => "prompts_waiting", 409, "Prompts are waiting";
    /// The job takes no more prompts.
    PromptsClosed => "prompts_closed", 409, "No more prompts taken";
    /// Something else about its state.
    Conflict => "conflict", 409, "Conflict";
    /// The job's files are no longer kept.
    WorkspaceGone => "workspace_gone", 410, "Workspace no longer kept";
    /// Over a size limit.
    TooLarge => "too_large", 413, "Too large";
    /// Not a media type this endpoint takes.
    UnsupportedMediaType => "unsupported_media_type", 415, "Unsupported media type";
    /// The `Host` is not one of this server's.
    MisdirectedRequest => "misdirected_request", 421, "Misdirected request";
    /// A field is wrong.
    Invalid => "invalid", 422, "Invalid";
    /// The feature is not there, or not by configuration.
    NotAvailable => "not_available", 422, "Not available";
    /// A cost limit applies and the model has no price.
    UnpricedModel => "unpriced_model", 422, "Model has no price";
    /// The idempotency key was used with another body.
    IdempotencyMismatch => "idempotency_mismatch", 422, "Idempotency key used with another request";
    /// Too many requests.
    RateLimited => "rate_limited", 429, "Too many requests";
    /// The log has it under the request id.
    Internal => "internal", 500, "Internal error";
    /// No model answered.
    LlmError => "llm_error", 502, "Model call failed";
    /// The disk is full, or nearly so.
    InsufficientStorage => "insufficient_storage", 507, "Insufficient storage";
    /// No sandbox; `reason` says why.
    SandboxUnavailable => "sandbox_unavailable", 503, "Sandbox unavailable";
    /// Shutting down, or the store is not well.
    Unavailable => "unavailable", 503, "Temporarily unavailable";
}

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
    /// What happened and what to do.
    pub detail: String,
    /// Stable.
    pub code: ErrorCode,
    /// The cause, where the code has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Also in `X-Request-Id` and the log.
    pub request_id: String,
    /// Errors by field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// An error in one field of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// Where, with dots and indexes.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}
