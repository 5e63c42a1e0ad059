//! Token prices: lists of well-known models, and the operator's own prices, which take precedence. Money is in
//! micro-dollars. Never guesses: a model that neither knows has no price.

mod lists;

use std::collections::BTreeMap;

use protocol::TokenUsage;

use self::lists::{ListedPrice, listed_prices};
use config::{ModelPrice, ProviderKind};

/// Micro-dollars per million tokens: 2 500 000 is $2.50 per million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Price {
    /// Prompt tokens that were neither read from nor written to a cache.
    pub(super) input: u64,
    /// Completion tokens.
    pub(super) output: u64,
    /// Prompt tokens read from the provider's cache.
    pub(super) cache_read: u64,
    /// Prompt tokens written to the provider's cache.
    pub(super) cache_write: u64,
}

impl Price {
    /// The price of models that run on the operator's own machine.
    pub(super) const FREE: Self = Self { input: 0, output: 0, cache_read: 0, cache_write: 0 };

    /// The cost of a call in micro-dollars, rounded up, at most [`MAX_CALL_MICRO_USD`].
    pub(super) fn cost_micro_usd(&self, usage: &TokenUsage) -> i64 {
        let cached = usage.cache_read_tokens.saturating_add(usage.cache_write_tokens);
        let parts = [
            (usage.input_tokens.saturating_sub(cached), self.input),
            (usage.output_tokens, self.output),
            (usage.cache_read_tokens, self.cache_read),
            (usage.cache_write_tokens, self.cache_write),
        ];
        let sum: u128 = parts.iter().map(|(tokens, price)| u128::from(*tokens) * u128::from(*price)).sum();
        i64::try_from(sum.div_ceil(1_000_000)).unwrap_or(i64::MAX).min(MAX_CALL_MICRO_USD)
    }
}

/// One million dollars: the costs of millions of calls add up to a number that the database can hold.
const MAX_CALL_MICRO_USD: i64 = 1_000_000_000_000;

/// The operator's prices by model name prefix, and the listed prices behind them.
#[derive(Debug)]
pub(super) struct PriceTable {
    overrides: Vec<(String, ModelPrice)>,
    listed: BTreeMap<String, ListedPrice>,
}

impl PriceTable {
    pub(super) fn new(overrides: &BTreeMap<String, ModelPrice>) -> Self {
        let overrides = overrides.iter().map(|(prefix, price)| (prefix.clone(), *price)).collect();
        Self { overrides, listed: listed_prices() }
    }

    /// The price of a model at a provider of this kind. The operator's longest matching prefix wins.
    pub(super) fn of_model(&self, model: &str, kind: ProviderKind) -> Option<Price> {
        match self.override_of(model) {
            Some(price) => Some(with_cache_prices(price, self.cache_ratios(model, kind))),
            // Names of open models are those of hosted ones; the operator's own machine costs nothing.
            None if kind == ProviderKind::Ollama => None,
            None => self.listed(model).map(|listed| listed.price),
        }
    }

    /// The listed price of a model, if it is the one that applies.
    pub(super) fn listed_price(&self, model: &str) -> Option<&ListedPrice> {
        self.listed(model).filter(|_| self.override_of(model).is_none())
    }

    fn override_of(&self, model: &str) -> Option<&ModelPrice> {
        let matching = self.overrides.iter().filter(|(prefix, _)| model.starts_with(prefix.as_str()));
        matching.max_by_key(|(prefix, _)| prefix.len()).map(|(_, price)| price)
    }

    fn listed(&self, model: &str) -> Option<&ListedPrice> {
        let matching = self.listed.iter().filter(|(name, _)| is_release_of(model, name));
        // A release may have a price that differs from its model's.
        matching.max_by_key(|(name, _)| name.len()).map(|(_, listed)| listed)
    }

    /// The ratios of the same model where it is listed, else those that the provider's price list has for all its
    /// models.
    fn cache_ratios(&self, model: &str, kind: ProviderKind) -> CacheRatios {
        if let Some(known) = self.listed(model).map(|listed| listed.price).filter(|price| price.input > 0) {
            let ratio = |price: u64| approximate(price) / approximate(known.input);
            return CacheRatios { read: ratio(known.cache_read), write: ratio(known.cache_write) };
        }
        match kind {
            ProviderKind::Anthropic => CacheRatios { read: 0.1, write: 1.25 },
            // Compatible servers charge between a tenth and the whole; half is what most of them charge at most.
            ProviderKind::OpenAi => CacheRatios { read: 0.5, write: 1.0 },
            ProviderKind::Ollama | ProviderKind::Scripted => CacheRatios { read: 1.0, write: 1.0 },
        }
    }
}

/// A dated release or an alias costs what the model costs; another member of the family may not (`gpt-5-pro`).
fn is_release_of(model: &str, name: &str) -> bool {
    model.strip_prefix(name).is_some_and(|rest| {
        rest.is_empty()
            || rest == "-latest"
            || rest.starts_with('@')
            || rest.strip_prefix("-20").is_some_and(|date| date.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// The price of a cached prompt token, relative to one that is not cached.
#[derive(Clone, Copy)]
struct CacheRatios {
    read: f64,
    write: f64,
}

#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^53 micro-dollars")]
fn approximate(price: u64) -> f64 {
    price as f64
}

fn with_cache_prices(price: &ModelPrice, ratios: CacheRatios) -> Price {
    let input = price.input_usd_per_million_tokens;
    Price {
        input: micro_usd(input),
        output: micro_usd(price.output_usd_per_million_tokens),
        cache_read: micro_usd(price.cache_read_usd_per_million_tokens.unwrap_or(input * ratios.read)),
        cache_write: micro_usd(price.cache_write_usd_per_million_tokens.unwrap_or(input * ratios.write)),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the configuration refuses negative prices and those over a million dollars"
)]
fn micro_usd(usd: f64) -> u64 {
    (usd * 1_000_000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn only(input: f64, output: f64) -> ModelPrice {
        ModelPrice {
            input_usd_per_million_tokens: input,
            output_usd_per_million_tokens: output,
            cache_read_usd_per_million_tokens: None,
            cache_write_usd_per_million_tokens: None,
        }
    }

    fn table(overrides: &[(&str, ModelPrice)]) -> PriceTable {
        PriceTable::new(&overrides.iter().map(|(prefix, price)| ((*prefix).to_owned(), *price)).collect())
    }

    #[rstest]
    #[case("gpt-4o", Some(2_500_000))]
    #[case("gpt-4o-2024-11-20", Some(2_500_000))]
    #[case("gpt-4o-mini", Some(150_000))]
    #[case("gpt-4o-mini-2024-07-18", Some(150_000))]
    #[case("gpt-4o-2024-05-13", Some(5_000_000))]
    #[case("gpt-5-pro", Some(15_000_000))]
    #[case("gpt-5-next", None)]
    #[case("gpt-5.4", None)]
    #[case("gpt-5.2", Some(1_750_000))]
    #[case("claude-sonnet-4-6-20260217", Some(3_000_000))]
    #[case("claude-sonnet-4-9", None)]
    #[case("claude-haiku-4-5-latest", Some(1_000_000))]
    #[case("other-org/their-model", None)]
    #[case("house-model-large", Some(7_000_000))]
    #[case("house-model", Some(3_000_000))]
    fn prices(#[case] model: &str, #[case] input: Option<u64>) {
        let table = table(&[("house-model", only(3.0, 0.0)), ("house-model-large", only(7.0, 0.0))]);
        assert_eq!(table.of_model(model, ProviderKind::OpenAi).map(|price| price.input), input);
    }

    #[rstest]
    #[case(ProviderKind::OpenAi, Some(950_000))]
    #[case(ProviderKind::Ollama, None)]
    fn a_listed_price_is_not_that_of_the_operators_machine(#[case] kind: ProviderKind, #[case] input: Option<u64>) {
        assert_eq!(table(&[]).of_model("kimi-k2.6", kind).map(|price| price.input), input);
        let named = table(&[("kimi", only(1.0, 2.0))]).of_model("kimi-k2.6", kind);
        assert_eq!(named.map(|price| price.input), Some(1_000_000));
    }

    #[test]
    fn the_operators_price_replaces_a_listed_one() {
        let table = table(&[("gpt-4o", only(1.0, 2.0))]);
        let price = table.of_model("gpt-4o-2024-11-20", ProviderKind::OpenAi).unwrap();
        assert_eq!((price.input, price.output), (1_000_000, 2_000_000));
        assert_eq!(table.listed_price("gpt-4o"), None);
        let listed = table.listed_price("claude-opus-5-20260701").unwrap();
        assert_eq!((listed.price.output, listed.provider.as_str()), (25_000_000, "anthropic"));
    }

    /// An override that names only input and output derives the cache prices.
    #[rstest]
    #[case::of_the_model("claude-sonnet-4-6", ProviderKind::OpenAi, 200_000, 2_500_000)]
    #[case::of_the_model_with_its_own_ratio("gpt-4o", ProviderKind::OpenAi, 1_000_000, 2_000_000)]
    #[case::of_the_kind("claude-next", ProviderKind::Anthropic, 200_000, 2_500_000)]
    #[case::of_a_compatible_server("their-model", ProviderKind::OpenAi, 1_000_000, 2_000_000)]
    #[case::nothing_known("local", ProviderKind::Ollama, 2_000_000, 2_000_000)]
    fn cache_prices_are_derived(
        #[case] model: &str,
        #[case] kind: ProviderKind,
        #[case] read: u64,
        #[case] write: u64,
    ) {
        let price = table(&[("", only(2.0, 8.0))]).of_model(model, kind).unwrap();
        assert_eq!((price.input, price.output), (2_000_000, 8_000_000));
        assert_eq!((price.cache_read, price.cache_write), (read, write));
        let named = ModelPrice { cache_read_usd_per_million_tokens: Some(0.3), ..only(2.0, 8.0) };
        assert_eq!(table(&[("", named)]).of_model(model, kind).unwrap().cache_read, 300_000);
    }

    #[rstest]
    #[case(1_000_000, 0, 0, 0, 2_500_000)]
    #[case(1_000, 100, 0, 0, 3_500)]
    #[case(1_000, 0, 400, 0, 2_000)]
    #[case(1, 0, 0, 0, 3)]
    #[case(0, 0, 0, 0, 0)]
    #[case(u64::MAX, u64::MAX, 0, 0, MAX_CALL_MICRO_USD)]
    fn costs(#[case] input: u64, #[case] output: u64, #[case] read: u64, #[case] write: u64, #[case] micro_usd: i64) {
        let usage = TokenUsage {
            input_tokens: input,
            output_tokens: output,
            cache_read_tokens: read,
            cache_write_tokens: write,
        };
        let price = table(&[]).of_model("gpt-4o", ProviderKind::OpenAi).unwrap();
        assert_eq!(price.cost_micro_usd(&usage), micro_usd);
    }
}
