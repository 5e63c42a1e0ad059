//! Validation of job requests against the operator's ceilings. Reports every invalid field at once.
//!
//! Owns the bounds of a request. Pure: never accesses the disk, the store or the engine.

mod ceiling;
mod child;
mod files;
mod limits;
mod tool_list;

use std::fmt;

use protocol::{CreateJob, FieldError, JobMode, Limits, limits::MAX_METADATA_BYTES};

pub use ceiling::{Ceiling, RestrictedSettings, within_priorities};
pub use child::{ChildRequest, check_child};
pub use files::{MAX_FILES, WorkspaceFile};
pub use protocol::limits::MAX_PROMPT_BYTES;
pub use protocol::limits::{MAX_PATH_BYTES, MAX_PATH_DEPTH};
pub use tool_list::{ToolSelection, all_tools_of, entry_name, server_of_all};

use self::{
    files::check_files,
    limits::check_limits,
    tool_list::{is_mixed, server_of},
};

/// Longest title in characters.
pub const MAX_TITLE_CHARS: usize = 200;
/// Maximum number of labels of a job, and of a filter.
pub const MAX_LABELS: usize = 64;
const MAX_LABEL_KEY_BYTES: usize = 63;
const MAX_LABEL_VALUE_BYTES: usize = 255;
/// Maximum absolute value of a priority.
pub const MAX_PRIORITY: i32 = 100;
/// Maximum number of tools in a list.
pub const MAX_TOOLS: usize = 256;
const MAX_TOOL_NAME_BYTES: usize = 128;
/// Tools that an installation may not have: without a destination that the operator allows there is no `http`.
const TOOLS_TO_COME: &[&str] = &["http"];
/// Why a list of tools is refused that both narrows and adds.
const MIXED_TOOLS: &str = "must not mix entries with + and without: NAME alone allows only the tools that are listed, +NAME adds \
                           them to the built-in ones; write + before every entry or before none";
const DERIVED_TITLE_CHARS: usize = 80;

/// A valid request with its defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// The given title, or one derived from the prompt.
    pub title: String,
    pub limits: Limits,
    pub image: String,
    pub model: String,
    /// Whether the work starts with a plan.
    pub plan: bool,
    /// The input files, decoded.
    pub files: Vec<WorkspaceFile>,
}

/// Why a request is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejected {
    Invalid(Vec<FieldError>),
    /// Fields whose feature is not available.
    NotAvailable(Vec<FieldError>),
    /// Presets of hosts that this installation does not have.
    PresetUnknown(Vec<FieldError>),
}

impl Rejected {
    /// The errors, of whichever kind.
    pub fn fields(&self) -> &[FieldError] {
        match self {
            Self::Invalid(fields) | Self::NotAvailable(fields) | Self::PresetUnknown(fields) => fields,
        }
    }
}

impl std::error::Error for Rejected {}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> =
            self.fields().iter().map(|FieldError { field, message }| format!("{field}: {message}")).collect();
        f.write_str(&lines.join("; "))
    }
}

/// Validates a request.
pub fn check(request: &CreateJob, ceiling: &Ceiling) -> Result<Accepted, Rejected> {
    let missing = not_available(request, ceiling);
    if !missing.is_empty() {
        return Err(Rejected::NotAvailable(missing));
    }
    let mut errors = Errors::default();
    check_text(request, &mut errors);
    check_tools(request.tools.as_deref(), &request.approve, ceiling, &mut errors);
    check_lists(request, &mut errors);
    let limits = check_limits(request.limits.as_ref(), ceiling, &mut errors);
    let image = choose("image", request.image.as_deref(), &ceiling.default_image, &ceiling.images, &mut errors);
    let model = choose("model", request.model.as_deref(), &ceiling.default_model, &ceiling.models, &mut errors);
    let files = check_files(&request.files, &mut errors);
    if !errors.0.is_empty() {
        return Err(Rejected::Invalid(errors.0));
    }
    let title = match request.title.as_deref().map(str::trim) {
        Some(title) if !title.is_empty() => title.to_owned(),
        _ => derive_title(&request.prompt),
    };
    let plan = request.plan.unwrap_or(ceiling.default_plan);
    Ok(Accepted { title, limits, image, model, plan, files })
}

/// Refuses what only a container has, for a job that runs without one.
pub fn check_without_container(request: &CreateJob) -> Result<(), Rejected> {
    let mut errors = Errors::default();
    let named = [
        ("files", !request.files.is_empty()),
        ("image", request.image.is_some()),
        ("egress", request.egress.is_some()),
    ];
    for (field, _) in named.into_iter().filter(|(_, is_given)| *is_given) {
        errors.add(field, "must be left out: the sandbox is disabled, so the job runs without a container");
    }
    if errors.0.is_empty() { Ok(()) } else { Err(Rejected::Invalid(errors.0)) }
}

/// Validates the text of a follow-up prompt.
pub fn check_prompt(field: &str, text: &str) -> Result<(), Rejected> {
    let mut errors = Errors::default();
    errors.prompt(field, text);
    if errors.0.is_empty() { Ok(()) } else { Err(Rejected::Invalid(errors.0)) }
}

/// The length of a text inside a JSON string. Prompts are recorded in events of limited size, and JSON writes most
/// control characters in six bytes.
fn escaped_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len() - 2)
}

/// The invalid fields of a request.
#[derive(Default)]
pub(crate) struct Errors(pub(crate) Vec<FieldError>);

impl Errors {
    pub(crate) fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), message: message.into() });
    }

    fn prompt(&mut self, field: &str, text: &str) {
        if text.trim().is_empty() {
            self.add(field, "must not be empty");
        } else if text.len() > MAX_PROMPT_BYTES {
            self.add(field, format!("must be at most {MAX_PROMPT_BYTES} bytes; put long texts into a file"));
        } else if text.contains('\0') {
            self.add(field, "must not contain NUL characters");
        } else if escaped_bytes(text) > 2 * MAX_PROMPT_BYTES {
            self.add(
                field,
                format!("must be at most {} bytes as JSON; remove control characters", 2 * MAX_PROMPT_BYTES),
            );
        }
    }
}

/// Checks the lists `tools` and `approve` of work without a person, as they are in a request for a job.
pub(crate) fn check_tool_lists(tools: Option<&[String]>, approve: &[String], ceiling: &Ceiling) -> Vec<FieldError> {
    let mut errors = Errors::default();
    check_available_tools(tools, ceiling, &mut errors);
    if errors.0.is_empty() {
        check_tools(tools, approve, ceiling, &mut errors);
    }
    errors.0
}

fn check_available_tools(tools: Option<&[String]>, ceiling: &Ceiling, errors: &mut Errors) {
    for (index, entry) in tools.into_iter().flatten().enumerate() {
        let name = entry_name(entry);
        let is_to_come = TOOLS_TO_COME.contains(&name) || server_of(name).is_some();
        if is_to_come && is_tool_entry(name) && !ceiling.offers(name) {
            let reason = match server_of(name) {
                Some(server) => {
                    format!("there is no MCP server {server:?}; `gantry tool list` shows those that there are")
                }
                None => "is not available in this version".to_owned(),
            };
            errors.add(format!("tools[{index}]"), reason);
        }
    }
}

fn not_available(request: &CreateJob, ceiling: &Ceiling) -> Vec<FieldError> {
    let mut errors = Errors::default();
    check_available_tools(request.tools.as_deref(), ceiling, &mut errors);
    if request.mode == Some(JobMode::Command) {
        errors.add("mode", "\"command\" is not available in this version; use \"worker\"");
    }
    if request.command.is_some() {
        errors.add("command", "is not available in this version");
    }
    if request.egress.as_ref().is_some_and(|egress| !egress.inject.is_empty()) {
        errors.add("egress.inject", "is not available in this version");
    }
    errors.0
}

fn check_text(request: &CreateJob, errors: &mut Errors) {
    errors.prompt("prompt", &request.prompt);
    if let Some(title) = &request.title {
        if title.chars().count() > MAX_TITLE_CHARS {
            errors.add("title", format!("must be at most {MAX_TITLE_CHARS} characters"));
        }
        if title.chars().any(char::is_control) {
            errors.add("title", "must be one line without control characters");
        }
    }
    if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&request.priority) {
        errors.add("priority", format!("must be from -{MAX_PRIORITY} to {MAX_PRIORITY}"));
    }
}

/// An unknown tool is an error: it would silently restrict the job, or approve nothing.
fn check_tools(tools: Option<&[String]>, approve: &[String], ceiling: &Ceiling, errors: &mut Errors) {
    let tools = tools.unwrap_or_default();
    if is_mixed(tools) {
        errors.add("tools", MIXED_TOOLS);
    }
    for (index, name) in within_max("tools", tools, errors).iter().map(|entry| entry_name(entry)).enumerate() {
        let field = || format!("tools[{index}]");
        if !is_tool_entry(name) {
            errors
                .add(field(), "must be a tool name: letters, digits, _ - .; or SERVER__*, all tools of an MCP server");
        } else if !ceiling.offers(name) {
            errors.add(field(), format!("must be one of the tools: {}", ceiling.tools.join(", ")));
        }
    }
    for (index, name) in within_max("approve", approve, errors).iter().enumerate() {
        let field = || format!("approve[{index}]");
        if !is_tool_name(name) {
            errors.add(field(), "must be a tool name: letters, digits, _ - .");
        } else if !ceiling.offers(name) && !agent::is_denied_to_jobs(name) {
            errors.add(field(), format!("must be one of the tools: {}", ceiling.tools.join(", ")));
        }
    }
}

/// The list; empty if it has too many entries, which is an error.
fn within_max<'a>(field: &str, list: &'a [String], errors: &mut Errors) -> &'a [String] {
    if list.len() <= MAX_TOOLS {
        return list;
    }
    errors.add(field, format!("must name at most {MAX_TOOLS} tools"));
    &[]
}

/// Whether this is the name of a tool, or stands for all tools of a server.
fn is_tool_entry(name: &str) -> bool {
    is_tool_name(server_of_all(name).unwrap_or(name))
}

fn is_tool_name(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-' || b == b'.');
    plain && (1..=MAX_TOOL_NAME_BYTES).contains(&name.len())
}

fn check_lists(request: &CreateJob, errors: &mut Errors) {
    if request.labels.len() > MAX_LABELS {
        errors.add("labels", format!("must be at most {MAX_LABELS}"));
    }
    for (key, value) in &request.labels {
        if let Err(rule) = check_label_key(key) {
            let shortened: String = key.chars().take(MAX_LABEL_KEY_BYTES).collect();
            errors.add(format!("labels.{shortened}"), rule);
        }
        if value.len() > MAX_LABEL_VALUE_BYTES || value.chars().any(char::is_control) {
            let rule = format!("must be at most {MAX_LABEL_VALUE_BYTES} bytes without control characters");
            errors.add(format!("labels.{key}"), rule);
        }
    }
    if request.metadata.as_json().len() > MAX_METADATA_BYTES {
        errors.add("metadata", format!("must be at most {MAX_METADATA_BYTES} bytes of JSON"));
    }
    if request.metadata.as_json().contains("\\u0000") {
        errors.add("metadata", "must not contain NUL characters");
    }
}

/// Validates a label key.
pub fn check_label_key(key: &str) -> Result<(), String> {
    let plain = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/'));
    if plain && (1..=MAX_LABEL_KEY_BYTES).contains(&key.len()) {
        return Ok(());
    }
    Err(format!("the key must be 1 to {MAX_LABEL_KEY_BYTES} of letters, digits, _ - . /"))
}

/// The value that is asked for, if it is the default or in the list. Without one the default; another one is an error that lists them.
pub(crate) fn choose(field: &str, asked: Option<&str>, default: &str, list: &[String], errors: &mut Errors) -> String {
    match asked {
        None => default.to_owned(),
        Some(name) if name == default || list.iter().any(|known| known == name) => name.to_owned(),
        Some(_) => {
            let mut known: Vec<&str> = vec![default];
            known.extend(list.iter().map(String::as_str).filter(|name| *name != default));
            errors.add(field, format!("must be one of: {}", known.join(", ")));
            default.to_owned()
        }
    }
}

/// The title of a job that was given none: the first line of its prompt.
pub fn derive_title(prompt: &str) -> String {
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let clean: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().count() <= DERIVED_TITLE_CHARS {
        return clean;
    }
    clean.chars().take(DERIVED_TITLE_CHARS - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests;
