//! Reads a script and checks it. Owns the error messages: each names the rule and the field.

use std::time::Duration;

use protocol::{FinishReason, TokenUsage};
use regex::Regex;
use serde_json::Value;

use super::{
    Action, Matcher, ReplyTemplate, Rule, Script, ScriptedArguments, ScriptedCall, Template, TemplateValue, When,
    raw::{RawFinish, RawReply, RawRule, RawScript},
    template::Placeholder,
};

const MAX_SCRIPT_BYTES: usize = 4 << 20;
const MAX_RULES: usize = 1_000;
const MAX_DELAY_MS: u64 = 600_000;
const DEFAULT_CHUNK_CHARS: usize = 24;

/// Why a script is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The document is not YAML, or has another shape.
    #[error("script: {message}")]
    Document {
        /// The message, with line and column where they are known.
        message: String,
    },
    #[error("{rule}: {field}: {message}")]
    Rule {
        /// `rule 3` or `rule 3 (its name)`, counted from 1.
        rule: String,
        /// The path of the field within the rule.
        field: String,
        message: String,
    },
}

/// Reads and checks a script.
pub(super) fn parse(yaml: &str) -> Result<Script, ScriptError> {
    let refuse = |message: String| ScriptError::Document { message };
    if yaml.len() > MAX_SCRIPT_BYTES {
        return Err(refuse(format!("larger than {MAX_SCRIPT_BYTES} bytes")));
    }
    // `yes`, `no`, `on` and `off` are words here, as YAML 1.2 has it.
    let options = serde_saphyr::options! { strict_booleans: true };
    let raw: RawScript =
        serde_saphyr::from_str_with_options(yaml, options).map_err(|error| refuse(error.to_string()))?;
    if raw.rules.is_empty() || raw.rules.len() > MAX_RULES {
        return Err(refuse(format!("rules: must be 1 to {MAX_RULES}, found {}", raw.rules.len())));
    }
    let rules = raw.rules.into_iter().enumerate().map(|(index, rule)| {
        let label = match rule.get("name").and_then(Value::as_str) {
            Some(name) => format!("rule {} ({name})", index + 1),
            None => format!("rule {}", index + 1),
        };
        check_rule(rule).map_err(|RuleError { field, message }| ScriptError::Rule { rule: label, field, message })
    });
    Ok(Script { model: raw.model, rules: rules.collect::<Result<_, _>>()? })
}

/// A problem and its place within the rule.
struct RuleError {
    field: String,
    message: String,
}

fn rule_error(field: impl Into<String>, message: impl Into<String>) -> RuleError {
    RuleError { field: field.into(), message: message.into() }
}

fn check_rule(rule: Value) -> Result<Rule, RuleError> {
    let raw: RawRule = serde_path_to_error::deserialize(rule)
        .map_err(|error| rule_error(error.path().to_string(), error.into_inner().to_string()))?;
    if raw.times == Some(0) {
        return Err(rule_error("times", "must be 1 or more"));
    }
    let texts = Texts { regex: raw.when.first_regex().cloned() };
    let mut actions = Vec::new();
    if let Some(reply) = raw.reply {
        actions.push(Action::Reply(Box::new(check_reply(reply, &texts)?)));
    }
    if let Some(error) = raw.error {
        if !(400..600).contains(&error.status) {
            return Err(rule_error("error.status", "must be 400 to 599"));
        }
        let retry_after = check_seconds("error.retry_after_seconds", error.retry_after_seconds)?;
        let message = texts.template("error.message", &error.message)?;
        actions.push(Action::Error { status: error.status, message, retry_after });
    }
    if let Some(limit) = raw.rate_limit {
        let retry_after = check_seconds("rate_limit.retry_after_seconds", limit.retry_after_seconds)?;
        let message = texts.template("rate_limit", "rate limit reached, slow down")?;
        actions.push(Action::Error { status: 429, message, retry_after });
    }
    actions.extend((raw.garbage == Some(true)).then_some(Action::InvalidResponse));
    actions.extend((raw.hang == Some(true)).then_some(Action::Hang));
    match (actions.pop(), actions.is_empty()) {
        (Some(action), true) => Ok(Rule { when: raw.when, times: raw.times, action }),
        _ => Err(rule_error(".", "must have exactly one of reply, error, rate_limit, garbage: true, hang: true")),
    }
}

fn check_reply(raw: RawReply, texts: &Texts) -> Result<ReplyTemplate, RuleError> {
    if raw.text.is_empty() && raw.reasoning.is_none() && raw.tool_calls.is_empty() && raw.finish_reason.is_none() {
        return Err(rule_error("reply", "must have text, reasoning, tool_calls or finish_reason"));
    }
    if raw.chunk_chars == Some(0) {
        return Err(rule_error("reply.chunk_chars", "must be 1 or more"));
    }
    let tool_calls = raw.tool_calls.into_iter().enumerate().map(|(index, call)| {
        let field = format!("reply.tool_calls[{index}].arguments");
        if call.name.is_empty() {
            return Err(rule_error(format!("reply.tool_calls[{index}].name"), "must not be empty"));
        }
        let arguments = match call.arguments {
            Value::String(text) => ScriptedArguments::Verbatim(texts.template(&field, &text)?),
            value @ Value::Object(_) => ScriptedArguments::Json(texts.value(&field, value)?),
            _ => return Err(rule_error(field, "must be a mapping, or a string that is sent as it is")),
        };
        Ok(ScriptedCall { id: call.id, name: call.name, arguments, thought_signatures: call.thought_signatures })
    });
    Ok(ReplyTemplate {
        text: texts.template("reply.text", &raw.text)?,
        reasoning: raw.reasoning.map(|text| texts.template("reply.reasoning", &text)).transpose()?,
        tool_calls: tool_calls.collect::<Result<_, _>>()?,
        finish_reason: raw.finish_reason.map(|reason| match reason {
            RawFinish::Stop => FinishReason::Stop,
            RawFinish::Length => FinishReason::Length,
            RawFinish::ToolCalls => FinishReason::ToolCalls,
            RawFinish::ContentFilter => FinishReason::ContentFilter,
        }),
        usage: raw.usage.map(|usage| TokenUsage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
        }),
        delay: check_millis("reply.delay_ms", raw.delay_ms)?,
        chunk_chars: raw.chunk_chars.unwrap_or(DEFAULT_CHUNK_CHARS),
        chunk_pause: check_millis("reply.chunk_ms", raw.chunk_ms)?,
        cut_after_chars: raw.cut_after_chars,
    })
}

fn check_millis(field: &str, millis: u64) -> Result<Duration, RuleError> {
    if millis > MAX_DELAY_MS {
        Err(rule_error(field, format!("at most {MAX_DELAY_MS}")))
    } else {
        Ok(Duration::from_millis(millis))
    }
}

fn check_seconds(field: &str, seconds: Option<f64>) -> Result<Option<Duration>, RuleError> {
    let Some(seconds) = seconds else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(wait) if wait.as_secs() <= 86_400 => Ok(Some(wait)),
        _ => Err(rule_error(field, "must be 0 to 86400")),
    }
}

/// Reads a rule's templates against the groups that its regex has.
struct Texts {
    regex: Option<Regex>,
}

impl Texts {
    fn template(&self, field: &str, text: &str) -> Result<Template, RuleError> {
        let template = Template::parse(text)
            .map_err(|name| rule_error(field, format!("{{{{{name}}}}} is not a known placeholder")))?;
        for placeholder in template.placeholders() {
            let known = match (placeholder, &self.regex) {
                (Placeholder::Group(index), Some(regex)) => *index < regex.captures_len(),
                (Placeholder::NamedGroup(name), Some(regex)) => {
                    regex.capture_names().flatten().any(|group| group == name)
                }
                (Placeholder::Group(_) | Placeholder::NamedGroup(_), None) => false,
                _ => true,
            };
            if !known {
                return Err(rule_error(field, "{{match.…}} names a group that the rule's first regex does not have"));
            }
        }
        Ok(template)
    }

    fn value(&self, field: &str, value: Value) -> Result<TemplateValue, RuleError> {
        Ok(match value {
            Value::String(text) => TemplateValue::Text(self.template(field, &text)?),
            Value::Array(items) => TemplateValue::List(
                items
                    .into_iter()
                    .enumerate()
                    .map(|(index, item)| self.value(&format!("{field}[{index}]"), item))
                    .collect::<Result<_, _>>()?,
            ),
            Value::Object(entries) => TemplateValue::Map(
                entries
                    .into_iter()
                    .map(|(key, item)| Ok((key.clone(), self.value(&format!("{field}.{key}"), item)?)))
                    .collect::<Result<_, _>>()?,
            ),
            plain => TemplateValue::Plain(plain),
        })
    }
}

impl When {
    /// The regex whose groups fill `{{match.…}}`.
    fn first_regex(&self) -> Option<&Regex> {
        [&self.last_message, &self.tool_result, &self.tool_name, &self.prompt, &self.job_title, &self.system]
            .into_iter()
            .find_map(|matcher| match matcher {
                Some(Matcher::Regex(regex)) => Some(regex),
                _ => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("rules: [", "script:")]
    #[case("rules: []", "must be 1 to 1000")]
    #[case("ruls: [{reply: {text: hi}}]", "ruls")]
    #[case("rules: [{name: greet, repy: {text: hi}}]", "rule 1 (greet): repy: unknown field `repy`")]
    #[case("rules: [{reply: {text: a}}, {reply: {txt: hi}}]", "rule 2: reply.txt: unknown field `txt`")]
    #[case("rules: [{when: {last_mesage: hi}, reply: {text: hi}}]", "when.last_mesage: unknown field")]
    #[case("rules: [{when: {prompt: {regx: hi}}, reply: {text: hi}}]", "unknown field `regx`")]
    #[case("rules: [{when: {prompt: {regex: '('}}, reply: {text: hi}}]", "rule 1: when.prompt: regex parse error")]
    #[case("rules: [{when: {turn: 0}, reply: {text: hi}}]", "when.turn: turns are counted from 1")]
    #[case("rules: [{when: {turn: {from: 3, to: 2}}, reply: {text: hi}}]", "from is after to")]
    #[case("rules: [{when: {prompt: hi}}]", "exactly one of reply, error")]
    #[case("rules: [{garbage: true, hang: true}]", "exactly one of reply, error")]
    #[case("rules: [{garbage: false}]", "exactly one of reply, error")]
    #[case("rules: [{times: 0, hang: true}]", "rule 1: times: must be 1 or more")]
    #[case("rules: [{reply: {}}]", "rule 1: reply: must have text")]
    #[case("rules: [{reply: {text: '{{prmpt}}'}}]", "rule 1: reply.text: {{prmpt}} is not a known placeholder")]
    #[case("rules: [{reply: {text: '{{match.1}}'}}]", "names a group")]
    #[case("rules: [{when: {prompt: {regex: a(b)}}, reply: {text: '{{match.2}}'}}]", "names a group")]
    #[case("rules: [{reply: {tool_calls: [{arguments: {}}]}}]", "reply.tool_calls[0]: missing field `name`")]
    #[case(
        "rules: [{reply: {tool_calls: [{name: a, arguments: [1]}]}}]",
        "reply.tool_calls[0].arguments: must be a mapping"
    )]
    #[case(
        "rules: [{reply: {tool_calls: [{name: a, arguments: {b: [{c: '{{d}}'}]}}]}}]",
        "arguments.b[0].c: {{d}} is not a known placeholder"
    )]
    #[case("rules: [{error: {status: 200}}]", "error.status: must be 400 to 599")]
    #[case("rules: [{rate_limit: {retry_after_seconds: -1}}]", "must be 0 to 86400")]
    #[case("rules: [{reply: {text: a, delay_ms: 900000}}]", "reply.delay_ms: at most 600000")]
    #[case("rules: [{reply: {text: a, finish_reason: stopped}}]", "reply.finish_reason: unknown variant `stopped`")]
    fn a_wrong_script_is_refused_with_its_rule_and_field(#[case] yaml: &str, #[case] expected: &str) {
        let error = parse(yaml).expect_err("it is wrong").to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn yes_and_no_are_words() {
        let script = parse("rules: [{when: {prompt: yes}, reply: {text: no}}]").unwrap();
        assert!(matches!(&script.rules[0].when.prompt, Some(Matcher::Contains(part)) if part == "yes"));
    }

    #[test]
    fn the_examples_of_the_documentation_are_scripts() {
        let page = include_str!("../../../../docs/scripted-models.md");
        let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
        let scripts: Vec<_> = blocks.map(|(block, _)| parse(block).unwrap()).collect();
        let facts: Vec<_> = scripts.iter().map(|script| (script.model.as_str(), script.rules.len())).collect();
        assert_eq!(facts, [("notes-1", 4), ("scripted", 8)]);
    }
}
