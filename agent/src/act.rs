//! Acting on a reply: what it is, what is told of it, which calls are run.
//!
//! Owns the verdict on a reply and the events of its calls. Never calls a tool but through the executor.

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use protocol::{CallId, Completion, EventData, FinishReason, JobReason, MessageRole, ToolCall, ToolErrorKind};
use serde_json::Value;

use crate::{
    Admission, Agent, CallResult, Conversation, Journal, LimitKind, Model, Signals, ToolError,
    agent::Flow,
    ask::failed,
    clean::clean,
    guard::{Warning, WhyText},
    intent::announces_action,
};

/// Calls of one reply that run at the same time.
const MAX_PARALLEL_CALLS: usize = 8;

/// Nudges for an announced action, in one conversation.
const MAX_INTENT_NUDGES: u32 = 2;

/// Cut-off replies with calls in a row until text is asked for.
const MAX_TRUNCATED: u32 = 3;

const BEYOND_LIMIT: &str = "not run: the limit of tool calls is reached";

const NUDGE_INTENT: &str =
    "You said what you are going to do but called no tool. Call the tool now, or give your final answer.";
const NUDGE_EMPTY: &str = "Your reply was empty. Go on with the task, or give your final answer.";
const ASK_TEXT_EMPTY: &str = "Your reply was empty again. Give your final answer as text now.";
const NUDGE_TRUNCATED: &str = "Your reply was cut off at the completion limit, so its tool calls were not run. Make smaller calls, one at a time.";
const ASK_TEXT_TRUNCATED: &str = "Your replies were cut off again and again and their tool calls were not run. Say as text, briefly, how far you are.";
const WARN_REPEATS: &str = "The same call has now failed 3 times with the same arguments. It will fail again: change the arguments or the way.";
const ASK_TEXT_REPEATS: &str = "The same call has failed 5 times with the same arguments. Call no tool; say as text what you found and what failed.";

/// A reply, cleaned.
#[derive(Debug)]
struct Reply {
    text: String,
    calls: Vec<ToolCall>,
    finish: FinishReason,
}

/// What a reply is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Calls to run.
    Calls,
    /// Calls that were cut off.
    Truncated,
    /// Nothing.
    Empty,
    /// An action that is announced, not taken.
    Announced,
    /// The last word.
    Said,
    /// What came at the iteration cap.
    Capped,
    /// Nothing again, though only text was asked for.
    NoText(JobReason),
}

fn judge(reply: &Reply, why_text: Option<WhyText>, may_nudge_intent: bool) -> Verdict {
    let silent = reply.text.is_empty();
    match why_text {
        Some(WhyText::Cap) => Verdict::Capped,
        Some(_) if !silent => Verdict::Said,
        Some(WhyText::Duplicates) => Verdict::NoText(JobReason::DuplicateCalls),
        Some(WhyText::NoTools | WhyText::Truncated | WhyText::Empty) => Verdict::NoText(JobReason::EmptyReply),
        None if !reply.calls.is_empty() && reply.finish == FinishReason::Length => Verdict::Truncated,
        None if !reply.calls.is_empty() => Verdict::Calls,
        None if silent => Verdict::Empty,
        None if may_nudge_intent && announces_action(&reply.text) => Verdict::Announced,
        None => Verdict::Said,
    }
}

impl<M: Model, J: Journal, S: Signals> Agent<'_, M, J, S> {
    /// Tells of the reply and does what it asks for.
    pub(crate) async fn act(&self, c: &mut Conversation, completion: Completion, why: Option<WhyText>) -> Flow {
        let usage = completion.usage;
        let (mut reply, reasoning) = self.read(c, completion).await?;
        let may_nudge_intent = c.intent_nudges < MAX_INTENT_NUDGES && !self.tools.definitions().is_empty();
        let verdict = judge(&reply, why, may_nudge_intent);
        if verdict == Verdict::Calls {
            c.name_calls(&mut reply.calls);
        } else {
            // Only calls that are run become part of the transcript: each must have its result.
            reply.calls.clear();
        }
        c.push_reply(reply.text.clone(), reply.calls.clone(), reasoning);
        c.measure(usage);
        if verdict != Verdict::Truncated {
            c.truncated_in_a_row = 0;
        }
        if verdict != Verdict::Empty {
            c.empty_replies = 0;
        }
        match verdict {
            Verdict::Calls => self.run_calls(c, &reply.calls).await,
            Verdict::Said => self.finish(c, reply.text).await,
            Verdict::Capped => self.end_by(c, LimitKind::Iterations, Value::from(self.settings.max_iterations)).await,
            Verdict::NoText(reason) => failed(reason, no_text(reason)),
            Verdict::Announced => {
                c.intent_nudges += 1;
                self.note(c, NUDGE_INTENT).await
            }
            Verdict::Empty => {
                c.empty_replies += 1;
                let again = c.empty_replies > 1;
                self.nudge(c, again.then_some(WhyText::Empty), [NUDGE_EMPTY, ASK_TEXT_EMPTY]).await
            }
            Verdict::Truncated => {
                c.truncated_in_a_row += 1;
                let again = c.truncated_in_a_row >= MAX_TRUNCATED;
                self.nudge(c, again.then_some(WhyText::Truncated), [NUDGE_TRUNCATED, ASK_TEXT_TRUNCATED]).await
            }
        }
    }

    /// The first text as a nudge, or the second when the next call is to be text only.
    async fn nudge(&self, c: &mut Conversation, text_only: Option<WhyText>, texts: [&str; 2]) -> Flow {
        if text_only.is_some() {
            c.text_only = text_only;
        }
        self.note(c, texts[usize::from(text_only.is_some())]).await
    }

    /// Cleans the reply and tells what it said; also gives the reasoning that goes back to the provider.
    async fn read(&self, c: &Conversation, completion: Completion) -> Flow<(Reply, Option<String>)> {
        let Completion { content, tool_calls, reasoning, finish_reason, .. } = completion;
        let native = !tool_calls.is_empty();
        let cleaned = clean(&content, &|name| !native && self.tools.offers(name));
        let shown = reasoning.as_deref().filter(|text| !text.trim().is_empty()).unwrap_or(&cleaned.thinking);
        if !shown.is_empty() {
            self.record(EventData::Reasoning { content: shown.to_owned() }).await?;
        }
        self.record_message(MessageRole::Assistant, &cleaned.text).await?;
        tracing::debug!(iteration = c.iterations, recovered = cleaned.calls.len(), "reply");
        let calls = if native { tool_calls } else { cleaned.calls };
        Flow::Continue((Reply { text: cleaned.text, calls, finish: finish_reason }, reasoning))
    }

    /// Admits every call of a reply, then runs those that were admitted: in parallel where their tools allow it, results in
    /// call order.
    async fn run_calls(&self, c: &mut Conversation, calls: &[ToolCall]) -> Flow {
        let left = self.settings.max_tool_calls.saturating_sub(c.tool_calls);
        let (within, beyond) = calls.split_at(calls.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        let admissions: Vec<_> = within.iter().map(|call| (call, self.admit(call))).collect();
        let mut pending = admissions.into_iter().peekable();
        let mut highest = Warning::None;
        while let Some(first) = pending.next() {
            let alone = first.1.runs_alone();
            let mut group = vec![first];
            while let Some(next) = pending.next_if(|(_, admission)| !alone && !admission.runs_alone()) {
                group.push(next);
            }
            highest = highest.max(self.run_group(c, group).await?);
        }
        if !beyond.is_empty() {
            for call in beyond {
                self.reject_beyond_limit(c, call, None).await?;
            }
            return self.end_by(c, LimitKind::ToolCalls, Value::from(self.settings.max_tool_calls)).await;
        }
        self.take_warning(c, highest).await
    }

    /// Tells the model of a guard's warning, once all results are in.
    pub(crate) async fn take_warning(&self, c: &mut Conversation, warning: Warning) -> Flow {
        match warning {
            Warning::None => Flow::Continue(()),
            Warning::Repeats => self.note(c, WARN_REPEATS).await,
            Warning::TextOnly => {
                c.text_only = Some(WhyText::Duplicates);
                self.note(c, ASK_TEXT_REPEATS).await
            }
        }
    }

    async fn run_group(&self, c: &mut Conversation, group: Vec<(&ToolCall, Admission)>) -> Flow<Warning> {
        for (call, admission) in &group {
            self.record_use(call, admission, None).await?;
        }
        let stop = self.signals.stop();
        let runs = group.into_iter().map(|(call, admission)| async move { (call, admission.finish(stop).await) });
        // Boxed because the stream would otherwise not be `Send` for every lifetime of the references in it.
        let runs: Vec<BoxFuture<'_, _>> = runs.map(|run| run.boxed()).collect();
        let mut results = stream::iter(runs).buffered(MAX_PARALLEL_CALLS);
        let mut highest = Warning::None;
        while let Some((call, result)) = results.next().await {
            c.count_call(&call.name, &result);
            highest = highest.max(c.failures.observe(&call.name, &call.arguments, result.success()));
            self.record_result(c, call, result).await?;
        }
        Flow::Continue(highest)
    }

    /// Runs one call of a plan.
    pub(crate) async fn run_step(&self, c: &mut Conversation, call: &ToolCall, reasoning: &str) -> Flow<Warning> {
        if c.tool_calls >= self.settings.max_tool_calls {
            self.reject_beyond_limit(c, call, Some(reasoning)).await?;
            return self.end_by(c, LimitKind::ToolCalls, Value::from(self.settings.max_tool_calls)).await;
        }
        let admission = self.admit(call);
        self.record_use(call, &admission, Some(reasoning)).await?;
        let result = admission.finish(self.signals.stop()).await;
        c.count_call(&call.name, &result);
        let warning = c.failures.observe(&call.name, &call.arguments, result.success());
        self.record_result(c, call, result).await?;
        Flow::Continue(warning)
    }

    fn admit(&self, call: &ToolCall) -> Admission {
        self.tools.admit(CallId(call.id.clone()), &call.name, call.arguments.clone())
    }

    /// A call beyond the limit of tool calls: it is recorded like every call, and neither run nor counted.
    async fn reject_beyond_limit(&self, c: &mut Conversation, call: &ToolCall, reasoning: Option<&str>) -> Flow {
        let admission = self.admit(call).reject(ToolError::new(ToolErrorKind::NotAuthorized, BEYOND_LIMIT));
        self.record_use(call, &admission, reasoning).await?;
        let result = admission.finish(self.signals.stop()).await;
        self.record_result(c, call, result).await
    }

    async fn record_use(&self, call: &ToolCall, admission: &Admission, reasoning: Option<&str>) -> Flow {
        let (call_id, tool) = (call.id.clone(), call.name.clone());
        let reasoning = reasoning.filter(|text| !text.is_empty()).map(str::to_owned);
        self.record(EventData::ToolUse { call_id, tool, input: admission.redacted_input(), reasoning }).await
    }

    async fn record_result(&self, c: &mut Conversation, call: &ToolCall, result: CallResult) -> Flow {
        c.push_result(call, result.output.clone());
        self.record(EventData::ToolResult {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            success: result.success(),
            duration_ms: result.duration_ms(),
            output: result.output,
            truncated: result.truncated,
        })
        .await
    }
}

fn no_text(reason: JobReason) -> String {
    match reason {
        JobReason::DuplicateCalls => "the same call failed 5 times and the model had no other word".to_owned(),
        _ => "the model's replies were empty".to_owned(),
    }
}
