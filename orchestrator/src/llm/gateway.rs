//! The gateway: asks the providers in order until one answers. Owns the order, the price of what was used and the
//! words of a failure. Never stores anything: its caller records each call before it uses the answer.

use std::{pin::pin, time::Duration};

use protocol::{Completion, CompletionRequest, Message, TokenUsage};
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    arguments::tokens_of_bytes,
    breaker::BreakerState,
    fault::{Fault, Next},
    price::PriceOverride,
    provider::{Asked, Provider, add},
    retry::RetrySettings,
    settings::{ErrorKind, GatewayError, GatewaySettings},
};
use crate::domain::budget::Quote;

/// The only way to a model.
pub struct Gateway {
    primary: Provider,
    failover: Vec<Provider>,
    prices: Vec<PriceOverride>,
    retry: RetrySettings,
}

/// On whose behalf a question is asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallContext<'a> {
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
    pub spent: Spent,
}

/// What a call took, all tries together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
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
    pub spent: Spent,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The caller waits and asks again.
    #[error("rate limited: {message}")]
    RateLimited {
        /// What the provider said to wait, if it did.
        retry_after: Option<Duration>,
        /// For people.
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
            Self::RateLimited { .. } => ErrorKind::RateLimited,
            Self::Failed { kind, .. } => *kind,
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
    /// Builds it, whole. Asks nobody.
    pub fn new(settings: GatewaySettings) -> Result<Self, GatewayError> {
        let mut providers = settings.providers.into_iter().map(|provider| Provider::new(provider, settings.breaker));
        let primary = providers.next().ok_or(GatewayError::NoProvider)??;
        let failover = providers.collect::<Result<_, _>>()?;
        Ok(Self { primary, failover, prices: settings.prices, retry: settings.retry })
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
        let texts: usize = request.messages.iter().map(bytes_in).sum();
        let price = self.primary.price(model, &self.prices);
        Quote {
            prompt_tokens: tokens_of_bytes(texts),
            max_output_tokens: self.primary.max_output(request),
            prices: price.map(|price| (price.input, price.output)),
        }
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
        let asked = Asked { request, job_title: context.job_title };
        let mut worst: Option<Fault> = None;
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
            let mut used = TokenUsage::default();
            let result = tokio::select! {
                biased;
                () = &mut unwanted => Err(Fault::new(Next::GiveUp, ErrorKind::Aborted, "nobody waits for the answer any more")),
                result = provider.ask(model, asked, &self.retry, &mut used).instrument(span.clone()) => result,
            };
            if let Ok(completion) = &result {
                add(&mut used, &completion.usage);
            }
            span.record("tokens.input", used.input_tokens).record("tokens.output", used.output_tokens);
            bill.add(&used, provider.price(model, &self.prices));
            match result {
                Ok(completion) => return Ok(Answer { completion, spent: bill.settle(provider, model) }),
                Err(fault) => {
                    let final_word = fault.next == Next::GiveUp;
                    worst = Some(graver(worst, fault));
                    if final_word {
                        break;
                    }
                }
            }
        }
        Err(AskError { failure: failure(worst), spent: bill.settle(last.0, last.1) })
    }

    fn providers(&self) -> impl Iterator<Item = &Provider> {
        std::iter::once(&self.primary).chain(&self.failover)
    }
}

/// What of a message a model reads. The tools' definitions are left out: providers count them in ways of their own.
fn bytes_in(message: &Message) -> usize {
    match message {
        Message::System { content } | Message::User { content } | Message::Tool { content, .. } => content.len(),
        Message::Assistant { content, tool_calls, .. } => {
            content.len()
                + tool_calls.iter().map(|call| call.name.len() + call.arguments.to_string().len()).sum::<usize>()
        }
    }
}

/// Which of two faults the caller hears of: one that nobody can wait out, then one that can be waited out, then the
/// first.
fn graver(before: Option<Fault>, now: Fault) -> Fault {
    let weight = |fault: &Fault| match (fault.next, fault.kind) {
        (Next::GiveUp, _) => 2,
        (_, ErrorKind::RateLimited) => 1,
        _ => 0,
    };
    match before {
        Some(before) if weight(&before) >= weight(&now) => before,
        _ => now,
    }
}

fn failure(fault: Option<Fault>) -> Failure {
    match fault {
        Some(Fault { kind: ErrorKind::RateLimited, retry_after, message, .. }) => {
            Failure::RateLimited { retry_after, message }
        }
        Some(Fault { kind, message, .. }) => Failure::Failed { kind, message },
        None => Failure::Failed { kind: ErrorKind::Connect, message: "no provider was asked".to_owned() },
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

    fn settle(self, provider: &Provider, model: &str) -> Spent {
        Spent {
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
