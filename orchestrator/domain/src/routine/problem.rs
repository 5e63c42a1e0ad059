//! What automation could not do for a routine, in words for its owner. Pure.

use protocol::RunReason;

/// Something that was not done for a routine, through no fault of the routine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AutomationProblem {
    /// A run failed because of what it needs.
    RunFailed { reason: RunReason, message: Option<String> },
    /// A message or an event was not compared with the routines after this one.
    NotCompared,
    /// Its trigger could not be compared with what arrived.
    ComparisonFailed { message: String },
    /// A message or an event matched more routines than it may fire, and this one was not fired.
    TooManyMatches { max: usize },
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
            Self::NotCompared => "A message or an event was not compared with the routines after this one, because the \
                                  comparisons up to here took too long. Simplify the pattern or condition of its trigger."
                .to_owned(),
            Self::ComparisonFailed { message } => format!("Its trigger could not be compared with what arrived: {message}"),
            Self::TooManyMatches { max } => {
                format!("A message or an event matched more than {max} routines, and did not fire this one.")
            }
            Self::LinesDropped => {
                "Its line pushed older ones out of your main session, where too many wait to be read.".to_owned()
            }
        };
        format!("{what}\nYou are not notified again today if this or something similar happens to this routine.")
    }
}
