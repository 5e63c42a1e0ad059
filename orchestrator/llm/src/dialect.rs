//! The dialects of one provider's models: what is known before the first call, what the operator sets, and what refusals
//! taught. Keeps them in memory. Never makes a call.

mod correct;
mod presets;

use std::{collections::BTreeMap, time::Duration};

use config::{Dialect, OpaqueBack};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

pub(crate) use self::correct::Refusal;

/// How long what was learned is used: providers change.
const MAX_AGE: Duration = Duration::from_hours(24);
/// Models of which something is remembered. Users name models.
const MAX_MODELS: usize = 100;
/// Corrections within one call.
const MAX_CORRECTIONS: usize = 4;

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
    at: Instant,
}

impl Dialects {
    pub(crate) fn new(base_url: &reqwest::Url, pinned: Dialect) -> Self {
        let host = base_url.host_str().unwrap_or_default().to_owned();
        Self { host, path: base_url.path().to_owned(), pinned, learned: Mutex::default() }
    }

    /// The dialect that a call to a model begins with.
    pub(crate) fn of_call(&self, model: &str) -> CallDialect<'_> {
        let learned = self.learned.lock().get(model).filter(|learned| learned.at.elapsed() < MAX_AGE).cloned();
        let known = learned.map(|learned| learned.dialect).unwrap_or_default();
        let base = known.or(&presets::preset(&self.host, &self.path, model));
        CallDialect {
            dialects: self,
            model: model.to_owned(),
            base,
            corrected: Dialect::default(),
            lesson: Dialect::default(),
            corrections: 0,
        }
    }

    /// What is remembered of each model, as the operator would set it.
    pub(crate) fn learned(&self) -> BTreeMap<String, Value> {
        let learned = self.learned.lock();
        let current = learned.iter().filter(|(_, learned)| learned.at.elapsed() < MAX_AGE);
        current.map(|(model, learned)| (model.clone(), serde_json::json!(learned.dialect))).collect()
    }

    fn remember(&self, model: &str, corrected: &Dialect) {
        let mut learned = self.learned.lock();
        let known = learned.remove(model).filter(|learned| learned.at.elapsed() < MAX_AGE);
        let known = known.map(|learned| learned.dialect).unwrap_or_default();
        if learned.len() >= MAX_MODELS
            && let Some(oldest) = learned.iter().min_by_key(|(_, learned)| learned.at).map(|(model, _)| model.clone())
        {
            learned.remove(&oldest);
        }
        let dialect = corrected.clone().or(&known);
        learned.insert(model.to_owned(), Learned { dialect, at: Instant::now() });
    }
}

/// The dialect of one call, corrected by the refusals of its attempts.
#[derive(Debug)]
pub(crate) struct CallDialect<'a> {
    dialects: &'a Dialects,
    model: String,
    base: Dialect,
    corrected: Dialect,
    /// What of it holds for other calls, too.
    lesson: Dialect,
    corrections: usize,
}

impl CallDialect<'_> {
    pub(crate) fn current(&self) -> Dialect {
        self.dialects.pinned.clone().or(&self.corrected).or(&self.base)
    }

    /// Takes over what a refusal says. False if that is nothing new, or of a property that was corrected in this call or is
    /// pinned. `has_native`: the request had a reply in its provider's own form.
    pub(crate) fn correct(&mut self, refusal: &Refusal<'_>, has_native: bool) -> bool {
        let is_open = |correction: &Dialect| {
            // Several definitions may be refused one after the other.
            let is_repeated = correction.left_out_tools.is_none() && correction.overlaps(&self.corrected);
            !is_repeated && !correction.overlaps(&self.dialects.pinned)
        };
        let correction = correct::correct(&self.current(), refusal).into_iter().find(is_open);
        let Some(correction) = correction.filter(|_| self.corrections < MAX_CORRECTIONS) else { return false };
        // Of this call alone: a credit that is nearly used up, a tool whose definition another user or version has
        // otherwise, and what one conversation has that is not valid.
        let is_of_this_call = refusal.status == 402
            || correction.left_out_tools.is_some()
            || (correction.opaque_back == Some(OpaqueBack::Never) && has_native);
        if !is_of_this_call {
            self.lesson = correction.clone().or(&self.lesson);
        }
        tracing::info!(
            model = self.model,
            ?correction,
            "the model provider refused a request; it is sent in another form"
        );
        self.corrections += 1;
        self.corrected = correction.or(&self.corrected);
        true
    }

    /// The provider took a request: what was corrected is remembered.
    pub(crate) fn succeeded(&self) {
        if self.lesson != Dialect::default() {
            self.dialects.remember(&self.model, &self.lesson);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use config::{Field, OutputLimit};
    use rstest::rstest;

    use super::*;

    const RENAMED: &str = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.";
    const TEMPERATURE: &str = "`temperature` is deprecated for this model.";

    fn dialects(pinned: Dialect) -> Dialects {
        Dialects::new(&"https://models.example.com/v1".parse().unwrap(), pinned)
    }

    fn refusal(status: u16, text: &str) -> Refusal<'_> {
        Refusal { status, text, max_output_tokens: 16_384, has_effort: false, tools: &["shell", "search"] }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lesson_is_used_by_other_calls_for_a_day() {
        let dialects = dialects(Dialect::default());
        let mut call = dialects.of_call("m");
        assert!(call.correct(&refusal(400, RENAMED), false) && !call.correct(&refusal(400, RENAMED), false));
        assert_eq!(dialects.of_call("m").current(), Dialect::default(), "the provider has not taken it yet");
        call.succeeded();
        let renamed = Dialect { output_limit: Some(OutputLimit::MaxCompletionTokens), ..Dialect::default() };
        assert_eq!((dialects.of_call("m").current(), dialects.learned().len()), (renamed, 1));
        assert_eq!(dialects.of_call("another").current(), Dialect::default());
        tokio::time::advance(MAX_AGE).await;
        assert_eq!((dialects.of_call("m").current(), dialects.learned().len()), (Dialect::default(), 0));
        let mut call = dialects.of_call("m");
        assert!(call.correct(&refusal(400, TEMPERATURE), false));
        call.succeeded();
        tokio::time::advance(Duration::from_secs(1)).await;
        let current = dialects.of_call("m").current();
        assert_eq!(
            (current.output_limit, current.temperature),
            (None, Some(Field::Omit)),
            "an old lesson stays forgotten"
        );
    }

    /// A credit, the definition of a tool, and signed parts of one conversation say nothing of other calls.
    #[rstest]
    #[case(402, "fewer max_tokens: can only afford 2048", true)]
    #[case(400, "messages.1: Invalid signature in thinking block", true)]
    #[tokio::test]
    async fn some_corrections_are_for_one_call(#[case] status: u16, #[case] text: &str, #[case] has_native: bool) {
        let dialects = dialects(Dialect::default());
        let mut call = dialects.of_call("m");
        assert!(call.correct(&refusal(status, text), has_native));
        assert_ne!(call.current(), Dialect::default());
        call.succeeded();
        assert_eq!(dialects.of_call("m").current(), Dialect::default());
    }

    #[tokio::test]
    async fn definitions_that_are_refused_one_after_the_other_are_left_out() {
        let dialects = dialects(Dialect::default());
        let mut call = dialects.of_call("m");
        let bad = |name: &str| format!("Invalid schema for function '{name}'");
        assert!(call.correct(&refusal(400, &bad("shell")), false), "first all definitions are made plain");
        assert!(
            call.correct(&refusal(400, &bad("shell")), false) && call.correct(&refusal(400, &bad("search")), false)
        );
        assert_eq!(call.current().left_out_tools, Some(vec!["shell".to_owned(), "search".to_owned()]));
        call.succeeded();
        assert_eq!(dialects.of_call("m").current().left_out_tools, None);
    }

    /// A pinned property hides no other one that the same refusal is about.
    #[tokio::test]
    async fn the_first_property_that_is_open_is_corrected() {
        let dialects = dialects(Dialect { output_limit: Some(OutputLimit::MaxTokens), ..Dialect::default() });
        let mut call = dialects.of_call("m");
        let text =
            "'max_completion_tokens' is unsupported or too large: this model supports at most 4096 completion tokens";
        assert!(call.correct(&refusal(400, text), false));
        assert_eq!(call.current().max_output_tokens, Some(4_096));
    }
}
