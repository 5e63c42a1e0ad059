//! One provider behind the gateway: its wire, its concurrency slots, its breaker, its tries. Owns asking one of them until
//! it answers or cannot; never knows of the others.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use protocol::{Completion, CompletionRequest, TokenUsage};
use tokio::time::{Instant, sleep, timeout};

use super::{
    breaker::{Breaker, Caller, Ticket},
    circuit::{BreakerSettings, BreakerState, Outcome, Refusal},
    error::{ErrorKind, GatewayError},
    fair_semaphore::FairSemaphore,
    fault::{Fault, Next},
    price::{Price, PriceTable},
    remote::{Remote, RemoteKind},
    retry::RetrySettings,
    script::Script,
    scripted::{Play, Played, Player, Question},
};
use crate::config::{ProviderKind, ProviderSettings};

/// A whole call may take so many times the longest silence.
const CALL_OF_SILENCES: u32 = 10;
/// Calls that are refused here without a known end of the wait come back after 1 to 5 s, spread so that they do not come
/// together (contract: agent, Gateway).
const LOCAL_WAIT_MIN: Duration = Duration::from_secs(1);
const LOCAL_WAIT_SPREAD: Duration = Duration::from_secs(4);

/// The wires there are.
enum Wire {
    Remote(Box<Remote>),
    Scripted(Player),
}

/// One provider.
pub(super) struct Provider {
    pub(super) name: String,
    pub(super) model: String,
    pub(super) context_tokens: u64,
    kind: ProviderKind,
    wire: Wire,
    silence: Duration,
    max_output_tokens: u64,
    slots: FairSemaphore,
    breaker: Mutex<Breaker>,
}

impl Provider {
    pub(super) fn new(settings: &ProviderSettings, breaker: BreakerSettings) -> Result<Self, GatewayError> {
        let wrong = |field, message: &str| GatewayError::Provider {
            provider: settings.name.clone(),
            field,
            message: message.to_owned(),
        };
        if settings.max_concurrent == 0 {
            return Err(wrong("max_concurrent", "must be at least 1"));
        }
        if settings.timeout_seconds == 0 {
            return Err(wrong("timeout_seconds", "must be at least 1"));
        }
        if settings.model.is_empty() {
            return Err(wrong("model", "must name the model to ask"));
        }
        let wire = match settings.kind {
            ProviderKind::OpenAi => Wire::Remote(Box::new(Remote::new(RemoteKind::OpenAi, settings)?)),
            ProviderKind::Anthropic => Wire::Remote(Box::new(Remote::new(RemoteKind::Anthropic, settings)?)),
            ProviderKind::Ollama => Wire::Remote(Box::new(Remote::new(RemoteKind::Ollama, settings)?)),
            ProviderKind::Scripted => Wire::Scripted(Player::new(Script::load(settings.script.as_deref())?)),
        };
        Ok(Self {
            name: settings.name.clone(),
            model: settings.model.clone(),
            kind: settings.kind,
            context_tokens: settings.context_tokens,
            wire,
            silence: Duration::from_secs(settings.timeout_seconds),
            max_output_tokens: settings.max_output_tokens.max(1),
            slots: FairSemaphore::new(settings.max_concurrent as usize),
            breaker: Mutex::new(Breaker::new(breaker)),
        })
    }

    /// The breaker, for health.
    pub(super) fn breaker_state(&self) -> BreakerState {
        self.with_breaker(|breaker| breaker.state(Instant::now()))
    }

    /// The price of a model here. A script and the operator's own machine are free unless the operator names a price.
    pub(super) fn price(&self, model: &str, prices: &PriceTable) -> Option<Price> {
        let is_free = matches!(self.kind, ProviderKind::Ollama | ProviderKind::Scripted);
        prices.of_model(model, self.kind).or(is_free.then_some(Price::FREE))
    }

    /// The highest price of a prompt token: where the prompt is marked for the cache, new input is billed as written to it.
    pub(super) fn input_price(&self, price: &Price) -> u64 {
        let marks_cache = self.kind == ProviderKind::Anthropic;
        if marks_cache { price.input.max(price.cache_write) } else { price.input }
    }

    /// The fault that a call of this caller would meet at once, without the provider being asked.
    pub(super) fn refusal(&self, caller: Caller<'_>) -> Option<Fault> {
        self.with_breaker(|breaker| breaker.refusal(caller, Instant::now())).map(circuit_open)
    }

    /// Asks until there is an answer, or none to be had here. What came of failed tries is added to `progress`, also when
    /// the call is dropped half-way.
    pub(super) async fn ask(
        &self,
        model: &str,
        asked: Asked<'_>,
        retry: &RetrySettings,
        progress: &mut Progress,
    ) -> Result<Completion, Fault> {
        let request = self.within_limits(asked.request);
        let mut tries = 0;
        let mut cause: Option<Fault> = None;
        let fault = loop {
            let fault = match self.try_once(model, &request, asked, progress).await {
                Ok(completion) => return Ok(completion),
                // What the provider said is the cause; that it is not asked again is its consequence.
                Err(fault) if fault.is_local() => break cause.unwrap_or(fault),
                Err(fault) => fault,
            };
            tries += 1;
            tracing::warn!(provider = self.name, model, tries, kind = %fault.kind, message = fault.message, "no answer");
            let wait = match fault.next {
                Next::TryAgain => retry.wait(tries, fault.retry_after, rand::random()),
                Next::AnotherProvider | Next::GiveUp => None,
            };
            let Some(wait) = wait else { break fault };
            cause = Some(fault);
            sleep(wait).await;
        };
        if fault.next == Next::TryAgain {
            self.with_breaker(|breaker| breaker.call_failed(asked.caller, Instant::now()));
        }
        Err(fault)
    }

    /// The most that an answer may have.
    pub(super) fn max_output(&self, request: &CompletionRequest) -> u64 {
        request.max_tokens.unwrap_or(u64::MAX).clamp(1, self.max_output_tokens)
    }

    /// What the operator allows, whatever was asked for.
    fn within_limits(&self, request: &CompletionRequest) -> CompletionRequest {
        let mut request = request.clone();
        request.max_tokens = Some(self.max_output(&request));
        request.temperature = request.temperature.filter(|told| told.is_finite()).map(|told| told.clamp(0.0, 2.0));
        request
    }

    async fn try_once(
        &self,
        model: &str,
        request: &CompletionRequest,
        asked: Asked<'_>,
        progress: &mut Progress,
    ) -> Result<Completion, Fault> {
        // Who is refused anyway takes no turn at a slot.
        if let Some(refused) = self.refusal(asked.caller) {
            return Err(refused);
        }
        let busy =
            || Fault::local(ErrorKind::QueueTimeout, local_wait(), "too many calls wait for this model provider");
        let _permit = timeout(self.silence, self.slots.acquire(asked.caller)).await.map_err(|_| busy())?;
        let ticket = self.with_breaker(|breaker| breaker.admit(asked.caller, Instant::now())).map_err(circuit_open)?;
        progress.reached_provider = true;
        let wasted = &mut progress.usage;
        // A call that is dropped half-way must give its trial back.
        let mut trial = Trial { provider: self, ticket, outcome: Outcome::Neither };
        let call = async {
            match &self.wire {
                Wire::Remote(remote) => remote.complete(model, request, wasted).await,
                Wire::Scripted(player) => self.play(player, request, asked.job_title, wasted).await,
            }
        };
        let longest = self.silence.saturating_mul(CALL_OF_SILENCES);
        let result = timeout(longest, call)
            .await
            .unwrap_or_else(|_| Err(Fault::transient(ErrorKind::Timeout, "the call took too long")));
        trial.outcome = match &result {
            Ok(_) => Outcome::Success,
            Err(fault) if fault.next == Next::TryAgain => Outcome::Failure,
            Err(_) => Outcome::Neither,
        };
        result
    }

    /// A script answers as a provider would: late, wrongly, half, or never.
    async fn play(
        &self,
        player: &Player,
        request: &CompletionRequest,
        job_title: Option<&str>,
        wasted: &mut TokenUsage,
    ) -> Result<Completion, Fault> {
        let has_tools = !request.tools.is_empty() && request.tool_choice != protocol::ToolChoice::None;
        let answer = match player.play(Question { messages: &request.messages, has_tools, job_title }) {
            Play::Answer(answer) => answer,
            Play::Error { status, message, retry_after } => {
                return Err(Fault::of_status(status, &message, retry_after));
            }
            Play::Garbage => return Err(Fault::transient(ErrorKind::InvalidResponse, "the answer is not JSON")),
            Play::Hang => return Err(self.silent().await),
        };
        if answer.delay > self.silence || answer.chunk_pause > self.silence {
            return Err(self.silent().await);
        }
        sleep(answer.delay + answer.streaming_time()).await;
        if answer.cut_after_chars.is_none() {
            return Ok(answer.completion());
        }
        add(wasted, &usage_until_cut(&answer));
        Err(Fault::transient(ErrorKind::StreamInterrupted, "the answer ended in the middle"))
    }

    async fn silent(&self) -> Fault {
        sleep(self.silence).await;
        Fault::transient(ErrorKind::Timeout, "the provider is silent")
    }

    fn with_breaker<T>(&self, act: impl FnOnce(&mut Breaker) -> T) -> T {
        act(&mut self.breaker.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is asked, and for which job.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) request: &'a CompletionRequest,
    pub(super) caller: Caller<'a>,
    pub(super) job_title: Option<&'a str>,
}

/// What a call has come to so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Of tries that failed.
    pub(super) usage: TokenUsage,
    /// Whether a try got past the queue and the breaker.
    pub(super) reached_provider: bool,
}

fn circuit_open(refusal: Refusal) -> Fault {
    let wait = match refusal {
        Refusal::Open(left) => left,
        Refusal::HalfOpen => local_wait(),
    };
    Fault::local(ErrorKind::CircuitOpen, wait, "the model provider failed too often and is not asked for a while")
}

fn local_wait() -> Duration {
    LOCAL_WAIT_MIN + LOCAL_WAIT_SPREAD.mul_f64(rand::random())
}

/// A call that the breaker let through.
struct Trial<'a> {
    provider: &'a Provider,
    ticket: Ticket,
    outcome: Outcome,
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.provider.with_breaker(|breaker| breaker.report(&self.ticket, self.outcome, Instant::now()));
    }
}

/// Sums tokens.
pub(super) fn add(sum: &mut TokenUsage, more: &TokenUsage) {
    sum.input_tokens = sum.input_tokens.saturating_add(more.input_tokens);
    sum.output_tokens = sum.output_tokens.saturating_add(more.output_tokens);
    sum.cache_read_tokens = sum.cache_read_tokens.saturating_add(more.cache_read_tokens);
    sum.cache_write_tokens = sum.cache_write_tokens.saturating_add(more.cache_write_tokens);
}

/// A provider charges for what it sent.
fn usage_until_cut(played: &Played) -> TokenUsage {
    let sent = played.cut_after_chars.unwrap_or(usize::MAX).min(played.written_chars());
    if sent == 0 {
        return TokenUsage::default();
    }
    let output_tokens = super::arguments::tokens_of_bytes(sent).min(played.usage.output_tokens);
    TokenUsage { output_tokens, ..played.usage }
}
