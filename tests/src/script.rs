//! Scripts for the scripted model.

use serde_json::{Value, json};

/// A script that repeats the prompt.
pub fn echo_script() -> String {
    script_of(&[json!({"reply": {"text": "You said: {{last_message}}"}})])
}

/// A script of rules. JSON is valid YAML.
pub fn script_of(rules: &[Value]) -> String {
    json!({"model": "story-1", "rules": rules}).to_string()
}
