//! What goes wrong in the gateway: why it cannot be built, and why an attempt at a provider brought no answer.

use std::{io, path::PathBuf};

use super::script::ScriptError;

/// Why a gateway cannot be built from its settings.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The script file cannot be read.
    #[error("GANTRY_LLM_SCRIPT: {path} cannot be read")]
    ScriptFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("invalid script {path}")]
    Script {
        path: PathBuf,
        /// The rule and the field.
        #[source]
        source: ScriptError,
    },
    /// A provider's setting is invalid.
    #[error("model provider {provider}: {field}: {message}")]
    Provider { provider: String, field: &'static str, message: String },
}

/// Why an attempt brought no answer. The name is stored with the call and shown to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ErrorKind {
    /// The provider sent nothing for too long, or the call took too long.
    Timeout,
    Connect,
    /// The provider failed (5xx).
    Server,
    /// The answer ended before it was complete.
    StreamInterrupted,
    /// The answer does not follow the provider's format.
    InvalidResponse,
    /// Too many requests.
    RateLimited,
    /// The provider's quota or credit is used up.
    Quota,
    /// The key is wrong or lacks a permission.
    Auth,
    /// The model or the address does not exist.
    NotFound,
    /// The provider refuses the request itself.
    BadRequest,
    /// The request exceeds the model's context window.
    ContextLength,
    /// The circuit breaker is open.
    CircuitOpen,
    /// The call waited too long for one of the provider's slots.
    QueueTimeout,
    /// The caller no longer wants the answer.
    Aborted,
}

impl ErrorKind {
    /// The name in records and metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The name within a sentence.
    pub fn as_phrase(self) -> &'static str {
        match self {
            Self::RateLimited => "rate limited",
            other => other.as_str(),
        }
    }
}
