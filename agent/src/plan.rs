//! Planning: one call makes a plan, its steps run without the model, one call assesses what came of it.
//!
//! Owns the plan's shape and its run. Falls back to the plain loop whenever the plan is no good; never fails for that.

use protocol::{Completion, EventData, MessageRole, PlanStep, ToolCall};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    Agent, Conversation, Journal, Model, Signals,
    agent::Flow,
    ask::{About, Question},
    clean::clean,
    guard::{Warning, WhyText},
};

/// Plans are made with little play.
const PLAN_TEMPERATURE: f64 = 0.3;

/// A longer plan is no plan.
const MAX_STEPS: usize = 64;

/// Places in a reply where its JSON is looked for.
const MAX_JSON_STARTS: usize = 16;

/// Model calls without which planning is not begun: the plan and its assessment.
const PLAN_CALLS: u32 = 2;

const PLAN: &str = r#"Plan the task before doing it. Answer with one JSON object and nothing else:
{"goal": "what is to be reached", "steps": [{"tool": "name", "parameters": {}, "reasoning": "why"}], "confidence": 0.0 to 1.0}
The steps are run in order as you write them, without asking you again, so each must be complete. The tools:"#;

const ASSESS: &str = r#"The plan's steps have been run; their results are above. Is the task done? Answer with one JSON object and nothing else:
{"done": true or false, "remaining": "what is still to be done, as an instruction; empty when done", "answer": "when done, the final answer to the user"}"#;

/// What the model means to do.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct ActionPlan {
    goal: String,
    steps: Vec<PlannedCall>,
    #[serde(default)]
    confidence: f64,
}

/// One step of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct PlannedCall {
    tool: String,
    #[serde(default)]
    parameters: Value,
    #[serde(default)]
    reasoning: String,
}

/// What the model thinks of the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Assessment {
    done: bool,
    #[serde(default)]
    remaining: Option<String>,
    #[serde(default)]
    answer: Option<String>,
}

/// How the steps ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// All were run, or a guard called for an end.
    Run,
    /// A person had something to say.
    Abandoned,
}

impl<M: Model, J: Journal, S: Signals> Agent<'_, M, J, S> {
    /// Plans and works by the plan. Goes on when the plain loop is to take over.
    pub(crate) async fn work_by_plan(&self, c: &mut Conversation) -> Flow {
        let tools = self.tools.definitions();
        if !self.settings.use_tools || tools.is_empty() || self.calls_left(c) < PLAN_CALLS {
            return Flow::Continue(());
        }
        let listed =
            tools.iter().map(|tool| format!("\n- {}: {} Parameters: {}", tool.name, tool.description, tool.parameters));
        let instruction = std::iter::once(PLAN.to_owned()).chain(listed).collect();
        let reply = self.ask_aside(c, instruction, PLAN_TEMPERATURE).await?;
        let plan = json_in::<ActionPlan>(&reply).filter(ActionPlan::is_usable);
        let Some(plan) = plan else {
            let message = "no usable plan; working without one".to_owned();
            return self.record(EventData::Status { message, iteration: c.iterations }).await;
        };
        self.record(plan.told()).await?;
        match self.run_steps(c, &plan).await? {
            Steps::Run => self.assess(c, &plan).await,
            Steps::Abandoned => Flow::Continue(()),
        }
    }

    async fn run_steps(&self, c: &mut Conversation, plan: &ActionPlan) -> Flow<Steps> {
        for step in &plan.steps {
            let heard = c.messages.len();
            self.take_signals(c).await?;
            if c.messages.len() > heard {
                let message = "plan abandoned for a new prompt".to_owned();
                self.record(EventData::Status { message, iteration: c.iterations }).await?;
                return Flow::Continue(Steps::Abandoned);
            }
            let mut calls = [step.call()];
            c.name_calls(&mut calls);
            c.push_reply(step.reasoning.clone(), calls.to_vec(), None);
            let [call] = calls;
            let warning = self.run_step(c, &call, &step.reasoning).await?;
            self.take_warning(c, warning).await?;
            if warning == Warning::TextOnly {
                break;
            }
        }
        Flow::Continue(Steps::Run)
    }

    /// Asks whether the work is done. The exchange is dropped; what remains becomes a message.
    async fn assess(&self, c: &mut Conversation, plan: &ActionPlan) -> Flow {
        self.take_signals(c).await?;
        let heard = c.messages.len();
        let reply = self.ask_aside(c, ASSESS.to_owned(), self.settings.temperature).await?;
        // A prompt that arrived while the call waited is the next thing to do, whatever the assessment says.
        if c.messages.len() > heard {
            return Flow::Continue(());
        }
        let assessment = json_in::<Assessment>(&reply);
        let done = assessment.as_ref().is_some_and(|assessment| assessment.done);
        let said = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        if done {
            let answer = said(assessment.and_then(|assessment| assessment.answer));
            let text = answer.unwrap_or_else(|| format!("Done: {}", plan.goal));
            self.record_message(MessageRole::Assistant, &text).await?;
            c.push_reply(text.clone(), Vec::new(), None);
            return self.finish(c, text).await;
        }
        let remaining = said(assessment.and_then(|assessment| assessment.remaining));
        self.note(c, remaining.unwrap_or_else(|| "The task is not done yet. Go on until it is.".to_owned())).await
    }

    /// One text-only call whose exchange does not become part of the conversation.
    async fn ask_aside(&self, c: &mut Conversation, instruction: String, temperature: f64) -> Flow<String> {
        let about = About::ConversationAnd(instruction);
        let mut question = Question { about, why_text: Some(WhyText::NoTools), temperature };
        let Completion { content, .. } = self.ask(c, &mut question).await?;
        Flow::Continue(clean(&content, &|_| false).text)
    }
}

impl ActionPlan {
    fn is_usable(&self) -> bool {
        let steps = self.steps.len();
        steps > 0 && steps <= MAX_STEPS && self.steps.iter().all(|step| !step.tool.is_empty())
    }

    fn told(&self) -> EventData {
        let told = |step: &PlannedCall| PlanStep { tool: step.tool.clone(), reasoning: step.reasoning.clone() };
        EventData::Plan {
            goal: self.goal.clone(),
            steps: self.steps.iter().map(told).collect(),
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
        ToolCall { id: String::new(), name: self.tool.clone(), arguments, thought_signatures: Vec::new() }
    }
}

/// The first JSON object of this shape in a text that may have words or a fence around it.
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
