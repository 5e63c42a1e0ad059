//! Credentials that are recognised by their format. Pure.
//!
//! A rule reads one word at a time: a run of the characters that such credentials consist of. That makes it independent
//! of how a text is cut into pieces.

use std::{ops::Range, sync::LazyLock};

use regex::Regex;

use super::{Finding, LeakAction, LeakSource};

/// A longer word is read in parts of this length. Only the largest JWTs are longer.
pub(super) const MAX_WORD_BYTES: usize = 4096;

/// The shortest credential that a rule describes, prefix included.
const MIN_WORD_BYTES: usize = 15;

/// Random keys have a run of letters and digits of this length; names made of words and hyphens have not, nor have
/// UUIDs.
const MIN_RANDOM_RUN: usize = 16;

/// The index of the source of private key blocks, which `key_block` finds.
pub(super) const PRIVATE_KEY_SOURCE: usize = RULES.len();

/// A format of credentials.
#[derive(Clone, Copy)]
struct Rule {
    kind: &'static str,
    /// Matched where no letter or digit precedes it.
    pattern: &'static str,
    action: LeakAction,
    /// Whether the match must also have a digit and a run of [`MIN_RANDOM_RUN`].
    random: bool,
}

const fn rule(kind: &'static str, pattern: &'static str, action: LeakAction) -> Rule {
    Rule { kind, pattern, action, random: false }
}

const fn random(rule: Rule) -> Rule {
    Rule { random: true, ..rule }
}

/// Sources of the formats: the providers' documentation and the rules of gitleaks.
const RULES: [Rule; 15] = [
    random(rule("provider API key (sk-…)", "sk-[A-Za-z0-9_-]{20,}", LeakAction::Redact)),
    rule("GitHub token", "gh[pousr]_[A-Za-z0-9]{36,}", LeakAction::Redact),
    rule("GitHub token", "github_pat_[A-Za-z0-9_]{22,}", LeakAction::Redact),
    rule("GitLab token", "glpat-[A-Za-z0-9_-]{20,}", LeakAction::Redact),
    rule("AWS access key id", r"(?:AKIA|ASIA)[A-Z2-7]{16}\b", LeakAction::Redact),
    rule("Slack token", "(?:xox[abeoprs]|xapp)-[0-9][A-Za-z0-9-]{9,}", LeakAction::Redact),
    rule("Google API key", "AIza[A-Za-z0-9_-]{35}", LeakAction::Redact),
    rule("Google OAuth token", r"ya29\.[A-Za-z0-9_-]{20,}", LeakAction::Redact),
    rule("Stripe secret key", "[rs]k_live_[A-Za-z0-9]{16,}", LeakAction::Redact),
    rule("Stripe publishable key", "pk_live_[A-Za-z0-9]{16,}", LeakAction::Warn),
    rule("npm token", "npm_[A-Za-z0-9]{36}", LeakAction::Redact),
    rule("PyPI token", "pypi-AgE[A-Za-z0-9_-]{50,}", LeakAction::Redact),
    rule("Hugging Face token", "hf_[A-Za-z0-9]{30,}", LeakAction::Redact),
    rule("SendGrid key", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}", LeakAction::Redact),
    rule("JSON web token", r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}", LeakAction::Redact),
];

/// All rules as one expression: the group that matched is the rule.
static WORDS: LazyLock<Regex> = LazyLock::new(|| {
    let groups: Vec<String> = RULES.iter().map(|rule| format!("({})", rule.pattern)).collect();
    Regex::new(&format!("(?:^|[^A-Za-z0-9])(?:{})", groups.join("|"))).expect("constant patterns")
});

/// The sources of findings by rule, in the order of their indexes.
pub(super) fn sources() -> Vec<Finding> {
    let private_key = ("private key", LeakAction::Block);
    let rules = RULES.iter().map(|rule| (rule.kind, rule.action)).chain([private_key]);
    rules.map(|(kind, action)| Finding { source: LeakSource::Format(kind), action }).collect()
}

/// Whether a byte belongs to a word.
pub(super) const fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

/// The credentials in a word, each with the index of its source.
pub(super) fn find(word: &str) -> Vec<(Range<usize>, usize)> {
    if word.len() < MIN_WORD_BYTES {
        return Vec::new();
    }
    let matches = WORDS.captures_iter(word).filter_map(|captures| {
        let (index, found) = (0..RULES.len()).find_map(|index| Some((index, captures.get(index + 1)?)))?;
        (!RULES[index].random || is_random(found.as_str())).then(|| (found.range(), index))
    });
    matches.collect()
}

fn is_random(text: &str) -> bool {
    let mut runs = text.split(['-', '_']);
    text.contains(|c: char| c.is_ascii_digit()) && runs.any(|run| run.len() >= MIN_RANDOM_RUN)
}
