//! The worker's model: calls the orchestrator's LLM gateway over the socket.
//!
//! Owns the mapping of the gateway's error responses to the agent loop's errors. Never selects a model or counts a budget.

use std::{sync::Arc, time::Duration};

use agent::{DeltaSink, LimitKind, Model, ModelError};
use protocol::{CONTEXT_LENGTH, Completion, CompletionRequestRef, ErrorCode, RateLimitOrigin};

use crate::client::{Call, CallError, OrchestratorClient, Refusal};

/// Timeout of one attempt. Retries are idempotent by call id.
const MODEL_CALL_TIMEOUT_SECONDS: u64 = 900;

/// Sends model calls to the gateway.
pub(crate) struct GatewayModel {
    /// Sends the calls.
    pub(crate) client: Arc<OrchestratorClient>,
    /// The model's context window in tokens.
    pub(crate) context_tokens: u64,
}

impl Model for GatewayModel {
    /// Returns the whole completion. The gateway does not stream deltas to workers.
    async fn complete(&self, request: &CompletionRequestRef<'_>, _: &DeltaSink) -> Result<Completion, ModelError> {
        let endpoint = if request.tools.is_empty() { "complete" } else { "complete_with_tools" };
        let call = Call::post(&["llm", endpoint], request).map_err(model_error)?;
        let call = call.timeout(Duration::from_secs(MODEL_CALL_TIMEOUT_SECONDS));
        self.client.ask(call).await.map_err(model_error)
    }

    fn context_tokens(&self) -> u64 {
        self.context_tokens
    }
}

fn model_error(error: CallError) -> ModelError {
    match error {
        CallError::Stopped => ModelError::Stopped,
        CallError::Refused(refusal) => refused(refusal),
        CallError::Invalid(_) => ModelError::failed(error.to_string()),
    }
}

fn refused(refusal: Refusal) -> ModelError {
    let Refusal { status, code, reason, detail: message, retry_after, .. } = refusal;
    match (status, code) {
        (_, Some(ErrorCode::IterationLimit)) => ModelError::Limit { which: LimitKind::Iterations, message },
        (_, Some(ErrorCode::TokenBudget)) => ModelError::Limit { which: LimitKind::Tokens, message },
        (_, Some(ErrorCode::CostBudget)) => ModelError::Limit { which: LimitKind::Cost, message },
        (429, _) => {
            let origin = RateLimitOrigin::from_reason(reason.as_deref());
            ModelError::RateLimited { origin, retry_after, message }
        }
        _ if reason.as_deref() == Some(CONTEXT_LENGTH) => ModelError::ContextLength { message },
        _ => ModelError::failed(message),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(403, Some(ErrorCode::IterationLimit), None, ModelError::Limit { which: LimitKind::Iterations, message: "m".into() })]
    #[case(403, Some(ErrorCode::TokenBudget), None, ModelError::Limit { which: LimitKind::Tokens, message: "m".into() })]
    #[case(403, Some(ErrorCode::CostBudget), None, ModelError::Limit { which: LimitKind::Cost, message: "m".into() })]
    #[case(429, Some(ErrorCode::RateLimited), Some(7), ModelError::RateLimited { origin: RateLimitOrigin::Local, retry_after: Some(Duration::from_secs(7)), message: "m".into() })]
    #[case(429, None, None, ModelError::RateLimited { origin: RateLimitOrigin::Local, retry_after: None, message: "m".into() })]
    #[case(502, Some(ErrorCode::LlmError), None, ModelError::failed("m"))]
    #[case(422, None, None, ModelError::failed("m"))]
    fn error_responses_map_to_model_errors(
        #[case] status: u16,
        #[case] code: Option<ErrorCode>,
        #[case] wait: Option<u64>,
        #[case] expected: ModelError,
    ) {
        let refusal = Refusal {
            status,
            code,
            code_name: None,
            reason: None,
            detail: "m".into(),
            retry_after: wait.map(Duration::from_secs),
        };
        assert_eq!(refused(refusal), expected);
    }

    #[test]
    fn an_exceeded_context_window_is_its_own_error() {
        let (code, reason) = (Some(ErrorCode::LlmError), Some(CONTEXT_LENGTH.to_owned()));
        let refusal = Refusal { status: 502, code, code_name: None, reason, detail: "m".into(), retry_after: None };
        assert_eq!(refused(refusal), ModelError::ContextLength { message: "m".into() });
    }

    #[rstest]
    #[case::provider(Some("provider"), RateLimitOrigin::Provider)]
    #[case::circuit(Some("circuit"), RateLimitOrigin::Circuit)]
    #[case::queue(Some("local"), RateLimitOrigin::Local)]
    #[case::transport(None, RateLimitOrigin::Local)]
    fn a_rate_limit_is_the_providers_only_if_the_reason_says_so(
        #[case] reason: Option<&str>,
        #[case] expected: RateLimitOrigin,
    ) {
        let (code, reason) = (Some(ErrorCode::RateLimited), reason.map(str::to_owned));
        let error =
            refused(Refusal { status: 429, code, code_name: None, reason, detail: "m".into(), retry_after: None });
        assert_eq!(error, ModelError::RateLimited { origin: expected, retry_after: None, message: "m".into() });
    }
}
