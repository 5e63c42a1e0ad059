//! The prices that are compiled in: `prices.toml`, a file that can be read and corrected without knowing the code.
//!
//! Owns reading it. Each price has the page that it was read from and the day.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use serde::Deserialize;

use super::{Price, micro_usd};

const FILE: &str = include_str!("../../prices.toml");

/// A price list of a provider.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceList {
    provider: String,
    /// The page that shows the prices.
    source: String,
    /// The day on which it showed them.
    as_of: NaiveDate,
    models: BTreeMap<String, Rates>,
}

/// In US dollars per million tokens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rates {
    input: f64,
    output: f64,
    cache_read: f64,
    cache_write: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    list: Vec<PriceList>,
}

/// A model's price and where it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedPrice {
    pub(super) price: Price,
    pub(crate) provider: String,
    pub(crate) source: String,
    pub(crate) as_of: NaiveDate,
}

/// All prices of the file, by the model's name.
pub(super) fn listed_prices() -> BTreeMap<String, ListedPrice> {
    let file: PriceFile = toml::from_str(FILE).expect("a test reads the same file");
    let mut prices = BTreeMap::new();
    for PriceList { provider, source, as_of, models } in file.list {
        for (model, rates) in models {
            let price = Price {
                input: micro_usd(rates.input),
                output: micro_usd(rates.output),
                cache_read: micro_usd(rates.cache_read),
                cache_write: micro_usd(rates.cache_write),
            };
            let listed = ListedPrice { price, provider: provider.clone(), source: source.clone(), as_of };
            prices.insert(model, listed);
        }
    }
    prices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_price_is_plausible_and_has_a_source_and_a_date() {
        let file: PriceFile = toml::from_str(FILE).unwrap();
        let first_day = NaiveDate::from_ymd_opt(2025, 1, 1).unwrap();
        let mut models = 0;
        for list in &file.list {
            assert!(["openai", "anthropic", "google"].contains(&list.provider.as_str()), "{}", list.provider);
            assert!(list.source.starts_with("https://"), "{}", list.source);
            assert!(list.as_of > first_day, "{}", list.as_of);
            for (model, Rates { input, output, cache_read, cache_write }) in &list.models {
                assert!(0.0 < *input && input < output && *output < 1_000.0, "{model}: input {input}, output {output}");
                assert!(0.0 < *cache_read && cache_read <= input, "{model}: cache read {cache_read}");
                assert!(input <= cache_write && *cache_write <= 2.0 * input, "{model}: cache write {cache_write}");
                models += 1;
            }
        }
        assert_eq!(listed_prices().len(), models, "a model is listed twice");
    }
}
