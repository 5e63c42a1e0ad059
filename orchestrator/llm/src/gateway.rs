//! The gateway: asks the providers in order until one answers. Owns the order, the cost of what was used and how a
//! failure is reported. Never stores anything: its caller records each call before it uses the answer.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use agent::{Delta, DeltaSink, safety::LeakDetector};
use protocol::{Completion, CompletionRequest, Effort, RateLimitOrigin, TokenUsage};
use serde_json::Value;
use tokio::{sync::watch, time::Instant};
use tracing::Instrument;

use super::{
    call_phase::CallPhase,
    error::{ErrorKind, GatewayError},
    estimate,
    price::PriceTable,
    provider::{
        CallProgress, Provider,
        attempt_error::{AttemptError, Disposition},
        breaker::CallOwner,
        circuit::{BreakerSettings, BreakerState},
        retry::RetrySettings,
    },
};
use config::{LlmSettings, UnpricedModels};
use domain::budget::CallEstimate;

/// The only way to a model.
pub struct Gateway {
    primary: Provider,
    failover: Vec<Provider>,
    prices: PriceTable,
    unpriced: UnpricedModels,
    effort: Option<Effort>,
    retry: RetrySettings,
}

/// A cost limit applies to calls of a model that has no price, so it could not be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{model} has no price, so a cost limit cannot be enforced; name its price in llm.prices, use another model, or set llm.unpriced to allow"
)]
pub struct UnpricedModel {
    pub model: String,
}

/// On whose behalf a question is asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallContext<'a> {
    /// The job and the user; failures and slots are counted by both.
    pub caller: CallOwner<'a>,
    /// The job's title; scripts can match on it.
    pub job_title: Option<&'a str>,
    /// The model that the job names. It applies to the primary provider; the others have their own.
    pub model: Option<&'a str>,
    /// How much the model thinks; the operator's default if it is not said.
    pub effort: Option<Effort>,
    /// A cost limit applies: providers whose price is not known are not asked, unless the operator allows it.
    pub has_cost_limit: bool,
    /// A budget reserved one attempt: after an attempt that was charged, none follows in this call.
    pub has_budget: bool,
    /// Where the deltas of the answer go, if anywhere.
    pub deltas: Option<&'a DeltaSink>,
    /// Finds the user's secrets in what providers say of failed calls.
    pub detector: Option<&'a LeakDetector>,
    /// Shows the phase of the call.
    pub phase: Option<&'a watch::Sender<CallPhase>>,
}

impl CallContext<'_> {
    /// Passes a delta of the answer on.
    pub(super) async fn send(&self, delta: Delta) {
        if let Some(deltas) = self.deltas {
            deltas.send(delta).await;
        }
    }

    pub(super) fn enter(&self, phase: CallPhase) {
        if let Some(shown) = self.phase {
            shown.send_replace(phase);
        }
    }
}

/// An answer with its cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The model's answer; its usage is that of this answer alone.
    pub completion: Completion,
    /// The cost of the call, failed attempts included.
    pub cost: CallCost,
}

/// The cost of a call: all attempts together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallCost {
    /// The provider that answered, or the last one that was asked.
    pub provider: String,
    /// The model that was asked there.
    pub model: String,
    /// Tokens, including those of answers that were interrupted.
    pub usage: TokenUsage,
    /// Micro-dollars; none when a price is unknown.
    pub cost_micro_usd: Option<i64>,
    /// Time from the request to the end, waits included.
    pub duration: Duration,
}

/// A call without an answer, with its cost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct AskError {
    /// Why, and who acts next.
    pub failure: Failure,
    /// The cost of the failed attempts.
    pub cost: CallCost,
    /// Whether any provider was asked. If not, there is no call to record.
    pub reached_provider: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The caller waits and asks again: a rate limit, an outage, or a circuit or queue of this process.
    #[error("{}: {message}", .kind.as_phrase())]
    RateLimited {
        kind: ErrorKind,
        origin: RateLimitOrigin,
        /// How long to wait, where that is known.
        retry_after: Option<Duration>,
        /// A human-readable message without secrets.
        message: String,
    },
    /// Asking again will not help.
    #[error("{kind}: {message}")]
    Failed {
        kind: ErrorKind,
        /// A human-readable message without secrets.
        message: String,
    },
}

impl Failure {
    /// The name in records.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::RateLimited { kind, .. } | Self::Failed { kind, .. } => *kind,
        }
    }
}

/// A provider as `/readyz` shows it, from the calls so far: no provider is probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderHealth {
    pub name: String,
    pub model: String,
    /// The state of its circuit breaker.
    pub breaker: BreakerState,
    /// What refusals taught of each model, as `llm.dialect` takes it.
    pub learned: BTreeMap<String, Value>,
    /// The operator's `llm.dialect`, for all models.
    pub pinned: BTreeMap<String, Value>,
    /// What is known beforehand of the provider's own model.
    pub preset: BTreeMap<String, Value>,
}

impl Gateway {
    /// Builds it from the configuration. Contacts no provider.
    pub fn new(settings: &LlmSettings) -> Result<Self, GatewayError> {
        Self::with_policies(settings, RetrySettings::default(), BreakerSettings::default())
    }

    fn with_policies(
        settings: &LlmSettings,
        retry: RetrySettings,
        breaker: BreakerSettings,
    ) -> Result<Self, GatewayError> {
        let provider = |settings| Provider::new(settings, breaker);
        let primary = provider(&settings.primary)?;
        let failover = settings.failover.iter().map(provider).collect::<Result<_, _>>()?;
        let prices = PriceTable::new(&settings.prices);
        let gateway = Self { primary, failover, prices, unpriced: settings.unpriced, effort: settings.effort, retry };
        gateway.log_listed_prices();
        Ok(gateway)
    }

    /// The operator is to check prices that are not configured.
    fn log_listed_prices(&self) {
        for provider in self.providers() {
            if let Some(listed) = self.prices.listed_price(&provider.model) {
                tracing::info!(
                    model = provider.model,
                    price_list = listed.provider,
                    as_of = %listed.as_of,
                    source = listed.source,
                    "the model's costs are computed with a built-in price; llm.prices replaces it"
                );
            }
        }
    }

    /// Refuses a model whose price at the primary provider is not known. To be asked where a cost limit applies.
    pub fn check_price(&self, model: &str) -> Result<(), UnpricedModel> {
        if self.may_ask(&self.primary, model) { Ok(()) } else { Err(UnpricedModel { model: model.to_owned() }) }
    }

    /// Whether the price of a model at the primary provider is known.
    pub fn has_price(&self, model: &str) -> bool {
        self.primary.price(model, &self.prices).is_some()
    }

    /// Whether calls of this model at this provider may be made under a cost limit.
    fn may_ask(&self, provider: &Provider, model: &str) -> bool {
        self.unpriced == UnpricedModels::Allow || provider.price(model, &self.prices).is_some()
    }

    /// The context size of the primary provider's model.
    pub fn context_tokens(&self) -> u64 {
        self.primary.context_tokens
    }

    /// Whether tool calls that the primary provider's model writes as text are run. Answers of other providers say it where
    /// theirs are not the same.
    pub fn recovers_text_tool_calls(&self) -> bool {
        self.primary.text_tool_calls
    }

    /// Whether tool calls that this provider's model writes as text are run, where it is not as with the primary one.
    fn other_text_tool_calls(&self, provider: &Provider) -> Option<bool> {
        Some(provider.text_tool_calls).filter(|runs| *runs != self.primary.text_tool_calls)
    }

    /// The state of every provider.
    pub fn health(&self) -> Vec<ProviderHealth> {
        let health = |provider: &Provider| ProviderHealth {
            name: provider.name.clone(),
            model: provider.model.clone(),
            breaker: provider.breaker_state(),
            learned: provider.dialects().learned(),
            pinned: provider.dialects().pinned(),
            preset: provider.dialects().shown_preset(&provider.model),
        };
        self.providers().map(health).collect()
    }

    /// Whether calls of at least one provider go through, if only for a trial.
    pub fn is_any_asked(&self) -> bool {
        self.providers().any(|provider| provider.breaker_state() != BreakerState::Open)
    }

    /// The highest cost of an attempt at a request, at the highest prices of the providers that may be asked.
    pub fn estimate(&self, request: &CompletionRequest, context: &CallContext<'_>) -> CallEstimate {
        let mut estimate = CallEstimate {
            prompt_tokens: estimate::prompt_tokens(request),
            max_output_tokens: 1,
            prices: None,
            prompt_price: None,
        };
        for (provider, model) in self.askable(context) {
            estimate.max_output_tokens = estimate.max_output_tokens.max(provider.max_output(request));
            let Some(price) = provider.price(model, &self.prices) else { continue };
            let (input, output) = (provider.input_price(&price), price.output);
            let (highest_input, highest_output) = estimate.prices.unwrap_or_default();
            estimate.prices = Some((highest_input.max(input), highest_output.max(output)));
            estimate.prompt_price = estimate.prompt_price.or(Some(input));
        }
        estimate
    }

    /// Why a call would be refused now without any provider being asked, if it would.
    pub fn refusal(&self, context: &CallContext<'_>) -> Option<Failure> {
        let mut errors = Vec::new();
        for provider in self.providers() {
            errors.push((provider.name.as_str(), provider.refusal(context.caller)?));
        }
        Some(failure(&errors))
    }

    /// Asks one question, however many attempts and providers it takes. It is dropped as soon as `unwanted` resolves;
    /// what came until then is part of the cost.
    pub async fn ask(
        &self,
        request: &CompletionRequest,
        context: &CallContext<'_>,
        unwanted: impl Future<Output = ()> + Send,
    ) -> Result<Answer, AskError> {
        let context = &CallContext { effort: context.effort.or(self.effort), ..*context };
        let mut unwanted = pin!(unwanted);
        let mut cost = CostAccumulator { usage: TokenUsage::default(), cost_micro_usd: Some(0), began: Instant::now() };
        let mut errors: Vec<(&str, AttemptError)> = Vec::new();
        let (mut reached_provider, mut has_streamed) = (false, false);
        let mut last = (&self.primary, self.primary.model.as_str());
        let askable = self.askable(context).map(|(provider, model)| (provider, model, provider.paused(model)));
        let askable: Vec<_> = askable.collect();
        let last_unpaused = askable.iter().rposition(|(.., paused)| paused.is_none());
        let last_asked = last_unpaused.unwrap_or(askable.len().saturating_sub(1));
        for (index, (provider, model, paused)) in askable.into_iter().enumerate() {
            if let Some(error) = paused.filter(|_| last_unpaused.is_some()) {
                errors.push((&provider.name, error));
                continue;
            }
            let retry = RetrySettings { repeats_timeouts: index == last_asked, ..self.retry };
            last = (provider, model);
            let span = tracing::info_span!(
                "llm.call",
                provider = provider.name,
                model,
                tokens.input = tracing::field::Empty,
                tokens.output = tracing::field::Empty
            );
            let mut progress = CallProgress { has_streamed, ..CallProgress::default() };
            let result = tokio::select! {
                biased;
                () = &mut unwanted => Err(AttemptError::new(Disposition::Fatal, ErrorKind::Aborted, "the caller is gone")),
                result = Box::pin(provider.ask(model, request, context, &retry, &mut progress)).instrument(span.clone()) => result,
            };
            let mut used = progress.usage;
            reached_provider |= progress.reached_provider;
            has_streamed = progress.has_streamed;
            if let Ok(completion) = &result {
                agent::add_usage(&mut used, &completion.usage);
            }
            span.record("tokens.input", used.input_tokens).record("tokens.output", used.output_tokens);
            cost.add(&used, provider.price(model, &self.prices));
            match result {
                Ok(completion) => {
                    let completion = Completion { text_tool_calls: self.other_text_tool_calls(provider), ..completion };
                    return Ok(Answer { completion, cost: cost.settle(provider, model) });
                }
                Err(mut error) => {
                    // Nothing is reserved for the attempts that are left. The caller asks again, which makes another
                    // reservation.
                    let is_reservation_used = context.has_budget && cost.usage != TokenUsage::default();
                    if is_reservation_used && error.disposition == Disposition::Failover {
                        error.disposition = Disposition::Retry;
                    }
                    // Another provider may take what this one refuses. A conversation that is too long for the first is
                    // made shorter: the others are not better at once because one of them has more room.
                    let ends_call = error.disposition == Disposition::Fatal
                        && (error.kind == ErrorKind::Aborted
                            || (error.kind == ErrorKind::ContextLength && errors.is_empty()));
                    let is_final = is_reservation_used || ends_call;
                    errors.push((&provider.name, error));
                    if is_final {
                        break;
                    }
                }
            }
        }
        Err(AskError { failure: failure(&errors), cost: cost.settle(last.0, last.1), reached_provider })
    }

    /// The providers that may be asked, in their order, each with the model to ask for.
    fn askable<'g>(&'g self, context: &CallContext<'g>) -> impl Iterator<Item = (&'g Provider, &'g str)> {
        let (named, has_cost_limit) = (context.model, context.has_cost_limit);
        let with_model = self
            .providers()
            .enumerate()
            .map(move |(index, provider)| (provider, named.filter(|_| index == 0).unwrap_or(&provider.model)));
        with_model.filter(move |(provider, model)| !has_cost_limit || self.may_ask(provider, model))
    }

    fn providers(&self) -> impl Iterator<Item = &Provider> {
        std::iter::once(&self.primary).chain(&self.failover)
    }
}

/// Maps the errors of a call without an answer to one failure. If any provider may answer later, the caller waits; only
/// when all refuse for good does the call fail. The caller's own end, and a conversation that is too long for the first
/// provider or that it refuses to answer, come before that.
fn failure(errors: &[(&str, AttemptError)]) -> Failure {
    if let Some((_, AttemptError { kind: kind @ ErrorKind::Aborted, message, .. })) = errors.last() {
        return Failure::Failed { kind: *kind, message: message.clone() };
    }
    // It would refuse the same again, and be paid for it.
    let of_first = errors.first().map(|(_, error)| error.kind);
    if let Some(kind @ (ErrorKind::ContextLength | ErrorKind::Refused)) = of_first {
        return Failure::Failed { kind, message: causes(errors) };
    }
    let transient = |local: bool| {
        errors.iter().map(|(_, error)| error).filter(move |error| error.is_transient() && error.is_local() == local)
    };
    // A local circuit or queue never hides what a provider said.
    let (origin, waits): (_, Vec<&AttemptError>) = match transient(false).next() {
        Some(_) => (RateLimitOrigin::Provider, transient(false).collect()),
        // A provider with a full queue does answer.
        None if transient(true).all(|error| error.kind == ErrorKind::CircuitOpen) => {
            (RateLimitOrigin::Circuit, transient(true).collect())
        }
        None => (RateLimitOrigin::Local, transient(true).collect()),
    };
    // The one that can be asked first; one that says when comes before those that do not.
    let soonest = waits.into_iter().min_by_key(|error| error.retry_after.unwrap_or(Duration::MAX));
    if let Some(AttemptError { kind, retry_after, .. }) = soonest {
        return Failure::RateLimited { kind: *kind, origin, retry_after: *retry_after, message: causes(errors) };
    }
    // Where the first refuses for another reason, a shorter conversation may be answered by the next one.
    let too_long = errors.iter().map(|(_, error)| error.kind).find(|kind| *kind == ErrorKind::ContextLength);
    let kind = too_long.or(errors.first().map(|(_, error)| error.kind)).unwrap_or(ErrorKind::Connect);
    Failure::Failed { kind, message: causes(errors) }
}

/// Every provider's refusal, each under the provider's name.
fn causes(errors: &[(&str, AttemptError)]) -> String {
    if errors.is_empty() {
        return "no provider was asked".to_owned();
    }
    let named: Vec<String> = errors.iter().map(|(name, error)| format!("{name}: {}", error.message)).collect();
    named.join("; ")
}

/// Adds up the attempts of one call.
struct CostAccumulator {
    usage: TokenUsage,
    cost_micro_usd: Option<i64>,
    began: Instant,
}

impl CostAccumulator {
    fn add(&mut self, used: &TokenUsage, price: Option<super::price::Price>) {
        if *used == TokenUsage::default() {
            return;
        }
        agent::add_usage(&mut self.usage, used);
        let cost = price.map(|price| price.cost_micro_usd(used));
        self.cost_micro_usd = self.cost_micro_usd.zip(cost).map(|(sum, cost)| sum.saturating_add(cost));
    }

    fn settle(self, provider: &Provider, model: &str) -> CallCost {
        CallCost {
            provider: provider.name.clone(),
            model: model.to_owned(),
            usage: self.usage,
            cost_micro_usd: self.cost_micro_usd,
            duration: self.began.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests;
