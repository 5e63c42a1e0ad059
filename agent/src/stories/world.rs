//! The world that a story plays in: a scripted model, and a journal and signals that are recorded.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use protocol::{
    AgentEvent, Completion, CompletionRequest, CompletionRequestRef, EgressView, FinishReason, JobId, Message,
    PromptMode, TokenUsage, ToolCall, ToolDefinition, ToolDomain, ToolErrorKind, UserId, WorkId,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    Agent, ApprovalContext, ApprovalRequirement, Delta, DeltaSink, Inbox, Invocation, Journal, JournalError,
    LoopOutcome, Model, ModelError, Prompt, Run, Settings, Signals, Tool, ToolContext, ToolError, ToolExecutor,
    ToolOutput, ToolPolicy, ToolRegistry, ToolSpec, Transcript, Unrecorded,
};

/// The scripted behaviour of the model in one call.
pub(super) enum Turn {
    Answer(Completion),
    Error(ModelError),
    /// Never answers.
    Hang,
}

pub(super) fn say(text: &str) -> Turn {
    Turn::Answer(completion(text, Vec::new(), FinishReason::Stop))
}

pub(super) fn call(name: &str, arguments: Value) -> Turn {
    calls(vec![tool_call("", name, arguments)])
}

pub(super) fn calls(tool_calls: Vec<ToolCall>) -> Turn {
    Turn::Answer(completion("", tool_calls, FinishReason::ToolCalls))
}

pub(super) fn tool_call(id: &str, name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: id.to_owned(), name: name.to_owned(), arguments }
}

pub(super) fn completion(text: &str, tool_calls: Vec<ToolCall>, finish_reason: FinishReason) -> Completion {
    let usage = TokenUsage { input_tokens: 10, output_tokens: 5, ..TokenUsage::default() };
    Completion {
        content: text.to_owned(),
        tool_calls,
        reasoning: None,
        native: None,
        finish_reason,
        usage,
        notice: None,
        text_tool_calls: None,
    }
}

/// A model that follows a script and remembers what it was asked. Past the script's end it fails.
pub(super) struct Script {
    turns: Mutex<VecDeque<Turn>>,
    pub(super) asked: Mutex<Vec<CompletionRequest>>,
    pub(super) context_tokens: u64,
}

impl Model for Script {
    async fn complete(&self, request: &CompletionRequestRef<'_>, deltas: &DeltaSink) -> Result<Completion, ModelError> {
        self.asked.lock().unwrap().push(CompletionRequest::from(request));
        let turn = self.turns.lock().unwrap().pop_front();
        match turn {
            Some(Turn::Answer(completion)) => {
                deltas.send(Delta::Text(completion.content.clone())).await;
                Ok(completion)
            }
            Some(Turn::Error(error)) => Err(error),
            Some(Turn::Hang) => std::future::pending().await,
            None => Err(ModelError::failed("the script is over")),
        }
    }

    fn context_tokens(&self) -> u64 {
        self.context_tokens
    }
}

#[derive(Default)]
pub(super) struct Memory {
    pub(super) events: Mutex<Vec<AgentEvent>>,
    /// From this event on it is closed.
    pub(super) closes_at: Option<usize>,
    /// The number of stored events, for the story's tools.
    pub(super) stored: Arc<AtomicUsize>,
}

impl Journal for Memory {
    async fn record(&self, event: AgentEvent) -> Result<(), JournalError> {
        let mut events = self.events.lock().unwrap();
        if self.closes_at == Some(events.len()) {
            return Err(JournalError::Closed);
        }
        events.push(event);
        Ok(())
    }

    async fn flush(&self) -> Result<(), JournalError> {
        self.stored.store(self.events.lock().unwrap().len(), Ordering::SeqCst);
        Ok(())
    }
}

/// The other side of a loop's signals.
#[derive(Clone)]
pub(super) struct Remote {
    pub(super) stop: CancellationToken,
    inbox: Arc<Inbox>,
}

impl Remote {
    pub(super) fn send(&self, mode: PromptMode, content: &str) {
        self.inbox.push(Prompt { content: content.to_owned(), mode }).unwrap();
    }
}

/// How a story's tool behaves when it is called.
type Behaviour = Box<dyn Fn(Invocation) -> BoxFuture<'static, Result<ToolOutput, ToolError>> + Send + Sync>;

pub(super) struct Act {
    name: &'static str,
    schema: Value,
    parallel: bool,
    behaviour: Behaviour,
}

impl Tool for Act {
    fn spec(&self) -> ToolSpec {
        let description = format!("the {} of the story", self.name);
        let definition = ToolDefinition::new(self.name, description, self.schema.clone(), ToolDomain::Container);
        ToolSpec {
            parallel: self.parallel,
            approval: ApprovalRequirement::UnlessAutoApproved,
            ..ToolSpec::new(definition, Duration::from_mins(1))
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        (self.behaviour)(invocation)
    }
}

/// A story's world: build it, run it, look at what it has become.
pub(super) struct World {
    pub(super) model: Script,
    pub(super) journal: Memory,
    pub(super) signals: Signals,
    pub(super) deltas: DeltaSink,
    pub(super) settings: Settings,
    pub(super) transcript: Transcript,
    pub(super) run_state: Run,
    /// The maximum number of concurrent tool calls.
    pub(super) max_at_once: Arc<AtomicUsize>,
    pub(super) registry: ToolRegistry,
    pub(super) context: ToolContext,
}

impl World {
    /// With the tools `echo`, `fail` and `slow {seconds}` (and `alone`, the same, which runs by itself).
    pub(super) fn new(script: impl IntoIterator<Item = Turn>) -> Self {
        let mut world = Self {
            model: Script {
                turns: Mutex::new(script.into_iter().collect()),
                asked: Mutex::default(),
                context_tokens: 100_000,
            },
            journal: Memory::default(),
            signals: Signals::default(),
            deltas: DeltaSink::discard(),
            settings: Settings::default(),
            transcript: Transcript::new("You are an agent.", "Do the task."),
            run_state: Run::new(),
            max_at_once: Arc::default(),
            registry: ToolRegistry::new(),
            context: context(),
        };
        world.tool("echo", |invocation| {
            let text = invocation.arguments["message"].as_str().unwrap_or("nothing").to_owned();
            Box::pin(async move { Ok(ToolOutput::success(text)) })
        });
        world.tool("fail", |_| Box::pin(async { Err(ToolError::new(ToolErrorKind::External, "it is down")) }));
        world.waiting_tool("slow", true);
        world.waiting_tool("alone", false);
        world
    }

    /// The other side of the loop's signals.
    pub(super) fn signals(&self) -> Remote {
        Remote { stop: self.signals.stop.clone(), inbox: Arc::clone(&self.signals.inbox) }
    }

    pub(super) fn tool<F>(&mut self, name: &'static str, behaviour: F)
    where
        F: Fn(Invocation) -> BoxFuture<'static, Result<ToolOutput, ToolError>> + Send + Sync + 'static,
    {
        let schema = json!({"type": "object"});
        self.registry.register(Box::new(Act { name, schema, parallel: true, behaviour: Box::new(behaviour) })).unwrap();
    }

    fn waiting_tool(&mut self, name: &'static str, parallel: bool) {
        let (max, now) = (Arc::clone(&self.max_at_once), Arc::new(AtomicUsize::new(0)));
        let behaviour: Behaviour = Box::new(move |invocation| {
            let (max, now) = (Arc::clone(&max), Arc::clone(&now));
            Box::pin(async move {
                let running = now.fetch_add(1, Ordering::SeqCst) + 1;
                max.fetch_max(running, Ordering::SeqCst);
                let seconds = invocation.arguments["seconds"].as_u64().unwrap_or(0);
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(ToolOutput::success(Value::from(format!("after {seconds} s"))))
            })
        });
        let schema = json!({"type": "object", "properties": {"seconds": {"type": "integer"}}});
        self.registry.register(Box::new(Act { name, schema, parallel, behaviour })).unwrap();
    }

    /// Runs the loop once on the world's conversation.
    pub(super) async fn run(&mut self) -> LoopOutcome {
        let tools = ToolExecutor::new(self.registry.clone(), self.context.clone(), Arc::new(Unrecorded));
        let agent = Agent {
            model: &self.model,
            tools: &tools,
            journal: &self.journal,
            signals: &self.signals,
            settings: &self.settings,
            deltas: &self.deltas,
        };
        let outcome = must_be_send(agent.run(&mut self.transcript, &mut self.run_state)).await;
        self.transcript_is_sound();
        outcome
    }

    /// Every call has exactly one result, right after it, and no id is used twice.
    fn transcript_is_sound(&self) {
        let mut open: Vec<String> = Vec::new();
        let mut seen: Vec<String> = Vec::new();
        for message in self.transcript.messages() {
            match message {
                Message::Tool { tool_call_id, .. } => {
                    assert_eq!(*tool_call_id, open.remove(0), "results in call order");
                }
                other => {
                    assert_eq!(open, Vec::<String>::new(), "a call without its result before {other:?}");
                    open = crate::transcript::calls_of(other).iter().map(|call| call.id.clone()).collect();
                    seen.extend(open.iter().cloned());
                }
            }
        }
        let mut unique = seen.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), seen.len(), "an id is used twice: {seen:?}");
    }

    pub(super) fn asked(&self) -> Vec<CompletionRequest> {
        self.model.asked.lock().unwrap().clone()
    }

    /// The events, one line each.
    pub(super) fn events(&self) -> Vec<String> {
        self.journal.events.lock().unwrap().iter().map(line).collect()
    }

    /// The messages after the system prompt, one line each.
    pub(super) fn messages(&self) -> Vec<String> {
        self.transcript.messages()[1..].iter().map(spoken).collect()
    }
}

/// A job's context that approves what an autonomous one may approve.
pub(crate) fn context() -> ToolContext {
    ToolContext {
        owner: UserId("ada".to_owned()),
        work: WorkId::Job(JobId::nil()),
        approval: ApprovalContext::autonomous(),
        policy: ToolPolicy::default(),
        only: None,
        egress: EgressView::default(),
        max_children: 0,
    }
}

/// The orchestrator runs loops on a runtime with many threads.
fn must_be_send<F: Future + Send>(future: F) -> F {
    future
}

fn line(event: &AgentEvent) -> String {
    match event {
        AgentEvent::Message { role, content } => format!("{role:?}: {content}").to_lowercase(),
        AgentEvent::Reasoning { content } => format!("reasoning: {content}"),
        AgentEvent::Plan { goal, steps, .. } => format!("plan: {goal} in {}", steps.len()),
        AgentEvent::ToolUse { tool, input, .. } => format!("use {tool} {input}"),
        AgentEvent::ToolResult { tool, success, output, .. } => format!("result {tool} {success}: {output}"),
        AgentEvent::Status { message, .. } => format!("status: {message}"),
        AgentEvent::Limit { limit, value } => format!("limit {limit} {value}"),
        AgentEvent::Log { .. } => format!("{event:?}"),
    }
}

pub(super) fn spoken(message: &Message) -> String {
    match message {
        Message::System { content } => format!("system: {content}"),
        Message::User { content } => format!("user: {content}"),
        Message::Assistant { content, tool_calls, .. } => {
            let calls: Vec<&str> = tool_calls.iter().map(|call| call.name.as_str()).collect();
            format!("assistant: {content}{}", if calls.is_empty() { String::new() } else { format!(" {calls:?}") })
        }
        Message::Tool { name, content, .. } => format!("tool {name}: {content}"),
    }
}
