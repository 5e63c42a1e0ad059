//! Regular expressions of routines, searched until a deadline; the only user of `regex_automata`.
//!
//! The time of a search is at most proportional to the states of the pattern and the bytes of the text. One of `regex`
//! cannot be interrupted, so it is used where this product is small. Else the states are followed here, one byte of
//! the text after the other, and the deadline is looked at in between.

use std::time::Instant;

use regex::{Regex, RegexBuilder};
use regex_automata::{
    nfa::thompson::{Config, NFA, State, WhichCaptures},
    util::primitives::StateID,
};

/// Maximum size of a compiled pattern. `\w` alone has a sixth of it.
pub(super) const MAX_COMPILED_BYTES: usize = 256 * 1024;
/// Maximum product of states and bytes for a search that is not interrupted: some tens of milliseconds.
const MAX_UNINTERRUPTED_STEPS: usize = 4_000_000;
/// Steps between two looks at the deadline: less than a millisecond.
const STEPS_PER_CHECK: u32 = 16_384;

/// A pattern that was compiled.
#[derive(Debug)]
pub struct Pattern {
    regex: Regex,
    states: NFA,
}

/// The deadline of a search has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimeUp;

impl Pattern {
    pub(super) fn compile(pattern: &str) -> Result<Self, regex::Error> {
        let mut builder = RegexBuilder::new(pattern);
        let regex = builder.size_limit(MAX_COMPILED_BYTES).dfa_size_limit(MAX_COMPILED_BYTES).build()?;
        let config =
            Config::new().nfa_size_limit(Some(MAX_COMPILED_BYTES)).which_captures(WhichCaptures::None).utf8(true);
        let states = NFA::compiler().configure(config).build(pattern);
        // It is smaller than the regex, which also has the states of captures.
        let states = states.map_err(|_| regex::Error::CompiledTooBig(MAX_COMPILED_BYTES))?;
        Ok(Self { regex, states })
    }

    /// Whether the pattern is found in the text.
    pub(super) fn is_match(&self, text: &str, deadline: Instant) -> Result<bool, TimeUp> {
        if Instant::now() >= deadline {
            return Err(TimeUp);
        }
        if self.states.states().len().saturating_mul(text.len()) <= MAX_UNINTERRUPTED_STEPS {
            return Ok(self.regex.is_match(text));
        }
        Search::new(&self.states, text, deadline).finds()
    }

    /// An estimate of the memory of the pattern, with what `regex` keeps for its searches.
    pub(super) fn memory_bytes(&self) -> usize {
        const OF_SMALL_PATTERN: usize = 4 * 1024;
        OF_SMALL_PATTERN + 6 * self.states.memory_usage()
    }
}

/// A search that follows the states of a pattern.
struct Search<'s> {
    states: &'s NFA,
    text: &'s str,
    deadline: Instant,
    steps: u32,
    /// For each state one more than the last place of the text at which it was reached.
    reached: Vec<usize>,
    /// States that are still to be followed at a place.
    stack: Vec<StateID>,
}

impl<'s> Search<'s> {
    fn new(states: &'s NFA, text: &'s str, deadline: Instant) -> Self {
        Self { states, text, deadline, steps: 0, reached: vec![0; states.states().len()], stack: Vec::new() }
    }

    fn finds(mut self) -> Result<bool, TimeUp> {
        let (mut current, mut next) = (Vec::new(), Vec::new());
        for (at, byte) in self.text.bytes().enumerate() {
            if self.start(at, &mut current)? {
                return Ok(true);
            }
            for state in current.drain(..) {
                let to = match self.states.state(state) {
                    State::ByteRange { trans } => trans.matches_byte(byte).then_some(trans.next),
                    State::Sparse(transitions) => transitions.matches_byte(byte),
                    State::Dense(transitions) => transitions.matches_byte(byte),
                    _ => None,
                };
                if let Some(to) = to
                    && self.follow(to, at + 1, &mut next)?
                {
                    return Ok(true);
                }
            }
            std::mem::swap(&mut current, &mut next);
        }
        self.start(self.text.len(), &mut current)
    }

    /// Begins a match at a place, which is true if it also ends there. No match begins within a character.
    fn start(&mut self, at: usize, found: &mut Vec<StateID>) -> Result<bool, TimeUp> {
        let begins = self.text.is_char_boundary(at) && (at == 0 || !self.states.is_always_start_anchored());
        Ok(begins && self.follow(self.states.start_anchored(), at, found)?)
    }

    /// Finds the states that are reached from one without reading a byte. True if one of them ends a match.
    fn follow(&mut self, from: StateID, at: usize, found: &mut Vec<StateID>) -> Result<bool, TimeUp> {
        self.stack.clear();
        self.stack.push(from);
        while let Some(id) = self.stack.pop() {
            self.step()?;
            let Some(reached) = self.reached.get_mut(id.as_usize()) else { continue };
            if std::mem::replace(reached, at + 1) == at + 1 {
                continue;
            }
            match self.states.state(id) {
                State::Match { .. } => return Ok(true),
                State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) => found.push(id),
                State::Look { look, next } => {
                    if self.states.look_matcher().matches(*look, self.text.as_bytes(), at) {
                        self.stack.push(*next);
                    }
                }
                State::Union { alternates } => self.stack.extend(alternates),
                State::BinaryUnion { alt1, alt2 } => self.stack.extend([alt1, alt2]),
                State::Capture { next, .. } => self.stack.push(*next),
                State::Fail => {}
            }
        }
        Ok(false)
    }

    fn step(&mut self) -> Result<(), TimeUp> {
        self.steps += 1;
        if self.steps >= STEPS_PER_CHECK {
            self.steps = 0;
            if Instant::now() >= self.deadline {
                return Err(TimeUp);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn followed(pattern: &Pattern, text: &str) -> bool {
        Search::new(&pattern.states, text, Instant::now() + Duration::from_mins(1)).finds().unwrap()
    }

    #[rstest]
    fn both_searches_find_the_same(
        #[values(
            "",
            "a",
            "^a",
            "a$",
            "^$",
            "(?m)^b$",
            "a|bc",
            "(ab)*c",
            "a{2,4}b",
            r"\bä",
            r"ä\b",
            r"\Bä",
            r"(?-u:\b)a",
            r"(?-u:\B)",
            r"\w+\s\w+",
            "(?i)ÄB",
            "[^a]",
            ".",
            "(?s).",
            r"\z",
            r"a\b",
            r"(?R)a$",
            "x*",
            r"\p{Greek}"
        )]
        pattern: &str,
        #[values("", "a", "ab", "ba", "ä", "aä b", "ab äb", "x\nb\n", "aaab", "ababc", "a\r\n", "λ", "\n", "€a")] text: &str,
    ) {
        let pattern = Pattern::compile(pattern).unwrap();
        assert_eq!(followed(&pattern, text), pattern.regex.is_match(text));
    }

    proptest! {
        #[test]
        fn both_searches_find_the_same_in_any_text(pattern in "[abä.*+?|()^$\\[\\]]{0,8}", text in "[abä\n ]{0,12}") {
            if let Ok(pattern) = Pattern::compile(&pattern) {
                prop_assert_eq!(followed(&pattern, &text), pattern.regex.is_match(&text));
            }
        }
    }

    /// A search that would take more than a second by `regex`.
    #[test]
    fn a_search_ends_at_its_deadline() {
        let pattern = Pattern::compile("a[ab]{3500}[^ab]").unwrap();
        let (text, start) = ("ab".repeat(32 * 1024), Instant::now());
        assert_eq!(pattern.is_match(&text, start + Duration::from_millis(50)), Err(TimeUp));
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        assert_eq!(pattern.is_match("", start), Err(TimeUp));
    }
}
