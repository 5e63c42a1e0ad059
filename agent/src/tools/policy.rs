//! What the operator and a user have decided about tools. Pure values; the host stores them.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{PermissionState, ToolErrorKind};

use crate::{ApprovalRequirement, ToolError};

/// The decisions that apply to one user's calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolPolicy {
    /// Tools that the operator has disabled for this user, by exact name: they are not offered and cannot run.
    pub disabled: BTreeSet<String>,
    /// Whether the operator's stored policy is invalid. Then only calls that never need approval are allowed, because it is not
    /// known which others are disabled.
    pub is_invalid: bool,
    /// The user's permissions. A tool without one has [`PermissionState::Default`].
    pub permissions: BTreeMap<String, PermissionState>,
}

impl ToolPolicy {
    /// Whether the operator has disabled the tool.
    pub(super) fn is_disabled(&self, name: &str) -> bool {
        self.disabled.contains(name)
    }

    /// The user's permission for the tool.
    pub fn permission(&self, name: &str) -> PermissionState {
        self.permissions.get(name).copied().unwrap_or_default()
    }

    /// Whether the operator lets the user have this tool.
    pub fn permits(&self, name: &str, requirement: ApprovalRequirement) -> bool {
        !self.is_disabled(name) && self.check_validity(name, requirement).is_ok()
    }

    /// Refuses the calls of a tool that the user has disabled.
    pub(super) fn check_permission(&self, name: &str) -> Result<(), ToolError> {
        if self.permission(name) == PermissionState::Disabled {
            let message = format!("the user has disabled {name}; continue without it");
            return Err(ToolError::new(ToolErrorKind::NotAuthorized, message));
        }
        Ok(())
    }

    /// Refuses a call that an invalid policy may have disabled.
    pub(super) fn check_validity(&self, name: &str, requirement: ApprovalRequirement) -> Result<(), ToolError> {
        if self.is_invalid && requirement != ApprovalRequirement::Never {
            let message =
                format!("this server's tool policy is invalid, so {name} is not available; continue without it");
            return Err(ToolError::new(ToolErrorKind::NotAuthorized, message));
        }
        Ok(())
    }
}
