//! The metered call as the model of a loop that runs in this process, with the answer's deltas.
//!
//! Owns the mapping of a call's errors to the loop's. Never records or limits anything itself.

use std::time::Duration;

use agent::{DeltaSink, FailureReason, LimitKind, Model, ModelError};
use protocol::{Completion, CompletionRequest, CompletionRequestRef, RateLimitOrigin};

use super::{Account, CallError, CallName, Meter};
use base::digest::sha256_hex;

use crate::{ErrorKind, Failure};

/// The longest wait for a place at a provider that work goes through which does not wait for providers.
const MAX_LOCAL_WAIT: Duration = Duration::from_secs(10);

/// The model of one loop.
pub struct MeteredModel<S> {
    /// Makes the calls.
    pub meter: Meter,
    pub account: Account,
    /// Returns a future that is ready once the loop is to stop.
    pub stop: S,
    /// Whether the loop waits where a provider asks it to. If not, the work fails, and can be tried again after the wait.
    pub waits_for_providers: bool,
}

impl<S, F> Model for MeteredModel<S>
where
    S: Fn() -> F + Send + Sync,
    F: Future<Output = ()> + Send,
{
    async fn complete(&self, request: &CompletionRequestRef<'_>, deltas: &DeltaSink) -> Result<Completion, ModelError> {
        let request = CompletionRequest::from(request);
        let bytes = serde_json::to_vec(&request)
            .map_err(|error| ModelError::failed(format!("the request cannot be recorded: {error}")))?;
        let name = CallName { id: request.call_id.clone(), request_digest: sha256_hex(&bytes) };
        drop(bytes);
        let answer = self.meter.complete(&self.account, name, || request, deltas, &self.stop).await;
        answer.map_err(|error| model_error(&error, self.waits_for_providers))
    }

    fn context_tokens(&self) -> u64 {
        self.meter.gateway.context_tokens()
    }
}

fn model_error(error: &CallError, waits_for_providers: bool) -> ModelError {
    let message = error.to_string();
    match error {
        CallError::Stopped | CallError::Failed(Failure::Failed { kind: ErrorKind::Aborted, .. }) => ModelError::Stopped,
        CallError::LimitReached(_) => ModelError::Limit { which: LimitKind::Iterations, message },
        CallError::BudgetExceeded(budget) => {
            let which = if budget.is_cost_limit { LimitKind::Cost } else { LimitKind::Tokens };
            ModelError::Limit { which, message }
        }
        CallError::Unpriced(_) => ModelError::Limit { which: LimitKind::Cost, message },
        CallError::Failed(Failure::RateLimited { kind, retry_after, .. })
            if !waits_for_providers && is_long_wait(*kind, *retry_after) =>
        {
            ModelError::Failed { reason: FailureReason::RateLimited { retry_after: *retry_after }, message }
        }
        CallError::Failed(Failure::RateLimited { origin, retry_after, .. }) => {
            ModelError::RateLimited { origin: *origin, retry_after: *retry_after, message }
        }
        CallError::Failed(Failure::Failed { kind: ErrorKind::ContextLength, .. }) => {
            ModelError::ContextLength { message }
        }
        CallError::Failed(Failure::Failed { kind: ErrorKind::Auth | ErrorKind::Quota, .. }) => {
            ModelError::Failed { reason: FailureReason::ProviderAccount, message }
        }
        CallError::Failed(Failure::Failed { kind: ErrorKind::Refused, .. }) => {
            ModelError::Failed { reason: FailureReason::Refused, message }
        }
        CallError::Failed(Failure::Failed { kind: ErrorKind::BadRequest, .. }) => {
            ModelError::Failed { reason: FailureReason::InvalidRequest, message }
        }
        CallError::Unsearched(error) if error.is_transient() => {
            ModelError::RateLimited { origin: RateLimitOrigin::Local, retry_after: None, message }
        }
        CallError::Unsearched(_)
        | CallError::IdReused
        | CallError::Failed(Failure::Failed { .. })
        | CallError::Store(_) => ModelError::failed(message),
    }
}

/// Whether a wait is one for a provider, or longer than [`MAX_LOCAL_WAIT`] for a place at it.
fn is_long_wait(kind: ErrorKind, retry_after: Option<Duration>) -> bool {
    match kind {
        ErrorKind::RateLimited => true,
        ErrorKind::CircuitOpen | ErrorKind::QueueTimeout => retry_after.is_some_and(|wait| wait > MAX_LOCAL_WAIT),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, sync::Arc};

    use agent::Delta;
    use protocol::{CallId, Execution, JobState, Message, RateLimitOrigin, ToolChoice};
    use rstest::rstest;
    use tokio_util::{sync::CancellationToken, task::TaskTracker};

    use super::*;
    use base::clock::Clock;
    use config::{LlmSettings, ProviderKind, ProviderSettings};
    use domain::{
        budget::{DayLimits, ExhaustedBudget, Scope},
        job::sample,
    };
    use secrets::{KeySource, LeakDetectors, Secrets};
    use store::{CallKey, NewToolCall, Store};

    use crate::{Gateway, UnpricedModel, metering::CallLimiter};

    /// A gateway to a script.
    fn gateway(directory: &tempfile::TempDir, rules: &str) -> Gateway {
        let script = directory.path().join("script.yaml");
        std::fs::write(&script, format!("rules: [{rules}]")).unwrap();
        let primary = ProviderSettings {
            script: Some(script),
            ..ProviderSettings::new("script", ProviderKind::Scripted, "scripted")
        };
        Gateway::new(&LlmSettings::of_provider(primary)).unwrap()
    }

    /// The model of a job whose provider plays these rules.
    async fn model(
        directory: &tempfile::TempDir,
        rules: &str,
    ) -> MeteredModel<impl Fn() -> std::future::Pending<()> + Send + Sync + use<>> {
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let job = sample::job(JobState::InProgress);
        let account = Account {
            // A new row is at no attempt yet.
            execution: Execution::new(job.id, 0),
            user: "ada".to_owned(),
            model: "scripted".to_owned(),
            effort: None,
            title: "t".to_owned(),
            max_iterations: 5,
            has_budget: false,
            has_cost_limit: false,
            limiter: CallLimiter::default(),
        };
        store.create_job(job, None, None).await.unwrap();
        let source = KeySource::DataDir(directory.path().to_owned());
        let secrets = Arc::new(Secrets::open(store.clone(), &source).await.unwrap());
        let meter = Meter {
            store,
            detectors: LeakDetectors::new(secrets).unwrap(),
            gateway: Arc::new(gateway(directory, rules)),
            clock: Clock::system(),
            day_limits: DayLimits::default(),
            tasks: TaskTracker::new(),
            drain: CancellationToken::new(),
        };
        MeteredModel { meter, account, stop: std::future::pending::<()>, waits_for_providers: true }
    }

    fn request<'a>(call_id: &'a CallId, messages: &'a [Message]) -> CompletionRequestRef<'a> {
        let messages = Cow::Borrowed(messages);
        CompletionRequestRef {
            call_id,
            messages,
            tools: &[],
            tool_choice: ToolChoice::Auto,
            max_tokens: None,
            temperature: None,
        }
    }

    #[tokio::test]
    async fn the_deltas_of_an_answer_arrive_while_it_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let rules = "{times: 1, reply: {text: half of it, cut_after_chars: 8, chunk_chars: 2}}, \
             {reply: {text: an answer, reasoning: because, chunk_chars: 4}}";
        let model = model(&directory, rules).await;
        let (sink, mut deltas) = DeltaSink::channel(1);
        let call_id = CallId::generate();
        let messages = [Message::User { content: "hello".to_owned() }];
        let request = request(&call_id, &messages);
        let read = async {
            let mut read = Vec::new();
            while let Some(delta) = deltas.recv().await {
                read.push(delta);
            }
            read
        };
        let answer = async {
            let answer = model.complete(&request, &sink).await;
            drop(sink);
            answer
        };
        let (answer, read) = tokio::join!(answer, read);
        assert_eq!(answer.unwrap().content, "an answer");
        let text = |text: &str| Delta::Text(text.to_owned());
        let start = Delta::Start { call_id: call_id.clone() };
        // The first answer broke off: a new start says that what came is void. A word is shown once it is complete, because it
        // could become a credential.
        let reasoning = Delta::Reasoning("because".to_owned());
        assert_eq!(read, [text("half "), text("of "), start, text("an "), reasoning, text("answer")]);
    }

    #[tokio::test]
    async fn a_secret_is_in_no_delta_and_not_in_the_answer() {
        let directory = tempfile::tempdir().unwrap();
        let rules = "{reply: {text: it is hunter2-secret indeed, reasoning: hunter2-secret, chunk_chars: 3}}";
        let model = model(&directory, rules).await;
        model.meter.detectors.store_for_test("ada", "hunter2-secret").await;
        let (sink, mut deltas) = DeltaSink::channel(100);
        let call_id = CallId::generate();
        let messages = [Message::User { content: "hello".to_owned() }];
        let answer = model.complete(&request(&call_id, &messages), &sink).await.unwrap();
        drop(sink);
        assert_eq!(
            (answer.content.as_str(), answer.reasoning.as_deref()),
            ("it is [redacted] indeed", Some("[redacted]"))
        );
        let (mut text, mut reasoning) = (String::new(), String::new());
        while let Some(delta) = deltas.recv().await {
            match delta {
                Delta::Text(piece) => text.push_str(&piece),
                Delta::Reasoning(piece) => reasoning.push_str(&piece),
                Delta::Start { .. } | Delta::Waiting(_) => {}
            }
        }
        assert_eq!((text.as_str(), reasoning.as_str()), ("it is [redacted] indeed", "[redacted]"));
    }

    #[tokio::test]
    async fn under_a_budget_an_interrupted_call_is_charged_and_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let rules = "{times: 1, reply: {text: half of it, cut_after_chars: 8}}, {reply: {text: an answer}}";
        let mut model = model(&directory, rules).await;
        model.account.has_budget = true;
        let call_id = CallId::generate();
        let messages = [Message::User { content: "hello".to_owned() }];
        let request = request(&call_id, &messages);
        let broke_off = model.complete(&request, &DeltaSink::discard()).await;
        assert!(matches!(broke_off, Err(ModelError::RateLimited { retry_after: None, .. })), "{broke_off:?}");
        let job = model.account.execution.work.job().unwrap();
        let usage = async || model.meter.store.job(job).await.unwrap().unwrap().usage;
        assert_eq!((usage().await.output_tokens, model.meter.store.reserved().await.unwrap()), (2, (0, 0)));
        assert_eq!(model.complete(&request, &DeltaSink::discard()).await.unwrap().content, "an answer");
        assert!(usage().await.output_tokens > 2, "what broke off stays charged");
    }

    /// After a compaction the conversation no longer has the calls that the server numbered alike.
    #[tokio::test]
    async fn an_id_that_an_earlier_call_of_the_job_has_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let calls = "[{name: echo, id: call_0, arguments: {}}, {name: echo, id: call_1, arguments: {}}]";
        let model = model(&directory, &format!("{{reply: {{tool_calls: {calls}}}}}")).await;
        let earlier = NewToolCall {
            key: CallKey { execution: model.account.execution, call_id: "call_0".into() },
            request_digest: "digest".to_owned(),
            at: sample::now(),
            tool: "echo".to_owned(),
            input: serde_json::Value::Null,
            reasoning: None,
            estimated_cost_micro_usd: 0,
            is_repeatable: false,
            max_calls: Some(10),
        };
        model.meter.store.open_tool_call(&earlier).await.unwrap();
        let call_id = CallId::generate();
        let messages = [Message::User { content: "a summary".to_owned() }];
        let answer = model.complete(&request(&call_id, &messages), &DeltaSink::discard()).await.unwrap();
        let ids: Vec<&str> = answer.tool_calls.iter().map(|call| call.id.as_str()).collect();
        assert!(ids[0] != "call_0" && ids[1] == "call_1", "{ids:?}");
        let again = model.complete(&request(&call_id, &messages), &DeltaSink::discard()).await.unwrap();
        assert_eq!(again, answer, "recorded as it was named");
    }

    fn failed(kind: ErrorKind) -> CallError {
        CallError::Failed(Failure::Failed { kind, message: "m".to_owned() })
    }

    fn exhausted(is_cost_limit: bool) -> CallError {
        CallError::BudgetExceeded(ExhaustedBudget { scope: Scope::Job, is_cost_limit, limit: 1 })
    }

    #[rstest]
    #[case(CallError::Stopped, "stopped")]
    #[case(failed(ErrorKind::Aborted), "stopped")]
    #[case(CallError::LimitReached("m".to_owned()), "Iterations")]
    #[case(exhausted(true), "Cost")]
    #[case(exhausted(false), "Tokens")]
    #[case(CallError::Unpriced(UnpricedModel { model: "m".to_owned() }), "Cost")]
    #[case(failed(ErrorKind::ContextLength), "context")]
    #[case(failed(ErrorKind::BadRequest), "InvalidRequest")]
    #[case(failed(ErrorKind::NotFound), "LlmError")]
    #[case(failed(ErrorKind::Refused), "Refused")]
    #[case(failed(ErrorKind::Auth), "ProviderAccount")]
    #[case(failed(ErrorKind::Quota), "ProviderAccount")]
    #[case(CallError::IdReused, "LlmError")]
    fn errors_say_who_acts_next(#[case] error: CallError, #[case] expected: &str) {
        let seen = match model_error(&error, false) {
            ModelError::Stopped => "stopped".to_owned(),
            ModelError::Limit { which, .. } => format!("{which:?}"),
            ModelError::ContextLength { .. } => "context".to_owned(),
            ModelError::Failed { reason, .. } => format!("{reason:?}"),
            ModelError::RateLimited { .. } => "rate limited".to_owned(),
        };
        assert_eq!(seen, expected);
    }

    #[rstest]
    #[case::told(ErrorKind::RateLimited, Some(7), true)]
    #[case::not_told(ErrorKind::RateLimited, None, true)]
    #[case::circuit(ErrorKind::CircuitOpen, Some(30), true)]
    #[case::circuit_soon(ErrorKind::CircuitOpen, Some(10), false)]
    #[case::queue(ErrorKind::QueueTimeout, None, false)]
    #[case::outage(ErrorKind::Server, Some(60), false)]
    fn a_long_wait_ends_work_that_does_not_wait_for_providers(
        #[case] kind: ErrorKind,
        #[case] seconds: Option<u64>,
        #[case] is_long: bool,
    ) {
        let (origin, retry_after) = (RateLimitOrigin::Provider, seconds.map(Duration::from_secs));
        let failure = Failure::RateLimited { kind, origin, retry_after, message: "m".to_owned() };
        let error = CallError::Failed(failure);
        let message = error.to_string();
        let waits = ModelError::RateLimited { origin, retry_after, message: message.clone() };
        let fails = ModelError::Failed { reason: FailureReason::RateLimited { retry_after }, message };
        assert_eq!(model_error(&error, false), if is_long { fails } else { waits.clone() });
        assert_eq!(model_error(&error, true), waits);
    }
}
