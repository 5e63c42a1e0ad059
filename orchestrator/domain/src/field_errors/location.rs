//! Finds the value that an error is about, where the error's path ends above it: the contents of a tagged union are read without a
//! path.
//!
//! Why by search: serde keeps the contents of a tagged union in a buffer and reads them from there, which `serde_path_to_error` cannot
//! see. The message shows the value, so the only equal value below the path is the one. An ambiguous value leaves the path of the
//! union, which is right but less exact. `an_error_in_a_tagged_union_names_the_field` below fails when the messages change.

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::wording;

/// The path of the only value below `path` that `message` can be about; none if that is not certain. An unknown field's path is that of
/// its object.
pub fn find(body: &Value, path: &str, message: &str) -> Option<String> {
    let value = at(body, path)?;
    let fields = value.as_object()?;
    let root = if path == "." { "" } else { path };
    let mut paths = vec![];
    if let Some((name, _)) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
        if fields.contains_key(name) {
            return None;
        }
        collect(value, root, &|value| value.get(name).is_some(), &mut paths);
    } else if wording::TIME_ERRORS.contains(&message) {
        // Only strings of the object itself: its type is one of them, and known to be right.
        let is_it = |value: &Value| value.as_str().is_some_and(|text| time_error(text).as_deref() == Some(message));
        let strings = fields.iter().filter(|(name, value)| *name != "type" && is_it(value));
        paths.extend(strings.map(|(name, _)| child(root, name)));
    } else {
        let found = found_value(message)?;
        if shown(value) == found {
            return None;
        }
        collect(value, root, &|value| shown(value) == found, &mut paths);
    }
    let mut paths = paths.into_iter();
    paths.next().filter(|_| paths.next().is_none())
}

/// What the parser of times says about a text.
fn time_error(text: &str) -> Option<String> {
    text.parse::<DateTime<Utc>>().err().map(|error| error.to_string())
}

/// The value in a deserializer's message, as the message shows it.
fn found_value(message: &str) -> Option<String> {
    let (start, _) = message.rsplit_once(", expected ")?;
    if let Some(variant) = start.strip_prefix("unknown variant `") {
        return Some(format!("string {:?}", variant.strip_suffix('`')?));
    }
    let found = start.strip_prefix("invalid type: ").or_else(|| start.strip_prefix("invalid value: "))?;
    Some(if found == "unit value" { "null".to_owned() } else { found.to_owned() })
}

/// A value as a deserializer's message shows it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("boolean `{value}`"),
        Value::Number(number) if number.is_f64() => format!("floating point `{number}`"),
        Value::Number(number) => format!("integer `{number}`"),
        Value::String(text) => format!("string {text:?}"),
        Value::Array(_) => "sequence".to_owned(),
        Value::Object(_) => "map".to_owned(),
    }
}

/// The value at a path such as `a.b[0].c`; `.` is the body itself.
fn at<'v>(body: &'v Value, path: &str) -> Option<&'v Value> {
    let mut value = body;
    for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
        value = match part.strip_suffix(']') {
            Some(index) => value.get(index.parse::<usize>().ok()?)?,
            None => value.get(part)?,
        };
    }
    Some(value)
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The paths of the values below `value`, not within each other, that are `sought`.
fn collect(value: &Value, path: &str, sought: &impl Fn(&Value) -> bool, paths: &mut Vec<String>) {
    let mut visit = |value: &Value, path: String| {
        if sought(value) {
            paths.push(path);
        } else {
            collect(value, &path, sought, paths);
        }
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| visit(value, child(path, name))),
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                visit(value, format!("{path}[{index}]"));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use protocol::CreateRoutine;
    use rstest::rstest;

    use crate::field_errors::read;

    const ACTION: &str = r#"{"type":"lightweight","prompt":"p"}"#;

    #[rstest]
    #[case(r#"{"type":"sometimes"}"#, ACTION, "trigger.type: must be one of ")]
    #[case(
        r#"{"type":"every","every_seconds":"x"}"#,
        ACTION,
        "trigger.every_seconds: must be an integer of at least 0"
    )]
    #[case(r#"{"type":"every","every_seconds":-1}"#, ACTION, "trigger.every_seconds: must be an integer of at least 0")]
    #[case(
        r#"{"type":"every","every_seconds":null}"#,
        ACTION,
        "trigger.every_seconds: must be an integer of at least 0"
    )]
    #[case(r#"{"type":"every"}"#, ACTION, "trigger.every_seconds: is required")]
    #[case(r#"{"type":"every","every_seconds":60,"evry":1}"#, ACTION, "trigger.evry: unknown field; the fields are ")]
    #[case("{}", ACTION, "trigger.type: is required")]
    #[case(r#""daily""#, ACTION, "trigger: must be an object")]
    #[case(
        r#"{"type":"manual"}"#,
        r#"{"type":"full_job","description":"d","limits":{"pids":"many"}}"#,
        "action.limits.pids: must be an integer of at least 0"
    )]
    #[case(r#"{"type":"every","every_seconds":60,"anchor":"tomorrow"}"#, ACTION, "trigger.anchor: must be a time ")]
    #[case(r#"{"type":"at","at":"2026-13-01T07:00:00Z"}"#, ACTION, "trigger.at: must be a time ")]
    #[case(
        r#"{"type":"manual"}"#,
        r#"{"type":"full_job","description":"d","limits":{"timeout":60}}"#,
        "action.limits.timeout: unknown field; the fields are "
    )]
    fn an_error_in_a_tagged_union_names_the_field(#[case] trigger: &str, #[case] action: &str, #[case] detail: &str) {
        let body = format!(r#"{{"name":"n","trigger":{trigger},"action":{action}}}"#);
        let error = read::<CreateRoutine>(&serde_json::from_str(&body).unwrap(), "body").unwrap_err();
        let text = format!("{}: {}", error.field, error.message);
        assert!(text.starts_with(detail), "{text}");
    }
}
