//! The dialects of one provider's models: what is known before the first call, what the operator sets, and what refusals
//! taught. Keeps them in memory. Never makes a call.

mod correct;
mod presets;

use std::{collections::BTreeMap, time::Duration};

use config::{Dialect, OpenAiWire};
use parking_lot::Mutex;
use protocol::ToolDefinition;
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) use self::correct::Refusal;
pub use self::presets::preset;

/// How long what was learned is used: providers change.
const MAX_AGE: Duration = Duration::from_hours(24);
/// Models of which something is remembered. Users name models.
const MAX_MODELS: usize = 100;
/// Corrections within one call, besides tools that are left out: of four properties, and the format may go back.
const MAX_CORRECTIONS: usize = 5;
/// Tools that are left out of one request since their definitions are refused.
const MAX_LEFT_OUT_TOOLS: usize = 16;

/// Tools of a model that are remembered as refused. A job's container names tools.
const MAX_REMEMBERED_TOOLS: usize = 128;

/// The dialects of a provider.
#[derive(Debug)]
pub(crate) struct Dialects {
    host: String,
    path: String,
    /// The operator's.
    pinned: Dialect,
    learned: Mutex<BTreeMap<String, Learned>>,
}

#[derive(Debug, Clone)]
struct Learned {
    dialect: Dialect,
    /// Tools whose definitions are refused, each with the digest of that definition: other users and versions may have
    /// another one of the name.
    left_out: BTreeMap<String, String>,
    at: Instant,
}

impl Dialects {
    pub(crate) fn new(base_url: &reqwest::Url, pinned: Dialect) -> Self {
        let host = base_url.host_str().unwrap_or_default().to_owned();
        Self { host, path: base_url.path().to_owned(), pinned, learned: Mutex::default() }
    }

    /// The dialect that a call to a model begins with, which offers these tools.
    pub(crate) fn of_call<'a>(&'a self, model: &str, tools: &'a [ToolDefinition]) -> CallDialect<'a> {
        let learned = self.of_model(model);
        let mut learned_dialect = learned.dialect;
        let is_left_out = |tool: &&ToolDefinition| {
            learned.left_out.get(&tool.name).is_some_and(|refused| *refused == definition_digest(tool))
        };
        let left_out: Vec<String> = tools.iter().filter(is_left_out).map(|tool| tool.name.clone()).collect();
        learned_dialect.left_out_tools = Some(left_out).filter(|names| !names.is_empty());
        CallDialect {
            dialects: self,
            model: model.to_owned(),
            tools,
            learned: learned_dialect,
            corrected: Dialect::default(),
            lesson: Dialect::default(),
            corrections: 0,
        }
    }

    /// The operator's properties.
    pub(crate) fn pinned(&self) -> BTreeMap<String, Value> {
        properties(&self.pinned)
    }

    /// What is known of a model beforehand, as the operator would set it.
    pub(crate) fn shown_preset(&self, model: &str) -> BTreeMap<String, Value> {
        properties(&self.preset(model))
    }

    fn preset(&self, model: &str) -> Dialect {
        presets::preset(&self.host, &self.path, model)
    }

    fn of_model(&self, model: &str) -> Learned {
        let learned = self.learned.lock().get(model).filter(|learned| learned.at.elapsed() < MAX_AGE).cloned();
        let nothing = || Learned { dialect: Dialect::default(), left_out: BTreeMap::new(), at: Instant::now() };
        learned.unwrap_or_else(nothing)
    }

    /// What is remembered of each model, as the operator would set it.
    pub(crate) fn learned(&self) -> BTreeMap<String, Value> {
        let learned = self.learned.lock();
        let current = learned.iter().filter(|(_, learned)| learned.at.elapsed() < MAX_AGE);
        let shown = current.map(|(model, Learned { dialect, left_out, .. })| {
            let names: Vec<String> = left_out.keys().cloned().collect();
            let left_out_tools = Some(names).filter(|names| !names.is_empty());
            (model.clone(), json!(Dialect { left_out_tools, ..dialect.clone() }))
        });
        shown.collect()
    }

    fn remember(&self, model: &str, corrected: &Dialect, left_out: BTreeMap<String, String>) {
        let mut learned = self.learned.lock();
        let known = learned.remove(model).filter(|learned| learned.at.elapsed() < MAX_AGE);
        let (known, mut all) = known.map(|known| (known.dialect, known.left_out)).unwrap_or_default();
        if learned.len() >= MAX_MODELS
            && let Some(oldest) = learned.iter().min_by_key(|(_, learned)| learned.at).map(|(model, _)| model.clone())
        {
            learned.remove(&oldest);
        }
        let dialect = corrected.clone().or(&known);
        all.extend(left_out);
        while all.len() > MAX_REMEMBERED_TOOLS {
            all.pop_first();
        }
        learned.insert(model.to_owned(), Learned { dialect, left_out: all, at: Instant::now() });
    }
}

fn properties(dialect: &Dialect) -> BTreeMap<String, Value> {
    serde_json::from_value(json!(dialect)).unwrap_or_default()
}

fn definition_digest(tool: &ToolDefinition) -> String {
    base::digest::sha256_hex(json!(tool).to_string().as_bytes())
}

/// The dialect of one call, corrected by the refusals of its attempts.
#[derive(Debug)]
pub(crate) struct CallDialect<'a> {
    dialects: &'a Dialects,
    model: String,
    tools: &'a [ToolDefinition],
    learned: Dialect,
    corrected: Dialect,
    /// What of it holds for other calls, too.
    lesson: Dialect,
    corrections: usize,
}

impl CallDialect<'_> {
    pub(crate) fn current(&self) -> Dialect {
        let learned = self.corrected.clone().or(&self.learned);
        let preset = self.dialects.preset(&self.model);
        // A deployment has any name. One without the newer format is taken for what it is called.
        let is_named = (learned.wire, preset.wire) == (Some(OpenAiWire::Chat), Some(OpenAiWire::Responses));
        let named = if is_named { presets::of_name(&self.model) } else { Dialect::default() };
        self.dialects.pinned.clone().or(&learned).or(&named).or(&preset)
    }

    /// Takes over what a refusal says. False if that is nothing new, or of a property that was corrected in this call or is
    /// pinned.
    pub(crate) fn correct(&mut self, refusal: &Refusal<'_>) -> bool {
        let is_open = |correction: &Dialect| {
            // Several definitions may be refused one after the other.
            let is_repeated = correction.left_out_tools.is_none() && correction.overlaps(&self.corrected);
            // A server that has only the format that was used first.
            let goes_back = matches!(refusal.status, 404 | 405) && correction.wire.is_some();
            (!is_repeated || goes_back) && !correction.overlaps(&self.dialects.pinned)
        };
        let corrections = correct::correct(&self.current(), refusal);
        let Some(correct::Correction { dialect: correction, is_of_this_call }) =
            corrections.into_iter().find(|correction| is_open(&correction.dialect))
        else {
            return false;
        };
        let is_possible = match &correction.left_out_tools {
            Some(names) => names.len() <= MAX_LEFT_OUT_TOOLS,
            None => self.corrections < MAX_CORRECTIONS,
        };
        if !is_possible {
            return false;
        }
        if !is_of_this_call {
            self.lesson = correction.clone().or(&self.lesson);
        }
        tracing::info!(
            model = self.model,
            ?correction,
            "the model provider refused a request; it is sent in another form"
        );
        self.corrections += usize::from(correction.left_out_tools.is_none());
        self.corrected = correction.or(&self.corrected);
        true
    }

    /// The provider took a request: what was corrected is remembered.
    pub(crate) fn succeeded(&self) {
        let names = self.corrected.left_out_tools.as_deref().unwrap_or_default();
        let refused = self.tools.iter().filter(|tool| names.contains(&tool.name));
        let left_out: BTreeMap<_, _> = refused.map(|tool| (tool.name.clone(), definition_digest(tool))).collect();
        if self.lesson != Dialect::default() || !left_out.is_empty() {
            self.dialects.remember(&self.model, &self.lesson, left_out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use config::{Field, OpenAiWire, OutputLimit};
    use rstest::rstest;

    use super::*;

    const RENAMED: &str = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.";
    const TEMPERATURE: &str = "`temperature` is deprecated for this model.";

    fn dialects(pinned: Dialect) -> Dialects {
        Dialects::new(&"https://models.example.com/v1".parse().unwrap(), pinned)
    }

    fn refusal(status: u16, text: &str) -> Refusal<'_> {
        let tools = &["shell", "search"];
        Refusal { status, text, max_output_tokens: 16_384, has_effort: false, has_native: false, tools }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lesson_is_used_by_other_calls_for_a_day() {
        let dialects = dialects(Dialect::default());
        let mut call = dialects.of_call("m", &[]);
        assert!(call.correct(&refusal(400, RENAMED)) && !call.correct(&refusal(400, RENAMED)));
        assert_eq!(dialects.of_call("m", &[]).current(), Dialect::default(), "the provider has not taken it yet");
        call.succeeded();
        let renamed = Dialect { output_limit: Some(OutputLimit::MaxCompletionTokens), ..Dialect::default() };
        assert_eq!((dialects.of_call("m", &[]).current(), dialects.learned().len()), (renamed, 1));
        assert_eq!(dialects.of_call("another", &[]).current(), Dialect::default());
        tokio::time::advance(MAX_AGE).await;
        assert_eq!((dialects.of_call("m", &[]).current(), dialects.learned().len()), (Dialect::default(), 0));
        let mut call = dialects.of_call("m", &[]);
        assert!(call.correct(&refusal(400, TEMPERATURE)));
        call.succeeded();
        tokio::time::advance(Duration::from_secs(1)).await;
        let current = dialects.of_call("m", &[]).current();
        assert_eq!(
            (current.output_limit, current.temperature),
            (None, Some(Field::Omit)),
            "an old lesson stays forgotten"
        );
    }

    /// A credit, the length of a prompt, and signed parts of one conversation say nothing of other calls.
    #[rstest]
    #[case(402, "fewer max_tokens: can only afford 2048", true)]
    #[case(413, "Request too large on tokens per minute (TPM): Limit 8000, Requested 16384", true)]
    #[case(400, "messages.1: Invalid signature in thinking block", true)]
    #[case(400, "This model's maximum context length is 8192 tokens and your request has 2800 input tokens", false)]
    #[tokio::test]
    async fn some_corrections_are_for_one_call(#[case] status: u16, #[case] text: &str, #[case] has_native: bool) {
        let dialects = dialects(Dialect::default());
        let mut call = dialects.of_call("m", &[]);
        assert!(call.correct(&Refusal { has_native, ..refusal(status, text) }));
        assert_ne!(call.current(), Dialect::default());
        call.succeeded();
        assert_eq!(dialects.of_call("m", &[]).current(), Dialect::default());
    }

    #[tokio::test]
    async fn definitions_that_are_refused_are_left_out_and_remembered() {
        let dialects = dialects(Dialect::default());
        let tools: Vec<ToolDefinition> = (0..7).map(|number| tool(&format!("tool{number}"), "old")).collect();
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let mut call = dialects.of_call("m", &tools);
        let is_corrected = |call: &mut CallDialect<'_>, name: &str| {
            let text = format!("Invalid schema for function '{name}'");
            call.correct(&Refusal { tools: &names, ..refusal(400, &text) })
        };
        assert!(is_corrected(&mut call, "tool0"), "first all definitions are made plain");
        for name in &names[..6] {
            assert!(is_corrected(&mut call, name));
        }
        call.succeeded();
        assert_eq!(dialects.of_call("m", &tools).current().left_out_tools.unwrap(), names[..6]);
        assert_eq!(dialects.learned()["m"]["left_out_tools"], json!(names[..6]));
        let changed = [tool("tool0", "new"), tools[1].clone(), tools[6].clone()];
        assert_eq!(dialects.of_call("m", &changed).current().left_out_tools.unwrap(), ["tool1"]);
        assert_eq!(dialects.of_call("another", &tools).current().left_out_tools, None);
    }

    /// laurent22/joplin#16451 has the text; this proxy has chat completions alone.
    #[tokio::test]
    async fn a_model_that_takes_tools_only_without_thinking_is_asked_so_where_there_is_no_other_format() {
        let dialects = dialects(Dialect::default());
        let mut call = dialects.of_call("m", &[]);
        let text = "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. \
                    Use /v1/responses or set reasoning_effort to 'none'.";
        for (status, text, wire) in [
            (400, text, OpenAiWire::Responses),
            (404, "404 page not found", OpenAiWire::Chat),
            (400, text, OpenAiWire::Chat),
        ] {
            assert!(call.correct(&refusal(status, text)));
            assert_eq!(call.current().wire, Some(wire));
        }
        call.succeeded();
        assert_eq!(dialects.of_call("m", &[]).current().effort.unwrap_or_default().word(None), Some("none"));
    }

    /// Azure: of the older models there are deployments that know chat completions alone.
    #[tokio::test]
    async fn a_deployment_without_responses_is_taken_for_the_model_it_is_called() {
        let url = "https://house.openai.azure.com/openai/v1".parse().unwrap();
        let dialects = Dialects::new(&url, Dialect::default());
        let mut call = dialects.of_call("gpt-5.5", &[]);
        assert_eq!((call.current().wire, call.current().temperature), (Some(OpenAiWire::Responses), None));
        assert!(call.correct(&refusal(404, "Resource not found")));
        call.succeeded();
        for current in [call.current(), dialects.of_call("gpt-5.5", &[]).current()] {
            assert_eq!((current.wire, current.temperature), (Some(OpenAiWire::Chat), Some(Field::Omit)));
            assert_eq!(current.output_limit, Some(OutputLimit::MaxCompletionTokens));
        }
        let mut call = dialects.of_call("mistral-large", &[]);
        assert!(call.correct(&refusal(404, "Resource not found")));
        assert_eq!(call.current().call_ids, Some(config::CallIds::Nine));
    }

    fn tool(name: &str, description: &str) -> ToolDefinition {
        let value = json!({"name": name, "description": description, "parameters": {}, "domain": "orchestrator"});
        serde_json::from_value(value).unwrap()
    }

    /// A pinned property hides no other one that the same refusal is about.
    #[tokio::test]
    async fn the_first_property_that_is_open_is_corrected() {
        let dialects = dialects(Dialect { output_limit: Some(OutputLimit::MaxTokens), ..Dialect::default() });
        let mut call = dialects.of_call("m", &[]);
        let text =
            "'max_completion_tokens' is unsupported or too large: this model supports at most 4096 completion tokens";
        assert!(call.correct(&refusal(400, text)));
        assert_eq!(call.current().max_output_tokens, Some(4_096));
    }
}
