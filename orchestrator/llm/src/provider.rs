//! One provider behind the gateway: its endpoint, its concurrency slots, its circuit breaker and its attempts. Owns
//! asking this provider until it answers or cannot; never knows of the others.

pub(crate) mod attempt_error;
pub(crate) mod breaker;
pub(crate) mod circuit;
pub(crate) mod error_body;
pub(crate) mod fair_semaphore;
pub(crate) mod retry;

use std::time::Duration;

use agent::Delta;
use parking_lot::Mutex;
use protocol::{Completion, CompletionRequest, TokenUsage};
use tokio::time::{Instant, sleep, timeout};

use self::{
    attempt_error::{AttemptError, Disposition},
    breaker::{Breaker, CallOwner, Ticket},
    circuit::{BreakerSettings, BreakerState, HealthOutcome, NotAdmitted},
    fair_semaphore::FairSemaphore,
    retry::RetrySettings,
};
use super::{
    call_phase::CallPhase,
    dialect::Dialects,
    error::{ErrorKind, GatewayError},
    gateway::CallContext,
    price::{Price, PriceTable},
    script::Script,
    serve::ScriptServer,
    upstream::{CallOptions, Upstream},
};
use config::{ProviderKind, ProviderSettings};

/// The timeout of a whole call, as a multiple of the idle timeout.
const CALL_TIMEOUT_FACTOR: u32 = 10;
/// An answer takes at most this part of the context window: servers refuse a request whose prompt and output limit
/// together exceed the window, and the loop keeps as much free (agent: size).
const OUTPUT_SHARE: u64 = 4;
/// How long a provider is left alone that refuses the account, and at most one that asks to wait, while another provider
/// can be asked.
const ACCOUNT_PAUSE: Duration = Duration::from_mins(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// Calls that are refused here without a known end of the wait come back after 1 to 5 s, spread so that they do not
/// come together.
const LOCAL_WAIT_MIN: Duration = Duration::from_secs(1);
const LOCAL_WAIT_SPREAD: Duration = Duration::from_secs(4);

pub(super) struct Provider {
    pub(super) name: String,
    pub(super) model: String,
    pub(super) context_tokens: u64,
    pub(super) text_tool_calls: bool,
    kind: ProviderKind,
    upstream: Upstream,
    /// Answers at the upstream's address as long as this lives; only of a script.
    _script: Option<ScriptServer>,
    idle_timeout: Duration,
    max_output_tokens: u64,
    slots: FairSemaphore,
    breaker: Mutex<Breaker>,
    /// What the newest failure was that counted against its health. Its text is the caller's, and is not kept.
    last_failure: Mutex<Option<ErrorKind>>,
    /// Why it is not asked for a while where another provider can be.
    pause: Mutex<Option<Pause>>,
}

/// What a provider said that another request at once would not change.
struct Pause {
    /// The account may have others.
    model: String,
    until: Instant,
    kind: ErrorKind,
}

impl Provider {
    pub(super) fn new(settings: &ProviderSettings, breaker: BreakerSettings) -> Result<Self, GatewayError> {
        let invalid =
            |field, message: String| GatewayError::Provider { provider: settings.name.clone(), field, message };
        if settings.max_concurrent == 0 {
            return Err(invalid("max_concurrent", "must be at least 1".to_owned()));
        }
        if settings.timeout_seconds == 0 {
            return Err(invalid("timeout_seconds", "must be at least 1".to_owned()));
        }
        if settings.model.is_empty() {
            return Err(invalid("model", "must name the model to ask".to_owned()));
        }
        let (upstream, script) = if settings.kind == ProviderKind::Scripted {
            let server = ScriptServer::start(Script::load(settings.script.as_deref())?)
                .map_err(|error| invalid("script", format!("cannot be served: {error}")))?;
            (Upstream::to_socket(settings, server.socket())?, Some(server))
        } else {
            (Upstream::new(settings)?, None)
        };
        Ok(Self {
            name: settings.name.clone(),
            model: settings.model.clone(),
            context_tokens: settings.context_tokens,
            text_tool_calls: settings.text_tool_calls,
            kind: settings.kind,
            upstream,
            _script: script,
            idle_timeout: Duration::from_secs(settings.timeout_seconds),
            max_output_tokens: settings.max_output_tokens.min(settings.context_tokens / OUTPUT_SHARE).max(1),
            slots: FairSemaphore::new(settings.max_concurrent as usize),
            breaker: Mutex::new(Breaker::new(breaker)),
            last_failure: Mutex::new(None),
            pause: Mutex::new(None),
        })
    }

    /// The state of the circuit breaker.
    pub(super) fn breaker_state(&self) -> BreakerState {
        self.breaker.lock().state(Instant::now())
    }

    /// What is known of its models.
    pub(super) const fn dialects(&self) -> &Dialects {
        self.upstream.dialects()
    }

    /// The price of a model here. A script and the operator's own machine are free unless the operator names a price.
    pub(super) fn price(&self, model: &str, prices: &PriceTable) -> Option<Price> {
        let is_free = matches!(self.kind, ProviderKind::Ollama | ProviderKind::Scripted);
        prices.of_model(model, self.kind).or(is_free.then_some(Price::FREE))
    }

    /// The highest price of a prompt token: where the prompt is marked for the cache, new input is billed as written to
    /// it.
    pub(super) fn input_price(&self, price: &Price) -> u64 {
        let marks_cache = self.kind == ProviderKind::Anthropic;
        if marks_cache { price.input.max(price.cache_write) } else { price.input }
    }

    /// The error that a call of this caller would meet at once, without the provider being asked.
    pub(super) fn refusal(&self, caller: CallOwner<'_>) -> Option<AttemptError> {
        self.breaker.lock().refusal(caller, Instant::now()).map(|refusal| self.circuit_open(refusal))
    }

    /// The error that it answered with a moment ago and would answer with again. To be used where another provider can be
    /// asked: refused requests count towards rate limits, too.
    pub(super) fn paused(&self, model: &str) -> Option<AttemptError> {
        let pause = self.pause.lock();
        let Pause { until, kind, .. } = pause.as_ref().filter(|pause| pause.model == model)?;
        let left = until.checked_duration_since(Instant::now())?;
        let cause = match kind {
            ErrorKind::Auth => "it refused its key (check the key and what it may use)",
            ErrorKind::Quota => "its account has nothing left (check its balance and its limits)",
            _ => "it limits the rate of calls",
        };
        let message = format!("{cause}; it is not asked again for {} s", left.as_secs() + 1);
        Some(AttemptError::new(Disposition::Failover, *kind, message).asking_to_wait(left))
    }

    fn set_pause(&self, model: &str, error: Option<&AttemptError>) {
        let wait = error.and_then(|error| match error.kind {
            ErrorKind::RateLimited => error.retry_after.map(|asked| asked.min(LONGEST_PAUSE)),
            ErrorKind::Auth | ErrorKind::Quota => Some(ACCOUNT_PAUSE),
            _ => None,
        });
        *self.pause.lock() = wait.zip(error).map(|(wait, error)| Pause {
            model: model.to_owned(),
            until: Instant::now() + wait,
            kind: error.kind,
        });
    }

    /// Asks until there is an answer or no attempt left. The usage of failed attempts is added to `progress`, also when
    /// the call is dropped half-way.
    pub(super) async fn ask(
        &self,
        model: &str,
        request: &CompletionRequest,
        context: &CallContext<'_>,
        retry: &RetrySettings,
        progress: &mut CallProgress,
    ) -> Result<Completion, AttemptError> {
        let mut attempts = 0;
        let mut cause: Option<AttemptError> = None;
        let error = loop {
            context.enter(CallPhase::Asking { attempt: attempts + 1, of: retry.tries });
            let error = match self.attempt(model, request, context, progress).await {
                Ok(completion) => {
                    self.set_pause(model, None);
                    return Ok(completion);
                }
                // What the provider said is the cause; that it is not asked again is its consequence.
                Err(error) if error.is_local() => break cause.unwrap_or(error),
                Err(error) => error,
            };
            attempts += 1;
            tracing::warn!(
                provider = self.name, model, attempts, kind = %error.kind, message = error.message, "model call failed"
            );
            let is_reservation_used = context.has_budget && progress.usage != TokenUsage::default();
            let wait = match error.disposition {
                Disposition::Retry if error.kind == ErrorKind::Timeout && !retry.repeats_timeouts => None,
                Disposition::Retry if !is_reservation_used => retry.wait(attempts, error.retry_after, rand::random()),
                Disposition::Retry | Disposition::Failover | Disposition::Fatal => None,
            };
            let Some(wait) = wait else { break error };
            let at = Instant::now() + wait;
            context.enter(CallPhase::Retrying { attempt: attempts + 1, of: retry.tries, at, cause: error.kind });
            cause = Some(error);
            sleep(wait).await;
        };
        if error.is_outage() {
            self.breaker.lock().call_failed(context.caller, Instant::now());
        }
        if !error.is_local() {
            self.set_pause(model, Some(&error));
        }
        Err(error)
    }

    /// The output limit of a request, as the operator allows it.
    pub(super) fn max_output(&self, request: &CompletionRequest) -> u64 {
        request.max_tokens.unwrap_or(u64::MAX).clamp(1, self.max_output_tokens)
    }

    async fn attempt(
        &self,
        model: &str,
        request: &CompletionRequest,
        context: &CallContext<'_>,
        progress: &mut CallProgress,
    ) -> Result<Completion, AttemptError> {
        // A call that is refused anyway takes no turn at a slot.
        if let Some(refused) = self.refusal(context.caller) {
            return Err(refused);
        }
        let full = || {
            AttemptError::local(ErrorKind::QueueTimeout, local_wait(), "too many calls wait for this model provider")
        };
        let _permit = timeout(self.idle_timeout, self.slots.acquire(context.caller)).await.map_err(|_| full())?;
        let ticket = self.breaker.lock().admit(context.caller, Instant::now());
        let ticket = ticket.map_err(|refusal| self.circuit_open(refusal))?;
        progress.reached_provider = true;
        // A call that is dropped half-way must give its trial back.
        let mut trial = Trial { provider: self, ticket, outcome: HealthOutcome::Neither };
        let options =
            CallOptions { model, max_output_tokens: self.max_output(request), context_tokens: self.context_tokens };
        if std::mem::take(&mut progress.has_streamed) {
            context.send(Delta::Start { call_id: request.call_id.clone() }).await;
        }
        let longest = self.idle_timeout.saturating_mul(CALL_TIMEOUT_FACTOR);
        let result =
            timeout(longest, self.upstream.complete(request, options, context, progress)).await.unwrap_or_else(|_| {
                let message = format!("the call took {} s; llm.timeout_seconds limits it", longest.as_secs());
                Err(AttemptError::transient(ErrorKind::Timeout, message))
            });
        trial.outcome = match &result {
            Ok(_) => HealthOutcome::Success,
            Err(error) if error.is_outage() => {
                *self.last_failure.lock() = Some(error.kind);
                HealthOutcome::Failure
            }
            Err(_) => HealthOutcome::Neither,
        };
        result
    }

    fn circuit_open(&self, refusal: NotAdmitted) -> AttemptError {
        let wait = match refusal {
            NotAdmitted::Open(left) => left,
            NotAdmitted::HalfOpen => local_wait(),
        };
        let last = self.last_failure.lock().map(|kind| format!(" (the last time: {kind})")).unwrap_or_default();
        let message = format!("the model provider failed too often{last} and is not asked for a while");
        AttemptError::local(ErrorKind::CircuitOpen, wait, &message)
    }
}

/// The state of a call over all its attempts.
#[derive(Debug, Default)]
pub(super) struct CallProgress {
    /// Usage of attempts that failed.
    pub(super) usage: TokenUsage,
    /// Whether an attempt got past the queue and the circuit breaker.
    pub(super) reached_provider: bool,
    /// Whether an attempt has sent deltas, which another attempt makes void.
    pub(super) has_streamed: bool,
}

fn local_wait() -> Duration {
    LOCAL_WAIT_MIN + LOCAL_WAIT_SPREAD.mul_f64(rand::random())
}

/// A call that the circuit breaker admitted.
struct Trial<'a> {
    provider: &'a Provider,
    ticket: Ticket,
    outcome: HealthOutcome,
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.provider.breaker.lock().report(&self.ticket, self.outcome, Instant::now());
    }
}
