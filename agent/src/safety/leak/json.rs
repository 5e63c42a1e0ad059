//! Redaction of JSON values in place: strings, keys, and numbers whose digits are a secret.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Finding, LeakDetector, REDACTED};

impl LeakDetector {
    /// Replaces every credential in the value. The findings are sorted and each is listed once.
    pub fn redact_json(&self, value: &mut Value) -> Vec<Finding> {
        let mut findings = BTreeSet::new();
        self.redact_value(value, &mut findings);
        findings.into_iter().collect()
    }

    fn redact_value(&self, value: &mut Value, findings: &mut BTreeSet<Finding>) {
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) => {
                if self.redact_string(&number.to_string(), findings).is_some() {
                    *value = Value::from(REDACTED);
                }
            }
            Value::String(text) => {
                if let Some(redacted) = self.redact_string(text, findings) {
                    *text = redacted;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_value(item, findings)),
            Value::Object(fields) => self.redact_fields(fields, findings),
        }
    }

    fn redact_fields(&self, fields: &mut Map<String, Value>, findings: &mut BTreeSet<Finding>) {
        fields.values_mut().for_each(|value| self.redact_value(value, findings));
        if fields.keys().all(|key| self.redact_string(key, findings).is_none()) {
            return;
        }
        for (key, value) in std::mem::take(fields) {
            let key = self.redact_string(&key, findings).unwrap_or(key);
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
    fn redact_string(&self, text: &str, findings: &mut BTreeSet<Finding>) -> Option<String> {
        let (redacted, found) = self.redact(text);
        findings.extend(found);
        (redacted != text).then(|| redacted.into_owned())
    }
}
