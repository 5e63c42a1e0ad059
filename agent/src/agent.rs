//! The loop: take signals, compact, ask, clean, act, record; until the work ends.
//!
//! Owns the order of a turn and how the work ends. What a step does is in the files beside it: `ask` for the model,
//! `act` for the reply, `plan` and `compact`. Never retries what is not its own, never reads a clock but tokio's.

use std::{convert::Infallible, ops::ControlFlow};

use protocol::{EventData, Message, MessageRole};
use serde_json::Value;
use tracing::Instrument as _;

use crate::{
    Conversation, Journal, LimitKind, LoopOutcome, Model, Settings, Signals, ToolExecutor,
    ask::{About, Question},
    conversation::Stage,
};

/// Goes on with a value, or ends the work.
pub(crate) type Flow<T = ()> = ControlFlow<LoopOutcome, T>;

/// The loop, with what it works on and with.
#[derive(Debug)]
pub struct Agent<'a, M, J, S> {
    /// What answers.
    pub model: &'a M,
    /// What the model may call.
    pub tools: &'a ToolExecutor,
    /// Where events go.
    pub journal: &'a J,
    /// Stop and prompts.
    pub signals: &'a S,
    /// Limits and manners.
    pub settings: &'a Settings,
}

impl<M: Model, J: Journal, S: Signals> Agent<'_, M, J, S> {
    /// Works until the work ends. Run again on the same conversation it goes on from there: with the prompts that wait,
    /// or with the same outcome when nothing is left to do.
    pub async fn run(&self, conversation: &mut Conversation) -> LoopOutcome {
        let ControlFlow::Break(outcome) = self.turns(conversation).await;
        outcome
    }

    async fn turns(&self, c: &mut Conversation) -> Flow<Infallible> {
        self.begin(c).await?;
        loop {
            let span = tracing::info_span!("agent.turn", iteration = c.iterations + 1);
            self.turn(c).instrument(span).await?;
        }
    }

    async fn begin(&self, c: &mut Conversation) -> Flow {
        match c.stage {
            Stage::Fresh => {
                let first = c.messages.iter().find_map(|message| match message {
                    Message::User { content } => Some(content.clone()),
                    _ => None,
                });
                self.record_message(MessageRole::User, &first.unwrap_or_default()).await?;
                c.stage = Stage::Working;
                self.take_signals(c).await?;
                if self.settings.plan { self.work_by_plan(c).await } else { Flow::Continue(()) }
            }
            // With no call left, a last word was the limit's, and it stays that.
            Stage::Working if c.ended() && self.calls_left(c) > 0 => {
                self.take_signals(c).await?;
                if c.ended() { self.finish(c, c.last_text.clone()).await } else { Flow::Continue(()) }
            }
            Stage::Working => Flow::Continue(()),
        }
    }

    async fn turn(&self, c: &mut Conversation) -> Flow {
        self.take_signals(c).await?;
        self.compact(c).await?;
        // A compaction is a model call of its own, and what arrived during it is seen before the next one.
        self.take_signals(c).await?;
        let why_text = self.why_text(c);
        let mut question = Question { about: About::Conversation, why_text, temperature: self.settings.temperature };
        let mut completion = self.ask(c, &mut question).await?;
        let notice = completion.notice.take();
        self.act(c, completion, question.why_text).await?;
        // After the results: a word between a call and its result is none that a wire can carry.
        match notice {
            Some(notice) => self.note(c, notice).await,
            None => Flow::Continue(()),
        }
    }

    /// Stop, and steer prompts: all of them, in order.
    pub(crate) async fn take_signals(&self, c: &mut Conversation) -> Flow {
        if self.signals.stop().is_cancelled() {
            return Flow::Break(LoopOutcome::Stopped);
        }
        for prompt in self.signals.take_steer() {
            self.hear(c, prompt.content).await?;
        }
        Flow::Continue(())
    }

    /// The work is done, unless a prompt that waited continues it.
    pub(crate) async fn finish(&self, c: &mut Conversation, text: String) -> Flow {
        let next = tokio::select! {
            biased;
            () = self.signals.stop().cancelled() => return Flow::Break(LoopOutcome::Stopped),
            next = self.signals.take_queued() => next,
        };
        match next {
            Some(prompt) => self.hear(c, prompt.content).await,
            None => Flow::Break(LoopOutcome::Completed { text }),
        }
    }

    async fn hear(&self, c: &mut Conversation, prompt: String) -> Flow {
        self.record_message(MessageRole::User, &prompt).await?;
        c.push_prompt(prompt);
        Flow::Continue(())
    }

    /// A word of the loop's own to the model, told to people as the system's.
    pub(crate) async fn note(&self, c: &mut Conversation, content: impl Into<String>) -> Flow {
        let content = content.into();
        self.record_message(MessageRole::System, &content).await?;
        c.push_note(content);
        Flow::Continue(())
    }

    pub(crate) async fn record_message(&self, role: MessageRole, content: &str) -> Flow {
        if content.is_empty() {
            return Flow::Continue(());
        }
        self.record(EventData::Message { role, content: content.to_owned() }).await
    }

    /// Records an event. A closed journal means that this attempt may not go on.
    pub(crate) async fn record(&self, event: EventData) -> Flow {
        match self.journal.record(event).await {
            Ok(()) => Flow::Continue(()),
            Err(_) => Flow::Break(LoopOutcome::Stopped),
        }
    }

    /// Ends the work by a limit, told in the journal.
    pub(crate) async fn end_by<T>(&self, c: &Conversation, which: LimitKind, value: Value) -> Flow<T> {
        let limit = match which {
            LimitKind::Iterations => "max_iterations",
            LimitKind::ToolCalls => "max_tool_calls",
            LimitKind::Tokens => "max_tokens",
            LimitKind::Cost => "max_cost_usd",
        };
        if let ControlFlow::Break(stopped) = self.record(EventData::Limit { limit: limit.to_owned(), value }).await {
            return Flow::Break(stopped);
        }
        Flow::Break(LoopOutcome::Limit { which, text: c.last_text.clone() })
    }
}
