//! The dialects of one provider's models: what is known before the first call, what the operator sets, and what refusals
//! taught. Keeps them in memory. Never makes a call.

mod correct;
mod presets;

use std::{collections::BTreeMap, time::Duration};

use config::Dialect;
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
        CallDialect { dialects: self, model: model.to_owned(), base, corrected: Dialect::default(), corrections: 0 }
    }

    /// What is remembered of each model, as the operator would set it.
    pub(crate) fn learned(&self) -> BTreeMap<String, Value> {
        let learned = self.learned.lock();
        let current = learned.iter().filter(|(_, learned)| learned.at.elapsed() < MAX_AGE);
        current.map(|(model, learned)| (model.clone(), serde_json::json!(learned.dialect))).collect()
    }

    fn remember(&self, model: &str, corrected: &Dialect) {
        let mut learned = self.learned.lock();
        let known = learned.remove(model).map(|learned| learned.dialect).unwrap_or_default();
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
    corrections: usize,
}

impl CallDialect<'_> {
    pub(crate) fn current(&self) -> Dialect {
        self.dialects.pinned.clone().or(&self.corrected).or(&self.base)
    }

    /// Takes over what a refusal says. False if that is nothing new, or of a property that was corrected in this call or is
    /// pinned.
    pub(crate) fn correct(&mut self, refusal: &Refusal<'_>) -> bool {
        let Some(correction) = correct::correct(&self.current(), refusal) else { return false };
        let is_repeated = correction.overlaps(&self.corrected) || correction.overlaps(&self.dialects.pinned);
        if is_repeated || self.corrections == MAX_CORRECTIONS {
            return false;
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
        if self.corrections > 0 {
            self.dialects.remember(&self.model, &self.corrected);
        }
    }
}
