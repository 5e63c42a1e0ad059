//! The executor, from the call to its result.

mod host;
mod registry;

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use proptest::prelude::*;
use protocol::{CallId, PermissionState, ToolDefinition, ToolDomain, ToolErrorKind, ToolFailure};
use rstest::rstest;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{ApprovalRequirement, Invocation, Tool, ToolError, ToolOutput, ToolSpec, stories};

/// A tool of any name that gives back its arguments, or does what its name says.
struct Plain {
    name: &'static str,
    requirement: ApprovalRequirement,
    schema: Value,
    /// Cancelled when a call is asked to stop.
    stopped: CancellationToken,
}

impl Plain {
    fn named(name: &'static str) -> Self {
        let schema = json!({"type": "object"});
        Self { name, requirement: ApprovalRequirement::Never, schema, stopped: CancellationToken::new() }
    }
}

impl Tool for Plain {
    fn spec(&self) -> ToolSpec {
        let definition = ToolDefinition::new(self.name, "a tool", self.schema.clone(), ToolDomain::Orchestrator);
        ToolSpec { approval: self.requirement, ..ToolSpec::new(definition, Duration::from_secs(10)) }
    }

    fn approval(&self, arguments: &Value) -> Option<ApprovalRequirement> {
        (arguments["force"] == Value::Bool(true)).then_some(ApprovalRequirement::Always)
    }

    fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        match arguments.get("refused") {
            Some(_) => Err(ToolError::new(ToolErrorKind::InvalidParameters, "refused by the tool")),
            None => Ok(()),
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        assert!(self.name != "panics_at_once", "as its name says");
        Box::pin(async move {
            match self.name {
                "panics" => panic!("as its name says"),
                "hangs" => {
                    invocation.stop.cancelled().await;
                    self.stopped.cancel();
                    std::future::pending().await
                }
                "text" => Ok(ToolOutput::success(invocation.arguments["text"].clone())),
                "exits" => Ok(ToolOutput::failure("no such file\n[exit 1]")),
                "limited" => Err(ToolError(ToolFailure {
                    kind: ToolErrorKind::RateLimited,
                    message: "later\u{1b}[0m".to_owned(),
                    retry_after_seconds: Some(3),
                })),
                _ => Ok(ToolOutput::success(invocation.arguments)),
            }
        })
    }
}

fn executor_of(tools: impl IntoIterator<Item = Plain>, context: ToolContext) -> ToolExecutor {
    let mut registry = ToolRegistry::new();
    for tool in tools {
        registry.register(Box::new(tool)).unwrap();
    }
    ToolExecutor::new(registry, context, Arc::new(Unrecorded))
}

fn autonomous(allow: &[&str]) -> ToolContext {
    let names = allow.iter().map(|name| (*name).to_owned()).collect();
    ToolContext { approval: ApprovalContext::Autonomous { levels: vec![names] }, ..stories::context() }
}

fn executor(name: &'static str) -> ToolExecutor {
    executor_of([Plain::named(name)], autonomous(&[]))
}

/// The redacted input and the result of a call.
async fn observe(executor: &ToolExecutor, name: &str, arguments: Value) -> (Value, CallResult) {
    let admission = executor.admit(CallId("id".to_owned()), name, arguments).await;
    (admission.redacted_input(), admission.finish(&CancellationToken::new()).await.unwrap())
}

async fn call(executor: &ToolExecutor, name: &str, arguments: Value) -> CallResult {
    observe(executor, name, arguments).await.1
}

fn kind(result: &CallResult) -> Option<ToolErrorKind> {
    result.failure().map(|failure| failure.kind)
}

const NEVER: ApprovalRequirement = ApprovalRequirement::Never;
const UNLESS: ApprovalRequirement = ApprovalRequirement::UnlessAutoApproved;
const ALWAYS: ApprovalRequirement = ApprovalRequirement::Always;

#[rstest]
#[case(NEVER, &[], true)]
#[case(UNLESS, &[], true)]
#[case(ALWAYS, &[], false)]
#[case(ALWAYS, &["tool"], true)]
#[case(ALWAYS, &["Tool", "tool ", "t\u{43e}ol"], false)]
#[tokio::test(start_paused = true)]
async fn the_table_of_approvals(#[case] requirement: ApprovalRequirement, #[case] allow: &[&str], #[case] runs: bool) {
    let executor = executor_of([Plain { requirement, ..Plain::named("tool") }], autonomous(allow));
    let result = call(&executor, "tool", json!({})).await;
    assert_eq!(kind(&result), (!runs).then_some(ToolErrorKind::AutonomousUnavailable));
    assert_eq!(executor.offers("tool"), runs);
    assert_eq!(executor.definitions().len(), usize::from(runs));
}

#[rstest]
#[case(UNLESS, json!({}), "ask")]
#[case(UNLESS, json!({"refused": 1}), "refused by the tool")]
#[case(ALWAYS, json!({"refused": 1}), "refused by the tool")]
#[case(NEVER, json!({"refused": 1}), "run")]
#[tokio::test(start_paused = true)]
async fn no_person_is_asked_about_a_call_that_its_tool_refuses(
    #[case] requirement: ApprovalRequirement,
    #[case] arguments: Value,
    #[case] expected: &str,
) {
    let context =
        ToolContext { approval: ApprovalContext::Interactive { remembered: AllowList::new() }, ..stories::context() };
    let executor = executor_of([Plain { requirement, ..Plain::named("tool") }], context);
    let decided = match executor.admit(CallId("id".to_owned()), "tool", arguments).await.decision {
        Decision::Run(..) => "run".to_owned(),
        Decision::Ask { .. } => "ask".to_owned(),
        Decision::Reject(error) => error.0.message,
    };
    assert_eq!(decided, expected);
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn the_deny_list_is_absolute(
    #[values(
        "routine_create",
        "routine_update",
        "routine_delete",
        "routine_fire",
        "event_emit",
        "create_job",
        "job_prompt",
        "restart",
        "tool_auth",
        "tool_install",
        "tool_upgrade",
        "tool_remove",
        "skill_install",
        "skill_remove",
        "secret_list",
        "secret_delete"
    )]
    name: &'static str,
) {
    let executor = executor_of([Plain::named(name)], autonomous(&[name]));
    assert_eq!(kind(&call(&executor, name, json!({})).await), Some(ToolErrorKind::AutonomousUnavailable));
    assert!(executor.definitions().is_empty());
    let nothing = executor_of([], autonomous(&[name]));
    assert_eq!(kind(&call(&nothing, name, json!({})).await), Some(ToolErrorKind::AutonomousUnavailable));
    let spelled = [name.to_uppercase(), format!(" {name} "), name.replace('_', "-"), name.replace('_', " ")];
    for name in spelled {
        let refused = kind(&call(&executor, &name, json!({})).await);
        assert_eq!(refused, Some(ToolErrorKind::AutonomousUnavailable), "{name:?}");
    }
    let look_alike = name.replace(['e', 'i', 'o'], "\u{435}");
    assert_eq!(kind(&call(&executor, &look_alike, json!({})).await), Some(ToolErrorKind::NotFound));
}

#[rstest]
#[case::operator(ToolPolicy { disabled: ["tool".to_owned()].into(), ..ToolPolicy::default() }, ToolErrorKind::NotFound)]
#[case::user(
    ToolPolicy { permissions: [("tool".to_owned(), PermissionState::Disabled)].into(), ..ToolPolicy::default() },
    ToolErrorKind::NotAuthorized
)]
#[tokio::test(start_paused = true)]
async fn a_disabled_tool_is_neither_offered_nor_run(#[case] policy: ToolPolicy, #[case] refused: ToolErrorKind) {
    let chat = ApprovalContext::Interactive { remembered: AllowList::new() };
    for approval in [ApprovalContext::autonomous(), chat] {
        let context = ToolContext { approval, policy: policy.clone(), ..stories::context() };
        let executor = executor_of([Plain::named("tool"), Plain::named("other")], context);
        let names: Vec<&str> = executor.definitions().iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["other"]);
        assert_eq!(kind(&call(&executor, "tool", json!({})).await), Some(refused));
        assert!(call(&executor, "other", json!({})).await.success());
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_policy_leaves_what_never_needs_approval() {
    let policy = ToolPolicy { is_invalid: true, ..ToolPolicy::default() };
    let asks = Plain { requirement: UNLESS, ..Plain::named("asks") };
    let context = ToolContext { policy, ..autonomous(&["asks"]) };
    let executor = executor_of([Plain::named("plain"), asks], context);
    assert_eq!(executor.definitions().len(), 1);
    assert!(call(&executor, "plain", json!({})).await.success());
    assert_eq!(kind(&call(&executor, "asks", json!({})).await), Some(ToolErrorKind::NotAuthorized));
    assert_eq!(kind(&call(&executor, "plain", json!({"force": true})).await), Some(ToolErrorKind::NotAuthorized));
}

#[tokio::test(start_paused = true)]
async fn max_children_allows_only_create_job() {
    let context = ToolContext { max_children: 1, ..autonomous(&[]) };
    let executor = executor_of([Plain::named("create_job"), Plain::named("job_prompt")], context);
    assert!(call(&executor, "create_job", json!({})).await.success());
    assert!(!call(&executor, "job_prompt", json!({})).await.success());
}

#[tokio::test(start_paused = true)]
async fn a_list_of_tools_narrows_and_never_grants() {
    let only = Some(vec!["one".to_owned(), "restart".to_owned(), "asks".to_owned(), "unknown".to_owned()]);
    let asks = Plain { requirement: ALWAYS, ..Plain::named("asks") };
    let tools = [Plain::named("one"), Plain::named("two"), Plain::named("restart"), asks];
    let executor = executor_of(tools, ToolContext { only, ..autonomous(&[]) });
    let names: Vec<String> = executor.definitions().iter().map(|definition| definition.name.clone()).collect();
    assert_eq!(names, ["one"]);
    assert_eq!(kind(&call(&executor, "two", json!({})).await), Some(ToolErrorKind::NotFound));
    assert_eq!(kind(&call(&executor, "asks", json!({})).await), Some(ToolErrorKind::AutonomousUnavailable));
}

#[tokio::test(start_paused = true)]
async fn approval_is_judged_on_what_will_run() {
    let schema = json!({"type": "object", "properties": {"force": {"type": "boolean"}}});
    let executor = executor_of([Plain { schema, ..Plain::named("tool") }], autonomous(&[]));
    let result = call(&executor, "tool", json!({"force": "true"})).await;
    assert_eq!(kind(&result), Some(ToolErrorKind::AutonomousUnavailable));
}

#[rstest]
#[case::scalars(json!({"n": "5", "x": "1.5", "b": "True", "s": "5"}), json!({"n": 5, "x": 1.5, "b": true, "s": "5"}))]
#[case::containers(json!({"list": "[1, 2]", "map": "{\"n\": \"7\"}"}), json!({"list": [1, 2], "map": {"n": 7}}))]
#[case::inside_lists(json!({"list": ["1", 2]}), json!({"list": [1, 2]}))]
#[case::whole_float(json!({"n": 3.0}), json!({"n": 3}))]
#[case::all_as_a_string(json!("{\"n\": \"5\"}"), json!({"n": 5}))]
#[case::no_arguments(Value::Null, json!({}))]
#[case::empty_string(json!(""), json!({}))]
#[case::either(json!({"either": "5", "maybe": "5", "some": "5"}), json!({"either": "5", "maybe": 5, "some": 5}))]
#[tokio::test(start_paused = true)]
async fn strings_are_coerced_to_the_types_of_the_schema(#[case] given: Value, #[case] run: Value) {
    let schema = json!({"type": "object", "properties": {
        "n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"}, "s": {"type": "string"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "map": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "either": {"type": ["integer", "string"]}, "maybe": {"type": ["integer", "null"]},
        "some": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }});
    let executor = executor_of([Plain { schema, ..Plain::named("tool") }], autonomous(&[]));
    let (input, result) = observe(&executor, "tool", given).await;
    assert_eq!(result.output, run.to_string());
    assert_eq!(input, run);
}

#[rstest]
#[case::missing(json!({}), "path")]
#[case::wrong_type(json!({"path": 5}), "/path")]
#[case::unknown(json!({"path": "a", "pth": "b"}), "pth")]
#[case::not_json(json!("{\"path\": "), "one JSON object")]
#[case::a_list(json!([1]), "one JSON object")]
#[tokio::test(start_paused = true)]
async fn invalid_arguments_are_rejected_with_the_reason(#[case] given: Value, #[case] reason: &str) {
    let properties = json!({"path": {"type": "string"}});
    let schema = json!({
        "type": "object", "properties": properties, "required": ["path"], "additionalProperties": false,
    });
    let executor = executor_of([Plain { schema, ..Plain::named("tool") }], autonomous(&[]));
    let result = call(&executor, "tool", given).await;
    assert_eq!(kind(&result), Some(ToolErrorKind::InvalidParameters));
    assert!(result.output.starts_with("error (invalid_parameters): ") && result.output.contains(reason), "{result:?}");
}

#[rstest]
#[case::valid(json!({"headers": {"cookie": "hun", "x": "note"}}))]
#[case::invalid(json!({"headers": {"cookie": "hunter2", "x": "note"}}))]
#[case::stringified(json!("{\"headers\": {\"cookie\": \"hunter2\", \"x\": \"note\"}}"))]
#[tokio::test(start_paused = true)]
async fn credentials_in_headers_are_never_shown_and_other_headers_are(#[case] given: Value) {
    let values = json!({"type": "string", "maxLength": 4});
    let schema =
        json!({"type": "object", "properties": {"headers": {"type": "object", "additionalProperties": values}}});
    let executor = executor_of([Plain { schema, ..Plain::named("exits") }], autonomous(&[]));
    let observed = observe(&executor, "exits", given).await;
    assert_eq!(observed.0, json!({"headers": {"cookie": "[redacted]", "x": "note"}}));
    assert!(!observed.1.output.contains("hun"), "{observed:?}");
}

#[tokio::test(start_paused = true)]
async fn text_is_never_escaped_and_json_is_compact() {
    let result = call(&executor("text"), "text", json!({"text": "a \"b\"\n\tc"})).await;
    assert_eq!(result.output, "a \"b\"\n\tc");
    let result = call(&executor("text"), "text", json!({"text": {"a": [1, "x"]}})).await;
    assert_eq!(result.output, r#"{"a":[1,"x"]}"#);
}

#[rstest]
#[case("\u{1b}[31mred\u{1b}[0m", "red")]
#[case("\u{1b}]0;title\u{7}text", "text")]
#[case("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link")]
#[case("a\u{8}b\r\nc\u{0}\td\u{7f}\u{9b}1me", "ab\nc\tde")]
#[case("\u{1b}Pq#1\u{1b}\\x\u{1b}(By\u{1b}", "xy")]
#[case("\u{1b}]never closed", "]never closed")]
#[case("10%\r20%\rdone\r\nnext\r\n", "done\nnext\n")]
#[case("a\u{202e}b\u{2066}c\u{2069}", "abc")]
#[tokio::test(start_paused = true)]
async fn escape_sequences_and_control_characters_are_gone(#[case] given: &str, #[case] kept: &str) {
    assert_eq!(call(&executor("text"), "text", json!({"text": given})).await.output, kept);
}

#[tokio::test(start_paused = true)]
async fn a_shells_failure_is_its_text() {
    let result = call(&executor("exits"), "exits", json!({})).await;
    assert_eq!(result.outcome, CallOutcome::Failed);
    assert_eq!(result.output, "no such file\n[exit 1]");
}

#[tokio::test(start_paused = true)]
async fn a_tools_error_keeps_its_kind() {
    let result = call(&executor("limited"), "limited", json!({})).await;
    assert_eq!(result.output, "error (rate_limited): later");
    assert_eq!(result.failure().unwrap().retry_after_seconds, Some(3));
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_result(#[values("panics", "panics_at_once")] name: &'static str) {
    let result = call(&executor(name), name, json!({})).await;
    assert_eq!(result.output, "error (failed): the tool panicked");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_hangs_is_told_to_stop_and_then_dropped() {
    let tool = Plain::named("hangs");
    let stopped = tool.stopped.clone();
    let executor = executor_of([tool], autonomous(&[]));
    let result = call(&executor, "hangs", json!({})).await;
    assert_eq!(kind(&result), Some(ToolErrorKind::Timeout));
    assert!(stopped.is_cancelled());
    assert_eq!(result.duration, Duration::from_secs(10) + call::STOP_GRACE);
}

#[tokio::test(start_paused = true)]
async fn nothing_begins_after_the_stop() {
    let stop = CancellationToken::new();
    stop.cancel();
    let admission = executor("tool").admit(CallId("id".to_owned()), "tool", json!({})).await;
    let result = admission.finish(&stop).await.unwrap();
    assert_eq!(result.output, "error (failed): stopped before it started");
}

#[tokio::test(start_paused = true)]
async fn formats_of_parameters_are_checked() {
    let schema = json!({"type": "object", "properties": {"day": {"type": "string", "format": "date"}}});
    let executor = executor_of([Plain { schema, ..Plain::named("tool") }], autonomous(&[]));
    assert!(call(&executor, "tool", json!({"day": "2026-02-28"})).await.success());
    let refused = call(&executor, "tool", json!({"day": "tomorrow"})).await;
    assert_eq!(kind(&refused), Some(ToolErrorKind::InvalidParameters));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn output_is_capped_at_a_character(text in "[a\u{e9}\u{1f980}\u{1b}\n]{0,40}", times in 1_usize..6_000) {
        let given = text.repeat(times);
        let (sanitized, is_complete) = output::sanitize(output::render(Value::from(given.clone())));
        let (rendered, cut) = output::cap(sanitized, given.len(), is_complete);
        let whole = text.repeat(times).replace('\u{1b}', "");
        prop_assert!(rendered.len() <= MAX_OUTPUT_BYTES);
        prop_assert!(!rendered.contains('\x1b'));
        // Sequences may take a letter with them; what is too long without them is cut in any case.
        prop_assert!(cut || rendered.len() <= whole.len());
    }

    #[test]
    fn coercion_never_panics_and_is_settled_after_one(text in "\\PC*", n in any::<f64>()) {
        let schema = json!({"type": "object", "additionalProperties": {"type": ["integer", "array", "object", "null"]}});
        let once = coerce::to_schema(json!({"a": text, "b": n, "c": n.to_string()}), &schema);
        prop_assert_eq!(coerce::to_schema(once.clone(), &schema), once);
    }
}
