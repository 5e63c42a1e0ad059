//! Asking the model: what goes into a request, and what comes of an answer that is none.
//!
//! Owns counting model calls and waiting until a model that cannot answer now is asked again. Never reads the reply.

use protocol::{CallId, Completion, CompletionRequest, EventData, JobReason, Message, ToolChoice};
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

use crate::{
    Agent, BudgetKind, Conversation, Journal, LimitKind, LoopOutcome, Model, ModelError, Signals,
    agent::Flow,
    guard::WhyText,
    outage::{Outage, Refusal},
    settings::clamp_temperature,
};

/// While it waits, the loop says so this often: each time counts as activity, so that a wait that was asked for never makes
/// a job stuck (300 s without activity by default).
const STATUS_INTERVAL: Duration = Duration::from_secs(15);

/// While it waits, the loop looks for prompts this often.
const PROMPT_INTERVAL: Duration = Duration::from_secs(1);

/// Of a refusal's message, what a status says.
const MAX_SHOWN_BYTES: usize = 300;

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
        self.why_text_of_call(c, c.iterations.saturating_add(1))
    }

    fn why_text_of_call(&self, c: &Conversation, iteration: u32) -> Option<WhyText> {
        if iteration >= self.settings.max_iterations {
            return Some(WhyText::Cap);
        }
        if self.settings.use_tools { c.text_only } else { Some(WhyText::NoTools) }
    }

    /// Model calls that are left.
    pub(crate) const fn calls_left(&self, c: &Conversation) -> u32 {
        self.settings.max_iterations.saturating_sub(c.iterations)
    }

    /// Asks, and waits for as long as the model may yet answer. One call of the model's, however often it must be tried.
    pub(crate) async fn ask(&self, c: &mut Conversation, question: &mut Question) -> Flow<Completion> {
        if self.calls_left(c) == 0 {
            return self.end_by(c, LimitKind::Iterations, Value::from(self.settings.max_iterations)).await;
        }
        c.iterations += 1;
        self.signals.at_iteration(c.iterations);
        let mut call_id = CallId::generate();
        let mut outage = Outage::new(self.settings.outage_patience);
        loop {
            let request = self.request(c, question, call_id.clone());
            let asked_at = Instant::now();
            let answer = tokio::select! {
                biased;
                () = self.signals.stop().cancelled() => return Flow::Break(LoopOutcome::Stopped),
                answer = self.model.complete(request) => answer,
            };
            let (refusal, message) = match answer {
                Ok(completion) => {
                    c.count_usage(completion.usage);
                    return Flow::Continue(completion);
                }
                Err(ModelError::RateLimited { origin, retry_after, message }) => {
                    (Refusal { origin, retry_after, took: asked_at.elapsed() }, message)
                }
                Err(ModelError::Budget { which, message }) => {
                    return self.end_by(c, limit_of(which), Value::from(message)).await;
                }
                Err(ModelError::Failed { message }) => return failed(JobReason::LlmError, message),
                Err(ModelError::Stopped) => return Flow::Break(LoopOutcome::Stopped),
            };
            let wait = match outage.wait_after(&refusal, &call_id) {
                Ok(wait) => wait,
                Err(over) => return failed(JobReason::LlmError, format!("{over}: {message}")),
            };
            let heard = c.messages.len();
            self.wait(c, wait, &message).await?;
            if c.messages.len() > heard {
                // The next request says more than the last: it is another call, and what was held against the model is
                // forgotten.
                call_id = CallId::generate();
                if matches!(question.about, About::Conversation) {
                    question.why_text = self.why_text_of_call(c, c.iterations);
                }
            }
        }
    }

    /// Waits before the model is asked again: says so, stops at once when told to, and takes prompts as they come.
    async fn wait(&self, c: &mut Conversation, wait: Duration, message: &str) -> Flow {
        let until = Instant::now() + wait;
        let shown = &message[..message.floor_char_boundary(MAX_SHOWN_BYTES)];
        let mut status_due = Instant::now();
        loop {
            let now = Instant::now();
            if now >= until {
                return Flow::Continue(());
            }
            if now >= status_due {
                let seconds = (until - now).as_millis().div_ceil(1_000);
                let message = format!("rate limited ({shown}), asks again in {seconds} s");
                self.record(EventData::Status { message, iteration: c.iterations }).await?;
                status_due = now + STATUS_INTERVAL;
            }
            tokio::select! {
                biased;
                () = self.signals.stop().cancelled() => return Flow::Break(LoopOutcome::Stopped),
                () = sleep_until(until.min(now + PROMPT_INTERVAL)) => {}
            }
            self.take_signals(c).await?;
        }
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
            None => (self.tools.definitions().to_vec(), ToolChoice::Auto),
            Some(_) if needs_definitions => (self.tools.definitions().to_vec(), ToolChoice::None),
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
        BudgetKind::Iterations => LimitKind::Iterations,
        BudgetKind::Tokens => LimitKind::Tokens,
        BudgetKind::Cost => LimitKind::Cost,
    }
}
