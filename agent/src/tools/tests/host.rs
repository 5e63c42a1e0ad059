//! What the host contributes to a call, and when.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use protocol::{ToolCallReply, UserId};

use super::*;

const SECRET: &str = "correct-horse-battery";

/// A step at which a host may refuse a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Hook,
    Rate,
    Record,
    Redaction,
}

/// A host that notes what it is asked, and does what its fields say.
#[derive(Debug, Default)]
struct Recorder {
    steps: Mutex<Vec<String>>,
    /// The arguments that the hook returns.
    changed: Option<Value>,
    replaces: Option<&'static str>,
    row: Option<OpenedRow>,
    refuses: Option<Step>,
    /// Whether arguments that leave contain a secret.
    stores_secret: AtomicBool,
}

impl Recorder {
    fn note(&self, step: impl Into<String>) {
        self.steps.lock().unwrap().push(step.into());
    }

    fn steps(&self) -> Vec<String> {
        std::mem::take(&mut self.steps.lock().unwrap())
    }
}

fn refused(message: &str) -> ToolError {
    ToolError::new(ToolErrorKind::NotAuthorized, message)
}

fn without_secret(text: &str) -> String {
    text.replace(SECRET, "[redacted]")
}

fn value_without_secret(value: &Value) -> Value {
    serde_json::from_str(&without_secret(&value.to_string())).unwrap()
}

impl CallHost for Recorder {
    fn request_digest(&self, tool: &str, arguments: &Value) -> String {
        format!("{tool} {arguments}")
    }

    fn invocation_id(&self, call_id: &CallId) -> CallId {
        CallId(format!("1:{call_id}"))
    }

    fn redact_input<'a>(&'a self, _: &'a ToolContext, input: Value) -> BoxFuture<'a, Result<Value, ToolError>> {
        Box::pin(async move { Ok(value_without_secret(&input)) })
    }

    fn before_call<'a>(&'a self, call: &'a CheckedCall) -> BoxFuture<'a, Result<Option<Value>, ToolError>> {
        self.note(format!("before {}", call.input));
        Box::pin(async {
            if self.refuses == Some(Step::Hook) { Err(refused("a hook says no")) } else { Ok(self.changed.clone()) }
        })
    }

    fn screen_arguments<'a>(&'a self, _: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<Value, ToolError>> {
        self.note("screen");
        let screens = self.stores_secret.load(Ordering::SeqCst);
        Box::pin(async move { Ok(if screens { value_without_secret(&arguments) } else { arguments }) })
    }

    fn take_rate(&self, context: &ToolContext, tool: &str) -> Result<(), ToolError> {
        assert_eq!((context.owner.clone(), tool), (UserId("ada".to_owned()), "http"));
        self.note("rate");
        if self.refuses == Some(Step::Rate) {
            Err(ToolError::new(ToolErrorKind::RateLimited, "too often"))
        } else {
            Ok(())
        }
    }

    fn return_rate(&self, _: &ToolContext, _: &str) {
        self.note("rate returned");
    }

    fn open<'a>(&'a self, call: &'a CheckedCall) -> BoxFuture<'a, Result<OpenedRow, RecordError>> {
        self.note(format!("open {} {} [{}]", call.tool, call.input, call.request_digest));
        Box::pin(async {
            let unavailable = || RecordError::Unavailable {
                source: Arc::new(std::io::Error::other("disk full")),
                is_transient: true,
            };
            if self.refuses == Some(Step::Record) {
                Err(unavailable())
            } else {
                Ok(self.row.clone().unwrap_or(OpenedRow::New))
            }
        })
    }

    fn after_call<'a>(&'a self, _: &'a CheckedCall, text: &'a str) -> BoxFuture<'a, Result<Option<String>, ToolError>> {
        self.note(format!("after {} bytes", text.len()));
        Box::pin(async { Ok(self.replaces.map(str::to_owned)) })
    }

    fn redact_output<'a>(
        &'a self,
        _: &'a ToolContext,
        text: String,
        is_complete: bool,
    ) -> BoxFuture<'a, Result<String, ToolError>> {
        self.note(format!("redact {} bytes{}", text.len(), if is_complete { "" } else { ", incomplete" }));
        Box::pin(async move {
            if self.refuses == Some(Step::Redaction) { Err(refused("withheld")) } else { Ok(without_secret(&text)) }
        })
    }

    fn close<'a>(
        &'a self,
        _: &'a CheckedCall,
        result: &'a CallResult,
        was_run: bool,
    ) -> BoxFuture<'a, Result<(), RecordError>> {
        let output: String = result.output.chars().take(60).collect();
        self.note(format!("close {output}{}", if was_run { "" } else { ", not run" }));
        Box::pin(async { Ok(()) })
    }
}

/// An executor with the tool `http` of this behaviour, which leaves the installation, and its host.
fn hosted(host: Recorder, tool: Fetch) -> (Arc<Recorder>, ToolExecutor) {
    let host = Arc::new(host);
    let mut registry = ToolRegistry::new();
    registry.register(Box::new(tool)).unwrap();
    let executor = ToolExecutor::new(registry, autonomous(&[]), Arc::clone(&host) as Arc<dyn CallHost>);
    (host, executor)
}

/// A tool that sends its arguments somewhere.
#[derive(Default)]
struct Fetch {
    requirement: Option<ApprovalRequirement>,
    /// What it returns instead of its call id and arguments.
    gives: Option<fn() -> Result<ToolOutput, ToolError>>,
}

impl Tool for Fetch {
    fn spec(&self) -> ToolSpec {
        let properties =
            json!({"url": {"type": "string"}, "headers": {"type": "object"}, "force": {"type": "boolean"}});
        let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
        ToolSpec {
            estimated_cost_micro_usd: 7,
            approval: self.requirement.unwrap_or(NEVER),
            ..ToolSpec::new(
                ToolDefinition::new("http", "a tool", schema, ToolDomain::Orchestrator),
                Duration::from_secs(10),
            )
        }
    }

    fn approval(&self, arguments: &Value) -> Option<ApprovalRequirement> {
        (arguments["force"] == true).then_some(ALWAYS)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        let echoed = || Ok(ToolOutput::success(format!("{} {}", invocation.call_id, invocation.arguments)));
        let given = self.gives.map_or_else(echoed, |gives| gives());
        Box::pin(async { given })
    }
}

async fn finish(executor: &ToolExecutor, arguments: Value) -> Result<CallResult, RecordError> {
    executor.admit(CallId("c".to_owned()), "http", arguments).await.finish(&CancellationToken::new()).await
}

#[tokio::test(start_paused = true)]
async fn a_call_passes_every_step_in_the_order_of_the_contract() {
    let (host, executor) = hosted(Recorder::default(), Fetch::default());
    let result = finish(&executor, json!({"url": "u", "headers": {"token": "k"}})).await.unwrap();
    assert_eq!(result.output, r#"1:c {"url":"u","headers":{"token":"k"}}"#);
    let steps = [
        r#"before {"url":"u","headers":{"token":"[redacted]"}}"#,
        "screen",
        "rate",
        r#"open http {"url":"u","headers":{"token":"[redacted]"}} [http {"url":"u","headers":{"token":"k"}}]"#,
        "redact 39 bytes",
        "after 39 bytes",
        r#"close 1:c {"url":"u","headers":{"token":"k"}}"#,
    ];
    assert_eq!(host.steps(), steps);
}

#[tokio::test(start_paused = true)]
async fn a_hook_changes_what_it_may_and_redacted_parameters_keep_their_value() {
    let changed = Some(json!({"url": "other", "headers": {"token": "[redacted]"}}));
    let (host, executor) = hosted(Recorder { changed, ..Recorder::default() }, Fetch::default());
    let result = finish(&executor, json!({"url": "u", "headers": {"token": "k"}})).await.unwrap();
    assert_eq!(result.output, r#"1:c {"url":"other","headers":{"token":"k"}}"#);
    assert!(
        host.steps()
            .iter()
            .any(|step| step.starts_with(r#"open http {"url":"other","headers":{"token":"[redacted]"}}"#))
    );
}

#[rstest]
#[case::denied(Recorder { refuses: Some(Step::Hook), ..Recorder::default() }, ToolErrorKind::NotAuthorized, "a hook says no")]
#[case::invalid(
    Recorder { changed: Some(json!({"url": 5})), ..Recorder::default() },
    ToolErrorKind::InvalidParameters,
    "/url"
)]
#[case::not_an_object(
    Recorder { changed: Some(json!("text")), ..Recorder::default() },
    ToolErrorKind::InvalidParameters,
    "one JSON object"
)]
#[case::needs_approval(
    Recorder { changed: Some(json!({"force": true})), ..Recorder::default() },
    ToolErrorKind::AutonomousUnavailable,
    "approval"
)]
#[tokio::test(start_paused = true)]
async fn a_hook_cannot_evade_the_checks_after_it(
    #[case] host: Recorder,
    #[case] expected: ToolErrorKind,
    #[case] message: &str,
) {
    let (host, executor) = hosted(host, Fetch::default());
    let result = finish(&executor, json!({"url": "u"})).await.unwrap();
    assert_eq!(kind(&result), Some(expected));
    assert!(result.output.contains(message), "{result:?}");
    let steps = host.steps();
    assert!(steps.iter().any(|step| step.starts_with("open")), "{steps:?}");
    assert!(steps.last().unwrap().ends_with(", not run") && !steps.iter().any(|step| step == "rate"), "{steps:?}");
}

#[rstest]
#[case::unknown("nothing", json!({}), ToolErrorKind::NotFound)]
#[case::denied("restart", json!({}), ToolErrorKind::AutonomousUnavailable)]
#[case::invalid("http", json!({"volume": 11}), ToolErrorKind::InvalidParameters)]
#[tokio::test(start_paused = true)]
async fn a_refused_call_has_its_row(#[case] name: &str, #[case] arguments: Value, #[case] expected: ToolErrorKind) {
    let (host, executor) = hosted(Recorder::default(), Fetch::default());
    let result = call(&executor, name, arguments).await;
    assert_eq!(kind(&result), Some(expected));
    let steps = host.steps();
    assert!(steps[0].starts_with(&format!("open {name}")) && steps[2].ends_with(", not run"), "{steps:?}");
    assert_eq!(steps.len(), 3, "{steps:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_beyond_the_rate_has_its_row_and_does_not_run() {
    let (host, executor) = hosted(Recorder { refuses: Some(Step::Rate), ..Recorder::default() }, Fetch::default());
    let result = finish(&executor, json!({"url": "u"})).await.unwrap();
    assert_eq!(kind(&result), Some(ToolErrorKind::RateLimited));
    let steps = host.steps();
    assert_eq!(steps[2], "rate");
    assert!(steps[3].starts_with("open") && steps[5].ends_with(", not run") && steps.len() == 6, "{steps:?}");
}

fn reply(success: bool, error: Option<ToolFailure>) -> ToolCallReply {
    let output = error.is_none().then(|| Value::from("as recorded"));
    ToolCallReply { success, output, truncated: true, duration_ms: 5, error }
}

#[rstest]
#[case::success(reply(true, None))]
#[case::failure(reply(false, None))]
#[case::error(reply(false, Some(refused("no").0)))]
#[tokio::test(start_paused = true)]
async fn a_recorded_call_gives_its_reply_and_does_not_run_again(#[case] recorded: ToolCallReply) {
    let row = Some(OpenedRow::Recorded(recorded.clone()));
    let (host, executor) = hosted(Recorder { row, ..Recorder::default() }, Fetch::default());
    assert_eq!(finish(&executor, json!({"url": "u"})).await.unwrap().to_reply(), recorded);
    let steps = host.steps();
    assert_eq!((steps.len(), steps.last().unwrap().as_str()), (5, "rate returned"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_recorded_does_not_run() {
    let (host, executor) = hosted(Recorder { refuses: Some(Step::Record), ..Recorder::default() }, Fetch::default());
    let error = finish(&executor, json!({"url": "u"})).await.unwrap_err();
    assert!(matches!(error, RecordError::Unavailable { is_transient: true, .. }), "{error:?}");
    assert_eq!(host.steps().last().unwrap(), "rate returned");
    let row = Some(OpenedRow::LimitReached(refused("enough")));
    let (host, executor) = hosted(Recorder { row, ..Recorder::default() }, Fetch::default());
    assert_eq!(finish(&executor, json!({"url": "u"})).await.unwrap().output, "error (not_authorized): enough");
    assert!(!host.steps().iter().any(|step| step.starts_with("close")));
}

#[rstest]
#[case::output(|| Ok(ToolOutput::success(format!("it is {SECRET}"))), "it is [redacted]")]
#[case::json(|| Ok(ToolOutput::success(json!({"a": SECRET}))), r#"{"a":"[redacted]"}"#)]
#[case::hidden(|| Ok(ToolOutput::success("correct-\u{1b}[0mhorse-\u{0}battery")), "[redacted]")]
#[case::error(|| Err(refused(&format!("no {SECRET}"))), "error (not_authorized): no [redacted]")]
#[tokio::test(start_paused = true)]
async fn a_secret_in_a_result_is_redacted(
    #[case] gives: fn() -> Result<ToolOutput, ToolError>,
    #[case] expected: &str,
) {
    let (host, executor) = hosted(Recorder::default(), Fetch { gives: Some(gives), ..Fetch::default() });
    let result = finish(&executor, json!({"url": "u"})).await.unwrap();
    assert_eq!(result.output, expected);
    assert!(!format!("{result:?} {:?}", host.steps()).contains(SECRET));
}

#[tokio::test(start_paused = true)]
async fn a_secret_across_the_cap_is_redacted_and_huge_outputs_are_cut_first() {
    let across = || Ok(ToolOutput::success(format!("{}{SECRET}", "x".repeat(MAX_OUTPUT_BYTES - 70))));
    let (_, executor) = hosted(Recorder::default(), Fetch { gives: Some(across), ..Fetch::default() });
    let result = finish(&executor, json!({"url": "u"})).await.unwrap();
    assert!(!result.truncated && result.output.ends_with("x[redacted]"));
    let huge = || Ok(ToolOutput::success("y".repeat(50 << 20)));
    let (host, executor) = hosted(Recorder::default(), Fetch { gives: Some(huge), ..Fetch::default() });
    let result = finish(&executor, json!({"url": "u"})).await.unwrap();
    assert!(result.truncated && result.output.len() <= MAX_OUTPUT_BYTES);
    assert!(result.output.ends_with("[truncated: 52428800 bytes in total]"), "{}", &result.output[99_900..]);
    assert_eq!(host.steps()[4..6], ["redact 1000000 bytes, incomplete", "after 99973 bytes"]);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_checked_for_secrets_is_withheld() {
    let (_, executor) = hosted(Recorder { refuses: Some(Step::Redaction), ..Recorder::default() }, Fetch::default());
    let result = finish(&executor, json!({"url": "u"})).await.unwrap();
    assert_eq!(result.output, "error (not_authorized): withheld");
}

#[tokio::test(start_paused = true)]
async fn secrets_in_arguments_are_not_shown_and_do_not_leave() {
    let host = Recorder { stores_secret: true.into(), ..Recorder::default() };
    let (host, executor) = hosted(host, Fetch::default());
    let result = finish(&executor, json!({"url": SECRET, "headers": {"token": "k"}})).await.unwrap();
    assert_eq!(result.output, r#"1:c {"url":"[redacted]","headers":{"token":"k"}}"#);
    let shown: Vec<String> = host.steps().into_iter().map(|step| step.split(" [").next().unwrap().to_owned()).collect();
    assert!(!shown.concat().contains(SECRET), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn an_approved_call_asks_no_hook_and_is_refused_if_its_arguments_may_no_longer_leave() {
    let host = Recorder { refuses: Some(Step::Hook), ..Recorder::default() };
    let (host, executor) = hosted(host, Fetch { requirement: Some(UNLESS), ..Fetch::default() });
    let finish = async || {
        let approved = executor.admit_approved(CallId("c".to_owned()), "http", json!({"url": SECRET})).await;
        approved.finish(&CancellationToken::new()).await.unwrap()
    };
    assert!(finish().await.success());
    assert_eq!(host.steps()[..2], ["screen", "rate"]);
    host.stores_secret.store(true, Ordering::SeqCst);
    assert_eq!(kind(&finish().await), Some(ToolErrorKind::NotAuthorized));
    assert!(host.steps().last().unwrap().ends_with(", not run"));
}

#[tokio::test(start_paused = true)]
async fn a_hook_after_the_call_gets_what_is_shown_and_what_it_returns_is_cleaned() {
    let host = Recorder { replaces: Some("\u{1b}[31mother correct-horse-battery"), ..Recorder::default() };
    let gives = || Ok(ToolOutput::success(format!("{}{SECRET}", "\u{1b}[0m".repeat(50_000))));
    let (host, executor) = hosted(host, Fetch { gives: Some(gives), ..Fetch::default() });
    assert_eq!(finish(&executor, json!({"url": "u"})).await.unwrap().output, "other [redacted]");
    assert!(host.steps().contains(&format!("after {} bytes", "[redacted]".len())));
}

#[tokio::test(start_paused = true)]
async fn a_hook_gets_the_message_of_an_error_and_changes_no_more_than_that() {
    let host = Recorder { replaces: Some("another reason"), ..Recorder::default() };
    let (host, executor) = hosted(host, Fetch { gives: Some(|| Err(refused("no"))), ..Fetch::default() });
    let result = finish(&executor, json!({"url": "u"})).await.unwrap();
    assert_eq!(result.output, "error (not_authorized): another reason");
    assert!(host.steps().contains(&"after 2 bytes".to_owned()));
}
