//! Asking the model: what goes into a request, and what comes of an answer that is none.
//!
//! Owns counting model calls and waiting out rate limits. Never reads the reply.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use protocol::{CallId, Completion, CompletionRequest, JobReason, Message, ToolChoice};
use serde_json::Value;

use crate::{
    Agent, BudgetKind, Conversation, Journal, LimitKind, LoopOutcome, Model, ModelError, Signals, agent::Flow,
    guard::WhyText, settings::clamp_temperature,
};

/// Rate-limited answers in a row to one question; the last of them fails.
const MAX_RATE_LIMITED: u32 = 10;

/// The first wait when the provider does not say how long.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The longest such wait.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// The longest wait that a provider is granted.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// One question to the model.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) about: About,
    /// Text only, and why; none: tools on offer.
    pub(crate) why_text: Option<WhyText>,
    pub(crate) temperature: f64,
}

/// What a question shows the model.
#[derive(Debug)]
pub(crate) enum About {
    /// The conversation.
    Conversation,
    /// The conversation and an instruction that does not become part of it.
    ConversationAnd(String),
    /// Something else.
    Only(Vec<Message>),
}

impl<M: Model, J: Journal, S: Signals> Agent<'_, M, J, S> {
    /// Why the next call is text only, if it is.
    pub(crate) fn why_text(&self, c: &Conversation) -> Option<WhyText> {
        if c.iterations.saturating_add(1) >= self.settings.max_iterations {
            return Some(WhyText::Cap);
        }
        if self.settings.use_tools { c.text_only } else { Some(WhyText::NoTools) }
    }

    /// Model calls that are left.
    pub(crate) const fn calls_left(&self, c: &Conversation) -> u32 {
        self.settings.max_iterations.saturating_sub(c.iterations)
    }

    /// Asks, waiting out rate limits. One call of the model's, however often it must be tried.
    pub(crate) async fn ask(&self, c: &mut Conversation, question: Question) -> Flow<Completion> {
        if self.calls_left(c) == 0 {
            return self.end_by(c, LimitKind::Iterations, Value::from(self.settings.max_iterations)).await;
        }
        c.iterations += 1;
        self.signals.at_iteration(c.iterations);
        let call_id = CallId::generate();
        for tried in 1..=MAX_RATE_LIMITED {
            let request = self.request(c, &question, call_id.clone());
            let answer = tokio::select! {
                biased;
                () = self.signals.stop().cancelled() => return Flow::Break(LoopOutcome::Stopped),
                answer = self.model.complete(request) => answer,
            };
            let wait = match answer {
                Ok(completion) => {
                    c.count_usage(completion.usage);
                    return Flow::Continue(completion);
                }
                Err(ModelError::RateLimited { message, .. }) if tried == MAX_RATE_LIMITED => {
                    return failed(JobReason::LlmError, format!("rate limited {tried} times in a row: {message}"));
                }
                Err(ModelError::RateLimited { retry_after, .. }) => wait_for(retry_after, tried, &call_id),
                Err(ModelError::Budget { which, message }) => {
                    return self.end_by(c, limit_of(which), Value::from(message)).await;
                }
                Err(ModelError::Failed { message }) => return failed(JobReason::LlmError, message),
                Err(ModelError::Stopped) => return Flow::Break(LoopOutcome::Stopped),
            };
            tracing::debug!(wait_ms = wait.as_millis(), tried, "rate limited");
            tokio::select! {
                biased;
                () = self.signals.stop().cancelled() => return Flow::Break(LoopOutcome::Stopped),
                () = tokio::time::sleep(wait) => {}
            }
        }
        failed(JobReason::Internal, "asked without an answer".to_owned())
    }

    fn request(&self, c: &Conversation, question: &Question, call_id: CallId) -> CompletionRequest {
        let messages = match &question.about {
            About::Conversation => c.messages.clone(),
            About::ConversationAnd(instruction) => {
                let instruction = Message::User { content: instruction.clone() };
                c.messages.iter().cloned().chain([instruction]).collect()
            }
            About::Only(messages) => messages.clone(),
        };
        // Some wires cannot read a transcript with calls unless the tools are defined; so they are, and ruled out.
        let needs_definitions = !matches!(question.about, About::Only(_)) && c.has_tool_calls();
        let (tools, tool_choice) = match question.why_text {
            None => (self.tools.definitions(), ToolChoice::Auto),
            Some(_) if needs_definitions => (self.tools.definitions(), ToolChoice::None),
            Some(_) => (Vec::new(), ToolChoice::None),
        };
        let temperature = Some(clamp_temperature(question.temperature));
        CompletionRequest { call_id, messages, tools, tool_choice, max_tokens: self.settings.max_tokens, temperature }
    }
}

/// The end of work that cannot go on.
pub(crate) const fn failed<T>(reason: JobReason, message: String) -> Flow<T> {
    Flow::Break(LoopOutcome::Failed { reason, message })
}

const fn limit_of(budget: BudgetKind) -> LimitKind {
    match budget {
        BudgetKind::Tokens => LimitKind::Tokens,
        BudgetKind::Cost => LimitKind::Cost,
    }
}

/// What Retry-After says; else twice as long each time, and between half and all of that. The spread comes from the
/// call's id: it differs between jobs, which is all it is for, and needs no source of randomness here.
fn wait_for(retry_after: Option<Duration>, tried: u32, call_id: &CallId) -> Duration {
    if let Some(said) = retry_after {
        return said.min(MAX_RETRY_AFTER);
    }
    let full = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(tried.saturating_sub(1))).min(MAX_WAIT);
    let mut hasher = DefaultHasher::new();
    (call_id, tried).hash(&mut hasher);
    let thousandths = u32::try_from(hasher.finish() % 500).unwrap_or(0);
    full / 2 + full * thousandths / 1000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_wait_is_between_half_and_all_of_its_step(tried in 1_u32..50, id in ".*") {
            let full = Duration::from_secs(1 << (tried - 1).min(6)).min(MAX_WAIT);
            let wait = wait_for(None, tried, &CallId(id));
            prop_assert!(wait >= full / 2 && wait <= full, "{wait:?} of {full:?}");
        }
    }
}
