//! Older shapes of cron jobs, and those of other schedulers, become the present one.
//!
//! Owns which fields mean something else here, and which are left out with a warning. Never guesses: a field that it does not
//! know is an error.

use protocol::{AddCronJob, CronJobPatch, FieldError, RoutineWarning};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{LAST, WEBHOOK, invalid};
use crate::field_errors;

/// Objects that a job may be wrapped in.
const WRAPPERS: [&str; 2] = ["data", "job"];

/// Fields of a stored job that only its former scheduler can set.
const OF_RECORD: [&str; 5] = ["id", "jobId", "createdAtMs", "updatedAtMs", "state"];
/// Fields without a meaning here.
const IGNORED: [&str; 3] = ["agentId", "sessionKey", "deleteAfterRun"];
const IGNORED_IN_SCHEDULE: [&str; 1] = ["staggerMs"];
const IGNORED_IN_PAYLOAD: [&str; 7] =
    ["model", "fallbacks", "thinking", "lightContext", "allowUnsafeExternalContent", "bestEffortDeliver", "channel"];
const IGNORED_IN_DELIVERY: [&str; 3] = ["accountId", "bestEffort", "channel"];

/// The parameters of `cron.add`, and what of them is left out. A job that another scheduler stored is accepted.
pub fn added(params: Value) -> Result<(AddCronJob, Vec<RoutineWarning>), FieldError> {
    let mut job = unwrapped(params);
    if let Some(fields) = job.as_object_mut() {
        fields.retain(|name, _| !OF_RECORD.contains(&name.as_str()));
    }
    let ignored = normalize(&mut job)?;
    Ok((parse(&job)?, ignored))
}

/// The parameter `patch` of `cron.update`, and what of it is left out.
pub fn patch(params: Value) -> Result<(CronJobPatch, Vec<RoutineWarning>), FieldError> {
    let mut job = unwrapped(params);
    let ignored = normalize(&mut job)?;
    Ok((parse(&job)?, ignored))
}

fn parse<T: DeserializeOwned>(params: &Value) -> Result<T, FieldError> {
    // Serde reads a struct from a list as well.
    if !params.is_object() {
        return Err(invalid("params", "must be an object"));
    }
    field_errors::read(params, "params")
}

/// Adds the kinds that are clear from the fields beside them, and reads or leaves out what other schedulers write.
fn normalize(job: &mut Value) -> Result<Vec<RoutineWarning>, FieldError> {
    let mut ignored = Vec::new();
    let Some(job) = job.as_object_mut() else { return Ok(ignored) };
    ignore(job, "", &IGNORED, &mut ignored);
    if let Some(schedule) = job.get_mut("schedule").and_then(Value::as_object_mut) {
        ignore(schedule, "schedule.", &IGNORED_IN_SCHEDULE, &mut ignored);
        normalize_schedule(schedule)?;
    }
    let delivery = job.remove("delivery");
    if let Some(payload) = job.get_mut("payload").and_then(Value::as_object_mut) {
        infer_kind(payload, &[("text", "systemEvent"), ("message", "agentTurn")]);
        if is_to_channel(payload) {
            ignore(payload, "payload.", &["to"], &mut ignored);
        }
        ignore(payload, "payload.", &IGNORED_IN_PAYLOAD, &mut ignored);
        match delivery {
            None | Some(Value::Null) => {}
            Some(Value::Object(delivery)) => deliver(delivery, payload, &mut ignored)?,
            Some(_) => return Err(invalid("delivery", "must be an object")),
        }
    } else if delivery.is_some() {
        return Err(invalid("delivery", "needs the payload beside it"));
    }
    Ok(ignored)
}

/// Times may be texts, and numbers may have decimals.
fn normalize_schedule(schedule: &mut Map<String, Value>) -> Result<(), FieldError> {
    for name in ["at", "atMs"] {
        let Some(Value::String(text)) = schedule.get(name) else { continue };
        // Without an offset it is UTC.
        let instant = schedule::parse_instant(text).or_else(|| schedule::parse_instant(&format!("{text}Z")));
        let field = format!("schedule.{name}");
        let instant = instant.ok_or_else(|| invalid(&field, "must be a time, such as 2030-12-01T07:00:00Z"))?;
        schedule.remove(name);
        schedule.insert("atMs".to_owned(), instant.timestamp_millis().into());
    }
    for name in ["atMs", "everyMs", "anchorMs"] {
        let number = schedule.get(name).filter(|number| number.is_f64()).and_then(Value::as_f64);
        if let Some(whole) = number.and_then(|number| number.trunc().to_string().parse::<i64>().ok()) {
            schedule.insert(name.to_owned(), whole.into());
        }
    }
    if schedule.get("tz").is_some_and(|zone| zone.as_str() == Some("")) {
        schedule.remove("tz");
    }
    infer_kind(schedule, &[("atMs", "at"), ("everyMs", "every"), ("expr", "cron")]);
    Ok(())
}

/// Whether `to` is an address in a channel, and no URL.
fn is_to_channel(fields: &Map<String, Value>) -> bool {
    fields.get("channel").is_some_and(|channel| channel.is_string() && channel != WEBHOOK)
}

/// Writes the delivery of a job where this format has it: in the payload of a turn.
fn deliver(
    mut delivery: Map<String, Value>,
    payload: &mut Map<String, Value>,
    ignored: &mut Vec<RoutineWarning>,
) -> Result<(), FieldError> {
    let mode = delivery.remove("mode").unwrap_or_else(|| "announce".into());
    let is_sent = match mode.as_str() {
        Some("none") => false,
        Some("announce" | WEBHOOK) => true,
        _ => return Err(invalid("delivery.mode", "must be \"none\", \"announce\" or \"webhook\"")),
    };
    if payload.get("kind").is_some_and(|kind| kind == "agentTurn") {
        payload.insert("deliver".to_owned(), is_sent.into());
        if mode == WEBHOOK {
            payload.insert("provider".to_owned(), mode);
            payload.extend(delivery.remove("to").map(|to| ("to".to_owned(), to)));
        }
    } else if is_sent {
        ignored.push(ignored_field("delivery.mode"));
    }
    ignore(&mut delivery, "delivery.", &["to"], ignored);
    ignore(&mut delivery, "delivery.", &IGNORED_IN_DELIVERY, ignored);
    match delivery.keys().next() {
        Some(unknown) => Err(invalid(&format!("delivery.{unknown}"), "unknown field")),
        None => Ok(()),
    }
}

/// Removes fields, and tells of those that would have changed something.
fn ignore(fields: &mut Map<String, Value>, parent: &str, names: &[&str], ignored: &mut Vec<RoutineWarning>) {
    for name in names {
        let has_effect = match fields.remove(*name) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            // The user who is told is the one who wrote last.
            Some(value) => value != LAST,
        };
        if has_effect {
            ignored.push(ignored_field(&format!("{parent}{name}")));
        }
    }
}

fn ignored_field(field: &str) -> RoutineWarning {
    RoutineWarning {
        code: "field_ignored".to_owned(),
        field: field.to_owned(),
        detail: format!("{field} has no meaning here and is left out"),
    }
}

/// A job may be in `data` or `job`, alone.
fn unwrapped(mut params: Value) -> Value {
    for name in WRAPPERS {
        match params {
            Value::Object(mut fields) if fields.len() == 1 && fields.get(name).is_some_and(Value::is_object) => {
                params = fields.remove(name).unwrap_or_default();
            }
            other => params = other,
        }
    }
    params
}

/// Adds `kind` if it is absent and exactly one of the fields is there.
fn infer_kind(fields: &mut Map<String, Value>, kinds: &[(&str, &str)]) {
    if fields.contains_key("kind") {
        return;
    }
    let mut present = kinds.iter().filter(|(field, _)| fields.contains_key(*field)).map(|(_, kind)| *kind);
    if let (Some(kind), None) = (present.next(), present.next()) {
        fields.insert("kind".to_owned(), Value::String(kind.to_owned()));
    }
}
