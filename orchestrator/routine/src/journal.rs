//! The journal of a lightweight run: what the run must know of what its loop records. Nothing else is kept: the run's calls have their
//! own rows, and its last text is its result.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use agent::{Journal, JournalClosed};
use domain::routine::prompt::NOTHING_TO_REPORT;
use protocol::AgentEvent;
use serde_json::Value;

/// What is known of a run in progress. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct RunJournal(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    nothing_to_report: AtomicBool,
    /// The text of the last limit that was reached.
    limit: Mutex<Option<String>>,
}

impl RunJournal {
    /// Whether the model has said by its tool that there is nothing to report.
    pub(super) fn has_nothing_to_report(&self) -> bool {
        self.0.nothing_to_report.load(Ordering::Relaxed)
    }

    /// What the last limit that was reached says.
    pub(super) fn take_limit(&self) -> Option<String> {
        self.0.limit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Journal for RunJournal {
    async fn record(&self, event: AgentEvent) -> Result<(), JournalClosed> {
        match event {
            AgentEvent::ToolResult { tool, success: true, .. } if tool == NOTHING_TO_REPORT => {
                self.0.nothing_to_report.store(true, Ordering::Relaxed);
            }
            AgentEvent::Limit { value, .. } => {
                let text = if let Value::String(text) = value { text } else { value.to_string() };
                *self.0.limit.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
            }
            _ => {}
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), JournalClosed> {
        Ok(())
    }
}
