//! The leak detector: stored secrets by value, and credentials by their format.
//!
//! A stored secret is found as it is, in hexadecimal (also in groups of digits), as base64 or base64url at every alignment,
//! wrapped over lines, percent-encoded in any mixture, as a form has it, and escaped as JSON, by any encoder and up to
//! twice. There is no rule about entropy alone: digests, commit ids and UUIDs pass. Every search is one pass over the
//! text. A finding names its source and never holds the value.

mod encodings;
mod json;
mod json_escapes;
mod key_block;
mod rules;
mod scanner;
mod splice;
mod stream;
mod views;

use std::{borrow::Cow, collections::BTreeSet, fmt};

use aho_corasick::{Anchored, automaton::Automaton as _, nfa::noncontiguous::NFA};

use self::{encodings::patterns_of, scanner::Scanner, splice::Splicer};
pub use stream::{Held, StreamRedactor};

/// Replaces what is redacted.
pub const REDACTED: &str = "[redacted]";

/// Shorter secrets are not looked for: they occur by chance within other text.
pub const MIN_SECRET_BYTES: usize = 8;

/// Maximum number of bytes of all secrets of one detector. Measured: the index of so many random bytes takes 85 MB
/// without the hexadecimal form, because each encoding of a value is in it; that of fifty ordinary keys takes less than 1 MB.
pub const MAX_INDEXED_SECRET_BYTES: usize = 256 * 1024;

/// A secret by name and value.
#[derive(Clone, Copy)]
pub struct StoredSecret<'a> {
    /// The name that findings show.
    pub name: &'a str,
    /// The value that is looked for.
    pub value: &'a str,
}

/// What to do about a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeakAction {
    /// The text stays as it is; the finding is logged.
    Warn,
    /// The found part is replaced by [`REDACTED`].
    Redact,
    /// As [`LeakAction::Redact`]; and what can be refused as a whole, such as arguments that leave, is refused.
    Block,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeakSource {
    /// The stored secret of this name.
    StoredSecret(String),
    /// Text in the format of this kind of credential.
    Format(&'static str),
}

impl fmt::Display for LeakSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoredSecret(name) => write!(f, "the secret {name}"),
            Self::Format(kind) => write!(f, "a {kind}"),
        }
    }
}

/// One source that was found in a text, once or more often.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// What was found.
    pub source: LeakSource,
    /// What to do about it.
    pub action: LeakAction,
}

/// The secrets cannot be indexed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeakDetectorError {
    /// Their values have more than [`MAX_INDEXED_SECRET_BYTES`].
    #[error("the secrets have {0} bytes; at most {MAX_INDEXED_SECRET_BYTES} can be looked for")]
    TooLarge(usize),
    /// The automaton has too many states.
    #[error("the secrets cannot be indexed: {0}")]
    Index(String),
}

/// What replaces the credentials of a text in which this was found.
type Marker = fn(&[Finding]) -> Cow<'static, str>;

/// Finds and redacts credentials. Build it once for a set of secrets and share it.
pub struct LeakDetector {
    automaton: NFA,
    start: aho_corasick::automaton::StateID,
    /// For each state, the length of the longest pattern prefix that ends there.
    depths: Vec<u16>,
    /// For each pattern, the index of its source; `None`: it begins a private key block.
    pattern_sources: Vec<Option<usize>>,
    /// The formats, then the stored secrets.
    sources: Vec<Finding>,
}

impl LeakDetector {
    /// Indexes these secrets. Those shorter than [`MIN_SECRET_BYTES`] are ignored.
    pub fn new<'s>(secrets: impl IntoIterator<Item = StoredSecret<'s>>) -> Result<Self, LeakDetectorError> {
        let mut sources = rules::sources();
        let mut patterns: Vec<String> = key_block::BEGIN_MARKERS.iter().map(|marker| (*marker).to_owned()).collect();
        let mut pattern_sources = vec![None; patterns.len()];
        let mut bytes = 0;
        for secret in secrets.into_iter().filter(|secret| secret.value.len() >= MIN_SECRET_BYTES) {
            bytes += secret.value.len();
            if bytes > MAX_INDEXED_SECRET_BYTES {
                return Err(LeakDetectorError::TooLarge(bytes));
            }
            for pattern in patterns_of(secret.value) {
                patterns.push(pattern);
                pattern_sources.push(Some(sources.len()));
            }
            let source = LeakSource::StoredSecret(secret.name.to_owned());
            sources.push(Finding { source, action: LeakAction::Redact });
        }
        let failed = |error: &dyn fmt::Display| LeakDetectorError::Index(error.to_string());
        let automaton = NFA::builder().prefilter(false).build(&patterns).map_err(|error| failed(&error))?;
        let start = automaton.start_state(Anchored::No).map_err(|error| failed(&error))?;
        let depths = depths(&automaton, start, &patterns);
        Ok(Self { automaton, start, depths, pattern_sources, sources })
    }

    /// Replaces every credential in the text. The findings are sorted and each is listed once.
    pub fn redact<'t>(&self, text: &'t str) -> (Cow<'t, str>, Vec<Finding>) {
        self.redact_as(text, |_| REDACTED.into())
    }

    /// As [`Self::redact`], with the marker that is made of what was found.
    fn redact_as<'t>(&self, text: &'t str, marker: Marker) -> (Cow<'t, str>, Vec<Finding>) {
        let mut scanner = Scanner::new(self);
        scanner.push(self, text);
        scanner.finish(self);
        let findings = self.findings(scanner.sources());
        if scanner.ranges_mut().is_empty() {
            return (Cow::Borrowed(text), findings);
        }
        let mut splicer = Splicer::default();
        splicer.hold(text);
        let mut redacted = String::with_capacity(text.len());
        splicer.release(text.len(), scanner.ranges_mut(), &marker(&findings), &mut redacted);
        (Cow::Owned(redacted), findings)
    }

    /// Whether there are stored secrets to look for, besides the formats.
    pub(in crate::safety) const fn has_secrets(&self) -> bool {
        self.pattern_sources.len() > key_block::BEGIN_MARKERS.len()
    }

    /// The sources with these indexes, as findings.
    fn findings(&self, sources: &BTreeSet<usize>) -> Vec<Finding> {
        let mut findings: Vec<_> = sources.iter().filter_map(|index| self.sources.get(*index).cloned()).collect();
        findings.sort();
        findings.dedup();
        findings
    }

    /// Whether text of this source is replaced.
    fn redacts(&self, source: usize) -> bool {
        self.sources.get(source).is_some_and(|finding| finding.action >= LeakAction::Redact)
    }
}

impl fmt::Debug for LeakDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The automaton spells the secrets.
        f.debug_struct("LeakDetector").field("sources", &self.sources.len()).finish_non_exhaustive()
    }
}

/// The depth of each state in the trie of the patterns: a state is reached by exactly one prefix.
fn depths(automaton: &NFA, start: aho_corasick::automaton::StateID, patterns: &[String]) -> Vec<u16> {
    let mut depths = Vec::new();
    for pattern in patterns {
        let mut state = start;
        for (index, byte) in pattern.bytes().enumerate() {
            state = automaton.next_state(Anchored::No, state, byte);
            if depths.len() <= state.as_usize() {
                depths.resize(state.as_usize() + 1, 0);
            }
            depths[state.as_usize()] = u16::try_from(index + 1).unwrap_or(u16::MAX);
        }
    }
    depths
}

#[cfg(test)]
mod tests;
