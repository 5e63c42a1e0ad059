//! The metrics as a scraper reads them.

use std::collections::BTreeMap;

/// One scrape.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// The unparsed text.
    pub text: String,
    series: BTreeMap<String, f64>,
}

impl Metrics {
    pub(crate) fn of(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name.to_owned(), value.parse().expect("a number"))
        });
        Self { text: text.to_owned(), series: series.collect() }
    }

    /// The value of a series, given as `name` or `name{label="value",…}`; 0 if it is missing.
    pub fn value(&self, name: &str) -> f64 {
        self.series.get(name).copied().unwrap_or(0.0)
    }

    /// The names of the metrics.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.series.keys().map(|name| name.split('{').next().unwrap_or_default()).collect();
        names.dedup();
        names
    }
}
