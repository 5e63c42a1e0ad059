//! Definitions of routines: which are valid, what their defaults are, and how a patch changes them. Pure.
//!
//! Reports every invalid field at once. Secrets are checked here and stored elsewhere.

use chrono::{DateTime, Utc};
use protocol::{
    CreateRoutine, FieldError, Guardrails, LightweightAction, Notify, RoutineAction, RoutineActionKind, RoutinePatch,
    RoutineSession, RoutineTrigger, WebhookTrigger,
};
use serde_json::Value;

use base::Zone;
use schedule::normalize;

use super::{matching::Matcher, signature::check_secret};
use crate::{
    field_errors,
    memory::MemoryPath,
    request::{self, Ceiling, Errors},
};

/// Longest description in characters.
const MAX_DESCRIPTION_CHARS: usize = 4_000;
/// Longest line for a main session in bytes.
pub const MAX_LINE_BYTES: usize = 16 * 1024;
/// Longest path of a webhook.
const MAX_PATH_CHARS: usize = 64;
/// Longest prefix of a summary and longest channel, in characters.
const MAX_LABEL_CHARS: usize = 64;
/// Longest URL in bytes.
const MAX_URL_BYTES: usize = 2_048;
/// Seconds in a year: no wait of a routine is longer.
const YEAR_SECONDS: u64 = 366 * 86_400;
/// Most runs of a routine at the same time.
const MAX_CONCURRENT: u32 = 100;
/// Most attempts of a run.
const MAX_ATTEMPTS: u32 = 20;
/// The maximum number of missed times that are caught up.
const MAX_CATCH_UP: u32 = 100;
/// Most rounds of tool calls, whatever the operator allows.
const MAX_TOOL_ROUNDS: u32 = 20;
/// Highest `max_tokens` of a call.
const MAX_CALL_TOKENS: u32 = 1_000_000;

/// What the operator allows in definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefinitionLimits {
    /// Minimum interval in seconds between two times of a schedule.
    pub min_interval_seconds: u64,
    /// Maximum rounds of tool calls of a lightweight run.
    pub max_tool_rounds: u32,
    /// Maximum length of a name in characters.
    pub max_name_chars: usize,
    /// Maximum size of a prompt in bytes.
    pub max_prompt_bytes: usize,
    /// Maximum size of a condition in bytes.
    pub max_condition_bytes: usize,
    /// Maximum documents that a lightweight action reads.
    pub max_context_paths: usize,
}

/// What a definition is checked against.
#[derive(Clone, Copy)]
pub struct DefinitionBounds<'b> {
    /// What jobs may ask for.
    pub ceiling: &'b Ceiling,
    /// What the operator allows.
    pub limits: &'b DefinitionLimits,
    /// The zone of a schedule that names none.
    pub zone: Zone,
    pub now: DateTime<Utc>,
    pub created_at: DateTime<Utc>,
    /// Whether a schedule may be in the past: one that is not changed may.
    pub keeps_trigger: bool,
}

/// A valid definition with its defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedDefinition {
    /// The request, with its trigger normalized.
    pub request: CreateRoutine,
    pub session: RoutineSession,
    /// Whether payloads are kept.
    pub persist_payload: bool,
}

/// Validates a definition.
pub fn check(mut request: CreateRoutine, bounds: &DefinitionBounds<'_>) -> Result<CheckedDefinition, Vec<FieldError>> {
    let mut errors = Errors::default();
    request.name = request.name.trim().into();
    errors.line("name", &request.name, bounds.limits.max_name_chars);
    if request.description.as_ref().is_some_and(|text| text.chars().count() > MAX_DESCRIPTION_CHARS) {
        errors.add("description", format!("must be at most {MAX_DESCRIPTION_CHARS} characters"));
    }
    request.trigger = check_trigger(request.trigger, bounds, &mut errors);
    check_action(&request, bounds, &mut errors);
    check_guardrails(&request.guardrails, &mut errors);
    check_notify(&request.notify, &mut errors);
    if let Some(prefix) = &request.post_to_main_prefix {
        errors.line("post_to_main_prefix", prefix, MAX_LABEL_CHARS);
    }
    let kind = request.action.kind();
    let session = check_session(request.session, kind, &mut errors);
    let persist_payload = request.persist_payload.unwrap_or(kind == RoutineActionKind::FullJob);
    if kind == RoutineActionKind::FullJob && !persist_payload {
        errors.add("persist_payload", "must not be false for a full job: the job's prompt holds what fired it");
    }
    if errors.0.is_empty() { Ok(CheckedDefinition { request, session, persist_payload }) } else { Err(errors.0) }
}

fn check_session(session: Option<RoutineSession>, kind: RoutineActionKind, errors: &mut Errors) -> RoutineSession {
    let is_line = kind == RoutineActionKind::SystemEventText;
    let default = if is_line { RoutineSession::Main } else { RoutineSession::Isolated };
    let session = session.unwrap_or(default);
    if session != default {
        let detail = if is_line {
            "must be \"main\" for the action system_event_text"
        } else {
            "must be \"isolated\" for this action; \"main\" takes only system_event_text"
        };
        errors.add("session", detail);
    }
    session
}

fn check_trigger(trigger: RoutineTrigger, bounds: &DefinitionBounds<'_>, errors: &mut Errors) -> RoutineTrigger {
    if bounds.keeps_trigger && trigger.kind().is_schedule() {
        return trigger;
    }
    let kind = trigger.kind();
    let DefinitionBounds { zone, now, created_at, limits, .. } = *bounds;
    let trigger = match normalize(trigger.clone(), zone, now, created_at, limits.min_interval_seconds) {
        Ok(trigger) => trigger,
        Err(error) => {
            errors.add(error.field(kind), error.to_string());
            trigger
        }
    };
    let condition = match &trigger {
        RoutineTrigger::Webhook(webhook) => {
            check_webhook(webhook, errors);
            &webhook.r#where
        }
        RoutineTrigger::SystemEvent { r#where, .. } => r#where,
        _ => &None,
    };
    let max = bounds.limits.max_condition_bytes;
    if condition.as_ref().is_some_and(|text| text.len() > max) {
        errors.add("trigger.where", format!("must be at most {max} bytes"));
        return trigger;
    }
    if let Err(invalid) = Matcher::compile(&trigger) {
        errors.add(format!("trigger.{}", invalid.field), invalid.detail);
    }
    trigger
}

fn check_webhook(webhook: &WebhookTrigger, errors: &mut Errors) {
    let is_path = |path: &str| {
        (1..=MAX_PATH_CHARS).contains(&path.len())
            && path.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    };
    if webhook.path.as_deref().is_some_and(|path| !is_path(path)) {
        errors.add("trigger.path", format!("must be 1 to {MAX_PATH_CHARS} of a-z, 0-9 and -"));
    }
    if let Some(secret) = &webhook.secret {
        errors.secret("trigger.secret", secret);
    }
}

fn check_action(request: &CreateRoutine, bounds: &DefinitionBounds<'_>, errors: &mut Errors) {
    match &request.action {
        RoutineAction::Lightweight(action) => check_lightweight(action, bounds, errors),
        RoutineAction::FullJob(action) => {
            let asked = action.as_ref().clone().into_request(&request.name, action.description.clone());
            let rejected = request::check(&asked, bounds.ceiling).err();
            let fields = rejected.iter().flat_map(request::Rejected::fields);
            errors.text("action.description", &action.description, bounds.limits.max_prompt_bytes);
            for field in fields.filter(|field| field.field != "prompt") {
                errors.add(format!("action.{}", field.field), field.message.clone());
            }
        }
        RoutineAction::SystemEventText { text } => errors.text("action.text", text, MAX_LINE_BYTES),
    }
}

fn check_lightweight(action: &LightweightAction, bounds: &DefinitionBounds<'_>, errors: &mut Errors) {
    errors.text("action.prompt", &action.prompt, bounds.limits.max_prompt_bytes);
    let max = bounds.limits.max_context_paths;
    if action.context_paths.len() > max {
        errors.add("action.context_paths", format!("must have at most {max} paths"));
    }
    for (index, path) in action.context_paths.iter().enumerate() {
        if let Err(rule) = MemoryPath::parse(path) {
            errors.add(format!("action.context_paths[{index}]"), rule);
        }
    }
    errors.range("action.max_tokens", action.max_tokens.into(), 1, MAX_CALL_TOKENS.into());
    if action.use_tools && action.max_tool_rounds > bounds.limits.max_tool_rounds {
        let detail =
            format!("must be 1 to {} (the operator's routines.max_tool_rounds)", bounds.limits.max_tool_rounds);
        errors.add("action.max_tool_rounds", detail);
    } else {
        errors.range("action.max_tool_rounds", action.max_tool_rounds.into(), 1, MAX_TOOL_ROUNDS.into());
    }
    for field in request::check_tool_lists(action.tools.as_deref(), &action.approve, bounds.ceiling) {
        errors.add(format!("action.{}", field.field), field.message);
    }
    let ceiling = bounds.ceiling;
    request::choose("action.model", action.model.as_deref(), &ceiling.default_model, &ceiling.models, errors);
}

fn check_guardrails(guardrails: &Guardrails, errors: &mut Errors) {
    let seconds = [
        ("cooldown_seconds", Some(guardrails.cooldown_seconds), 0),
        ("dedup_window_seconds", guardrails.dedup_window_seconds, 1),
        ("catch_up_window_seconds", Some(guardrails.catch_up_window_seconds), 0),
        ("retry.backoff_seconds", Some(guardrails.retry.backoff_seconds), 0),
        ("retry.backoff_max_seconds", Some(guardrails.retry.backoff_max_seconds), 0),
        ("timeout_seconds", guardrails.timeout_seconds, 1),
        ("stagger_seconds", Some(guardrails.stagger_seconds), 0),
    ];
    for (name, value, min) in seconds {
        if let Some(value) = value {
            errors.range(format!("guardrails.{name}"), value, min, YEAR_SECONDS);
        }
    }
    errors.range("guardrails.max_concurrent", guardrails.max_concurrent.into(), 1, MAX_CONCURRENT.into());
    errors.range("guardrails.catch_up_max", guardrails.catch_up_max.into(), 1, MAX_CATCH_UP.into());
    errors.range("guardrails.retry.max_attempts", guardrails.retry.max_attempts.into(), 1, MAX_ATTEMPTS.into());
    if guardrails.max_runs == Some(0) {
        errors.add("guardrails.max_runs", "must be at least 1");
    }
    let Some(budget) = guardrails.budget else { return };
    if budget.max_tokens.is_none() && budget.max_cost_usd.is_none() {
        errors.add("guardrails.budget", "must have max_tokens or max_cost_usd");
    }
    if budget.max_tokens == Some(0) {
        errors.add("guardrails.budget.max_tokens", "must be at least 1");
    }
    if budget.max_cost_usd.is_some_and(|cost| !cost.is_finite() || cost <= 0.0) {
        errors.add("guardrails.budget.max_cost_usd", "must be a positive number");
    }
}

fn check_notify(notify: &Notify, errors: &mut Errors) {
    if let Some(channel) = &notify.channel {
        errors.line("notify.channel", channel, MAX_LABEL_CHARS);
    }
    if notify.webhook_url.as_ref().is_some_and(|url| url.len() > MAX_URL_BYTES) {
        errors.add("notify.webhook_url", format!("must be at most {MAX_URL_BYTES} bytes"));
    }
    match &notify.webhook_secret {
        Some(_) if notify.webhook_url.is_none() => {
            errors.add("notify.webhook_secret", "must be left out without notify.webhook_url");
        }
        Some(secret) => errors.secret("notify.webhook_secret", secret),
        None => {}
    }
}

/// Applies a merge patch to a definition. `trigger` and `action` are replaced as a whole, and a new action has its own
/// defaults of `session` and `persist_payload`.
pub fn apply_patch(current: &CreateRoutine, patch: RoutinePatch) -> Result<CreateRoutine, FieldError> {
    let unreadable = |error: serde_json::Error| FieldError { field: String::new(), message: error.to_string() };
    let kind = current.action.kind();
    let mut document = serde_json::to_value(current).map_err(unreadable)?;
    let changes_action = patch.contains_key("action");
    let keeps = (patch.contains_key("session"), patch.contains_key("persist_payload"));
    if let Value::Object(members) = &mut document {
        for (name, value) in patch {
            match (name.as_str(), value) {
                (_, Value::Null) => {
                    members.shift_remove(&name);
                }
                ("trigger" | "action", value) => {
                    members.insert(name, value);
                }
                (_, value) => merge(members.entry(name).or_insert(Value::Null), value),
            }
        }
    }
    let mut patched: CreateRoutine = field_errors::read(&document, "patch")?;
    if changes_action && patched.action.kind() != kind {
        (patched.session, patched.persist_payload) =
            (patched.session.filter(|_| keeps.0), patched.persist_payload.filter(|_| keeps.1));
    }
    Ok(patched)
}

/// A merge patch (RFC 7396).
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(members) = target else { return };
    for (name, value) in patch {
        if value.is_null() {
            members.shift_remove(&name);
        } else {
            merge(members.entry(name).or_insert(Value::Null), value);
        }
    }
}

impl Errors {
    fn line(&mut self, field: &str, text: &str, max_chars: usize) {
        if text.trim().is_empty() {
            self.add(field, "must not be empty");
        } else if text.chars().count() > max_chars {
            self.add(field, format!("must be at most {max_chars} characters"));
        } else if text.chars().any(char::is_control) {
            self.add(field, "must not contain control characters");
        }
    }

    fn text(&mut self, field: &str, text: &str, max_bytes: usize) {
        if text.trim().is_empty() {
            self.add(field, "must not be empty");
        } else if text.len() > max_bytes {
            self.add(field, format!("must be at most {max_bytes} bytes"));
        }
    }

    fn secret(&mut self, field: &str, secret: &str) {
        if let Err(invalid) = check_secret(secret) {
            self.add(field, invalid.to_string());
        }
    }

    fn range(&mut self, field: impl Into<String>, value: u64, min: u64, max: u64) {
        if value < min || value > max {
            self.add(field, format!("must be {min} to {max}"));
        }
    }
}

#[cfg(test)]
mod tests;
