//! The prices that are compiled in: `prices.toml`, a file that can be read without knowing the code.
//!
//! Owns reading it; `tests/prices.py` writes it. Each price has the sources that it is from and the day.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use serde::Deserialize;

use super::{Price, micro_usd};

const FILE: &str = include_str!("../../prices.toml");

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
    /// The packages that agree on the prices, with their versions.
    sources: Vec<String>,
    /// The day of the prices.
    as_of: NaiveDate,
    /// Rates by the provider and the model.
    models: BTreeMap<String, BTreeMap<String, Rates>>,
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
    let PriceFile { sources, as_of, models } = toml::from_str(FILE).expect("a test reads the same file");
    let source = sources.join(", ");
    let mut prices = BTreeMap::new();
    for (provider, models) in models {
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
    fn each_price_is_plausible_and_has_sources_and_a_date() {
        let file: PriceFile = toml::from_str(FILE).unwrap();
        assert_eq!(file.sources.len(), 2, "{:?}", file.sources);
        assert!(file.as_of > NaiveDate::from_ymd_opt(2026, 1, 1).unwrap(), "{}", file.as_of);
        let mut models = 0;
        for (model, Rates { input, output, cache_read, cache_write }) in file.models.values().flatten() {
            assert!(0.0 < *input && input <= output && *output < 1_000.0, "{model}: input {input}, output {output}");
            assert!(0.0 < *cache_read && cache_read <= input, "{model}: cache read {cache_read}");
            assert!(input <= cache_write && *cache_write <= 2.0 * input, "{model}: cache write {cache_write}");
            models += 1;
        }
        assert_eq!(listed_prices().len(), models, "a model is listed twice");
    }
}
