//! Registered tools, each with its parameter schema compiled once.
//!
//! Guarantees that names and schemas are valid. Never decides who may call what.

use std::{collections::BTreeMap, fmt, sync::Arc};

use jsonschema::Validator;
use protocol::{ToolDomain, ToolErrorKind, limits::MAX_TOOL_ARGUMENT_BYTES};
use serde_json::Value;

use super::context::folded;
use crate::{ApprovalRequirement, Tool, ToolError, ToolSpec};

/// Maximum length of a tool name: the shortest limit among the providers' wires (OpenAI and Anthropic).
const MAX_NAME_BYTES: usize = 64;

/// Maximum number of validation errors reported to the model for one call.
const MAX_REPORTED_ERRORS: usize = 5;

/// A set of tools by name. Cloning copies references only, so a registry can be composed for each turn.
#[derive(Clone, Default)]
pub struct ToolRegistry {
    tools: BTreeMap<Arc<str>, Arc<RegisteredTool>>,
    /// Why tools that are not offered are not there, by name.
    withheld: BTreeMap<Arc<str>, Arc<str>>,
}

/// A tool with its specification and its compiled parameter schema. Shared by every registry that contains it.
pub struct RegisteredTool {
    tool: Box<dyn Tool>,
    spec: ToolSpec,
    validator: Validator,
}

/// A tool that cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The name is not 1 to 64 of `A-Z a-z 0-9 _ -`.
    #[error("tool name {0:?} is not 1 to 64 of A-Z a-z 0-9 _ -")]
    Name(String),
    /// The registry has a tool of this name, or of one that differs in case or separators only.
    #[error("tool {0:?} is already registered, or differs from a registered one in case or separators only")]
    Duplicate(String),
    /// The parameter schema is not a valid JSON Schema of type object.
    #[error("tool {name:?} has an invalid parameter schema: {message}")]
    Schema {
        /// The tool's name.
        name: String,
        /// The error of the schema compiler.
        message: String,
    },
}

impl ToolRegistry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compiles and adds a tool.
    pub fn register(&mut self, tool: Box<dyn Tool>) -> Result<(), RegisterError> {
        self.add(Arc::new(RegisteredTool::new(tool)?))
    }

    /// Adds a tool that is already compiled.
    pub fn add(&mut self, tool: Arc<RegisteredTool>) -> Result<(), RegisterError> {
        let name = folded(tool.name());
        if self.tools.keys().any(|known| folded(known) == name) {
            return Err(RegisterError::Duplicate(tool.name().to_owned()));
        }
        self.tools.insert(Arc::from(tool.name()), tool);
        Ok(())
    }

    /// A call of a tool that is not there fails with this reason. The tool is not listed.
    pub fn withhold(&mut self, name: &str, reason: &str) {
        self.withheld.insert(Arc::from(name), Arc::from(reason));
    }

    /// Why a tool that is not there is withheld, if it is.
    pub(super) fn withheld(&self, name: &str) -> Option<&str> {
        self.withheld.get(name).map(|reason| &**reason)
    }

    /// The same registry without the tool of this name.
    #[must_use]
    pub fn without(&self, name: &str) -> Self {
        let mut rest = self.clone();
        rest.tools.remove(name);
        rest
    }

    /// Iterates over the tools, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<RegisteredTool>> {
        self.tools.values()
    }

    /// Returns the tool of exactly this name.
    pub(super) fn get(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        self.tools.get(name)
    }
}

impl fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}

impl RegisteredTool {
    /// Checks the tool's name and compiles its schema.
    pub fn new(tool: Box<dyn Tool>) -> Result<Self, RegisterError> {
        let spec = tool.spec();
        let name = &spec.definition.name;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(allowed) {
            return Err(RegisterError::Name(name.clone()));
        }
        let accepted = tool.accepted_parameters();
        let validator = compile(accepted.as_ref().unwrap_or(&spec.definition.parameters))
            .map_err(|message| RegisterError::Schema { name: name.clone(), message })?;
        Ok(Self { tool, spec, validator })
    }

    /// The tool's name.
    pub fn name(&self) -> &str {
        &self.spec.definition.name
    }

    /// The tool's declaration.
    pub const fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// The approval that a call without arguments needs; some arguments may need more.
    pub fn default_requirement(&self) -> ApprovalRequirement {
        self.approval(&Value::Object(serde_json::Map::new()))
    }

    pub(super) fn tool(&self) -> &dyn Tool {
        self.tool.as_ref()
    }

    pub(super) fn approval(&self, arguments: &Value) -> ApprovalRequirement {
        self.tool.approval(arguments).unwrap_or(self.spec.approval)
    }

    /// Validates the arguments against the schema and, where they are kept by the orchestrator, their size. The error
    /// names each place and problem for the model.
    pub(super) fn validate(&self, arguments: &Value) -> Result<(), ToolError> {
        let Value::Object(_) = arguments else {
            return Err(ToolError::new(ToolErrorKind::InvalidParameters, "the arguments must be one JSON object"));
        };
        self.check_size(arguments)?;
        let errors: Vec<String> = self
            .validator
            .iter_errors(arguments)
            .take(MAX_REPORTED_ERRORS)
            .map(|error| {
                let place = error.instance_path().to_string();
                // A value that fails validation can still be a credential, and the model knows what it sent.
                let problem = error.masked().to_string();
                if place.is_empty() { problem } else { format!("{place}: {problem}") }
            })
            .collect();
        if errors.is_empty() {
            return Ok(());
        }
        Err(ToolError::new(ToolErrorKind::InvalidParameters, errors.join("; ")))
    }

    fn check_size(&self, arguments: &Value) -> Result<(), ToolError> {
        if self.spec.definition.domain != ToolDomain::Orchestrator {
            return Ok(());
        }
        let bytes = arguments.to_string().len();
        if bytes <= MAX_TOOL_ARGUMENT_BYTES {
            return Ok(());
        }
        let message = format!("the arguments have {bytes} bytes; a call takes at most {MAX_TOOL_ARGUMENT_BYTES}");
        Err(ToolError::new(ToolErrorKind::InvalidParameters, message))
    }
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredTool").field("spec", &self.spec).finish_non_exhaustive()
    }
}

fn compile(schema: &Value) -> Result<Validator, String> {
    if schema.get("type") != Some(&Value::from("object")) {
        return Err("its type must be object".to_owned());
    }
    // Built without a resolver: a schema with a remote reference is refused here, not fetched.
    let options = jsonschema::options().offline().should_validate_formats(true);
    // Linear in the text: a schema can come from a server that is not trusted.
    let options = options.with_pattern_options(jsonschema::PatternOptions::regex());
    let mut schema = schema.clone();
    remove_look_around(&mut schema);
    options.build(&schema).map_err(|error| error.to_string())
}

/// Removes the patterns that the engine cannot match. The one who sent the schema checks them.
fn remove_look_around(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|keyword, value| {
                if keyword == "pattern" && value.as_str().is_some_and(has_look_around) {
                    return false;
                }
                // A schema that accepts more would make these refuse more.
                let before = ["not", "if", "oneOf"].contains(&keyword.as_str()).then(|| value.clone());
                remove_look_around(value);
                before.is_none_or(|before| before == *value)
            });
            if let Some(Value::Object(patterns)) = fields.get_mut("patternProperties") {
                let count = patterns.len();
                patterns.retain(|pattern, _| !has_look_around(pattern));
                if patterns.len() < count {
                    // Matches each name, as the pattern might have.
                    patterns.insert(String::new(), Value::Bool(true));
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(remove_look_around),
        _ => {}
    }
}

fn has_look_around(pattern: &str) -> bool {
    let unescaped = pattern.replace(r"\\", "").replace(r"\(", "");
    ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|opening| unescaped.contains(opening))
}
