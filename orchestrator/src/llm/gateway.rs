//! The gateway: asks the providers in order until one answers. Owns the order, the price of what was used and the
//! words of a failure. Never stores anything: its caller records each call before it uses the answer.

use std::{pin::pin, time::Duration};

use protocol::{Completion, CompletionRequest, Message, RateLimitOrigin, TokenUsage, ToolCall, ToolDefinition};
use serde_json::Value;
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    arguments::tokens_of_bytes,
    breaker::Caller,
    call_ids,
    circuit::{BreakerSettings, BreakerState},
    error::{ErrorKind, GatewayError},
    fault::{Fault, Next},
    price::PriceTable,
    provider::{Asked, Progress, Provider, add},
    retry::RetrySettings,
};
use crate::{config::LlmSettings, domain::budget::Quote};

/// What a message is beside its text, in bytes: its role and what separates it from the next.
const MESSAGE_BYTES: usize = 16;

/// The only way to a model.
pub struct Gateway {
    primary: Provider,
    failover: Vec<Provider>,
    prices: PriceTable,
    retry: RetrySettings,
}

/// On whose behalf a question is asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallContext<'a> {
    /// Whose call it is: failures and turns are counted by job and user.
    pub caller: Caller<'a>,
    /// The job's title; scripts can match on it.
    pub job_title: Option<&'a str>,
    /// The model that the job names. It goes to the first provider; those after it have their own.
    pub model: Option<&'a str>,
}

/// An answer, with what its record needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What the model said; its usage is this answer's alone.
    pub completion: Completion,
    /// What the call took, failed tries included.
    pub cost: CallCost,
}

/// What a call took, all tries together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallCost {
    /// The provider that answered, or was asked last.
    pub provider: String,
    /// Its model.
    pub model: String,
    /// Tokens, those of answers that broke off included.
    pub usage: TokenUsage,
    /// Micro-dollars; none when a price is not known.
    pub cost_micro_usd: Option<i64>,
    /// From the question to its end, waits included.
    pub duration: Duration,
}

/// No answer, with what its record needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct AskError {
    /// Why, and who acts next.
    pub failure: Failure,
    /// What it took all the same.
    pub cost: CallCost,
    /// Whether any provider was asked. If not, there is nothing to record.
    pub reached_provider: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The caller waits and asks again: a rate limit, an outage, or a circuit or queue of this process.
    #[error("{}: {message}", .kind.as_phrase())]
    RateLimited {
        /// What it was.
        kind: ErrorKind,
        /// Who refused.
        origin: RateLimitOrigin,
        /// How long to wait, where that is known.
        retry_after: Option<Duration>,
        /// For people; no secrets.
        message: String,
    },
    /// Asking again will not help.
    #[error("{kind}: {message}")]
    Failed {
        /// What it was.
        kind: ErrorKind,
        /// For people; no secrets.
        message: String,
    },
}

impl Failure {
    /// The word for records.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::RateLimited { kind, .. } | Self::Failed { kind, .. } => *kind,
        }
    }
}

/// A provider as `/readyz` shows it. From what was seen: nobody is asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderHealth {
    /// Its name.
    pub name: String,
    /// Its model.
    pub model: String,
    /// Whether it is asked at present.
    pub breaker: BreakerState,
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
        Ok(Self { primary, failover, prices: PriceTable::new(&settings.prices), retry })
    }

    /// Whether calls of this model at the primary provider have a price.
    pub fn has_price(&self, model: &str) -> bool {
        self.primary.price(model, &self.prices).is_some()
    }

    /// The context of the model that is asked first.
    pub fn context_tokens(&self) -> u64 {
        self.primary.context_tokens
    }

    /// The model that is asked when a job names none.
    pub fn default_model(&self) -> &str {
        &self.primary.model
    }

    /// Every provider as it was last seen.
    pub fn health(&self) -> Vec<ProviderHealth> {
        let health = |provider: &Provider| ProviderHealth {
            name: provider.name.clone(),
            model: provider.model.clone(),
            breaker: provider.breaker_state(),
        };
        self.providers().map(health).collect()
    }

    /// What a question may cost at worst with the provider that is asked first. One that comes after it may charge more: then
    /// the truth is settled all the same.
    pub fn quote(&self, request: &CompletionRequest, model: &str) -> Quote {
        let messages: usize = request.messages.iter().map(bytes_of_message).sum();
        let tools: usize = request.tools.iter().map(bytes_of_tool).sum();
        let price = self.primary.price(model, &self.prices);
        Quote {
            prompt_tokens: tokens_of_bytes(messages + tools),
            max_output_tokens: self.primary.max_output(request),
            prices: price.map(|price| (self.primary.input_price(&price), price.output)),
        }
    }

    /// Why a call would be refused now without any provider being asked, if it would.
    pub fn refusal(&self, context: &CallContext<'_>) -> Option<Failure> {
        let faults: Option<Vec<Fault>> = self.providers().map(|provider| provider.refusal(context.caller)).collect();
        faults.map(|faults| failure(faults.into_iter().map(|fault| ("", fault)).collect()))
    }

    /// Asks. One question, however many tries and providers it takes; dropped at once when it is `unwanted`, and what
    /// came until then is on the bill.
    pub async fn ask(
        &self,
        request: &CompletionRequest,
        context: &CallContext<'_>,
        unwanted: impl Future<Output = ()> + Send,
    ) -> Result<Answer, AskError> {
        let mut unwanted = pin!(unwanted);
        let mut bill = Bill { usage: TokenUsage::default(), cost_micro_usd: Some(0), began: Instant::now() };
        let asked = Asked { request, caller: context.caller, job_title: context.job_title };
        let mut faults: Vec<(&str, Fault)> = Vec::new();
        let mut reached_provider = false;
        let mut last = (&self.primary, self.primary.model.as_str());
        for (index, provider) in self.providers().enumerate() {
            let model = context.model.filter(|_| index == 0).unwrap_or(&provider.model);
            last = (provider, model);
            let span = tracing::info_span!(
                "llm.call",
                provider = provider.name,
                model,
                tokens.input = tracing::field::Empty,
                tokens.output = tracing::field::Empty
            );
            let mut progress = Progress::default();
            let result = tokio::select! {
                biased;
                () = &mut unwanted => Err(Fault::new(Next::GiveUp, ErrorKind::Aborted, "nobody waits for the answer any more")),
                result = provider.ask(model, asked, &self.retry, &mut progress).instrument(span.clone()) => result,
            };
            let Progress { usage: mut used, reached_provider: reached } = progress;
            reached_provider |= reached;
            if let Ok(completion) = &result {
                add(&mut used, &completion.usage);
            }
            span.record("tokens.input", used.input_tokens).record("tokens.output", used.output_tokens);
            bill.add(&used, provider.price(model, &self.prices));
            match result {
                Ok(mut completion) => {
                    call_ids::make_unique(&request.messages, &mut completion.tool_calls);
                    return Ok(Answer { completion, cost: bill.settle(provider, model) });
                }
                Err(fault) => {
                    let is_final = fault.next == Next::GiveUp;
                    faults.push((&provider.name, fault));
                    if is_final {
                        break;
                    }
                }
            }
        }
        Err(AskError { failure: failure(faults), cost: bill.settle(last.0, last.1), reached_provider })
    }

    fn providers(&self) -> impl Iterator<Item = &Provider> {
        std::iter::once(&self.primary).chain(&self.failover)
    }
}

/// What a message comes to as it is sent.
fn bytes_of_message(message: &Message) -> usize {
    let told = match message {
        Message::System { content } | Message::User { content } => content.len(),
        Message::Tool { tool_call_id, name, content } => tool_call_id.len() + name.len() + content.len(),
        Message::Assistant { content, tool_calls, reasoning } => {
            content.len()
                + reasoning.as_ref().map_or(0, String::len)
                + tool_calls.iter().map(bytes_of_call).sum::<usize>()
        }
    };
    told + MESSAGE_BYTES
}

fn bytes_of_call(call: &ToolCall) -> usize {
    let signatures: usize = call.thought_signatures.iter().map(String::len).sum();
    call.id.len() + call.name.len() + bytes_of_json(&call.arguments) + signatures + MESSAGE_BYTES
}

fn bytes_of_tool(tool: &ToolDefinition) -> usize {
    tool.name.len() + tool.description.len() + bytes_of_json(&tool.parameters) + MESSAGE_BYTES
}

/// The length of a value's JSON, without making it.
fn bytes_of_json(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Neither a value nor the counter can fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// What the caller hears when nobody has answered. One request that would fail anywhere ends it; else, if any provider may
/// answer later, the caller waits; only when all refuse for good does the call fail.
fn failure(mut faults: Vec<(&str, Fault)>) -> Failure {
    if let Some((_, last)) = faults.pop_if(|(_, fault)| fault.next == Next::GiveUp) {
        return Failure::Failed { kind: last.kind, message: last.message };
    }
    let may_pass = |local: bool| {
        faults.iter().map(|(_, fault)| fault).filter(move |fault| fault.may_pass() && fault.is_local() == local)
    };
    // A circuit or a queue of our own never hides what a provider said.
    let (origin, waits): (_, Vec<&Fault>) = match may_pass(false).next() {
        Some(_) => (RateLimitOrigin::Provider, may_pass(false).collect()),
        None => (RateLimitOrigin::Local, may_pass(true).collect()),
    };
    // The one that can be asked first; one that says when comes before those that do not.
    let soonest = waits.into_iter().min_by_key(|fault| fault.retry_after.unwrap_or(Duration::MAX));
    if let Some(Fault { kind, retry_after, .. }) = soonest {
        return Failure::RateLimited { kind: *kind, origin, retry_after: *retry_after, message: causes(&faults) };
    }
    let kind = faults.first().map_or(ErrorKind::Connect, |(_, fault)| fault.kind);
    Failure::Failed { kind, message: causes(&faults) }
}

/// Every provider's refusal, each under the provider's name where there are several.
fn causes(faults: &[(&str, Fault)]) -> String {
    match faults {
        [] => "no provider was asked".to_owned(),
        [(_, only)] => only.message.clone(),
        [(_, first), rest @ ..] if rest.iter().all(|(_, fault)| fault.message == first.message) => {
            first.message.clone()
        }
        several => {
            let named: Vec<String> = several.iter().map(|(name, fault)| format!("{name}: {}", fault.message)).collect();
            named.join("; ")
        }
    }
}

/// What is spent on one question.
struct Bill {
    usage: TokenUsage,
    cost_micro_usd: Option<i64>,
    began: Instant,
}

impl Bill {
    fn add(&mut self, used: &TokenUsage, price: Option<super::price::Price>) {
        if *used == TokenUsage::default() {
            return;
        }
        add(&mut self.usage, used);
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
