//! What automation could not do for a routine, in words for its owner. Pure.

use protocol::RunReason;

/// Something that was not done for a routine, through no fault of the routine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AutomationProblem {
    /// A run failed because of what it needs.
    RunFailed { reason: RunReason, message: Option<String> },
    /// A message or an event was not compared with its trigger.
    NotCompared,
    /// The condition `where` of its trigger could not be evaluated.
    ConditionFailed { message: String },
    /// Lines for the main session were dropped, because too many waited.
    LinesDropped,
}

impl AutomationProblem {
    /// The text of the notification.
    pub fn text(&self) -> String {
        let what = match self {
            Self::RunFailed { reason, message } => {
                let message = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
                format!(
                    "A run failed with {reason}{message}. The cause is outside of the routine, so the failure does not \
                     count toward disabling it."
                )
            }
            Self::NotCompared => {
                "A message or an event was not compared with its trigger, because that took too long.".to_owned()
            }
            Self::ConditionFailed { message } => format!("The condition `where` could not be evaluated: {message}"),
            Self::LinesDropped => {
                "Its line pushed older ones out of your main session, where too many wait to be read.".to_owned()
            }
        };
        format!("{what}\nYou are not notified again today if this or something similar happens to this routine.")
    }
}
