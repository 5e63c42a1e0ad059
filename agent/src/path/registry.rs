//! The tools there are, each with its schema compiled once.
//!
//! Owns names and schemas being sound. Never decides who may call what.

use std::{collections::BTreeMap, fmt};

use jsonschema::Validator;
use protocol::ToolErrorKind;
use serde_json::Value;

use crate::{Tool, ToolError, ToolSpec};

/// What stands in for a sensitive parameter.
const REDACTED: &str = "[redacted]";

/// Longest name a provider's wire takes.
const MAX_NAME_BYTES: usize = 64;

/// Validation errors told to the model at once.
const MAX_TOLD_ERRORS: usize = 5;

/// The tools there are, by name.
#[derive(Default)]
pub struct ToolRegistry {
    entries: BTreeMap<String, Entry>,
}

/// A tool, what it said of itself, and its schema ready to check.
pub(crate) struct Entry {
    pub(crate) tool: Box<dyn Tool>,
    pub(crate) spec: ToolSpec,
    validator: Validator,
}

/// The tool cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Names are 1 to 64 of `A-Z a-z 0-9 _ -`.
    #[error("tool name {0:?} is not 1 to 64 of A-Z a-z 0-9 _ -")]
    Name(String),
    /// There is one by this name.
    #[error("tool {0:?} is registered already")]
    Taken(String),
    /// The schema of its parameters is no JSON Schema of an object.
    #[error("tool {name:?} has a bad parameter schema: {message}")]
    Schema {
        /// Whose.
        name: String,
        /// What is wrong with it.
        message: String,
    },
}

impl ToolRegistry {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool, or says what is wrong with it.
    pub fn register(&mut self, tool: Box<dyn Tool>) -> Result<(), RegisterError> {
        let spec = tool.spec();
        let name = spec.definition.name.clone();
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(sound) {
            return Err(RegisterError::Name(name));
        }
        if self.entries.contains_key(&name) {
            return Err(RegisterError::Taken(name));
        }
        let validator = compile(&spec.definition.parameters)
            .map_err(|message| RegisterError::Schema { name: name.clone(), message })?;
        self.entries.insert(name, Entry { tool, spec, validator });
        Ok(())
    }

    /// The tool of exactly this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// All of them, by name.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.keys()).finish()
    }
}

fn compile(schema: &Value) -> Result<Validator, String> {
    if schema.get("type") != Some(&Value::from("object")) {
        return Err("its type must be object".to_owned());
    }
    // Built without a resolver: a schema that refers elsewhere is refused here, not fetched.
    jsonschema::options().offline().build(schema).map_err(|error| error.to_string())
}

impl Entry {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.spec.definition.name
    }

    /// The arguments without what is sensitive. What is no object is hidden whole when there is something to hide.
    pub(crate) fn redact(&self, arguments: &Value) -> Value {
        if self.spec.sensitive.is_empty() {
            return arguments.clone();
        }
        let Value::Object(fields) = arguments else { return Value::from(REDACTED) };
        fields
            .iter()
            .map(|(key, value)| {
                let hidden = self.spec.sensitive.contains(&key.as_str());
                (key.clone(), if hidden { Value::from(REDACTED) } else { value.clone() })
            })
            .collect()
    }

    /// Whether the arguments fit the schema; if not, where and why, for the model.
    pub(crate) fn validate(&self, arguments: &Value) -> Result<(), ToolError> {
        let Value::Object(_) = arguments else {
            return Err(ToolError::new(ToolErrorKind::InvalidParameters, "the arguments must be one JSON object"));
        };
        let told: Vec<String> = self
            .validator
            .iter_errors(arguments)
            .take(MAX_TOLD_ERRORS)
            .map(|error| {
                let place = error.instance_path().to_string();
                // A value that does not fit may be a secret all the same.
                let what = if self.spec.sensitive.is_empty() { error.to_string() } else { error.masked().to_string() };
                if place.is_empty() { what } else { format!("{place}: {what}") }
            })
            .collect();
        if told.is_empty() {
            return Ok(());
        }
        Err(ToolError::new(ToolErrorKind::InvalidParameters, told.join("; ")))
    }
}
