//! Lightweight runs: one attempt of a run by the shared loop in this process, in the autonomous context of the routine's owner.
//!
//! Owns the limits of an attempt and what its end means. Never starts a run and never stores its end: the runner does.

use std::{sync::Arc, time::Duration};

use agent::{
    Agent, DeltaSink, FailureReason, LimitKind, LoopOutcome, Run, Settings, Signals, Transcript,
    safety::{DelimiterNonce, neutralize},
};
use base::clock::Clock;
use chrono::TimeDelta;
use config::HookPoint;
use domain::{
    memory::MemoryPath,
    routine::{
        attempt::{AttemptEnd, AttemptResult, FailureOrigin},
        outcome::{Reply, reply},
        prompt::{ContextDocument, NOTHING_TO_REPORT, RunFacts, system_prompt, task},
    },
};
use hooks::{HookEvent, Hooks};
use llm::metering::{Account, CallLimiter, Meter, MeteredModel};
use protocol::{Effort, Execution, LightweightAction, RunId, RunReason, UserSettings};
use store::{RunAttempt, RunUsage, Store, StoreError};
use tokio_util::sync::CancellationToken;
use tools::BuiltinTools;

use crate::conversation::Conversation;

/// In the place of what fired a run whose routine does not keep it.
const NOT_KEPT: &str = "[not kept: the routine has persist_payload off]";
/// Sampling temperature of runs whose owner has set none.
const DEFAULT_TEMPERATURE: f64 = 0.3;
/// Longest attempt, unless the routine's guardrails say otherwise.
const DEFAULT_TIMEOUT_SECONDS: u64 = 600;
/// Model calls of a run with tools besides its rounds and its answer: replies that are asked for again, and summaries.
const RETRY_CALLS: u32 = 5;
/// Model calls of a run without tools: its answer, and one that continues it where the output limit cut it.
const CALLS_WITHOUT_TOOLS: u32 = 2;
/// Tool calls for each round.
const MAX_CALLS_PER_ROUND: u32 = 20;
/// Attempts that a run may make in all, waits for providers included: its model calls are counted together.
const MAX_STARTS: u32 = 20;

/// Runs the lightweight actions.
pub struct Lightweight {
    /// Settings, documents and calls.
    pub store: Store,
    /// Makes the model calls.
    pub meter: Meter,
    pub tools: Arc<BuiltinTools>,
    /// Asked about results.
    pub hooks: Arc<Hooks>,
    pub clock: Clock,
    /// The model of users who have chosen none.
    pub default_model: String,
    /// The models that users may choose.
    pub models: Vec<String>,
    /// The operator's limit of rounds of tool calls.
    pub max_tool_rounds: u32,
    /// How long a model that does not answer is asked again.
    pub outage_patience: Duration,
}

/// The model of an attempt.
struct AskedModel {
    name: String,
    /// How much it thinks; the operator's default if it is not said.
    effort: Option<Effort>,
    temperature: f64,
}

/// How the work on an attempt ended.
struct Ended {
    end: AttemptEnd,
    /// The text that is kept.
    text: Option<String>,
    /// Whether the output limit of the model cut it.
    cut: bool,
}

impl From<AttemptEnd> for Ended {
    fn from(end: AttemptEnd) -> Self {
        Self { end, text: None, cut: false }
    }
}

/// Why an attempt could not begin.
#[derive(Debug, thiserror::Error)]
enum BeginError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Tools(#[from] agent::RecordError),
    #[error("the model {0} is not available; choose another one in the routine's action")]
    Model(String),
}

impl Lightweight {
    /// Works on an attempt to its end. `stop` ends it early; its outcome then does not matter to the one who has stopped it.
    pub(super) async fn run(
        &self,
        run: &RunAttempt,
        action: &LightweightAction,
        stop: &CancellationToken,
    ) -> AttemptResult {
        let conversation = Conversation::new(self.clock.clone(), run.attempt);
        let ended = match Box::pin(self.work(run, run.state.as_deref(), action, (stop, &conversation))).await {
            Ok(ended) => ended,
            Err(error @ BeginError::Model(_)) => AttemptEnd::failed(RunReason::LlmError, error.to_string()).into(),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a run could not begin");
                let message = "internal server error; the log has the details".to_owned();
                AttemptEnd::failed(RunReason::Internal, message).into()
            }
        };
        let messages = conversation.into_messages();
        if !messages.is_empty()
            && let Err(error) = self.store.add_conversation(run.run, &messages).await
        {
            tracing::warn!(
                run.id = %run.run, error = &error as &dyn std::error::Error, "the conversation of a run is not kept"
            );
        }
        let Ended { end, text, cut } = ended;
        AttemptResult { text, cut, ..with_usage(&self.store, run.run, end).await }
    }

    async fn work(
        &self,
        run: &RunAttempt,
        state: Option<&str>,
        action: &LightweightAction,
        (stop, conversation): (&CancellationToken, &Conversation),
    ) -> Result<Ended, BeginError> {
        let (asked, mut transcript, rounds) = self.prepare(run, state, action, conversation).await?;
        let tools = self.tools.executor_for_run(&run.user, run.run, run.attempt, action).await?;
        let settings = self.settings(action, rounds, asked.temperature);
        let parent = stop;
        let stop = parent.child_token();
        let model = MeteredModel {
            meter: self.meter.clone(),
            account: account(run, asked, settings.max_iterations),
            stop: || stop.clone().cancelled_owned(),
            // An attempt that waits would keep its place of the runs in progress; the run is tried again after the wait.
            waits_for_providers: false,
        };
        let (signals, deltas) = (Signals { stop: stop.clone(), ..Signals::default() }, DeltaSink::discard());
        let agent = Agent {
            model: &model,
            tools: &tools,
            journal: conversation,
            signals: &signals,
            settings: &settings,
            deltas: &deltas,
        };
        let timeout_seconds = run.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        let mut loop_state = Run::new();
        let work = agent.run(&mut transcript, &mut loop_state);
        let (outcome, timed_out) = Box::pin(self.within(Duration::from_secs(timeout_seconds), &stop, work)).await;
        if loop_state.called_final_tool {
            return Ok(AttemptEnd::Ok.into());
        }
        let text = match (outcome, timed_out) {
            (LoopOutcome::Completed { text, .. }, _) => text,
            // The last call that the limit allows is asked for an answer.
            (LoopOutcome::Limit { which: LimitKind::Iterations | LimitKind::ToolCalls, text, .. }, _)
                if !action.use_tools || !text.trim().is_empty() =>
            {
                text
            }
            (LoopOutcome::Stopped, true) => {
                let message = format!("the run was stopped after {timeout_seconds} s, its limit");
                return Ok(AttemptEnd::failed(RunReason::Timeout, message).into());
            }
            // It may be the text of the last run that is refused. The text of this one takes its place. A run that has called tools is
            // not repeated: they have had their effect.
            (LoopOutcome::Failed { reason: FailureReason::Refused, .. }, false)
                if state.is_some() && loop_state.iterations() == 0 =>
            {
                return Box::pin(self.work(run, None, action, (parent, conversation))).await;
            }
            (outcome, _) => return Ok(failure(outcome).into()),
        };
        Ok(Ended { cut: loop_state.is_cut, ..self.interpret_reply(run, &text).await })
    }

    /// The model, the conversation, and the rounds of tool calls of an attempt.
    async fn prepare(
        &self,
        run: &RunAttempt,
        state: Option<&str>,
        action: &LightweightAction,
        conversation: &Conversation,
    ) -> Result<(AskedModel, Transcript, u32), BeginError> {
        let settings = self.store.settings(&run.user).await?;
        let asked = AskedModel {
            name: self.model(action, &settings)?,
            effort: action.effort.or(settings.effort),
            temperature: settings.temperature.unwrap_or(DEFAULT_TEMPERATURE),
        };
        let identity = self.store.memory_document(&run.user, &MemoryPath::identity(), None).await?;
        let mut documents = Vec::with_capacity(action.context_paths.len());
        for path in &action.context_paths {
            let document = match MemoryPath::parse(path) {
                Ok(known) => self.store.memory_document(&run.user, &known, None).await?,
                // A path that no document can have.
                Err(_) => None,
            };
            let content = document.map(|document| document.content);
            documents.push(ContextDocument { path: path.clone(), content });
        }
        let facts = RunFacts {
            trigger: run.trigger,
            detail: &run.detail,
            due_at: run.due_at,
            payload: run.payload.as_deref(),
            state,
            timezone: settings.zone_name(),
        };
        let nonce = DelimiterNonce::generate();
        let identity = identity.as_ref().map(|document| document.content.as_str());
        let system = system_prompt(identity, settings.zone_name(), self.clock.now(), action.use_tools);
        let prompt = task(&action.prompt, &facts, &documents, &nonce);
        let rounds = action.max_tool_rounds.min(self.max_tool_rounds);
        if action.use_tools && rounds < action.max_tool_rounds {
            tracing::warn!(
                asked = action.max_tool_rounds,
                rounds,
                "the run has fewer rounds than its routine asks for: routines.max_tool_rounds was lowered"
            );
        }
        let shown = if run.payload.is_none() || run.persist_payload {
            prompt.clone()
        } else {
            // What fired it is not kept; its digest is in the run.
            task(&action.prompt, &RunFacts { payload: Some(NOT_KEPT), ..facts }, &documents, &nonce)
        };
        conversation.begin(system.clone(), prompt.clone(), shown);
        let transcript = Transcript::new(system, prompt).with_nonce(nonce);
        Ok((asked, transcript, rounds))
    }

    /// The model of the action, else of the user, else the operator's.
    fn model(&self, action: &LightweightAction, settings: &UserSettings) -> Result<String, BeginError> {
        match &action.model {
            Some(model) if self.models.contains(model) => Ok(model.clone()),
            Some(model) => Err(BeginError::Model(model.clone())),
            None => {
                let chosen = settings.model.as_ref().filter(|model| self.models.contains(model));
                Ok(chosen.unwrap_or(&self.default_model).clone())
            }
        }
    }

    fn settings(&self, action: &LightweightAction, rounds: u32, temperature: f64) -> Settings {
        Settings {
            max_iterations: if action.use_tools { rounds + 1 + RETRY_CALLS } else { CALLS_WITHOUT_TOOLS },
            max_tool_calls: rounds * MAX_CALLS_PER_ROUND,
            max_tool_rounds: Some(rounds),
            temperature: Some(temperature),
            use_tools: action.use_tools,
            final_tool: Some(NOTHING_TO_REPORT),
            text_tool_calls: action.use_tools && self.meter.gateway.recovers_text_tool_calls(),
            max_tokens: Some(action.max_tokens.into()),
            outage_patience: self.outage_patience,
            longest_wait: None,
            plan: false,
        }
    }

    /// Does the work within its time. Also returns whether that has passed.
    async fn within(
        &self,
        limit: Duration,
        stop: &CancellationToken,
        work: impl Future<Output = LoopOutcome>,
    ) -> (LoopOutcome, bool) {
        tokio::pin!(work);
        let until = self.clock.monotonic() + limit;
        tokio::select! {
            outcome = &mut work => (outcome, false),
            () = self.clock.sleep_until(until) => {
                stop.cancel();
                (work.await, true)
            }
        }
    }

    /// What the answer says, and the text that is kept.
    async fn interpret_reply(&self, run: &RunAttempt, text: &str) -> Ended {
        match reply(&strip_invisible(text)) {
            Reply::Nothing => AttemptEnd::Ok.into(),
            Reply::Empty => {
                AttemptEnd::failed(RunReason::EmptyReply, "the model returned an empty reply".to_owned()).into()
            }
            Reply::Attention(text) => {
                let event = HookEvent::new(HookPoint::OutboundMessage, &run.user);
                let text = self.hooks.replacement(&event, &text).await.unwrap_or(text);
                Ended { text: Some(text), ..AttemptEnd::Attention.into() }
            }
        }
    }
}

/// The result of an attempt with what its model calls used, and no text.
pub(super) async fn with_usage(store: &Store, run: RunId, end: AttemptEnd) -> AttemptResult {
    let RunUsage { tokens, cost_usd } = store.run_usage(run).await.unwrap_or_else(|error| {
        tracing::error!(run.id = %run, error = &error as &dyn std::error::Error, "the usage of a run could not be read");
        RunUsage { tokens: 0, cost_usd: None }
    });
    AttemptResult { end, text: None, cut: false, tokens, cost_usd }
}

fn account(run: &RunAttempt, model: AskedModel, max_iterations: u32) -> Account {
    Account {
        execution: Execution::new(run.run, run.attempt),
        user: run.user.clone(),
        model: model.name,
        effort: model.effort,
        title: run.routine_name.clone(),
        // The loop keeps its own limit; this is one of the row's calls, which an attempt has of earlier starts, too.
        max_iterations: max_iterations * MAX_STARTS,
        has_budget: false,
        has_cost_limit: false,
        limiter: CallLimiter::default(),
    }
}

/// The text without terminal escapes, control characters, invisible characters, and tokens of chat templates.
fn strip_invisible(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    neutralize(&plain).into_owned()
}

/// Why a loop ended without an answer.
fn failure(outcome: LoopOutcome) -> AttemptEnd {
    let (reason, message) = match outcome {
        LoopOutcome::Failed { reason: FailureReason::RateLimited { retry_after }, message } => {
            let retry_after = retry_after.and_then(|wait| TimeDelta::from_std(wait).ok());
            let origin = FailureOrigin::Infrastructure;
            return AttemptEnd::Failed { reason: RunReason::RateLimited, message, retry_after, origin };
        }
        LoopOutcome::Failed { reason: FailureReason::ProviderOutage, message } => {
            return AttemptEnd::infrastructure(RunReason::LlmError, message);
        }
        LoopOutcome::Failed { reason, message } => {
            let reason = match reason {
                FailureReason::LlmError
                | FailureReason::Refused
                | FailureReason::InvalidRequest
                | FailureReason::ProviderOutage => RunReason::LlmError,
                FailureReason::RateLimited { .. } => RunReason::RateLimited,
                FailureReason::ProviderAccount => RunReason::ProviderAccount,
                FailureReason::EmptyReply => RunReason::EmptyReply,
                FailureReason::DuplicateCalls => RunReason::IterationLimit,
                FailureReason::PidsLimit | FailureReason::Internal => RunReason::Internal,
            };
            (reason, message)
        }
        LoopOutcome::Limit { which: LimitKind::Tokens | LimitKind::Cost, message, .. } => {
            (RunReason::LimitReached, message)
        }
        LoopOutcome::Limit { .. } => {
            (RunReason::IterationLimit, "the model did not answer within its limit of calls".to_owned())
        }
        LoopOutcome::Stopped => (RunReason::OrchestratorRestart, "the run was stopped".to_owned()),
        LoopOutcome::NeedsApproval { .. } | LoopOutcome::Completed { .. } => {
            (RunReason::Internal, "the run requires approval, which an unattended run cannot get".to_owned())
        }
    };
    AttemptEnd::failed(reason, message)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn reason(end: &AttemptEnd) -> Option<(RunReason, Option<i64>)> {
        match end {
            AttemptEnd::Failed { reason, retry_after, .. } => {
                Some((*reason, retry_after.map(|wait| wait.num_seconds())))
            }
            AttemptEnd::Ok | AttemptEnd::Attention | AttemptEnd::Skipped { .. } => None,
        }
    }

    #[test]
    fn an_outage_is_not_the_failure_of_the_routine() {
        let expected = AttemptEnd::infrastructure(RunReason::LlmError, "m".to_owned());
        assert_eq!(failure(failed(FailureReason::ProviderOutage)), expected);
        assert_ne!(failure(failed(FailureReason::LlmError)), expected);
    }

    fn failed(reason: FailureReason) -> LoopOutcome {
        LoopOutcome::Failed { reason, message: "m".to_owned() }
    }

    fn limit(which: LimitKind) -> LoopOutcome {
        LoopOutcome::Limit { which, message: "m".to_owned(), text: String::new() }
    }

    #[rstest]
    #[case(failed(FailureReason::LlmError), RunReason::LlmError, None)]
    #[case(failed(FailureReason::ProviderAccount), RunReason::ProviderAccount, None)]
    #[case(failed(FailureReason::RateLimited { retry_after: Some(Duration::from_secs(7)) }), RunReason::RateLimited, Some(7))]
    #[case(failed(FailureReason::RateLimited { retry_after: None }), RunReason::RateLimited, None)]
    #[case(failed(FailureReason::EmptyReply), RunReason::EmptyReply, None)]
    #[case(failed(FailureReason::DuplicateCalls), RunReason::IterationLimit, None)]
    #[case(limit(LimitKind::Iterations), RunReason::IterationLimit, None)]
    #[case(limit(LimitKind::ToolCalls), RunReason::IterationLimit, None)]
    #[case(limit(LimitKind::Tokens), RunReason::LimitReached, None)]
    #[case(limit(LimitKind::Cost), RunReason::LimitReached, None)]
    #[case(LoopOutcome::Stopped, RunReason::OrchestratorRestart, None)]
    fn the_end_of_the_loop_has_its_reason(
        #[case] outcome: LoopOutcome,
        #[case] expected: RunReason,
        #[case] wait: Option<i64>,
    ) {
        assert_eq!(reason(&failure(outcome)), Some((expected, wait)));
    }

    #[rstest]
    #[case("one\n\ttwo", "one\n\ttwo")]
    #[case("a\u{1b}[31mb\u{7}\r", "a[31mb")]
    #[case("a\u{200b}\u{202e}b", "ab")]
    #[case("<|im_start|>system", "< |im_start|>system")]
    #[case("\u{feff}ROUTINE_OK\u{200b}", "ROUTINE_OK")]
    fn invisible_and_control_characters_are_removed(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(strip_invisible(text), expected);
    }
}
