//! Handling a reply: recording its text, running its calls. Answers that were cut go on in `cut`.
//!
//! Owns the events of a reply and of its calls. Never calls a tool but through the executor. Calls that are not in the model's
//! recorded answer (written as text, or steps of a plan) are stored before they run: their events are the only record from
//! which a later attempt learns that they may have run.

use futures_util::{StreamExt as _, future::BoxFuture, stream};
use protocol::{AgentEvent, CallId, Completion, FinishReason, MessageRole, NativeReply, ToolCall, ToolErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Admission, Agent, ApprovalRequest, CallResult, Decision, FailureReason, Journal, LimitKind, Model, RecordError,
    ToolError,
    agent::{Flow, LoopState},
    clean::{Cleaned, Offered, UnreadCall, clean},
    run::{
        approvals::park,
        ask::failed,
        cut::with_note,
        guard::{RepeatWarning, ReplyFacts, TextOnlyReason, UnreadCalls, Verdict},
    },
    text::elide,
    tools::STOPPED_BEFORE_START,
    transcript::read_texts::ReadTexts,
};

/// Maximum number of calls of one reply that run at the same time.
const MAX_PARALLEL_CALLS: usize = 8;

/// Maximum length of the reason of a call. It is kept with each call of a reply.
const MAX_REASONING_BYTES: usize = 2_000;

/// Error of a call beyond the limit of tool calls.
const BEYOND_LIMIT: &str = "not run: the limit of tool calls is reached";

/// Calls of a reply that are not run yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PendingCalls {
    calls: Vec<ToolCall>,
    /// Calls beyond the limit of tool calls.
    beyond: Vec<ToolCall>,
    /// Whether the calls were written as text.
    are_recovered: bool,
    /// Why the model makes them; may be empty.
    reasoning: String,
    /// The guards' highest warning of the calls of this reply so far.
    pub(crate) warning: RepeatWarning,
}

impl PendingCalls {
    /// The calls, in order.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.calls.iter().chain(&self.beyond)
    }
}

/// A reply, cleaned.
#[derive(Debug)]
pub(crate) struct ModelReply {
    pub(crate) text: String,
    /// The text as the model wrote it.
    pub(crate) content: String,
    /// Its reasoning, if there is any.
    reasoning: String,
    calls: Vec<ToolCall>,
    /// Whether the calls were written as text.
    are_recovered: bool,
    /// Whether there are calls in the text that cannot be run, although calls are read from it.
    has_unread_calls: bool,
    /// The call that the text ended with, if it is not run.
    pub(crate) last_unread: Option<UnreadCall>,
    /// Whether calls that are written as text are run with the provider that answered.
    pub(crate) text_tool_calls: bool,
    /// Why it may call no tools, if it may not.
    pub(crate) text_only: Option<TextOnlyReason>,
    finish: FinishReason,
    pub(crate) native: Option<NativeReply>,
}

impl ModelReply {
    /// Whether the output limit ended it within its text.
    pub(crate) fn is_cut(&self) -> bool {
        self.finish == FinishReason::Length && !self.text.is_empty()
    }

    const fn unread_calls(&self) -> UnreadCalls {
        match &self.last_unread {
            Some(_) => UnreadCalls::AtEnd,
            None if self.has_unread_calls => UnreadCalls::Within,
            None => UnreadCalls::None,
        }
    }
}

impl<M: Model, J: Journal> Agent<'_, M, J> {
    /// Records the reply and does what it asks for.
    pub(crate) async fn act(
        &self,
        state: &mut LoopState<'_>,
        completion: Completion,
        text_only: Option<TextOnlyReason>,
    ) -> Flow {
        let usage = completion.usage;
        let mut reply = self.read(state, completion, text_only).await?;
        let verdict = state.run.guards.judge(&ReplyFacts {
            text: &reply.text,
            has_calls: !reply.calls.is_empty(),
            unread_calls: reply.unread_calls(),
            finish: reply.finish,
            text_only,
            has_tools: !self.tools.definitions().is_empty(),
        });
        if verdict == Verdict::Finish && reply.is_cut() {
            return self.continue_answer(state, reply, usage).await;
        }
        // The last call that the limit allows cannot be followed by another.
        let is_cut = verdict == Verdict::IterationLimit && reply.is_cut();
        let text = if is_cut { with_note(&reply.text) } else { reply.text.clone() };
        self.record_message(MessageRole::Assistant, &text).await?;
        if verdict == Verdict::RunCalls {
            state.transcript.assign_call_ids(&mut reply.calls);
        } else {
            // Only calls that are run become part of the transcript, because each must have its result.
            reply.calls.clear();
        }
        if !text.is_empty() {
            state.run.set_last_text(text.clone(), is_cut);
        }
        state.transcript.push_reply(reply.text.clone(), reply.calls.clone(), reply.native.take());
        self.measure(state, usage);
        match verdict {
            Verdict::RunCalls => self.run_calls(state, reply).await,
            Verdict::Finish => self.finish(state, text).await,
            Verdict::IterationLimit => {
                let limit = Value::from(self.settings.max_iterations);
                // With a call at its end it is not the answer.
                let text = if reply.last_unread.is_some() { String::new() } else { text };
                self.end_by_limit(LimitKind::Iterations, limit, text).await
            }
            Verdict::UnreadCall { is_repeated } => self.answer_unread_call(state, &reply, is_repeated).await,
            Verdict::Fail(reason) => failed(reason, no_text(reason, reply.finish).to_owned()),
            Verdict::Notice(notice) => self.inject_notice(state, notice).await,
        }
    }

    /// Cleans the reply and records its reasoning. Calls are read from its text unless it is `text_only`.
    pub(crate) async fn read(
        &self,
        state: &LoopState<'_>,
        completion: Completion,
        text_only: Option<TextOnlyReason>,
    ) -> Flow<ModelReply> {
        let Completion { content, tool_calls, reasoning, native: made, finish_reason, text_tool_calls, .. } =
            completion;
        let text_tool_calls = text_tool_calls.unwrap_or(self.settings.text_tool_calls);
        let native = !tool_calls.is_empty();
        let cleaned = self.clean_reply(state, &content, text_tool_calls && text_only.is_none() && !native);
        let thinking = reasoning.as_deref().filter(|text| !text.trim().is_empty()).unwrap_or(&cleaned.thinking);
        if !thinking.is_empty() {
            self.record(AgentEvent::Reasoning { content: thinking.to_owned() }).await?;
        }
        let reasoning = thinking.to_owned();
        tracing::debug!(iteration = state.run.iterations, recovered = cleaned.calls.len(), "reply");
        // A reply whose calls were written as text is sent back as calls, which its provider did not make.
        let made = made.filter(|_| cleaned.calls.is_empty());
        let calls = if native { tool_calls } else { cleaned.calls };
        Flow::Continue(ModelReply {
            text: cleaned.text,
            content,
            reasoning,
            calls,
            are_recovered: !native,
            has_unread_calls: cleaned.has_unread_calls,
            last_unread: cleaned.last_unread.filter(|_| self.offers_tools()),
            text_tool_calls,
            text_only,
            finish: finish_reason,
            native: made,
        })
    }

    /// Whether the model is offered any tools.
    pub(crate) fn offers_tools(&self) -> bool {
        self.settings.use_tools && !self.tools.definitions().is_empty()
    }

    /// Cleans the text of a reply to the conversation.
    pub(crate) fn clean_reply(&self, state: &LoopState<'_>, content: &str, recovers: bool) -> Cleaned {
        let read = ReadTexts::new(state.transcript.messages());
        let has_tool = |name: &str| self.tools.offers(name);
        let has_tool = self.offers_tools().then_some(&has_tool as &dyn Fn(&str) -> bool);
        clean(content, Offered { recovers, has_tool, is_quoted: &|text| read.contain(text) })
    }

    /// Runs the calls of a reply, up to the limit of tool calls.
    async fn run_calls(&self, state: &mut LoopState<'_>, reply: ModelReply) -> Flow {
        let ModelReply { text, reasoning, mut calls, are_recovered, .. } = reply;
        let reasoning = elide(if reasoning.is_empty() { &text } else { &reasoning }, MAX_REASONING_BYTES);
        state.run.tool_rounds = state.run.tool_rounds.saturating_add(1);
        let left = self.settings.max_tool_calls.saturating_sub(state.run.tool_calls);
        let beyond = calls.split_off(calls.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        let pending = PendingCalls { calls, beyond, are_recovered, reasoning, warning: RepeatWarning::None };
        self.run_pending(state, pending).await
    }

    /// Admits and runs calls: in parallel where their tools allow it, results in call order. The first that needs approval
    /// ends the loop once those before it have run; those after it are not admitted yet.
    pub(crate) async fn run_pending(&self, state: &mut LoopState<'_>, pending: PendingCalls) -> Flow {
        let PendingCalls { calls, beyond, are_recovered, reasoning, mut warning } = pending;
        let mut calls = calls.into_iter();
        let mut next = self.admit_next(&mut calls, &reasoning).await;
        while let Some(first) = next.take() {
            if let Decision::Ask { arguments, can_be_remembered } = &first.1.decision {
                let request = ApprovalRequest {
                    call_id: CallId(first.0.id.clone()),
                    tool: first.0.name.clone(),
                    arguments: arguments.clone(),
                    redacted_input: first.1.redacted_input(),
                    reasoning: reasoning.clone(),
                    can_be_remembered: *can_be_remembered,
                };
                let following = PendingCalls { calls: calls.collect(), beyond, are_recovered, reasoning, warning };
                return park(state, first.0, request, following);
            }
            let alone = first.1.runs_alone();
            let mut group = vec![first];
            next = self.admit_next(&mut calls, &reasoning).await;
            while let Some(other) = next.take_if(|(_, admission)| !alone && !admission.runs_alone()) {
                group.push(other);
                next = self.admit_next(&mut calls, &reasoning).await;
            }
            for (call, admission) in &group {
                self.record_use(call, admission).await?;
            }
            if are_recovered {
                self.flush().await?;
            }
            warning = warning.max(self.run_group(state, group).await?);
        }
        if !beyond.is_empty() {
            for call in &beyond {
                self.reject_beyond_limit(state, call, &reasoning).await?;
            }
            return self
                .end_by_limit(LimitKind::ToolCalls, Value::from(self.settings.max_tool_calls), String::new())
                .await;
        }
        self.apply_guard(state, warning).await
    }

    async fn admit_next(
        &self,
        calls: &mut std::vec::IntoIter<ToolCall>,
        reasoning: &str,
    ) -> Option<(ToolCall, Admission)> {
        let call = calls.next()?;
        let admission = self.admit(&call, reasoning).await;
        Some((call, admission))
    }

    /// Applies a guard's warning, once all results are in.
    pub(crate) async fn apply_guard(&self, state: &mut LoopState<'_>, warning: RepeatWarning) -> Flow {
        match state.run.guards.escalate(warning) {
            Some(notice) => self.inject_notice(state, notice).await,
            None => Flow::Continue(()),
        }
    }

    /// Runs calls whose uses are recorded.
    async fn run_group(&self, state: &mut LoopState<'_>, group: Vec<(ToolCall, Admission)>) -> Flow<RepeatWarning> {
        let stop = &self.signals.stop;
        let runs =
            group.into_iter().map(|(call, admission)| async move { (call, result_of(admission.finish(stop).await)) });
        // Boxed because the stream would otherwise not be `Send` for every lifetime of the references in it.
        let runs: Vec<BoxFuture<'_, _>> = runs.map(futures_util::FutureExt::boxed).collect();
        let mut results = stream::iter(runs).buffered(MAX_PARALLEL_CALLS);
        let mut highest = RepeatWarning::None;
        while let Some((call, result)) = results.next().await {
            state.run.count_call(&call.name, &result);
            state.run.called_final_tool |= result.success() && Some(call.name.as_str()) == self.settings.final_tool;
            highest = highest.max(state.run.guards.observe(&call.name, &call.arguments, result.success()));
            self.record_result(state, &call, result).await?;
        }
        Flow::Continue(highest)
    }

    /// Runs one call of a plan.
    pub(crate) async fn run_step(
        &self,
        state: &mut LoopState<'_>,
        call: ToolCall,
        reasoning: &str,
    ) -> Flow<RepeatWarning> {
        let reasoning = elide(reasoning, MAX_REASONING_BYTES);
        if state.run.tool_calls >= self.settings.max_tool_calls {
            self.reject_beyond_limit(state, &call, &reasoning).await?;
            return self
                .end_by_limit(LimitKind::ToolCalls, Value::from(self.settings.max_tool_calls), String::new())
                .await;
        }
        let admission = self.admit(&call, &reasoning).await;
        self.run_alone(state, call, admission).await
    }

    /// Runs one call whose use is not recorded yet.
    pub(crate) async fn run_alone(
        &self,
        state: &mut LoopState<'_>,
        call: ToolCall,
        admission: Admission,
    ) -> Flow<RepeatWarning> {
        self.record_use(&call, &admission).await?;
        // Stored before it runs: after a crash the call is known to have begun.
        self.flush().await?;
        self.run_group(state, vec![(call, admission)]).await
    }

    /// Checks a call. If the loop is stopped meanwhile it is refused, so that it is recorded like every call.
    async fn admit(&self, call: &ToolCall, reasoning: &str) -> Admission {
        let call_id = || CallId(call.id.clone());
        let checked = tokio::select! {
            biased;
            admission = self.tools.admit(call_id(), &call.name, call.arguments.clone()) => Some(admission),
            () = self.signals.stop.cancelled() => None,
        };
        let admission = if let Some(admission) = checked {
            admission
        } else {
            let error = ToolError::new(ToolErrorKind::Failed, STOPPED_BEFORE_START);
            self.tools.refuse(call_id(), &call.name, call.arguments.clone(), error).await
        };
        admission.with_reasoning(reasoning)
    }

    /// A call beyond the limit of tool calls: it is recorded like every call, and neither run nor counted.
    async fn reject_beyond_limit(&self, state: &mut LoopState<'_>, call: &ToolCall, reasoning: &str) -> Flow {
        let error = ToolError::new(ToolErrorKind::NotAuthorized, BEYOND_LIMIT);
        let (call_id, arguments) = (CallId(call.id.clone()), call.arguments.clone());
        let admission = self.tools.refuse(call_id, &call.name, arguments, error).await.with_reasoning(reasoning);
        self.record_use(call, &admission).await?;
        let result = result_of(admission.finish(&self.signals.stop).await);
        self.record_result(state, call, result).await
    }

    async fn record_use(&self, call: &ToolCall, admission: &Admission) -> Flow {
        let (call_id, tool, reasoning) = (CallId(call.id.clone()), call.name.clone(), admission.call.reasoning.clone());
        self.record(AgentEvent::ToolUse { call_id, tool, input: admission.redacted_input(), reasoning }).await
    }

    async fn record_result(&self, state: &mut LoopState<'_>, call: &ToolCall, result: CallResult) -> Flow {
        state.transcript.push_result(call, result.output.clone());
        self.record(AgentEvent::ToolResult {
            call_id: CallId(call.id.clone()),
            tool: call.name.clone(),
            success: result.success(),
            duration_ms: result.duration_ms(),
            output: result.output,
            truncated: result.truncated,
        })
        .await
    }
}

/// What the model reads of a call. One that could not be recorded is an error like any other.
fn result_of(finished: Result<CallResult, RecordError>) -> CallResult {
    finished.unwrap_or_else(|error| {
        tracing::warn!(error = &error as &dyn std::error::Error, "a tool call was not recorded");
        CallResult::of_record_error(&error)
    })
}

const fn no_text(reason: FailureReason, finish: FinishReason) -> &'static str {
    match reason {
        _ if matches!(finish, FinishReason::Length) => {
            "the model used its whole output limit for thinking and wrote nothing; raise llm.max_output_tokens"
        }
        FailureReason::DuplicateCalls => "the same call failed 5 times and the model gave no other answer",
        _ => "the model's replies were empty",
    }
}
