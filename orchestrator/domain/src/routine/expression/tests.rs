//! Which expressions are accepted, what they answer, and that endless ones are cut off.

use rstest::rstest;
use serde_json::json;

use super::*;

fn evaluate(source: &str, payload: &Value) -> Result<bool, String> {
    let expression = Expression::compile(source, Names::PayloadAndHeaders).map_err(|error| error.to_string())?;
    let headers = BTreeMap::from([("x-github-event".to_owned(), "issues".to_owned())]);
    expression.evaluate(Input { payload, headers: &headers }).map_err(|error| error.to_string())
}

fn issue() -> Value {
    json!({
        "action": "labeled", "label": {"name": "ai"}, "number": 7, "ratio": 0.5, "big": 18_446_744_073_709_551_615_u64,
        "issue": {"title": "Fix the Bug", "labels": [{"name": "ai"}, {"name": "p1"}], "assignee": null},
    })
}

#[rstest]
#[case("payload.action == 'labeled' && payload.label.name == 'ai'", true)]
#[case("payload.action == 'labeled' && payload.label.name == 'other'", false)]
#[case("payload.action == 'opened' || payload.number > 6", true)]
#[case("headers['x-github-event'] == 'issues'", true)]
#[case("headers['x-other'] == 'issues'", false)]
#[case("payload.absent == 1", false)]
#[case("payload.absent.deeper == 1 || payload.number == 7", true)]
#[case("has(payload.label.name) && !has(payload.label.color)", true)]
#[case("payload.issue.labels.exists(l, l.name == 'p1')", true)]
#[case("payload.issue.labels.all(l, l.name == 'p1')", false)]
#[case("payload.issue.labels.exists_one(l, l.name == 'ai')", true)]
#[case("payload.issue.labels.filter(l, l.name.startsWith('p')).size() == 1", true)]
#[case("'ai' in payload.issue.labels.map(l, l.name)", true)]
#[case("payload.issue.labels.map(l, l.name == 'p1', l.name + '!') == ['p1!']", true)]
#[case("payload.issue.labels.exists(l, payload.issue.labels.exists(m, l.name == m.name + 'x'))", false)]
#[case("payload.action in ['opened', 'labeled']", true)]
#[case("payload.number in [-1, 7]", true)]
#[case("payload.issue.title.matches('(?i)fix.*bug')", true)]
#[case("payload.issue.title.contains('Bug') ? payload.number == 7 : false", true)]
#[case("payload.issue.assignee == null", true)]
#[case("payload.ratio < 1", true)]
#[case("payload.big > 1", true)]
#[case("type(payload.number) == int && string(payload.number) == '7'", true)]
#[case("payload.issue.labels[5].name == 'x'", false)]
#[case("size(payload.issue.labels) == 2 && payload.number % 2 == 1", true)]
#[case("'x' == \"x\" // a comment", true)]
fn expressions(#[case] source: &str, #[case] expected: bool) {
    assert_eq!(evaluate(source, &issue()), Ok(expected), "{source}");
}

#[rstest]
#[case("payload.number", "not a boolean")]
#[case("payload.action > 3", "of these types")]
#[case("payload.number / 0 == 1", "zero")]
#[case("payload.issue.title == payload.issue.title.matches('a')", "")]
fn failures(#[case] source: &str, #[case] expected: &str) {
    match evaluate(source, &issue()) {
        Err(error) => assert!(error.contains(expected), "{error}"),
        Ok(is_true) => assert!(expected.is_empty() && !is_true),
    }
}

#[rstest]
#[case::empty("", "is not a CEL expression")]
#[case::syntax("payload.action = 'x'", "is not a CEL expression")]
#[case::unfinished("payload.action == ", "is not a CEL expression")]
#[case::name("event.action == 'x'", "event is not available")]
#[case::function("payload.action.lowerAscii() == 'x'", "lowerAscii is not available")]
#[case::time("timestamp('2026-01-01T00:00:00Z') == payload.at", "timestamp is not available")]
#[case::structure("a.B{c: 1} == payload", "a.B is not available")]
#[case::variable_out_of_scope("payload.a.exists(x, x) && x", "x is not available")]
#[case::internal("@result == 1", "is not a CEL expression")]
#[case::list("[payload, payload] == payload", "constant elements")]
#[case::map("{'a': payload} == payload", "constant elements")]
#[case::pattern("payload.a.matches(payload.b)", "pattern of `matches`")]
#[case::wrong_pattern("payload.a.matches('(')", "pattern of `matches`")]
#[case::large_pattern("payload.a.matches('(\\\\w{1000}){1000}')", "pattern of `matches`")]
#[case::long(&format!("payload.a == '{}'", "x".repeat(MAX_BYTES)), "at most 4096 bytes")]
#[case::brackets(&format!("{}payload.a{}", "(".repeat(2_000), ")".repeat(2_000)), "nested")]
#[case::lists(&"[".repeat(4_000), "nested")]
#[case::members(&format!("payload{} == 1", ".a".repeat(2_000)), "nested")]
#[case::indices(&format!("payload{} == 1", "[0]".repeat(1_300)), "nested")]
#[case::comparisons(&format!("{}1", "1==".repeat(1_300)), "nested")]
#[case::mixed(&format!("{}payload{}", "(!-".repeat(48), ".a[0])".repeat(48)), "")]
#[case::conditions(&format!("{}true", "true ? true : ".repeat(290)), "nested")]
#[case::sums(&format!("{}'a' == 'b'", "payload.a + ".repeat(300)), "additions")]
#[case::macros(&format!("payload{}", ".map(x, x + x)".repeat(270)), "nested")]
fn refusals(#[case] source: &str, #[case] expected: &str) {
    let error = Expression::compile(source, Names::PayloadAndHeaders).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn signs_without_effect_are_accepted() {
    assert_eq!(evaluate(&format!("{}true", "!".repeat(4_000)), &json!({})), Ok(true));
}

#[test]
fn headers_belong_to_requests() {
    let error = Expression::compile("headers.a == 'x'", Names::Payload).unwrap_err();
    assert_eq!(error, InvalidExpression::Unavailable("headers".to_owned()));
}

#[rstest]
#[case::rounds("payload.items.exists(a, payload.items.exists(b, payload.items.exists(c, c < 0)))")]
#[case::absorbed("payload.items.all(a, payload.items.all(b, payload.items.all(c, c >= 0))) || true")]
#[case::kept("payload.items.map(a, payload.items.map(b, payload.text)).size() == 0")]
#[case::counted("payload.items.exists_one(a, payload.items.exists_one(b, payload.items.exists_one(c, c < 0)))")]
#[case::filtered("payload.items.filter(a, payload.items.filter(b, b > a).size() > 0).size() == 0")]
#[case::doubled("payload.items.map(a, payload.text).map(x, x + x).map(x, x + x).map(x, x + x).size() == 0")]
fn endless_evaluations_are_cut_off(#[case] source: &str) {
    let payload = json!({"items": (0..1_000).collect::<Vec<_>>(), "text": "x".repeat(100_000)});
    let error = evaluate(source, &payload).unwrap_err();
    assert!(error.contains("exceeds the limit"), "{error}");
}

/// Each search and each comparison alone is within the limit.
#[rstest]
#[case::searches("payload.text.matches('a[ab]{3500}[^ab]')", 40)]
#[case::comparisons("payload.items == payload.same", 120)]
#[case::comparisons_in_a_round("payload.one.exists(x, payload.items == payload.same)", 70)]
fn operations_between_rounds_are_cut_off(#[case] operation: &str, #[case] times: usize) {
    let source = vec![operation; times].join(" || ");
    let items: Vec<_> = (0..100_000).collect();
    let mut same = items.clone();
    same[99_999] = 0;
    let payload = json!({"text": "ab".repeat(32 * 1024), "items": items, "same": same, "one": [1]});
    let expression = Expression::compile(&source, Names::Payload).unwrap();
    let (headers, start) = (BTreeMap::new(), Instant::now());
    let deadline = start + Duration::from_millis(100);
    let evaluated = expression.evaluate_until(Input { payload: &payload, headers: &headers }, deadline);
    assert_eq!(evaluated, Err(EvaluationError::LimitExceeded));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn the_patterns_of_an_expression_are_limited() {
    let uses = |patterns: usize| (0..40).map(move |at| format!("payload.a.matches('{}')", at % patterns));
    let compile = |patterns| Expression::compile(&uses(patterns).collect::<Vec<_>>().join(" || "), Names::Payload);
    assert!(compile(MAX_PATTERNS).is_ok());
    assert_eq!(compile(MAX_PATTERNS + 1).unwrap_err(), InvalidExpression::Patterns);
}

#[test]
fn an_evaluation_ends_at_its_deadline() {
    let expression = Expression::compile("payload.exists(x, x < 0)", Names::Payload).unwrap();
    let (payload, headers) = (json!([1, 2, 3]), BTreeMap::new());
    let input = Input { payload: &payload, headers: &headers };
    assert_eq!(expression.evaluate_until(input, Instant::now()), Err(EvaluationError::LimitExceeded));
    assert_eq!(expression.evaluate(input), Ok(false));
}

#[rstest]
#[case("payload.text < 1")]
#[case("payload.text / 2 == 1")]
#[case("payload.items[payload.text] == 1")]
#[case("payload.items + payload.text == payload.items")]
#[case("payload.zero / 0 == payload.text")]
#[case("int(payload.text) == 1")]
#[case("payload.text.matches('a') && payload.items.matches('a')")]
#[case("payload.large * payload.large > 0")]
fn a_failure_does_not_tell_what_arrived(#[case] source: &str) {
    let payload = json!({"text": "private", "items": ["private"], "zero": 0, "large": i64::MAX});
    let error = evaluate(source, &payload).unwrap_err();
    assert!(!error.contains("private") && !error.contains(&i64::MAX.to_string()), "{error}");
}
