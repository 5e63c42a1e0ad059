//! What a caller learns when a hook is in the way, and hooks that stop the start.

use agent::ToolError;
use protocol::ToolErrorKind;

/// What a hook was asked about does not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookRefused {
    #[error("refused by the hook {hook}{}", reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    Denied {
        hook: String,
        /// What the hook says about it.
        reason: Option<String>,
    },
    /// A hook could not be asked, or gave no valid answer.
    #[error("the hook {hook} must allow this and did not answer; try again later")]
    Failed { hook: String },
    /// It is not known what must not be shown to a hook.
    #[error("the owner's stored secrets could not be read, so no hook can be asked; try again later")]
    SecretsUnknown,
}

impl HookRefused {
    /// Whether trying again may help.
    pub const fn is_transient(&self) -> bool {
        !matches!(self, Self::Denied { .. })
    }
}

impl From<HookRefused> for ToolError {
    fn from(refused: HookRefused) -> Self {
        let kind = if refused.is_transient() { ToolErrorKind::Failed } else { ToolErrorKind::NotAuthorized };
        Self::new(kind, refused.to_string())
    }
}

/// A hook that is configured with an unusable URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{hook}: {cause}")]
pub struct InvalidHook {
    pub(super) hook: String,
    /// What is wrong, without the URL, which may contain a credential.
    pub(super) cause: String,
}
