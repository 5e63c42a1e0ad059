//! Scripts for the scripted model, written short.

use serde_json::{Value, json};

/// Answers with what it was told.
pub fn echo_script() -> String {
    script_of(&[json!({"reply": {"text": "You said: {{last_message}}"}})])
}

/// Of rules; JSON is YAML.
pub fn script_of(rules: &[Value]) -> String {
    json!({"model": "story-1", "rules": rules}).to_string()
}
