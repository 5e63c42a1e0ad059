//! What a hook's conditions match, and the removal of matched text. Pure.

use agent::safety::REDACTED;
use config::HookFilter;
use regex::Regex;
use serde_json::{Map, Value};

/// Whether the conditions on the user and the tool hold.
pub(super) fn matches_caller(filter: &HookFilter, user: &str, tool: Option<&str>) -> bool {
    let is_user = filter.users.is_empty() || filter.users.iter().any(|name| name == user);
    let is_tool = filter.tools.is_empty() || tool.is_some_and(|tool| filter.tools.iter().any(|name| names(name, tool)));
    is_user && is_tool
}

/// Whether the condition on the text holds for some string, number or key of the parameters.
pub(super) fn matches_text(filter: &HookFilter, parameters: &Value) -> bool {
    let Some(text) = &filter.text else { return true };
    match &filter.parameter {
        Some(name) => parameters.get(name).is_some_and(|value| contains(text, value)),
        None => contains(text, parameters),
    }
}

/// Removes the text that the condition matches.
pub(super) fn redact(filter: &HookFilter, parameters: Value) -> Value {
    let Some(text) = &filter.text else { return parameters };
    match (&filter.parameter, parameters) {
        (Some(name), Value::Object(mut fields)) => {
            if let Some(value) = fields.get_mut(name) {
                *value = redacted(text, value.take());
            }
            Value::Object(fields)
        }
        (Some(_), other) => other,
        (None, parameters) => redacted(text, parameters),
    }
}

/// Whether a name in a hook names this tool.
fn names(name: &str, tool: &str) -> bool {
    name.strip_suffix('*').map_or(name == tool, |beginning| tool.starts_with(beginning))
}

fn contains(text: &Regex, value: &Value) -> bool {
    match value {
        Value::String(string) => text.is_match(string),
        Value::Number(number) => text.is_match(&number.to_string()),
        Value::Array(items) => items.iter().any(|item| contains(text, item)),
        Value::Object(fields) => fields.iter().any(|(name, value)| text.is_match(name) || contains(text, value)),
        Value::Null | Value::Bool(_) => false,
    }
}

fn redacted(text: &Regex, value: Value) -> Value {
    let without = |string: &str| text.replace_all(string, regex::NoExpand(REDACTED)).into_owned();
    match value {
        Value::String(string) => Value::String(without(&string)),
        Value::Number(number) if text.is_match(&number.to_string()) => Value::String(REDACTED.to_owned()),
        Value::Array(items) => items.into_iter().map(|item| redacted(text, item)).collect(),
        Value::Object(fields) => {
            let field = |(name, value): (String, Value)| (without(&name), redacted(text, value));
            Value::Object(fields.into_iter().map(field).collect::<Map<_, _>>())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn filter(parameter: Option<&str>, text: &str) -> HookFilter {
        HookFilter {
            parameter: parameter.map(str::to_owned),
            text: Some(Regex::new(text).unwrap()),
            ..HookFilter::default()
        }
    }

    #[rstest]
    #[case(&[], &[], Some("http"), true)]
    #[case(&["http"], &[], Some("http"), true)]
    #[case(&["http"], &[], Some("https"), false)]
    #[case(&["http"], &[], None, false)]
    #[case(&["srv__*"], &[], Some("srv__x"), true)]
    #[case(&["srv__*"], &[], Some("srv_x"), false)]
    #[case(&["echo", "*"], &[], Some("http"), true)]
    #[case(&[], &["ada"], None, true)]
    #[case(&[], &["bob"], Some("http"), false)]
    #[case(&["http"], &["bob", "ada"], Some("http"), true)]
    fn callers_are_matched(
        #[case] tools: &[&str],
        #[case] users: &[&str],
        #[case] tool: Option<&str>,
        #[case] expected: bool,
    ) {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let filter = HookFilter { tools: owned(tools), users: owned(users), ..HookFilter::default() };
        assert_eq!(matches_caller(&filter, "ada", tool), expected);
    }

    #[rstest]
    #[case(None, "prod", json!({"url": "https://prod.example"}), true)]
    #[case(None, "^prod$", json!({"a": [{"b": "prod"}]}), true)]
    #[case(None, "prod", json!({"prod": 1}), true)]
    #[case(None, "^4111", json!({"card": 4_111_111_111_u64}), true)]
    #[case(None, "true|null", json!({"a": true, "b": null}), false)]
    #[case(None, "prod", json!({"url": "https://test.example"}), false)]
    #[case(Some("url"), "prod", json!({"url": "https://prod.example"}), true)]
    #[case(Some("url"), "prod", json!({"body": "prod"}), false)]
    #[case(Some("url"), "prod", json!("prod"), false)]
    fn text_is_matched(
        #[case] parameter: Option<&str>,
        #[case] text: &str,
        #[case] parameters: Value,
        #[case] expected: bool,
    ) {
        assert_eq!(matches_text(&filter(parameter, text), &parameters), expected);
    }

    #[rstest]
    #[case(None, json!({"a": "x 1234 y", "1234": ["1234", 12_345, true]}), json!({"a": "x [redacted] y", "[redacted]": ["[redacted]", "[redacted]", true]}))]
    #[case(Some("a"), json!({"a": {"b": "1234"}, "c": "1234"}), json!({"a": {"b": "[redacted]"}, "c": "1234"}))]
    #[case(Some("d"), json!({"a": "1234"}), json!({"a": "1234"}))]
    fn matched_text_is_removed(#[case] parameter: Option<&str>, #[case] parameters: Value, #[case] expected: Value) {
        assert_eq!(redact(&filter(parameter, r"\d{4}"), parameters), expected);
    }

    #[test]
    fn a_group_in_the_expression_is_not_inserted() {
        assert_eq!(redact(&filter(None, "(?<name>x)"), json!("axb")), json!("a[redacted]b"));
    }
}
