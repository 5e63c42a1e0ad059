//! Tests of the grammar of hooks.

use rstest::rstest;
use secrecy::ExposeSecret as _;
use strum::VariantArray as _;

use super::*;
use crate::setting::setting;

/// 24 bytes.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[test]
fn a_point_is_written_as_it_is_read() {
    for point in HookPoint::VARIANTS {
        assert_eq!(serde_json::from_value::<HookPoint>(point.as_str().into()).unwrap(), *point);
    }
}

fn parse(file: &str) -> Result<Vec<HookSettings>, String> {
    let table: toml::Table = file.parse().unwrap();
    Vec::parse(&RawValue::Toml(table["hooks"].clone()), &setting("hooks"))
}

#[test]
fn rules_and_webhooks_are_read() {
    let hooks = parse(&format!(
        "[[hooks]]\nname = 'no-prod'\npoint = 'before_tool_call'\naction = 'deny'\nreason = 'not there'\n\
         match = {{ tool = ['http', 'srv__*'], user = 'ada', parameter = 'url', text = '(?i)prod' }}\n\
         [[hooks]]\nname = 'ask'\npoint = 'inbound_message'\nurl = 'https://a.example/h'\nsecret = '{SECRET}'\non_failure = 'open'"
    ));
    let [rule, webhook] = hooks.unwrap().try_into().unwrap();
    assert_eq!((rule.name.as_str(), rule.point), ("no-prod", HookPoint::BeforeToolCall));
    assert_eq!((rule.filter.tools, rule.filter.users), (vec!["http".into(), "srv__*".into()], vec!["ada".into()]));
    assert_eq!(rule.filter.parameter.as_deref(), Some("url"));
    assert!(rule.filter.text.unwrap().is_match("PROD"));
    assert!(matches!(rule.action, HookAction::Deny { reason: Some(reason) } if reason == "not there"));
    let HookAction::Webhook(settings) = webhook.action else { panic!("a webhook") };
    assert_eq!((settings.timeout.as_secs(), settings.fails_open), (5, true));
    assert_eq!(settings.key.expose_secret().len(), 24);
    assert!(!format!("{settings:?}").contains("MfKQ9r8"));
}

#[test]
fn a_key_is_read_from_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{SECRET}\n")).unwrap();
    let path = file.path().display();
    let table = format!("name = 'a'\npoint = 'job_end'\nurl = 'http://a.example'\nsecret_file = '{path}'");
    assert!(parse(&format!("[[hooks]]\n{table}")).is_ok());
}

#[rstest]
#[case("name = 'a b'\npoint = 'job_end'\nurl = 'x'", "name of a hook")]
#[case("name = 'a'\npoint = 'hunter2'\nurl = 'x'", "must be one of `before_tool_call`")]
#[case("name = 'a'\npoint = 'job_start'", "either action or url")]
#[case("name = 'a'\npoint = 'job_start'\naction = 'deny'\nurl = 'x'", "either action or url")]
#[case("name = 'a'\npoint = 'job_start'\naction = 'hunter2'", "must be one of")]
#[case("name = 'a'\npoint = 'job_start'\naction = 'deny'\nwhere = 'hunter2'", "unknown field `where`")]
#[case("name = 'a'\npoint = 'job_start'\naction = 'deny'\nsecret = 'hunter2'", "hooks with a url")]
#[case("name = 'a'\npoint = 'job_start'\naction = 'deny'\non_failure = 'open'", "hooks with a url")]
#[case("name = 'a'\npoint = 'job_start'\naction = 'redact'\nmatch = {text = 'x'}", "nothing is redacted")]
#[case("name = 'a'\npoint = 'job_end'\naction = 'deny'", "has no rules")]
#[case("name = 'a'\npoint = 'outbound_message'\naction = 'redact'", "needs match.text")]
#[case("name = 'a'\npoint = 'outbound_message'\naction = 'allow'\nreason = 'x'", "reason is for")]
#[case("name = 'a'\npoint = 'outbound_message'\naction = 'deny'\nmatch = {tool = 'x'}", "no meaning")]
#[case("name = 'a'\npoint = 'before_tool_call'\naction = 'deny'\nmatch = {tool = []}", "1 to 64 names")]
#[case("name = 'a'\npoint = 'before_tool_call'\naction = 'deny'\nmatch = {parameter = 'x'}", "needs match.text")]
#[case("name = 'a'\npoint = 'before_tool_call'\naction = 'deny'\nmatch = {text = '(hunter2'}", "regular expression")]
#[case("name = 'a'\npoint = 'before_tool_call'\naction = 'deny'\nmatch = {tools = 'x'}", "unknown field `tools`")]
#[case("name = 'a'\npoint = 'job_start'\nurl = 'x'", "must have a secret")]
#[case("name = 'a'\npoint = 'job_start'\nurl = 'x'\nsecret = 'hunter2'", "24 to 64 bytes")]
#[case("name = 'a'\npoint = 'job_start'\nurl = 'x'\nsecret = 'a'\nsecret_file = 'b'", "not both")]
#[case("name = 'a'\npoint = 'job_start'\nurl = 'x'\nsecret_file = '/nowhere'", "cannot be read")]
#[case("name = 'a'\npoint = 'job_start'\nurl = 'x'\ntimeout_seconds = 61", "from 1 to 60")]
#[case("name = 'a'\npoint = 'job_end'\nurl = 'x'\non_failure = 'open'", "no meaning")]
#[case(
    "name = 'a'\npoint = 'job_start'\naction = 'deny'\n[[hooks]]\nname = 'a'\npoint = 'job_start'\naction = 'deny'",
    "two hooks"
)]
fn other_hooks_are_refused_without_their_values(#[case] table: &str, #[case] expected: &str) {
    let error = parse(&format!("[[hooks]]\n{table}")).unwrap_err();
    assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
}
