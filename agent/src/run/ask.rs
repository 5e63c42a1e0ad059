//! Asking the model: the content of a request, and the handling of refusals.
//!
//! Owns counting model calls, and waiting until a model that cannot answer now is asked again. Never reads the reply.

use std::{borrow::Cow, time::Duration};

use protocol::{CallId, Completion, CompletionRequestRef, Message, RateLimitOrigin, ToolChoice};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::{
    Agent, Delta, DeltaSink, FailureReason, Journal, LimitKind, LoopOutcome, Model, ModelError,
    agent::{Flow, LoopState},
    run::{
        add_usage,
        guard::TextOnlyReason,
        outage::{Outage, RateLimitRefusal},
    },
    settings::clamp_temperature,
    text::elide,
};

/// Interval of status events while the model is waited for, over all tries of a call. Each counts as activity, so that a wait that was asked for never makes a job
/// stuck (300 s without activity by default).
const STATUS_INTERVAL: Duration = Duration::from_secs(10);

/// Interval at which prompts are taken during a wait.
const PROMPT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum length of a refusal's message in a status event.
const MAX_STATUS_BYTES: usize = 300;

/// One call of the model.
#[derive(Debug)]
pub(crate) struct ModelTurn {
    pub(crate) context: PromptContext,
    /// Why no tools are offered, if they are not.
    pub(crate) text_only: Option<TextOnlyReason>,
}

/// The messages of a model call.
#[derive(Debug)]
pub(crate) enum PromptContext {
    /// The transcript.
    Conversation,
    /// The transcript, and where the deltas go that continue its last answer.
    Continuation(DeltaSink),
    /// The transcript and an instruction that does not become part of it.
    WithInstruction(Message),
    /// Other messages.
    Standalone(Vec<Message>),
}

/// A call that was refused for good.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The request exceeds the model's context window.
    ContextLength(String),
    /// Any other permanent failure.
    Failed(FailureReason, String),
}

impl<M: Model, J: Journal> Agent<'_, M, J> {
    /// Why the next call offers no tools, if it does not.
    pub(crate) fn text_only(&self, state: &LoopState<'_>) -> Option<TextOnlyReason> {
        self.text_only_at(state, state.run.iterations.saturating_add(1))
    }

    fn text_only_at(&self, state: &LoopState<'_>, iteration: u32) -> Option<TextOnlyReason> {
        if iteration >= self.settings.max_iterations {
            return Some(TextOnlyReason::IterationCap);
        }
        if !self.settings.use_tools {
            return Some(TextOnlyReason::NoTools);
        }
        if self.settings.max_tool_rounds.is_some_and(|max| state.run.tool_rounds >= max) {
            return Some(TextOnlyReason::RoundLimit);
        }
        state.run.guards.text_only
    }

    /// Model calls that are left.
    pub(crate) const fn calls_left(&self, state: &LoopState<'_>) -> u32 {
        self.settings.max_iterations.saturating_sub(state.run.iterations)
    }

    /// Asks. A request that exceeds the model's context is compacted once and asked again; a refusal ends the work.
    pub(crate) async fn ask(&self, state: &mut LoopState<'_>, turn: &mut ModelTurn) -> Flow<Completion> {
        let refused = match self.try_ask(state, turn).await? {
            Ok(completion) => return Flow::Continue(completion),
            Err(Refused::ContextLength(_)) if self.compact_after_refusal(state).await? => {
                if matches!(turn.context, PromptContext::Conversation) {
                    turn.text_only = self.text_only(state);
                }
                self.try_ask(state, turn).await?
            }
            refused => refused,
        };
        match refused {
            Ok(completion) => Flow::Continue(completion),
            Err(Refused::ContextLength(message)) => {
                let hint = "if the model's context is smaller than llm.context_tokens, lower that";
                failed(FailureReason::InvalidRequest, format!("{message}; {hint}"))
            }
            Err(Refused::Failed(reason, message)) => failed(reason, message),
        }
    }

    /// Asks, and waits for as long as the model may yet answer: one call, however often it must be tried. A call that is
    /// refused for good does not count.
    pub(crate) async fn try_ask(
        &self,
        state: &mut LoopState<'_>,
        turn: &mut ModelTurn,
    ) -> Flow<Result<Completion, Refused>> {
        if self.calls_left(state) == 0 {
            let limit = Value::from(self.settings.max_iterations);
            return self.end_by_limit(LimitKind::Iterations, limit, String::new()).await;
        }
        state.run.iterations += 1;
        self.signals.iteration.send_replace(state.run.iterations);
        let answer = self.ask_until_answered(state, turn).await?;
        match &answer {
            Ok(completion) => add_usage(&mut state.run.usage, &completion.usage),
            Err(_) => state.run.iterations -= 1,
        }
        Flow::Continue(answer)
    }

    async fn ask_until_answered(
        &self,
        state: &mut LoopState<'_>,
        turn: &mut ModelTurn,
    ) -> Flow<Result<Completion, Refused>> {
        let mut call_id = CallId::generate();
        let mut outage = Outage::new(self.settings.outage_patience, self.settings.longest_wait);
        let mut status_due = Instant::now();
        // The cause, where it is followed by refusals of this process.
        let mut last_said = None;
        loop {
            let asked_at = Instant::now();
            let (refusal, message) = match self.complete(state, turn, &call_id).await? {
                Ok(completion) => return Flow::Continue(Ok(completion)),
                Err(ModelError::RateLimited { origin, retry_after, message }) => {
                    (RateLimitRefusal { origin, retry_after, took: asked_at.elapsed() }, message)
                }
                Err(ModelError::Limit { which, message }) => {
                    return self.end_by_limit(which, Value::from(message), String::new()).await;
                }
                Err(ModelError::ContextLength { message }) => {
                    return Flow::Continue(Err(Refused::ContextLength(message)));
                }
                Err(ModelError::Failed { reason, message }) => {
                    return Flow::Continue(Err(Refused::Failed(reason, message)));
                }
                Err(ModelError::Stopped) => return Flow::Break(LoopOutcome::Stopped),
            };
            if refusal.origin == RateLimitOrigin::Provider {
                last_said = Some(message.clone());
            }
            let wait = match outage.wait_after(&refusal, &call_id) {
                Ok(wait) => wait,
                Err(given_up) => {
                    let message = format!("{given_up}: {}", last_said.unwrap_or(message));
                    return Flow::Continue(Err(Refused::Failed(FailureReason::ProviderOutage, message)));
                }
            };
            let messages = state.transcript.messages().len();
            let progress = outage.progress().unwrap_or_default();
            self.wait(state, wait, &progress, &message, &mut status_due).await?;
            if state.transcript.messages().len() > messages {
                // The next request says more than the last, so it is another call; the prompt has reset the guards.
                call_id = CallId::generate();
                if matches!(turn.context, PromptContext::Conversation) {
                    turn.text_only = self.text_only_at(state, state.run.iterations);
                }
            }
        }
    }

    /// One try.
    async fn complete(
        &self,
        state: &LoopState<'_>,
        turn: &ModelTurn,
        call_id: &CallId,
    ) -> Flow<Result<Completion, ModelError>> {
        // The server stores the call when it gets the request: what led to it is stored before.
        self.flush().await?;
        let request = self.request(state, turn, call_id);
        let discard = DeltaSink::discard();
        let deltas = match &turn.context {
            PromptContext::Conversation => self.deltas,
            PromptContext::Continuation(deltas) => deltas,
            PromptContext::WithInstruction(_) | PromptContext::Standalone(_) => &discard,
        };
        tokio::select! {
            biased;
            () = self.signals.stop.cancelled() => Flow::Break(LoopOutcome::Stopped),
            answer = async {
                deltas.send(Delta::Start { call_id: call_id.clone() }).await;
                self.model.complete(&request, deltas).await
            } => Flow::Continue(answer),
        }
    }

    /// Waits before the model is called again: reports the wait, stops at once when requested, and receives prompts meanwhile.
    async fn wait(
        &self,
        state: &mut LoopState<'_>,
        wait: Duration,
        progress: &str,
        message: &str,
        status_due: &mut Instant,
    ) -> Flow {
        let until = Instant::now() + wait;
        let cause = elide(message, MAX_STATUS_BYTES);
        loop {
            let now = Instant::now();
            if now >= until {
                return Flow::Continue(());
            }
            if now >= *status_due {
                let seconds = (until - now).as_millis().div_ceil(1_000);
                let status = format!("waiting for the model: {progress}next try in {seconds} s: {cause}");
                self.record_status(state, status).await?;
                *status_due = now + STATUS_INTERVAL;
            }
            tokio::select! {
                biased;
                () = self.signals.stop.cancelled() => return Flow::Break(LoopOutcome::Stopped),
                () = sleep_until(until.min(now + PROMPT_INTERVAL)) => {}
            }
            self.take_signals(state).await?;
        }
    }

    fn request<'r>(
        &'r self,
        state: &'r LoopState<'_>,
        turn: &'r ModelTurn,
        call_id: &'r CallId,
    ) -> CompletionRequestRef<'r> {
        let messages = match &turn.context {
            PromptContext::Conversation | PromptContext::Continuation(_) => state.transcript.messages_for_model(),
            PromptContext::WithInstruction(instruction) => {
                let mut messages = state.transcript.messages_for_model().into_owned();
                messages.push(instruction.clone());
                messages.into()
            }
            PromptContext::Standalone(messages) => Cow::Borrowed(messages.as_slice()),
        };
        // Where the tools were on offer they stay defined, and are ruled out: some wires cannot read a transcript with calls
        // otherwise, and the conversation keeps its beginning.
        let standalone = matches!(turn.context, PromptContext::Standalone(_));
        let needs_definitions = !standalone && (self.settings.use_tools || state.transcript.has_tool_calls());
        let (tools, tool_choice) = match turn.text_only {
            None => (self.tools.definitions(), ToolChoice::Auto),
            Some(_) if needs_definitions => (self.tools.definitions(), ToolChoice::None),
            Some(_) => (&[][..], ToolChoice::None),
        };
        // A plan, its assessment and a summary are the loop's own calls: the temperature is chosen for the work.
        let is_of_the_work = matches!(turn.context, PromptContext::Conversation | PromptContext::Continuation(_));
        let temperature = self.settings.temperature.filter(|_| is_of_the_work).map(clamp_temperature);
        let max_tokens = self.settings.max_tokens;
        CompletionRequestRef { call_id, messages, tools, tool_choice, max_tokens, temperature }
    }
}

/// Ends work that cannot continue.
pub(crate) const fn failed<T>(reason: FailureReason, message: String) -> Flow<T> {
    Flow::Break(LoopOutcome::Failed { reason, message })
}
