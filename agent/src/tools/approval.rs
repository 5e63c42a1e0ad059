//! Whether a call runs, waits for a person, or is refused. Pure.

use std::collections::BTreeSet;

use protocol::{PermissionState, ToolErrorKind};

use crate::{ApprovalRequirement, ToolError};

/// Whether a person can approve a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalContext {
    /// A person takes part in the conversation and is asked.
    Interactive {
        /// Tools that the person always allows in this thread.
        remembered: BTreeSet<String>,
    },
    /// No person is there: a job, a routine or a worker.
    Autonomous {
        /// The allow-lists of every level that the work passed through (routine, job, worker). A tool with requirement `always`
        /// runs only if all of them name it; without any list none runs.
        levels: Vec<AllowList>,
    },
}

/// Names of tools with requirement `always` that an autonomous context lets run.
pub type AllowList = BTreeSet<String>;

/// The decision about one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApprovalDecision {
    /// It runs.
    Run,
    /// A person is asked first.
    Ask {
        /// Whether the answer "always" can be remembered.
        can_be_remembered: bool,
    },
}

impl ApprovalContext {
    /// An autonomous context with one level that names no tool.
    pub fn autonomous() -> Self {
        Self::Autonomous { levels: vec![AllowList::new()] }
    }

    /// Decides about a call. An error means that it is refused, because no person can be asked.
    pub(super) fn decide(
        &self,
        name: &str,
        requirement: ApprovalRequirement,
        permission: PermissionState,
    ) -> Result<ApprovalDecision, ToolError> {
        let ask = |can_be_remembered| Ok(ApprovalDecision::Ask { can_be_remembered });
        let run = Ok(ApprovalDecision::Run);
        match self {
            Self::Interactive { remembered } => {
                let is_allowed = permission == PermissionState::AlwaysAllow || remembered.contains(name);
                match (requirement, permission) {
                    (ApprovalRequirement::Always, _) | (_, PermissionState::AskEachTime) => ask(false),
                    (ApprovalRequirement::UnlessAutoApproved, _) if !is_allowed => ask(true),
                    (ApprovalRequirement::Never | ApprovalRequirement::UnlessAutoApproved, _) => run,
                }
            }
            Self::Autonomous { levels } => {
                let is_named = !levels.is_empty() && levels.iter().all(|level| level.contains(name));
                match requirement {
                    ApprovalRequirement::Always if !is_named => Err(approval_required(name)),
                    _ => run,
                }
            }
        }
    }

    /// Whether the list of tools that are denied without a person applies.
    pub(super) const fn is_unattended(&self) -> bool {
        matches!(self, Self::Autonomous { .. })
    }
}

pub(super) fn approval_required(name: &str) -> ToolError {
    ToolError::new(
        ToolErrorKind::AutonomousUnavailable,
        format!("{name} requires approval by a person, and none is available; continue without it"),
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const RUN: Option<ApprovalDecision> = Some(ApprovalDecision::Run);
    const ASK: Option<ApprovalDecision> = Some(ApprovalDecision::Ask { can_be_remembered: true });
    const ASK_EACH_TIME: Option<ApprovalDecision> = Some(ApprovalDecision::Ask { can_be_remembered: false });
    const REFUSE: Option<ApprovalDecision> = None;

    fn names(list: &[&str]) -> AllowList {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    fn chat(remembered: &[&str]) -> ApprovalContext {
        ApprovalContext::Interactive { remembered: names(remembered) }
    }

    fn autonomous(levels: &[&[&str]]) -> ApprovalContext {
        ApprovalContext::Autonomous { levels: levels.iter().map(|level| names(level)).collect() }
    }

    /// The whole table: for each context and permission, the decisions for `never`, `unless_auto_approved` and `always`.
    #[rstest]
    #[case::chat(chat(&[]), PermissionState::Default, [RUN, ASK, ASK_EACH_TIME])]
    #[case::chat_remembered(chat(&["tool"]), PermissionState::Default, [RUN, RUN, ASK_EACH_TIME])]
    #[case::chat_other_remembered(chat(&["Tool", "tools"]), PermissionState::Default, [RUN, ASK, ASK_EACH_TIME])]
    #[case::chat_always_allow(chat(&[]), PermissionState::AlwaysAllow, [RUN, RUN, ASK_EACH_TIME])]
    #[case::chat_ask(chat(&["tool"]), PermissionState::AskEachTime, [ASK_EACH_TIME, ASK_EACH_TIME, ASK_EACH_TIME])]
    #[case::autonomous(autonomous(&[&[]]), PermissionState::Default, [RUN, RUN, REFUSE])]
    #[case::autonomous_named(autonomous(&[&["tool"]]), PermissionState::Default, [RUN, RUN, RUN])]
    #[case::autonomous_odd_names(autonomous(&[&["Tool", "tool ", "t\u{43e}ol"]]), PermissionState::Default, [RUN, RUN, REFUSE])]
    #[case::autonomous_both_levels(autonomous(&[&["tool"], &["tool", "other"]]), PermissionState::Default, [RUN, RUN, RUN])]
    #[case::autonomous_one_level(autonomous(&[&["tool"], &[]]), PermissionState::Default, [RUN, RUN, REFUSE])]
    #[case::autonomous_other_level(autonomous(&[&[], &["tool"]]), PermissionState::Default, [RUN, RUN, REFUSE])]
    #[case::autonomous_no_level(autonomous(&[]), PermissionState::Default, [RUN, RUN, REFUSE])]
    #[case::autonomous_always_allow(autonomous(&[&[]]), PermissionState::AlwaysAllow, [RUN, RUN, REFUSE])]
    #[case::autonomous_ask(autonomous(&[&["tool"]]), PermissionState::AskEachTime, [RUN, RUN, RUN])]
    fn decisions(
        #[case] context: ApprovalContext,
        #[case] permission: PermissionState,
        #[case] expected: [Option<ApprovalDecision>; 3],
    ) {
        let requirements =
            [ApprovalRequirement::Never, ApprovalRequirement::UnlessAutoApproved, ApprovalRequirement::Always];
        assert_eq!(requirements.map(|requirement| context.decide("tool", requirement, permission).ok()), expected);
    }
}
