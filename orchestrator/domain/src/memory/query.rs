//! A search query: plain words, and the full-text expressions made from them.
//!
//! Guarantees that no character of a query is ever syntax of the engine: an expression has only terms made of letters,
//! digits, marks, `+` and `#`, in quotes.

use super::words::{IndexOwner, Word, WordKind, bigrams, fold, last_character, words};

/// Maximum length of a query, in bytes.
pub const MAX_QUERY_BYTES: usize = 1_000;
/// Maximum number of words of a query, separated by spaces.
const MAX_PHRASES: usize = 64;

/// A query. A part between spaces is searched for as a phrase: its words one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryQuery {
    phrases: Vec<Phrase>,
    /// The terms, each once, for documents that have only some of the words.
    pub terms: Vec<Phrase>,
    /// The words, folded.
    pub(super) words: Vec<(WordKind, String)>,
}

/// Terms that follow each other in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phrase {
    terms: Vec<String>,
    /// Whether the last term may continue.
    is_prefix: bool,
}

impl Phrase {
    /// The phrase of adjacent words.
    fn of(words: &[(WordKind, String)]) -> Self {
        let mut phrase = Self { terms: vec![], is_prefix: false };
        for (index, (kind, folded)) in words.iter().enumerate() {
            if *kind != WordKind::Unspaced {
                phrase.terms.push(folded.clone());
                continue;
            }
            let before = phrase.terms.len();
            phrase.terms.extend(bigrams(folded).map(str::to_owned));
            // In the index, the last character of a run has a term. A query's last run may continue in the document.
            let is_last = index + 1 == words.len();
            let is_single = phrase.terms.len() == before;
            if !is_last || is_single {
                phrase.terms.push(last_character(folded).to_owned());
            }
            phrase.is_prefix = is_last && is_single;
        }
        phrase
    }

    pub fn expression(&self, owner: IndexOwner) -> String {
        let terms: Vec<String> = self.terms.iter().map(|term| format!("{owner}{term}")).collect();
        format!("\"{}\"{}", terms.join(" "), if self.is_prefix { " *" } else { "" })
    }
}

impl MemoryQuery {
    /// Parses the text of a query. A text without any word is valid and matches nothing.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("must not be empty".to_owned());
        }
        if text.len() > MAX_QUERY_BYTES {
            return Err(format!("must be at most {MAX_QUERY_BYTES} bytes"));
        }
        let mut query = Self { phrases: vec![], terms: vec![], words: vec![] };
        for part in text.split_whitespace() {
            let folded = |Word { kind, range }: Word| (kind, fold(kind, &part[range]));
            let words: Vec<_> = words(part).map(folded).filter(|(_, word)| !word.is_empty()).collect();
            let phrase = Phrase::of(&words);
            if phrase.terms.is_empty() || query.phrases.contains(&phrase) {
                continue;
            }
            query.phrases.push(phrase);
            query.words.extend(words);
        }
        if query.phrases.len() > MAX_PHRASES {
            return Err(format!("must be at most {MAX_PHRASES} words"));
        }
        query.terms = single_terms(&query.words);
        Ok(query)
    }

    /// The full-text expression for documents that have every phrase. `None` if the query has no words.
    pub fn all(&self, owner: IndexOwner) -> Option<String> {
        let phrases: Vec<String> = self.phrases.iter().map(|phrase| phrase.expression(owner)).collect();
        (!phrases.is_empty()).then(|| phrases.join(" AND "))
    }

    /// The full-text expression for documents that have at least one of these terms. `None` if there are none.
    pub fn any(owner: IndexOwner, terms: &[Phrase]) -> Option<String> {
        let terms: Vec<String> = terms.iter().map(|term| term.expression(owner)).collect();
        (!terms.is_empty()).then(|| terms.join(" OR "))
    }
}

/// The terms of words one by one. A word and its suffix stay together: `C++` is not `C`.
fn single_terms(words: &[(WordKind, String)]) -> Vec<Phrase> {
    let mut terms: Vec<Phrase> = vec![];
    let mut add = |term: &[&str], is_prefix| {
        let term = Phrase { terms: term.iter().copied().map(str::to_owned).collect(), is_prefix };
        if !terms.contains(&term) {
            terms.push(term);
        }
    };
    for (index, (kind, folded)) in words.iter().enumerate() {
        let suffix = words.get(index + 1).filter(|(next, _)| *next == WordKind::Suffix);
        match (kind, suffix) {
            (WordKind::Suffix, _) => {}
            (WordKind::Spaced, Some((_, suffix))) => add(&[folded, suffix], false),
            (WordKind::Spaced, None) => add(&[folded], false),
            (WordKind::Unspaced, _) if folded.as_str() == last_character(folded) => add(&[folded], true),
            (WordKind::Unspaced, _) => bigrams(folded).for_each(|pair| add(&[pair], false)),
        }
    }
    terms
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const OWNER: IndexOwner = IndexOwner(7);

    #[rstest]
    #[case("Deploy notes", Some(r#""7xdeploy" AND "7xnotes""#))]
    #[case("deploy Deploy", Some(r#""7xdeploy""#))]
    #[case(r#"a"b"#, Some(r#""7xa 7xb""#))]
    #[case("c++", Some(r#""7xc 7x++""#))]
    #[case("-x", Some(r#""7xx""#))]
    #[case("NOT foo* OR (bar)", Some(r#""7xnot" AND "7xfoo" AND "7xor" AND "7xbar""#))]
    #[case("path:secret ^start", Some(r#""7xpath 7xsecret" AND "7xstart""#))]
    #[case("京都", Some(r#""7x京都""#))]
    #[case("東京都", Some(r#""7x東京 7x京都""#))]
    #[case("猫", Some(r#""7x猫" *"#))]
    #[case("GPT模", Some(r#""7xgpt 7x模" *"#))]
    #[case("模型GPT", Some(r#""7x模型 7x型 7xgpt""#))]
    #[case("\"\"", None)]
    #[case("++ - *", None)]
    fn every_character_is_part_of_a_word_or_separates_words(#[case] text: &str, #[case] expression: Option<&str>) {
        assert_eq!(MemoryQuery::parse(text).unwrap().all(OWNER).as_deref(), expression);
    }

    #[rstest]
    #[case("deploy the c++ user_id", Some(r#""7xdeploy" OR "7xthe" OR "7xc 7x++" OR "7xuser" OR "7xid""#))]
    #[case("東京都 猫 東京", Some(r#""7x東京" OR "7x京都" OR "7x猫" *"#))]
    #[case("?", None)]
    fn some_words_are_searched_for_one_by_one(#[case] text: &str, #[case] expression: Option<&str>) {
        let query = MemoryQuery::parse(text).unwrap();
        assert_eq!(MemoryQuery::any(OWNER, &query.terms).as_deref(), expression);
    }

    #[rstest]
    #[case("", "must not be empty")]
    #[case(" \t", "must not be empty")]
    #[case(&"a".repeat(1_001), "must be at most 1000 bytes")]
    #[case(&(0..65).map(|n| n.to_string()).collect::<Vec<_>>().join(" "), "must be at most 64 words")]
    fn an_unusable_query_is_refused(#[case] text: &str, #[case] rule: &str) {
        assert_eq!(MemoryQuery::parse(text).unwrap_err(), rule);
    }

    proptest! {
        #[test]
        fn an_expression_is_quoted_terms_of_the_owner_and_its_own_operators(text in "\\PC{1,60}|[a+\"*^():{} 東京-]{1,40}") {
            let Ok(query) = MemoryQuery::parse(&text) else { return Ok(()) };
            for (expression, operator) in [(query.all(OWNER), " AND "), (MemoryQuery::any(OWNER, &query.terms), " OR ")] {
                let Some(expression) = expression else { continue };
                for phrase in expression.split(operator) {
                    let quoted = phrase.strip_suffix(" *").unwrap_or(phrase);
                    let terms = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect("quotes");
                    for term in terms.split(' ') {
                        let word = term.strip_prefix("7x").expect("the owner");
                        prop_assert!(!word.is_empty() && !word.contains(['"', '*', '(', ')', ':', '^', '-', '\0']));
                    }
                }
            }
        }
    }
}
