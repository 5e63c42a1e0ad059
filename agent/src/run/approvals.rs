//! A call that waits for a person: the loop ends with a request, and continues from the answer.
//!
//! Owns the state between the two, which is part of the run and serializable. Never decides whether a call needs
//! approval.

use protocol::{CallId, NotApproved, ToolCall, ToolErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Agent, Journal, LoopOutcome, Model, ToolError,
    agent::{Flow, LoopState},
    run::act::PendingCalls,
};

/// What a person is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// The call's id.
    pub call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// Exactly the arguments that run if the call is approved.
    pub arguments: Value,
    /// The arguments without credentials, for display.
    pub redacted_input: Value,
    /// The model's reason for the call: its reasoning, else the text of the reply. May be empty.
    pub reasoning: String,
    /// Whether the answer "always" can be remembered.
    pub can_be_remembered: bool,
}

/// A person's answer, or the lack of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalAnswer {
    /// The call runs.
    Approved,
    /// The call does not run.
    Denied {
        /// Why, for the model.
        reason: Option<String>,
    },
    /// No answer came in time: the call does not run.
    Expired,
}

/// The run does not wait for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no call waits for approval")]
pub struct NothingToApprove;

/// A call that waits, and the calls of the same reply that follow it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ParkedCall {
    pub(super) request: ApprovalRequest,
    /// The call as the model made it.
    call: ToolCall,
    answer: Option<ApprovalAnswer>,
    following: PendingCalls,
}

impl ParkedCall {
    /// The call, and those that follow it.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        std::iter::once(&self.call).chain(self.following.calls())
    }

    /// Sets the answer, unless there is one.
    pub(crate) fn set_answer(&mut self, answer: ApprovalAnswer) -> Result<(), NothingToApprove> {
        if self.answer.is_some() {
            return Err(NothingToApprove);
        }
        self.answer = Some(answer);
        Ok(())
    }
}

/// Ends the loop with the request for this call.
pub(crate) fn park(
    state: &mut LoopState<'_>,
    call: ToolCall,
    request: ApprovalRequest,
    following: PendingCalls,
) -> Flow {
    state.run.parked = Some(ParkedCall { request: request.clone(), call, answer: None, following });
    Flow::Break(LoopOutcome::NeedsApproval { request })
}

impl<M: Model, J: Journal> Agent<'_, M, J> {
    /// Finishes a parked call by its answer, and then the calls that follow it.
    pub(crate) async fn resume_parked(&self, state: &mut LoopState<'_>) -> Flow {
        let Some(ParkedCall { request, call, answer, mut following }) = state.run.parked.take() else {
            return Flow::Continue(());
        };
        let Some(answer) = answer else {
            return park(state, call, request, following);
        };
        let ApprovalRequest { call_id, tool, arguments, reasoning, .. } = request;
        let admission = match refusal(&answer) {
            Some(error) => self.tools.refuse(call_id, &tool, arguments, error).await,
            None => self.tools.admit_approved(call_id, &tool, arguments).await,
        };
        let admission = admission.with_reasoning(&reasoning);
        following.warning = following.warning.max(self.run_alone(state, call, admission).await?);
        self.run_pending(state, following).await
    }
}

/// The error that the model reads of a call that was not approved.
fn refusal(answer: &ApprovalAnswer) -> Option<ToolError> {
    let cause = match answer {
        ApprovalAnswer::Approved => return None,
        ApprovalAnswer::Denied { reason } => NotApproved::Denied { reason: reason.as_deref() },
        ApprovalAnswer::Expired => NotApproved::Expired,
    };
    Some(ToolError::new(ToolErrorKind::NotAuthorized, cause.to_string()))
}
