//! Planning: one call makes a plan, its steps run without the model, one call assesses the outcome.
//!
//! Owns the plan's shape and its run. Falls back to the plain loop whenever the plan is not usable; never fails for
//! that.

use protocol::{AgentEvent, Completion, Message, MessageRole, PlanStep, ToolCall};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    Agent, Journal, Model,
    agent::{Flow, LoopState},
    clean::{Offered, clean},
    run::{
        ask::{ModelTurn, PromptContext},
        guard::{RepeatWarning, TextOnlyReason},
    },
};

/// Plans with more steps are rejected.
const MAX_STEPS: usize = 64;

/// Maximum number of places in a reply at which its JSON is looked for.
const MAX_JSON_STARTS: usize = 16;

/// Model calls that must be left for planning: the plan and its assessment.
const PLAN_CALLS: u32 = 2;

const PLAN: &str = r#"Plan the task before doing it. Answer with one JSON object and nothing else:
{"goal": "what is to be reached", "steps": [{"tool": "name", "parameters": {}, "reasoning": "why"}], "confidence": 0.0 to 1.0}
The steps are run in order as you write them, without asking you again, so each must be complete. The tools:"#;

const ASSESS: &str = r#"The plan's steps have been run; their results are above. Is the task done? Answer with one JSON object and nothing else:
{"done": true or false, "remaining": "what is still to be done, as an instruction; empty when done", "answer": "when done, the final answer to the user"}"#;

/// The model's plan.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct ActionPlan {
    goal: String,
    steps: Vec<PlannedCall>,
    #[serde(default)]
    confidence: f64,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct PlannedCall {
    tool: String,
    #[serde(default)]
    parameters: Value,
    #[serde(default)]
    reasoning: String,
}

/// The model's assessment of the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Assessment {
    done: bool,
    #[serde(default)]
    remaining: Option<String>,
    #[serde(default)]
    answer: Option<String>,
}

impl<M: Model, J: Journal> Agent<'_, M, J> {
    /// Makes a plan and works by it. Continues when the plain loop is to take over.
    pub(crate) async fn work_by_plan(&self, state: &mut LoopState<'_>) -> Flow {
        let tools = self.tools.definitions();
        if !self.settings.use_tools || tools.is_empty() || self.calls_left(state) < PLAN_CALLS {
            return Flow::Continue(());
        }
        let listed =
            tools.iter().map(|tool| format!("\n- {}: {} Parameters: {}", tool.name, tool.description, tool.parameters));
        let instruction = std::iter::once(PLAN.to_owned()).chain(listed).collect();
        let reply = self.ask_aside(state, instruction).await?;
        let plan = json_in::<ActionPlan>(&reply).filter(ActionPlan::is_usable);
        let Some(plan) = plan else {
            return self.record_status(state, "no usable plan; working without one").await;
        };
        self.record(plan.to_event()).await?;
        self.run_steps(state, &plan).await
    }

    /// Runs the steps, and asks whether the work is done unless a prompt of a person came first.
    async fn run_steps(&self, state: &mut LoopState<'_>, plan: &ActionPlan) -> Flow {
        for step in &plan.steps {
            let messages = state.transcript.messages().len();
            self.take_signals(state).await?;
            if state.transcript.messages().len() > messages {
                return self.record_status(state, "plan abandoned for a new prompt").await;
            }
            let mut calls = [step.call()];
            state.transcript.assign_call_ids(&mut calls);
            if !step.reasoning.is_empty() {
                state.run.set_last_text(step.reasoning.clone(), false);
            }
            state.transcript.push_reply(step.reasoning.clone(), calls.to_vec(), None);
            let [call] = calls;
            let warning = self.run_step(state, call, &step.reasoning).await?;
            self.apply_guard(state, warning).await?;
            if warning == RepeatWarning::TextOnly {
                break;
            }
        }
        self.assess(state, plan).await
    }

    /// Asks whether the work is done. The exchange is dropped; what remains becomes a message.
    async fn assess(&self, state: &mut LoopState<'_>, plan: &ActionPlan) -> Flow {
        self.take_signals(state).await?;
        let messages = state.transcript.messages().len();
        let reply = self.ask_aside(state, ASSESS.to_owned()).await?;
        // A prompt that arrived while the call waited is the next thing to do, whatever the assessment says.
        if state.transcript.messages().len() > messages {
            return Flow::Continue(());
        }
        let assessment = json_in::<Assessment>(&reply);
        let done = assessment.as_ref().is_some_and(|assessment| assessment.done);
        let non_blank = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        if done {
            let answer = non_blank(assessment.and_then(|assessment| assessment.answer));
            let text = answer.unwrap_or_else(|| format!("Done: {}", plan.goal));
            self.record_message(MessageRole::Assistant, &text).await?;
            state.run.set_last_text(text.clone(), false);
            state.transcript.push_reply(text.clone(), Vec::new(), None);
            return self.finish(state, text).await;
        }
        let remaining = non_blank(assessment.and_then(|assessment| assessment.remaining));
        self.inject_notice(
            state,
            remaining.unwrap_or_else(|| "The task is not done yet. Go on until it is.".to_owned()),
        )
        .await
    }

    /// One text-only call whose exchange does not become part of the conversation.
    async fn ask_aside(&self, state: &mut LoopState<'_>, instruction: String) -> Flow<String> {
        let context = PromptContext::WithInstruction(Message::User { content: instruction });
        let mut turn = ModelTurn { context, text_only: Some(TextOnlyReason::NoTools) };
        let Completion { content, .. } = self.ask(state, &mut turn).await?;
        Flow::Continue(clean(&content, Offered::NONE).text)
    }
}

impl ActionPlan {
    fn is_usable(&self) -> bool {
        let steps = self.steps.len();
        steps > 0 && steps <= MAX_STEPS && self.steps.iter().all(|step| !step.tool.is_empty())
    }

    fn to_event(&self) -> AgentEvent {
        let to_step = |step: &PlannedCall| PlanStep { tool: step.tool.clone(), reasoning: step.reasoning.clone() };
        AgentEvent::Plan {
            goal: self.goal.clone(),
            steps: self.steps.iter().map(to_step).collect(),
            confidence: if self.confidence.is_finite() { self.confidence.clamp(0.0, 1.0) } else { 0.0 },
        }
    }
}

impl PlannedCall {
    fn call(&self) -> ToolCall {
        let arguments = match &self.parameters {
            Value::Null => Value::Object(Map::new()),
            given => given.clone(),
        };
        ToolCall { id: String::new(), name: self.tool.clone(), arguments }
    }
}

/// The first JSON object of this shape in a text, which may have prose or a fence around it.
fn json_in<T: DeserializeOwned>(text: &str) -> Option<T> {
    text.match_indices('{')
        .take(MAX_JSON_STARTS)
        .find_map(|(start, _)| serde_json::Deserializer::from_str(&text[start..]).into_iter::<T>().next()?.ok())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::bare(r#"{"goal": "g", "steps": [{"tool": "echo"}], "confidence": 0.5}"#, true)]
    #[case::fenced(
        "Here:\n```json\n{\"goal\": \"g\", \"steps\": [{\"tool\": \"echo\", \"parameters\": {}}]}\n```",
        true
    )]
    #[case::after_other_braces(r#"use {x} so: {"goal": "g", "steps": [{"tool": "echo"}]}"#, true)]
    #[case::no_steps(r#"{"goal": "g", "steps": []}"#, false)]
    #[case::nameless(r#"{"goal": "g", "steps": [{"tool": ""}]}"#, false)]
    #[case::cut(r#"{"goal": "g", "steps": [{"tool": "ec"#, false)]
    #[case::words("I would first look around.", false)]
    fn reads_plans(#[case] text: &str, #[case] usable: bool) {
        assert_eq!(json_in::<ActionPlan>(text).is_some_and(|plan| plan.is_usable()), usable);
    }
}
