//! What the operator and a user have decided about tools. Pure values; the host stores them.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{PermissionState, ToolErrorKind};

use super::context::folded;
use crate::{ApprovalRequirement, ToolError};

/// The decisions that apply to one user's calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolPolicy {
    /// Tools that the operator has disabled for this user: they are not offered and cannot run. See
    /// [`Self::disable`].
    pub(super) disabled: BTreeSet<String>,
    /// Whether the operator's stored policy is invalid. Then only calls that never need approval are allowed, because
    /// it is not known which others are disabled.
    pub is_invalid: bool,
    /// The user's permissions. A tool without one has [`PermissionState::Default`].
    pub permissions: BTreeMap<String, PermissionState>,
}

impl ToolPolicy {
    /// Disables the tool of this name. In another case or with other separators it is the same name, because no two
    /// tools differ in these only: a policy with `Shell` is not one without effect.
    pub fn disable(&mut self, name: &str) {
        self.disabled.insert(folded(name));
    }

    /// Whether the operator has disabled the tool.
    pub(super) fn is_disabled(&self, name: &str) -> bool {
        self.disabled.contains(&folded(name))
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("shell", true)]
    #[case("Shell", true)]
    #[case(" shell ", true)]
    #[case("shells", false)]
    fn a_tool_is_disabled_however_its_name_is_written(#[case] written: &str, #[case] is_disabled: bool) {
        let mut policy = ToolPolicy::default();
        policy.disable(written);
        assert_eq!(policy.permits("shell", ApprovalRequirement::Never), !is_disabled);
    }
}
