//! The loop: take signals, compact, ask, clean, act, record; until the work ends.
//!
//! Owns the order of a turn and how the work ends. The steps are elsewhere: `run/ask` for the model, `run/act` for the
//! reply, `run/plan` and `transcript/compact`. Never reads a clock but tokio's.

use std::{convert::Infallible, ops::ControlFlow};

use protocol::{AgentEvent, Message, MessageRole};
use serde_json::Value;
use tracing::Instrument as _;

use crate::{
    DeltaSink, FailureReason, Journal, JournalError, LimitKind, LoopOutcome, Model, Run, Settings, Signals,
    ToolExecutor, Transcript,
    run::{
        Stage,
        ask::{ModelTurn, PromptContext, failed},
        guard::Guards,
    },
};

/// Continues with a value, or ends the work.
pub(crate) type Flow<T = ()> = ControlFlow<LoopOutcome, T>;

/// The loop and its dependencies.
#[derive(Debug)]
pub struct Agent<'a, M, J> {
    /// The model.
    pub model: &'a M,
    /// Runs the tool calls of the replies.
    pub tools: &'a ToolExecutor,
    /// Takes the events.
    pub journal: &'a J,
    /// Stop, prompts and progress.
    pub signals: &'a Signals,
    /// Limits and options.
    pub settings: &'a Settings,
    /// Takes the deltas of the replies; those of planning and compaction are discarded.
    pub deltas: &'a DeltaSink,
}

/// The state that a loop works on.
#[derive(Debug)]
pub(crate) struct LoopState<'s> {
    pub(crate) transcript: &'s mut Transcript,
    pub(crate) run: &'s mut Run,
}

impl<M: Model, J: Journal> Agent<'_, M, J> {
    /// Works until the work ends. Called again on the same state it continues from there: with the prompts that have
    /// arrived, or with the same outcome when nothing is left to do.
    pub async fn run(&self, transcript: &mut Transcript, run: &mut Run) -> LoopOutcome {
        let ControlFlow::Break(outcome) = self.turns(&mut LoopState { transcript, run }).await;
        outcome
    }

    async fn turns(&self, state: &mut LoopState<'_>) -> Flow<Infallible> {
        self.begin(state).await?;
        loop {
            let span = tracing::info_span!("agent.turn", iteration = state.run.iterations + 1);
            self.turn(state).instrument(span).await?;
        }
    }

    async fn begin(&self, state: &mut LoopState<'_>) -> Flow {
        state.transcript.offer(self.tools.definitions());
        // Before signals are taken: no message can come between a call and its result.
        self.resume_parked(state).await?;
        self.inject_pending_notice(state).await?;
        let start = std::mem::replace(&mut state.run.stage, Stage::Working);
        match start {
            Stage::New | Stage::PromptRecorded => {
                if start == Stage::New {
                    let prompt = last_prompt(state.transcript.messages()).to_owned();
                    self.record_message(MessageRole::User, &prompt).await?;
                }
                self.take_signals(state).await?;
                if self.settings.plan { self.work_by_plan(state).await } else { Flow::Continue(()) }
            }
            // With no call left, the last reply was the one at the limit, and the outcome stays the limit.
            Stage::Working if state.transcript.ended() && self.calls_left(state) == 0 => {
                let limit = Value::from(self.settings.max_iterations);
                self.end_by_limit(LimitKind::Iterations, limit, state.run.last_text.clone()).await
            }
            Stage::Working if state.transcript.ended() => {
                self.take_signals(state).await?;
                if state.transcript.ended() {
                    self.finish(state, state.run.last_text.clone()).await
                } else {
                    Flow::Continue(())
                }
            }
            Stage::Working => Flow::Continue(()),
        }
    }

    async fn turn(&self, state: &mut LoopState<'_>) -> Flow {
        if state.run.called_final_tool {
            return Flow::Break(LoopOutcome::Completed { text: String::new(), cut: false });
        }
        self.take_signals(state).await?;
        self.compact_if_needed(state).await?;
        // A compaction is a separate model call, and what arrived during it is seen before the next one.
        self.take_signals(state).await?;
        let mut turn = ModelTurn { context: PromptContext::Conversation, text_only: self.text_only(state) };
        let mut completion = self.ask(state, &mut turn).await?;
        state.run.notice = completion.notice.take();
        self.act(state, completion, turn.text_only).await?;
        // After the results: no wire can carry a message between a call and its result.
        self.inject_pending_notice(state).await
    }

    async fn inject_pending_notice(&self, state: &mut LoopState<'_>) -> Flow {
        match state.run.notice.take() {
            Some(notice) => self.inject_notice(state, notice).await,
            None => Flow::Continue(()),
        }
    }

    /// Stops if asked to, and takes every steer prompt, in order.
    pub(crate) async fn take_signals(&self, state: &mut LoopState<'_>) -> Flow {
        if self.signals.stop.is_cancelled() {
            return Flow::Break(LoopOutcome::Stopped);
        }
        for prompt in self.signals.inbox.take_steer() {
            self.accept_prompt(state, prompt).await?;
        }
        Flow::Continue(())
    }

    /// The work is done, unless a prompt that has arrived continues it.
    pub(crate) async fn finish(&self, state: &mut LoopState<'_>, text: String) -> Flow {
        if self.signals.stop.is_cancelled() {
            return Flow::Break(LoopOutcome::Stopped);
        }
        match self.signals.inbox.take_next() {
            Some(prompt) => self.accept_prompt(state, prompt).await,
            None => Flow::Break(LoopOutcome::Completed { text, cut: state.run.is_cut }),
        }
    }

    async fn accept_prompt(&self, state: &mut LoopState<'_>, prompt: String) -> Flow {
        self.record_message(MessageRole::User, &prompt).await?;
        state.run.guards = Guards::default();
        state.transcript.push_user(prompt);
        Flow::Continue(())
    }

    /// Adds a synthetic user message, recorded as role `system`.
    pub(crate) async fn inject_notice(&self, state: &mut LoopState<'_>, content: impl Into<String>) -> Flow {
        let content = content.into();
        self.record_message(MessageRole::System, &content).await?;
        state.transcript.push_user(content);
        Flow::Continue(())
    }

    pub(crate) async fn record_message(&self, role: MessageRole, content: &str) -> Flow {
        if content.is_empty() {
            return Flow::Continue(());
        }
        self.record(AgentEvent::Message { role, content: content.to_owned() }).await
    }

    pub(crate) async fn record_status(&self, state: &LoopState<'_>, message: impl Into<String>) -> Flow {
        self.record(AgentEvent::Status { message: message.into(), iteration: state.run.iterations }).await
    }

    /// Records an event.
    pub(crate) async fn record(&self, event: AgentEvent) -> Flow {
        recorded(self.journal.record(event).await)
    }

    /// Waits until all recorded events are stored.
    pub(crate) async fn flush(&self) -> Flow {
        recorded(self.journal.flush().await)
    }

    /// Ends the work by a limit, which is recorded. `text` is the answer that the model gave with the limit reached.
    pub(crate) async fn end_by_limit<T>(&self, which: LimitKind, value: Value, text: String) -> Flow<T> {
        let message = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.record(AgentEvent::Limit { limit: which.name(), value }).await?;
        Flow::Break(LoopOutcome::Limit { which, message, text })
    }
}

fn recorded(result: Result<(), JournalError>) -> Flow {
    match result {
        Ok(()) => Flow::Continue(()),
        Err(JournalError::Closed) => Flow::Break(LoopOutcome::Stopped),
        Err(JournalError::Failed(message)) => failed(FailureReason::Internal, message),
    }
}

fn last_prompt(messages: &[Message]) -> &str {
    let prompt = |message: &'_ Message| matches!(message, Message::User { .. });
    match messages.iter().rfind(|message| prompt(message)) {
        Some(Message::User { content }) => content,
        _ => "",
    }
}
