//! Redaction of JSON values in place: strings, keys, and numbers whose digits are a secret.

use std::{borrow::Cow, collections::BTreeSet};

use serde_json::{Map, Value};

use super::{Finding, LeakAction, LeakDetector, LeakSource, Marker, REDACTED};

impl LeakDetector {
    /// Replaces every credential in the value. The findings are sorted and each is listed once.
    pub fn redact_json(&self, value: &mut Value) -> Vec<Finding> {
        self.redact_values(value, |_| REDACTED.into())
    }

    /// As [`Self::redact_json`], for the arguments of a tool call: the marker names the stored secret, because a call runs
    /// with it, and its reader has to know why.
    pub fn redact_arguments(&self, arguments: &mut Value) -> Vec<Finding> {
        self.redact_values(arguments, named_marker)
    }

    fn redact_values(&self, value: &mut Value, marker: Marker) -> Vec<Finding> {
        let mut redaction = JsonRedaction { detector: self, marker, findings: BTreeSet::new() };
        redaction.value(value);
        redaction.findings.into_iter().collect()
    }
}

/// `[redacted:NAME]`, which can be a part of a URL, with the names of the stored secrets that were found in a text, if there were any.
fn named_marker(findings: &[Finding]) -> Cow<'static, str> {
    let name = |finding: &Finding| match &finding.source {
        LeakSource::StoredSecret(name) if finding.action >= LeakAction::Redact => Some(name.clone()),
        LeakSource::StoredSecret(_) | LeakSource::Format(_) => None,
    };
    let names: Vec<String> = findings.iter().filter_map(name).collect();
    if names.is_empty() { REDACTED.into() } else { format!("[redacted:{}]", names.join(",")).into() }
}

/// A pass over one value.
struct JsonRedaction<'d> {
    detector: &'d LeakDetector,
    marker: Marker,
    findings: BTreeSet<Finding>,
}

impl JsonRedaction<'_> {
    fn value(&mut self, value: &mut Value) {
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) => {
                if let Some(redacted) = self.string(&number.to_string()) {
                    *value = redacted.into();
                }
            }
            Value::String(text) => {
                if let Some(redacted) = self.string(text) {
                    *text = redacted;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(fields) => self.fields(fields),
        }
    }

    fn fields(&mut self, fields: &mut Map<String, Value>) {
        fields.values_mut().for_each(|value| self.value(value));
        if fields.keys().all(|key| self.string(key).is_none()) {
            return;
        }
        for (key, value) in std::mem::take(fields) {
            let key = self.string(&key).unwrap_or(key);
            // Several keys may be redacted to the same text.
            let mut unique = key.clone();
            let mut number = 2;
            while fields.contains_key(&unique) {
                unique = format!("{key} ({number})");
                number += 1;
            }
            fields.insert(unique, value);
        }
    }

    /// The redacted text, if it differs.
    fn string(&mut self, text: &str) -> Option<String> {
        let (redacted, found) = self.detector.redact_as(text, self.marker);
        self.findings.extend(found);
        (redacted != text).then(|| redacted.into_owned())
    }
}
