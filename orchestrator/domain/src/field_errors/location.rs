//! Finds the value that an error is about, where the error's path ends above it: the contents of a tagged union are read without a
//! path.
//!
//! Why by search: serde keeps the contents of a tagged union in a buffer and reads them from there, which `serde_path_to_error` cannot
//! see. The message shows the value, so the only equal value below the path is the one. An ambiguous value leaves the path of the
//! union, which is right but less exact. `an_error_in_a_tagged_union_names_the_field` below fails when the messages change.

use serde_json::Value;

/// The path of the only value below `path` that `message` can be about; none if that is not certain.
pub fn find(body: &Value, path: &str, message: &str) -> Option<String> {
    let found = found_value(message)?;
    let value = at(body, path)?;
    if !value.is_object() || shown(value) == found {
        return None;
    }
    let mut paths = vec![];
    collect(value, if path == "." { "" } else { path }, &found, &mut paths);
    let mut paths = paths.into_iter();
    paths.next().filter(|_| paths.next().is_none())
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

fn collect(value: &Value, path: &str, found: &str, paths: &mut Vec<String>) {
    let mut visit = |value: &Value, path: String| {
        if shown(value) == found {
            paths.push(path);
        } else {
            collect(value, &path, found, paths);
        }
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                visit(value, if path.is_empty() { name.clone() } else { format!("{path}.{name}") });
            }
        }
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
    fn an_error_in_a_tagged_union_names_the_field(#[case] trigger: &str, #[case] action: &str, #[case] detail: &str) {
        let body = format!(r#"{{"name":"n","trigger":{trigger},"action":{action}}}"#);
        let error = read::<CreateRoutine>(&serde_json::from_str(&body).unwrap(), "body").unwrap_err();
        let text = format!("{}: {}", error.field, error.message);
        assert!(text.starts_with(detail), "{text}");
    }
}
