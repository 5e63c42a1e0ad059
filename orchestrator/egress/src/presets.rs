//! Presets: names for the hosts that a package manager or an installer of a toolchain asks. Pure.
//!
//! Those whose hosts differ from one installation to the next, because of mirrors, are not built in: the operator's
//! configuration has them.

use std::collections::{BTreeMap, BTreeSet};

use super::pattern::{HostPattern, InvalidPattern};

/// Before the name of a preset in a list.
const PREFIX: &str = "preset:";
/// Maximum length of a name.
const MAX_NAME_BYTES: usize = 64;

/// The built-in presets: the addresses that these programs have when nothing is configured, as of November 2026.
const BUILT_IN: [(&str, &[&str]); 13] = [
    ("composer", &["repo.packagist.org", "packagist.org"]),
    ("go", &["proxy.golang.org", "sum.golang.org"]),
    (
        "gradle",
        &[
            "services.gradle.org",
            "plugins.gradle.org",
            "plugins-artifacts.gradle.org",
            "downloads.gradle.org",
            "preset:maven",
        ],
    ),
    ("hex", &["repo.hex.pm", "hex.pm", "builds.hex.pm"]),
    ("maven", &["repo.maven.apache.org", "repo1.maven.org"]),
    ("node", &["nodejs.org"]),
    ("nuget", &["api.nuget.org"]),
    ("playwright", &["cdn.playwright.dev", "playwright.download.prss.microsoft.com"]),
    ("ruby", &["cache.ruby-lang.org"]),
    ("rubygems", &["rubygems.org", "index.rubygems.org"]),
    ("rustup", &["static.rust-lang.org", "sh.rustup.rs"]),
    (
        "ubuntu",
        &[
            "archive.ubuntu.com:80",
            "archive.ubuntu.com:443",
            "security.ubuntu.com:80",
            "security.ubuntu.com:443",
            "ports.ubuntu.com:80",
            "ports.ubuntu.com:443",
        ],
    ),
    // Yarn asks npm's registry, too.
    ("yarn", &["registry.yarnpkg.com", "repo.yarnpkg.com", "preset:npm"]),
];

/// The presets of an installation: the built-in ones and the operator's, which come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presets(BTreeMap<String, Vec<String>>);

/// An entry that names a preset which is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("preset:{name} is not known here; the operator defines it with the key {name} of [egress.presets]. Known: {}", .known.join(", "))]
pub struct UnknownPreset {
    name: String,
    known: Vec<String>,
}

/// A preset of the configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPreset {
    #[error(".{0}: the name must be 1 to {MAX_NAME_BYTES} lower-case letters, digits and dashes")]
    Name(String),
    #[error(".{name}: entry {}: {source}", .index + 1)]
    Entry { name: String, index: usize, source: InvalidPattern },
}

impl Default for Presets {
    fn default() -> Self {
        let own = |(name, hosts): &(&str, &[&str])| {
            ((*name).to_owned(), hosts.iter().map(|host| (*host).to_owned()).collect())
        };
        Self(BUILT_IN.iter().map(own).collect())
    }
}

impl Presets {
    /// The built-in presets with those of the configuration.
    pub fn new(configured: &BTreeMap<String, Vec<String>>) -> Result<Self, InvalidPreset> {
        let mut presets = Self::default();
        for (name, entries) in configured {
            if !is_name(name) {
                return Err(InvalidPreset::Name(name.clone()));
            }
            for (index, entry) in entries.iter().enumerate() {
                if entry.strip_prefix(PREFIX).is_none_or(|name| !is_name(name)) {
                    HostPattern::of_job(entry).map_err(|source| InvalidPreset::Entry {
                        name: name.clone(),
                        index,
                        source,
                    })?;
                }
            }
            presets.0.insert(name.clone(), entries.clone());
        }
        Ok(presets)
    }

    /// Whether an entry of a list names a preset.
    pub fn is_preset(entry: &str) -> bool {
        entry.starts_with(PREFIX)
    }

    /// The entries that an entry of a list stands for: those of its preset, or itself.
    pub fn expand(&self, entry: &str) -> Result<Vec<String>, UnknownPreset> {
        let Some(name) = entry.strip_prefix(PREFIX) else { return Ok(vec![entry.to_owned()]) };
        let mut hosts = Vec::new();
        // A preset that names itself adds nothing.
        let mut seen = BTreeSet::from([name]);
        let mut next = vec![name];
        while let Some(name) = next.pop() {
            let entries = self.0.get(name).ok_or_else(|| self.unknown(name))?;
            for entry in entries {
                match entry.strip_prefix(PREFIX) {
                    Some(other) if seen.insert(other) => next.push(other),
                    Some(_) => {}
                    None => hosts.push(entry.clone()),
                }
            }
        }
        Ok(hosts)
    }

    fn unknown(&self, name: &str) -> UnknownPreset {
        let name = name.chars().take(MAX_NAME_BYTES).collect();
        UnknownPreset { name, known: self.0.keys().cloned().collect() }
    }
}

fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn configured(presets: &[(&str, &[&str])]) -> Result<Presets, InvalidPreset> {
        let owned = |(name, entries): &(&str, &[&str])| {
            ((*name).to_owned(), entries.iter().map(|entry| (*entry).to_owned()).collect())
        };
        Presets::new(&presets.iter().map(owned).collect())
    }

    #[test]
    fn built_in_presets_name_hosts_and_presets_only() {
        let built_in = Presets::default();
        assert_eq!(Presets::new(&built_in.0), Ok(built_in.clone()));
        assert_eq!(built_in.expand("preset:maven").unwrap(), ["repo.maven.apache.org", "repo1.maven.org"]);
        assert!(built_in.expand("preset:gradle").unwrap().contains(&"repo1.maven.org".to_owned()));
    }

    #[test]
    fn the_configuration_adds_presets_and_replaces_built_in_ones() {
        let presets =
            configured(&[("npm", &["a.example"]), ("go", &["b.example:80"]), ("x", &["preset:x", "c.example"])]);
        let presets = presets.unwrap();
        assert_eq!(presets.expand("preset:go").unwrap(), ["b.example:80"]);
        assert_eq!(presets.expand("preset:x").unwrap(), ["c.example"]);
        assert_eq!(presets.expand("preset:yarn").unwrap(), ["registry.yarnpkg.com", "repo.yarnpkg.com", "a.example"]);
        assert_eq!(presets.expand("d.example").unwrap(), ["d.example"]);
    }

    #[test]
    fn an_unknown_preset_is_named_with_the_known_ones() {
        for entry in ["preset:npm", "preset:yarn"] {
            let error = Presets::default().expand(entry).unwrap_err().to_string();
            assert!(error.starts_with("preset:npm is not known") && error.contains("go, gradle"), "{error}");
        }
        assert!(Presets::default().expand("preset:").is_err());
    }

    #[rstest]
    #[case("Npm", &["a.example"], ".Npm: the name")]
    #[case("", &["a.example"], ".: the name")]
    #[case("npm", &["a.example", "https://b.example"], ".npm: entry 2: the port")]
    #[case("npm", &["*"], ".npm: entry 1: * is not allowed")]
    fn invalid_presets_are_refused(#[case] name: &str, #[case] entries: &[&str], #[case] expected: &str) {
        let error = configured(&[(name, entries)]).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
