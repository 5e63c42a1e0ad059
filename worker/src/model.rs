//! The model as a worker has it: the orchestrator's gateway at the other end of the socket.
//!
//! Owns saying what the gateway's refusals mean to the loop. Never chooses a model and never counts a budget.

use std::{sync::Arc, time::Duration};

use agent::{BudgetKind, Model, ModelError};
use protocol::{Completion, CompletionRequest, ErrorCode, RateLimitOrigin};

use crate::client::{Call, CallError, OrchestratorClient, Refusal};

/// The job does not tell its model's context; the least that today's models offer.
const CONTEXT_TOKENS: u64 = 128_000;
/// One try; the call's id makes the next one harmless.
const MODEL_CALL_TIMEOUT_SECONDS: u64 = 900;

/// Asks the gateway.
pub(crate) struct GatewayModel {
    /// The way there.
    pub(crate) client: Arc<OrchestratorClient>,
}

impl Model for GatewayModel {
    async fn complete(&self, request: CompletionRequest) -> Result<Completion, ModelError> {
        let endpoint = if request.tools.is_empty() { "complete" } else { "complete_with_tools" };
        let call = Call::post(&["llm", endpoint], &request).map_err(model_error)?;
        let call = call.timeout(Duration::from_secs(MODEL_CALL_TIMEOUT_SECONDS));
        self.client.ask(call).await.map_err(model_error)
    }

    fn context_tokens(&self) -> u64 {
        CONTEXT_TOKENS
    }
}

fn model_error(error: CallError) -> ModelError {
    match error {
        CallError::Stopped => ModelError::Stopped,
        CallError::Refused(refusal) => refused(refusal),
        CallError::Invalid(_) => ModelError::Failed { message: error.to_string() },
    }
}

fn refused(refusal: Refusal) -> ModelError {
    let Refusal { status, code, reason, detail: message, retry_after } = refusal;
    match (status, code) {
        (_, Some(ErrorCode::IterationLimit)) => ModelError::Budget { which: BudgetKind::Iterations, message },
        (_, Some(ErrorCode::TokenBudget)) => ModelError::Budget { which: BudgetKind::Tokens, message },
        (_, Some(ErrorCode::CostBudget)) => ModelError::Budget { which: BudgetKind::Cost, message },
        (429, _) => {
            let origin = RateLimitOrigin::of_reason(reason.as_deref());
            ModelError::RateLimited { origin, retry_after, message }
        }
        _ => ModelError::Failed { message },
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(403, Some(ErrorCode::IterationLimit), None, ModelError::Budget { which: BudgetKind::Iterations, message: "m".into() })]
    #[case(403, Some(ErrorCode::TokenBudget), None, ModelError::Budget { which: BudgetKind::Tokens, message: "m".into() })]
    #[case(403, Some(ErrorCode::CostBudget), None, ModelError::Budget { which: BudgetKind::Cost, message: "m".into() })]
    #[case(429, Some(ErrorCode::RateLimited), Some(7), ModelError::RateLimited { origin: RateLimitOrigin::Local, retry_after: Some(Duration::from_secs(7)), message: "m".into() })]
    #[case(429, None, None, ModelError::RateLimited { origin: RateLimitOrigin::Local, retry_after: None, message: "m".into() })]
    #[case(502, Some(ErrorCode::LlmError), None, ModelError::Failed { message: "m".into() })]
    #[case(422, None, None, ModelError::Failed { message: "m".into() })]
    fn refusals_say_who_acts_next(
        #[case] status: u16,
        #[case] code: Option<ErrorCode>,
        #[case] wait: Option<u64>,
        #[case] expected: ModelError,
    ) {
        let refusal =
            Refusal { status, code, reason: None, detail: "m".into(), retry_after: wait.map(Duration::from_secs) };
        assert_eq!(refused(refusal), expected);
    }

    #[rstest]
    #[case::provider(Some("provider"), RateLimitOrigin::Provider)]
    #[case::circuit(Some("local"), RateLimitOrigin::Local)]
    #[case::transport(None, RateLimitOrigin::Local)]
    fn only_what_names_a_provider_is_a_providers_refusal(
        #[case] reason: Option<&str>,
        #[case] expected: RateLimitOrigin,
    ) {
        let (code, reason) = (Some(ErrorCode::RateLimited), reason.map(str::to_owned));
        let told = refused(Refusal { status: 429, code, reason, detail: "m".into(), retry_after: None });
        assert_eq!(told, ModelError::RateLimited { origin: expected, retry_after: None, message: "m".into() });
    }
}
