//! What tokens cost: a small table of well-known models, and the operator's own prices before it. Never guesses: a
//! model it does not know has no price. Money is in micro-dollars.

use protocol::TokenUsage;

/// Micro-dollars per million tokens: 2 500 000 is $2.50 per million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Price {
    /// Prompt tokens that came from no cache.
    pub input: u64,
    /// Completion tokens.
    pub output: u64,
    /// Prompt tokens read from the provider's cache.
    pub cache_read: u64,
    /// Prompt tokens written to the provider's cache.
    pub cache_write: u64,
}

impl Price {
    /// Nothing costs anything: one's own machine.
    pub const FREE: Self = Self { input: 0, output: 0, cache_read: 0, cache_write: 0 };

    /// What a call costs in micro-dollars, rounded up.
    pub fn cost_micro_usd(&self, usage: &TokenUsage) -> i64 {
        let cached = usage.cache_read_tokens.saturating_add(usage.cache_write_tokens);
        let parts = [
            (usage.input_tokens.saturating_sub(cached), self.input),
            (usage.output_tokens, self.output),
            (usage.cache_read_tokens, self.cache_read),
            (usage.cache_write_tokens, self.cache_write),
        ];
        let sum: u128 = parts.iter().map(|(tokens, price)| u128::from(*tokens) * u128::from(*price)).sum();
        i64::try_from(sum.div_ceil(1_000_000)).unwrap_or(i64::MAX)
    }
}

/// The operator's price for the models whose name starts so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceOverride {
    /// The beginning of the model's name.
    pub model_prefix: String,
    /// Its price.
    pub price: Price,
}

/// The price of a model; the operator's longest prefix first. Unknown is none.
pub(super) fn of_model(model: &str, overrides: &[PriceOverride]) -> Option<Price> {
    let own = overrides.iter().filter(|own| model.starts_with(&own.model_prefix));
    if let Some(own) = own.max_by_key(|own| own.model_prefix.len()) {
        return Some(own.price);
    }
    BUILT_IN.iter().find(|(name, _)| is_release_of(model, name)).map(|(_, price)| *price)
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

/// In US cents per million tokens: input, output, cache read, cache write.
const fn cents(input: u64, output: u64, cache_read: u64, cache_write: u64) -> Price {
    const CENT: u64 = 10_000;
    Price { input: input * CENT, output: output * CENT, cache_read: cache_read * CENT, cache_write: cache_write * CENT }
}

const BUILT_IN: &[(&str, Price)] = &[
    ("gpt-5", Price { cache_read: 125_000, ..cents(125, 1_000, 0, 125) }),
    ("gpt-5-mini", Price { cache_read: 25_000, ..cents(25, 200, 0, 25) }),
    ("gpt-5-nano", Price { cache_read: 5_000, ..cents(5, 40, 0, 5) }),
    ("gpt-4.1", cents(200, 800, 50, 200)),
    ("gpt-4.1-mini", cents(40, 160, 10, 40)),
    ("gpt-4.1-nano", Price { cache_read: 25_000, ..cents(10, 40, 0, 10) }),
    ("gpt-4o", cents(250, 1_000, 125, 250)),
    ("gpt-4o-mini", Price { cache_read: 75_000, ..cents(15, 60, 0, 15) }),
    ("o3", cents(200, 800, 50, 200)),
    ("o4-mini", Price { cache_read: 275_000, ..cents(110, 440, 0, 110) }),
    ("claude-opus-4-5", cents(500, 2_500, 50, 625)),
    ("claude-opus-4-1", cents(1_500, 7_500, 150, 1_875)),
    ("claude-opus-4", cents(1_500, 7_500, 150, 1_875)),
    ("claude-sonnet-4-5", cents(300, 1_500, 30, 375)),
    ("claude-sonnet-4", cents(300, 1_500, 30, 375)),
    ("claude-haiku-4-5", cents(100, 500, 10, 125)),
    ("claude-3-7-sonnet", cents(300, 1_500, 30, 375)),
    ("claude-3-5-haiku", cents(80, 400, 8, 100)),
];

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("gpt-4o", Some(2_500_000))]
    #[case("gpt-4o-2024-11-20", Some(2_500_000))]
    #[case("gpt-4o-mini", Some(150_000))]
    #[case("gpt-4o-mini-2024-07-18", Some(150_000))]
    #[case("gpt-5-pro", None)]
    #[case("gpt-5.2", None)]
    #[case("claude-sonnet-4-5-20250929", Some(3_000_000))]
    #[case("claude-sonnet-4-9", None)]
    #[case("claude-3-5-haiku-latest", Some(800_000))]
    #[case("somebody/their-model", None)]
    #[case("house-model-large", Some(7))]
    #[case("house-model", Some(3))]
    fn prices(#[case] model: &str, #[case] input: Option<u64>) {
        let own = |prefix: &str, input| PriceOverride {
            model_prefix: prefix.to_owned(),
            price: Price { input, ..Price::FREE },
        };
        let overrides = [own("house-model", 3), own("house-model-large", 7)];
        assert_eq!(of_model(model, &overrides).map(|price| price.input), input);
    }

    #[rstest]
    #[case(1_000_000, 0, 0, 0, 2_500_000)]
    #[case(1_000, 100, 0, 0, 3_500)]
    #[case(1_000, 0, 400, 0, 2_000)]
    #[case(1, 0, 0, 0, 3)]
    #[case(0, 0, 0, 0, 0)]
    #[case(u64::MAX, u64::MAX, 0, 0, i64::MAX)]
    fn costs(#[case] input: u64, #[case] output: u64, #[case] read: u64, #[case] write: u64, #[case] micro_usd: i64) {
        let usage = TokenUsage {
            input_tokens: input,
            output_tokens: output,
            cache_read_tokens: read,
            cache_write_tokens: write,
        };
        assert_eq!(of_model("gpt-4o", &[]).unwrap().cost_micro_usd(&usage), micro_usd);
    }
}
