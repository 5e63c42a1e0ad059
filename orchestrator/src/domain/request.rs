//! What a job request must be: pure checks against the operator's ceiling, every wrong field told at once.
//!
//! Owns the bounds of a request and their numbers. Never touches disk, store or engine.

use std::collections::BTreeSet;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use protocol::{CreateJob, FieldError, InputFile, JobMode, Limits, LimitsRequest, MAX_METADATA_BYTES};

pub use protocol::limits::MAX_PROMPT_BYTES;
/// Longest title in characters.
pub const MAX_TITLE_CHARS: usize = 200;
/// Files given inline.
pub const MAX_FILES: usize = 1_000;
/// Their sum in bytes; more goes by tar.
pub const MAX_FILES_BYTES: usize = 16 * 1024 * 1024;
/// Longest path in bytes and longest component, as ext4 and tar have them.
pub const MAX_PATH_BYTES: usize = 1_024;
const MAX_COMPONENT_BYTES: usize = 255;
/// Folders within folders in a workspace: as deep as anything walks there.
pub const MAX_PATH_DEPTH: usize = 128;
/// Labels of a job, and of a filter.
pub const MAX_LABELS: usize = 64;
const MAX_LABEL_KEY_BYTES: usize = 63;
const MAX_LABEL_VALUE_BYTES: usize = 255;
const MAX_PRIORITY: i32 = 100;
/// As the operator's own ceiling at most.
const MAX_TOKENS: u64 = 1_000_000_000_000;
const MAX_COST_USD: f64 = 1_000_000.0;
const MAX_TOOLS: usize = 256;
const MAX_TOOL_NAME_BYTES: usize = 128;
/// Tools that the contract names and that are not built yet.
const TOOLS_TO_COME: &[&str] = &[
    "http",
    "memory_read",
    "memory_write",
    "memory_search",
    "memory_tree",
    "create_job",
    "list_jobs",
    "job_status",
    "job_events",
    "cancel_job",
    "job_prompt",
    "routine_create",
    "routine_list",
    "routine_update",
    "routine_delete",
    "routine_fire",
    "routine_history",
    "event_emit",
    "secret_list",
    "tool_list",
];
/// In the names of tools that MCP servers are to bring.
const MCP_SEPARATOR: &str = "__";
const DERIVED_TITLE_CHARS: usize = 80;

/// What the operator allows.
#[derive(Debug, Clone, PartialEq)]
pub struct Ceiling {
    /// The most of each limit; 0 in `max_tokens` and `max_cost_usd` = no ceiling.
    pub limits: Limits,
    /// The image a job gets that names none.
    pub default_image: String,
    /// Images a job may name.
    pub images: Vec<String>,
    /// The model a job gets that names none.
    pub default_model: String,
    /// Models a job may name.
    pub models: Vec<String>,
    /// Tools a job may name.
    pub tools: Vec<String>,
}

/// What an earlier job was allowed, as far as today's operator allows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Recalled {
    /// Each limit at most today's ceiling.
    pub limits: Limits,
    /// The old one, or today's default when it is no longer offered.
    pub image: String,
    /// The same.
    pub model: String,
    /// The tools that are still there.
    pub tools: Option<Vec<String>>,
    /// What is not as it was, in words; empty when nothing is.
    pub changes: Vec<String>,
}

impl Ceiling {
    /// Holds what an earlier job was allowed to today's ceilings.
    pub fn recall(&self, limits: &Limits, (image, model): (&str, &str), tools: Option<&[String]>) -> Recalled {
        let mut changes = Vec::new();
        let limits = self.cut(limits, &mut changes);
        let mut known = |what: &str, name: &str, default: &str, list: &[String]| {
            if name == default || list.iter().any(|one| one == name) {
                return name.to_owned();
            }
            changes.push(format!("{what} {name} is no longer offered: {default}"));
            default.to_owned()
        };
        let image = known("image", image, &self.default_image, &self.images);
        let model = known("model", model, &self.default_model, &self.models);
        let tools = tools.map(|tools| {
            let (kept, gone): (Vec<_>, Vec<_>) = tools.iter().cloned().partition(|tool| self.tools.contains(tool));
            if !gone.is_empty() {
                changes.push(format!("tools that are no longer offered: {}", gone.join(", ")));
            }
            kept
        });
        Recalled { limits, image, model, tools, changes }
    }

    fn cut(&self, old: &Limits, changes: &mut Vec<String>) -> Limits {
        let top = &self.limits;
        let mut whole = |name: &str, old: u64, top: u64| {
            if old > top {
                changes.push(format!("{name} {old} -> {top}"));
            }
            old.min(top)
        };
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let limits = Limits {
            timeout_seconds: whole("timeout_seconds", old.timeout_seconds, top.timeout_seconds),
            max_iterations: narrow(whole("max_iterations", old.max_iterations.into(), top.max_iterations.into())),
            max_tool_calls: narrow(whole("max_tool_calls", old.max_tool_calls.into(), top.max_tool_calls.into())),
            max_children: narrow(whole("max_children", old.max_children.into(), top.max_children.into())),
            memory_mb: whole("memory_mb", old.memory_mb, top.memory_mb),
            pids: narrow(whole("pids", old.pids.into(), top.pids.into())),
            disk_mb: whole("disk_mb", old.disk_mb, top.disk_mb),
            // 0 is no limit on either side.
            max_tokens: match (old.max_tokens, top.max_tokens) {
                (old, 0) => old,
                (0, top) => whole("max_tokens", u64::MAX, top),
                (old, top) => whole("max_tokens", old, top),
            },
            cpus: old.cpus.min(top.cpus),
            max_cost_usd: match (old.max_cost_usd, top.max_cost_usd) {
                (old, top) if top <= 0.0 => old,
                (old, top) if old <= 0.0 => top,
                (old, top) => old.min(top),
            },
        };
        for (name, old, new) in
            [("cpus", old.cpus, limits.cpus), ("max_cost_usd", old.max_cost_usd, limits.max_cost_usd)]
        {
            if (old - new).abs() > f64::EPSILON {
                let old = if old > 0.0 { old.to_string() } else { "no limit".to_owned() };
                changes.push(format!("{name} {old} -> {new}"));
            }
        }
        for change in changes {
            *change = change.replace(&u64::MAX.to_string(), "no limit");
        }
        limits
    }
}

/// A priority that jobs may have, nearest to an old one.
pub fn within_priorities(old: i32) -> i32 {
    old.clamp(-MAX_PRIORITY, MAX_PRIORITY)
}

/// A request that holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// Given or derived from the prompt.
    pub title: String,
    /// Every limit settled.
    pub limits: Limits,
    /// Settled.
    pub image: String,
    /// Settled.
    pub model: String,
    /// Decoded.
    pub files: Vec<WorkspaceFile>,
}

/// A file for the workspace, its path checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceFile {
    /// Relative, plain components only.
    pub path: String,
    /// The bytes.
    pub content: Vec<u8>,
}

/// A request that does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejected {
    /// Wrong fields.
    Invalid(Vec<FieldError>),
    /// A field whose feature is not there.
    NotAvailable(Vec<FieldError>),
}

/// Checks a request.
pub fn check(request: &CreateJob, ceiling: &Ceiling) -> Result<Accepted, Rejected> {
    let missing = not_available(request, ceiling);
    if !missing.is_empty() {
        return Err(Rejected::NotAvailable(missing));
    }
    let mut errors = Errors::default();
    check_text(request, &mut errors);
    check_tools(request, ceiling, &mut errors);
    check_lists(request, &mut errors);
    let limits = check_limits(request.limits.as_ref(), &ceiling.limits, &mut errors);
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
    Ok(Accepted { title, limits, image, model, files })
}

/// Checks a follow-up prompt's text.
pub fn check_prompt(field: &str, text: &str) -> Result<(), Rejected> {
    let mut errors = Errors::default();
    errors.prompt(field, text);
    if errors.0.is_empty() { Ok(()) } else { Err(Rejected::Invalid(errors.0)) }
}

#[derive(Default)]
struct Errors(Vec<FieldError>);

impl Errors {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), message: message.into() });
    }

    fn prompt(&mut self, field: &str, text: &str) {
        if text.trim().is_empty() {
            self.add(field, "must not be empty");
        } else if text.len() > MAX_PROMPT_BYTES {
            self.add(field, format!("must be at most {MAX_PROMPT_BYTES} bytes; put long texts into a file"));
        } else if text.contains('\0') {
            self.add(field, "must not contain NUL characters");
        }
    }
}

fn not_available(request: &CreateJob, ceiling: &Ceiling) -> Vec<FieldError> {
    let mut errors = Errors::default();
    for (index, name) in request.tools.iter().flatten().enumerate() {
        let is_to_come = TOOLS_TO_COME.contains(&name.as_str()) || name.contains(MCP_SEPARATOR);
        if is_to_come && is_tool_name(name) && !ceiling.tools.contains(name) {
            errors.add(format!("tools[{index}]"), "is not available in this version");
        }
    }
    if request.mode == Some(JobMode::Command) {
        errors.add("mode", "\"command\" is not available in this version; use \"worker\"");
    }
    if request.command.is_some() {
        errors.add("command", "is not available in this version");
    }
    if request.egress.as_ref().is_some_and(|egress| !egress.allow.is_empty() || !egress.inject.is_empty()) {
        errors.add("egress", "is not available in this version; jobs have no network");
    }
    if request.limits.as_ref().is_some_and(|limits| limits.max_children.unwrap_or(0) > 0) {
        errors.add("limits.max_children", "is not available in this version; leave it 0");
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

/// A name that nothing answers to would narrow the job without a word.
fn check_tools(request: &CreateJob, ceiling: &Ceiling, errors: &mut Errors) {
    let Some(tools) = &request.tools else { return };
    if tools.len() > MAX_TOOLS {
        errors.add("tools", format!("must name at most {MAX_TOOLS} tools"));
        return;
    }
    for (index, name) in tools.iter().enumerate() {
        if !is_tool_name(name) {
            errors.add(format!("tools[{index}]"), "must be a tool's name: letters, digits, _ - .");
        } else if !ceiling.tools.contains(name) {
            errors.add(format!("tools[{index}]"), format!("must be one of the tools: {}", ceiling.tools.join(", ")));
        }
    }
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
            let shown: String = key.chars().take(MAX_LABEL_KEY_BYTES).collect();
            errors.add(format!("labels.{shown}"), rule);
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

/// Checks a label's key.
pub fn check_label_key(key: &str) -> Result<(), String> {
    let plain = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/'));
    if plain && (1..=MAX_LABEL_KEY_BYTES).contains(&key.len()) {
        return Ok(());
    }
    Err(format!("the key must be 1 to {MAX_LABEL_KEY_BYTES} of letters, digits, _ - . /"))
}

fn choose(field: &str, asked: Option<&str>, default: &str, list: &[String], errors: &mut Errors) -> String {
    match asked {
        None => default.to_owned(),
        Some(name) if name == default || list.iter().any(|known| known == name) => name.to_owned(),
        Some(_) => {
            let mut known: Vec<&str> = vec![default];
            known.extend(list.iter().map(String::as_str).filter(|name| *name != default));
            errors.add(field, format!("must be one of the operator's: {}", known.join(", ")));
            default.to_owned()
        }
    }
}

fn check_limits(asked: Option<&LimitsRequest>, ceiling: &Limits, errors: &mut Errors) -> Limits {
    let default = Limits::default();
    let empty = LimitsRequest::default();
    let asked = asked.unwrap_or(&empty);
    let mut whole = |field: &str, asked: Option<u64>, default: u64, floor: u64, top: u64| -> u64 {
        match asked {
            // A default above the ceiling is no mistake of the caller's.
            None => default.min(top),
            Some(value) if value < floor || value > top => {
                errors.add(format!("limits.{field}"), format!("must be from {floor} to {top}"));
                default
            }
            Some(value) => value,
        }
    };
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let wide = |value: Option<u32>| value.map(u64::from);
    let (d, c) = (&default, ceiling);
    let mut limits = Limits {
        timeout_seconds: whole("timeout_seconds", asked.timeout_seconds, d.timeout_seconds, 1, c.timeout_seconds),
        max_iterations: narrow(whole(
            "max_iterations",
            wide(asked.max_iterations),
            d.max_iterations.into(),
            1,
            c.max_iterations.into(),
        )),
        max_tool_calls: narrow(whole(
            "max_tool_calls",
            wide(asked.max_tool_calls),
            d.max_tool_calls.into(),
            1,
            c.max_tool_calls.into(),
        )),
        // 16 MiB is what the worker itself needs to start with room to spare.
        memory_mb: whole("memory_mb", asked.memory_mb, d.memory_mb, 16, c.memory_mb),
        // init, worker, its threads, a shell.
        pids: narrow(whole("pids", wide(asked.pids), d.pids.into(), 16, c.pids.into())),
        disk_mb: whole("disk_mb", asked.disk_mb, d.disk_mb, 1, c.disk_mb),
        // 0 on either side is no limit of its own.
        max_tokens: match asked.max_tokens {
            None | Some(0) => c.max_tokens,
            value => whole("max_tokens", value, 0, 1, if c.max_tokens == 0 { MAX_TOKENS } else { c.max_tokens }),
        },
        max_cost_usd: c.max_cost_usd,
        max_children: 0,
        cpus: d.cpus.min(c.cpus),
    };
    if let Some(cpus) = asked.cpus {
        if cpus.is_finite() && (0.01..=c.cpus).contains(&cpus) {
            limits.cpus = cpus;
        } else {
            errors.add("limits.cpus", format!("must be from 0.01 to {}", c.cpus));
        }
    }
    if let Some(cost) = asked.max_cost_usd.filter(|cost| *cost != 0.0) {
        let top = if c.max_cost_usd == 0.0 { MAX_COST_USD } else { c.max_cost_usd };
        // Money is counted in micro-dollars.
        if cost.is_finite() && (0.000_001..=top).contains(&cost) {
            limits.max_cost_usd = cost;
        } else {
            errors.add("limits.max_cost_usd", format!("must be 0 or from 0.000001 to {top}"));
        }
    }
    limits
}

fn check_files(files: &[InputFile], errors: &mut Errors) -> Vec<WorkspaceFile> {
    if files.len() > MAX_FILES {
        errors.add("files", format!("must be at most {MAX_FILES}"));
        return vec![];
    }
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    let mut checked = Vec::with_capacity(files.len());
    let mut total = 0;
    for (index, file) in files.iter().enumerate() {
        let field = format!("files[{index}]");
        if let Err(rule) = check_path(&file.path) {
            errors.add(format!("{field}.path"), rule);
            continue;
        }
        if !taken.insert(&file.path) {
            errors.add(format!("{field}.path"), "is given twice");
        }
        let content = match (&file.content, &file.content_base64) {
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(encoded)) => match BASE64_STANDARD.decode(encoded) {
                Ok(bytes) => bytes,
                Err(error) => {
                    errors.add(format!("{field}.content_base64"), format!("is not padded standard base64: {error}"));
                    continue;
                }
            },
            _ => {
                errors.add(field, "must have exactly one of content and content_base64");
                continue;
            }
        };
        total += content.len();
        checked.push(WorkspaceFile { path: file.path.clone(), content });
    }
    if total > MAX_FILES_BYTES {
        errors.add("files", format!("must be at most {MAX_FILES_BYTES} bytes together"));
    }
    for path in &taken {
        let below = format!("{path}/");
        if taken.range(below.as_str()..).next().is_some_and(|next| next.starts_with(&below)) {
            errors.add("files", format!("{path:?} is both a file and a folder"));
        }
    }
    checked
}

/// A path inside the workspace: relative, plain components, no trick that another program might read differently.
pub fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("must not be empty");
    }
    if path.len() > MAX_PATH_BYTES {
        return Err("must be at most 1024 bytes");
    }
    if path.chars().any(char::is_control) || path.contains('\\') {
        return Err("must not contain control characters or backslashes");
    }
    if path.starts_with('/') {
        return Err("must be relative to the workspace");
    }
    if path.split('/').count() > MAX_PATH_DEPTH {
        return Err("must be at most 128 folders deep");
    }
    for component in path.split('/') {
        match component {
            "" => return Err("must not have empty components or end in /"),
            "." | ".." => return Err("must not have . or .. components"),
            long if long.len() > MAX_COMPONENT_BYTES => return Err("must have components of at most 255 bytes"),
            _ => {}
        }
    }
    Ok(())
}

fn derive_title(prompt: &str) -> String {
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let clean: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().count() <= DERIVED_TITLE_CHARS {
        return clean;
    }
    clean.chars().take(DERIVED_TITLE_CHARS - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests;
