//! The model of a loop in this process: the metered call, as a call in flight of its attempt, with the tools that are
//! permitted now, and at the rate of failed calls that workers are held to.

use std::sync::Arc;

use agent::{ApprovalRequirement, DeltaSink, Model, ModelError};
use base::clock::Clock;
use dispatch::Attempt;
use protocol::{Completion, CompletionRequestRef, PermissionState, RateLimitOrigin, ToolDefinition};
use store::Store;

/// The model of one attempt.
pub(super) struct HostModel<M> {
    pub(super) metered: M,
    pub(super) store: Store,
    pub(super) attempt: Arc<Attempt>,
    pub(super) clock: Clock,
}

impl<M> HostModel<M> {
    /// The tools without those that have been disabled since the loop began.
    async fn permitted(&self, tools: &[ToolDefinition]) -> Result<Vec<ToolDefinition>, ModelError> {
        let owner = &self.attempt.record().brief.user_id;
        let policy = self.store.tool_policy_of(owner).await.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "a user's tool policy could not be read");
            let message = "the tool policy cannot be read".to_owned();
            ModelError::RateLimited { origin: RateLimitOrigin::Local, retry_after: None, message }
        })?;
        let is_permitted = |tool: &&ToolDefinition| {
            policy.permits(&tool.name, ApprovalRequirement::Never)
                && policy.permission(&tool.name) != PermissionState::Disabled
        };
        Ok(tools.iter().filter(is_permitted).cloned().collect())
    }
}

impl<M: Model> Model for HostModel<M> {
    async fn complete(&self, request: &CompletionRequestRef<'_>, deltas: &DeltaSink) -> Result<Completion, ModelError> {
        let failed_calls = &self.attempt.limits().failed_model_calls;
        failed_calls.check(self.clock.monotonic()).map_err(|wait| ModelError::RateLimited {
            origin: RateLimitOrigin::Local,
            retry_after: Some(wait),
            message: "too many calls of this job have failed".to_owned(),
        })?;
        let _in_flight = self.attempt.start_call();
        let tools = self.permitted(request.tools).await?;
        let request = CompletionRequestRef { messages: request.messages.clone(), tools: &tools, ..*request };
        let answer = self.metered.complete(&request, deltas).await;
        if answer.is_err() {
            // Found empty by calls that were admitted together: the next one waits.
            let _ = failed_calls.take(1, self.clock.monotonic());
        }
        answer
    }

    fn context_tokens(&self) -> u64 {
        self.metered.context_tokens()
    }
}
