//! Why the gateway cannot be built.

use std::{io, path::PathBuf};

use super::script::ScriptError;
pub use domain::model_call::ErrorKind;

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
