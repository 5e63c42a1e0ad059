//! Older shapes of cron jobs become the present one.

use protocol::{AddCronJob, CronJobPatch, FieldError};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::invalid;

/// Objects that a job may be wrapped in.
const WRAPPERS: [&str; 2] = ["data", "job"];

/// The parameters of `cron.add`.
pub fn added(params: Value) -> Result<AddCronJob, FieldError> {
    parse(normalized(params))
}

/// The parameter `patch` of `cron.update`.
pub fn patch(params: Value) -> Result<CronJobPatch, FieldError> {
    parse(normalized(params))
}

fn parse<T: DeserializeOwned>(params: Value) -> Result<T, FieldError> {
    // Serde reads a struct from a list as well.
    if !params.is_object() {
        return Err(invalid("params", "must be an object"));
    }
    serde_path_to_error::deserialize(params).map_err(|error| {
        let path = error.path().to_string();
        invalid(if path == "." { "params" } else { &path }, error.inner().to_string())
    })
}

/// Unwraps the job and adds the kinds that are clear from the fields beside them.
fn normalized(params: Value) -> Value {
    let mut job = unwrapped(params);
    if let Some(schedule) = job.get_mut("schedule").and_then(Value::as_object_mut) {
        infer_kind(schedule, &[("atMs", "at"), ("everyMs", "every"), ("expr", "cron")]);
    }
    if let Some(payload) = job.get_mut("payload").and_then(Value::as_object_mut) {
        infer_kind(payload, &[("text", "systemEvent"), ("message", "agentTurn")]);
    }
    job
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
