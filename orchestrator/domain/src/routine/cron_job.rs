//! Cron jobs: routines with a schedule in the shape of the calls `cron.*`, and their older shapes. Pure.

mod normalize;
mod shown;
#[cfg(test)]
mod tests;

use chrono::{DateTime, Utc};
use protocol::{
    AddCronJob, CreateRoutine, CronJobPatch, CronPayload, CronRuntime, CronSchedule, FieldError, Guardrails,
    LightweightAction, Notify, Routine, RoutineAction, RoutineId, RoutinePatch, RoutineSession, RoutineTrigger,
    RoutineWarning, WakeMode,
};
use serde_json::{Map, Value, json};

pub use normalize::{added, patch};
pub use shown::{CronJobFacts, LastRun, MAX_SHOWN_CHARS, run_entry, shown};

/// Rounds of tool calls of an agent's turn.
const TOOL_ROUNDS: u32 = 20;
/// The provider that posts to a URL, and the one that tells the user only.
const WEBHOOK: &str = "webhook";
const LAST: &str = "last";
/// Longest name of a routine in characters.
const MAX_NAME_CHARS: usize = 128;
/// Output tokens of each model call of an agent's turn: the default of the API.
const MAX_TOKENS: u32 = 4096;

fn invalid(field: &str, message: impl Into<String>) -> FieldError {
    FieldError { field: field.to_owned(), message: message.into() }
}

/// The error about a field of a routine as one about the field of its cron job.
pub fn job_error(FieldError { field, message }: FieldError) -> FieldError {
    // Times of a cron job are in milliseconds.
    let unit = if field == "guardrails.retry.backoff_seconds" { " seconds" } else { "" };
    FieldError { field: job_field(&field).to_owned(), message: format!("{message}{unit}") }
}

/// The field of a cron job that a field of its routine was made of.
pub fn job_field(field: &str) -> &str {
    match field {
        "trigger.schedule" => "schedule.expr",
        "trigger.timezone" => "schedule.tz",
        "trigger.at" => "schedule.atMs",
        "trigger.every_seconds" => "schedule.everyMs",
        "trigger.anchor" => "schedule.anchorMs",
        "action.prompt" | "action.description" => "payload.message",
        "action.text" => "payload.text",
        "deliver" | "notify.on_attention" => "payload.deliver",
        "notify.webhook_url" => "payload.to",
        "guardrails.timeout_seconds" => "payload.timeoutSeconds",
        "guardrails.retry.max_attempts" => "runtime.maxAttempts",
        "guardrails.retry.backoff_seconds" => "runtime.retryBackoffMs",
        "session" => "sessionTarget",
        "wake_mode" => "wakeMode",
        "post_to_main_prefix" => "isolation.postToMainPrefix",
        other if other.starts_with("action") => "payload",
        other => other,
    }
}

/// The routine of a new cron job. `max_tool_rounds` is the operator's limit.
pub fn to_routine(id: RoutineId, job: AddCronJob, max_tool_rounds: u32) -> Result<CreateRoutine, FieldError> {
    let is_turn = matches!(job.payload, CronPayload::AgentTurn { .. });
    let session = job.session_target.unwrap_or(if is_turn { RoutineSession::Isolated } else { RoutineSession::Main });
    let mut guardrails = Guardrails::default();
    if let Some(attempts) = job.runtime.max_attempts {
        guardrails.retry.max_attempts = attempts;
    }
    if let Some(backoff) = job.runtime.retry_backoff_ms {
        guardrails.retry.backoff_seconds = seconds("runtime.retryBackoffMs", backoff)?;
    }
    let mut notify = Notify::default();
    let mut delivers = false;
    let action = match job.payload {
        CronPayload::SystemEvent { text } => RoutineAction::SystemEventText { text },
        CronPayload::AgentTurn { message, deliver, provider, to, timeout_seconds } => {
            check_message(&message)?;
            check_target(provider.as_deref(), to.as_deref())?;
            delivers = deliver.unwrap_or(false);
            check_delivery(to.as_deref(), delivers)?;
            notify.on_attention = delivers;
            notify.webhook_url = to;
            guardrails.timeout_seconds = timeout_seconds;
            RoutineAction::Lightweight(turn(format!("{}{message}", prefix(id, &job.name)), max_tool_rounds))
        }
    };
    Ok(CreateRoutine {
        name: job.name,
        description: job.description,
        enabled: job.enabled,
        trigger: trigger(job.schedule)?,
        action,
        guardrails,
        notify,
        session: Some(session),
        wake_mode: WakeMode::from(job.wake_mode),
        deliver: delivers,
        post_to_main: is_turn,
        post_to_main_prefix: job.isolation.post_to_main_prefix,
        persist_payload: None,
    })
}

/// The prompt has a prefix, so it is never empty itself.
fn check_message(message: &str) -> Result<(), FieldError> {
    if message.trim().is_empty() { Err(invalid("payload.message", "must not be empty")) } else { Ok(()) }
}

/// Nothing is posted without `deliver`.
fn check_delivery(to: Option<&str>, delivers: bool) -> Result<(), FieldError> {
    if to.is_some() && !delivers {
        return Err(invalid("payload.to", "nothing is posted to it unless `deliver` is true; add it"));
    }
    Ok(())
}

fn turn(prompt: String, max_tool_rounds: u32) -> LightweightAction {
    LightweightAction {
        prompt,
        context_paths: Vec::new(),
        max_tokens: MAX_TOKENS,
        use_tools: true,
        max_tool_rounds: TOOL_ROUNDS.min(max_tool_rounds),
        tools: None,
        approve: Vec::new(),
        model: None,
        effort: None,
    }
}

/// Tells that an agent's turn has fewer rounds than cron jobs have, since the operator allows no more.
pub fn lowered_rounds(action: &RoutineAction, max_tool_rounds: u32) -> Option<RoutineWarning> {
    let RoutineAction::Lightweight(turn) = action else { return None };
    let is_lowered = max_tool_rounds < TOOL_ROUNDS && turn.use_tools && turn.max_tool_rounds == max_tool_rounds;
    is_lowered.then(|| RoutineWarning {
        code: "tool_rounds_lowered".to_owned(),
        field: "payload".to_owned(),
        detail: format!(
            "the run has {max_tool_rounds} rounds of tool calls instead of {TOOL_ROUNDS}: the operator allows no more \
             (routines.max_tool_rounds)"
        ),
    })
}

/// The patch of the routine that `patch` of its cron job means.
pub fn to_patch(routine: &Routine, patch: CronJobPatch, max_tool_rounds: u32) -> Result<RoutinePatch, FieldError> {
    let mut changes = Map::new();
    let mut set = |name: &str, value: Value| drop(changes.insert(name.to_owned(), value));
    let name = patch.name.as_deref().unwrap_or(&routine.name);
    if let Some(action) = changed_action(routine, name, patch.payload.as_ref(), max_tool_rounds) {
        if action.kind() != routine.action.kind() {
            let is_line = matches!(action, RoutineAction::SystemEventText { .. });
            set("session", Value::Null);
            set("post_to_main", Value::Bool(!is_line));
        }
        set("action", json!(action));
    }
    if let Some(CronPayload::AgentTurn { message, deliver, provider, to, timeout_seconds }) = &patch.payload {
        check_message(message)?;
        check_target(provider.as_deref(), to.as_deref())?;
        check_delivery(to.as_deref(), deliver.unwrap_or(routine.deliver))?;
        let mut notify = Map::new();
        if let Some(deliver) = deliver {
            set("deliver", Value::Bool(*deliver));
            notify.insert("on_attention".to_owned(), Value::Bool(*deliver));
        }
        if to.is_some() || *deliver == Some(false) || provider.as_deref() == Some(LAST) {
            notify.insert("webhook_url".to_owned(), json!(to));
        }
        if !notify.is_empty() {
            set("notify", Value::Object(notify));
        }
        if let Some(timeout) = timeout_seconds {
            set("guardrails", json!({"timeout_seconds": timeout}));
        }
    }
    let fields = [
        ("trigger", patch.schedule.map(trigger).transpose()?.map(|trigger| json!(trigger))),
        ("name", patch.name.clone().map(Value::String)),
        ("description", patch.description.map(Value::String)),
        ("enabled", patch.enabled.map(Value::Bool)),
        ("session", patch.session_target.map(|session| json!(session))),
        ("wake_mode", patch.wake_mode.map(|mode| json!(WakeMode::from(mode)))),
        ("post_to_main_prefix", patch.isolation.and_then(|isolation| isolation.post_to_main_prefix).map(Value::String)),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            set(name, value);
        }
    }
    if let Some(retry) = patch.runtime.map(retry).transpose()?.filter(|retry| !retry.is_empty()) {
        let guardrails = changes.entry("guardrails").or_insert_with(|| json!({}));
        guardrails["retry"] = Value::Object(retry);
    }
    Ok(changes)
}

fn retry(runtime: CronRuntime) -> Result<Map<String, Value>, FieldError> {
    let mut retry = Map::new();
    if let Some(attempts) = runtime.max_attempts {
        retry.insert("max_attempts".to_owned(), json!(attempts));
    }
    if let Some(backoff) = runtime.retry_backoff_ms {
        retry.insert("backoff_seconds".to_owned(), json!(seconds("runtime.retryBackoffMs", backoff)?));
    }
    Ok(retry)
}

/// The action with another payload or the routine's new name; `None` if it stays as it is. What a payload does not say
/// is kept.
fn changed_action(
    routine: &Routine,
    name: &str,
    payload: Option<&CronPayload>,
    max_tool_rounds: u32,
) -> Option<RoutineAction> {
    let prefixed = |message: &str| format!("{}{message}", prefix(routine.id, name));
    let action = match (payload, &routine.action) {
        (Some(CronPayload::SystemEvent { text }), _) => RoutineAction::SystemEventText { text: text.clone() },
        (Some(CronPayload::AgentTurn { message, .. }), RoutineAction::FullJob(job)) => {
            let mut job = job.clone();
            job.description.clone_from(message);
            RoutineAction::FullJob(job)
        }
        (Some(CronPayload::AgentTurn { message, .. }), RoutineAction::Lightweight(light)) => {
            RoutineAction::Lightweight(LightweightAction { prompt: prefixed(message), ..light.clone() })
        }
        (Some(CronPayload::AgentTurn { message, .. }), RoutineAction::SystemEventText { .. }) => {
            RoutineAction::Lightweight(turn(prefixed(message), max_tool_rounds))
        }
        (None, RoutineAction::Lightweight(light)) if name != routine.name => {
            let message = without_prefix(routine.id, &routine.name, &light.prompt)?;
            RoutineAction::Lightweight(LightweightAction { prompt: prefixed(message), ..light.clone() })
        }
        (None, _) => return None,
    };
    (action != routine.action).then_some(action)
}

fn trigger(schedule: CronSchedule) -> Result<RoutineTrigger, FieldError> {
    Ok(match schedule {
        CronSchedule::At { at_ms } => RoutineTrigger::At { at: time("schedule.atMs", at_ms)? },
        CronSchedule::Every { every_ms, anchor_ms } => RoutineTrigger::Every {
            every_seconds: seconds("schedule.everyMs", every_ms)?,
            anchor: anchor_ms.map(|anchor| time("schedule.anchorMs", anchor)).transpose()?,
        },
        CronSchedule::Cron { expr, tz } => RoutineTrigger::Cron { schedule: expr, timezone: tz },
    })
}

fn time(field: &str, milliseconds: i64) -> Result<DateTime<Utc>, FieldError> {
    DateTime::from_timestamp_millis(milliseconds).ok_or_else(|| invalid(field, "is not a time"))
}

fn seconds(field: &str, milliseconds: u64) -> Result<u64, FieldError> {
    if milliseconds.is_multiple_of(1_000) {
        Ok(milliseconds / 1_000)
    } else {
        Err(invalid(field, "must be a multiple of 1000"))
    }
}

fn check_target(provider: Option<&str>, to: Option<&str>) -> Result<(), FieldError> {
    match (provider, to) {
        (None | Some(WEBHOOK), Some(_)) | (None | Some(LAST), None) => Ok(()),
        (Some(WEBHOOK), None) => Err(invalid("payload.to", "must be a URL with the provider \"webhook\"")),
        (Some(LAST), Some(_)) => Err(invalid("payload.to", "needs the provider \"webhook\"")),
        (Some(_), _) => Err(invalid("payload.provider", "must be \"last\" or \"webhook\"")),
    }
}

/// What the prompt of an agent's turn begins with.
fn prefix(id: RoutineId, name: &str) -> String {
    format!("[cron:{id}] {}: ", name.trim())
}

/// The message of an agent's turn; `None` if the prompt does not begin as one. The name may have been changed by
/// another way.
fn without_prefix<'p>(id: RoutineId, name: &str, prompt: &'p str) -> Option<&'p str> {
    prompt.strip_prefix(&prefix(id, name)).or_else(|| {
        let named = prompt.strip_prefix(&format!("[cron:{id}] "))?;
        named.split_once(": ").map(|(_, message)| message)
    })
}

/// The name with a number, for a name that is taken: names of cron jobs need not be unique.
pub fn numbered_name(name: &str, number: u32) -> String {
    let suffix = format!(" ({number})");
    let kept: String = name.trim().chars().take(MAX_NAME_CHARS - suffix.len()).collect();
    format!("{}{suffix}", kept.trim_end())
}
