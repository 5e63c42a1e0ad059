//! The words of a text as the search compares them, and the terms that the index has for them.
//!
//! Words are letters and digits in lower case, without the accents of Latin, Greek and Cyrillic letters. `+` and `#`
//! directly after a word are a word, too, so that `C++` and `C#` differ from `C`. A run of a script that is written
//! without spaces between words, such as Chinese, has a term for each two adjacent characters and one for the last
//! character. So a text of two characters or more is a phrase of terms wherever it occurs in the run, and one character
//! begins a term.

use std::{
    fmt::{self, Write as _},
    ops::Range,
};

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

/// Longer words are cut, in documents and in queries alike: the rest of a digest or of encoded data is not searched
/// for.
const MAX_WORD_BYTES: usize = 128;

/// The number of a user. It begins each of the user's terms, followed by a letter, so that terms of two users are never
/// equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexOwner(pub i64);

impl fmt::Display for IndexOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Digits and this letter are consonants to the index's stemmer: they do not change a stem.
        write!(f, "{}x", self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WordKind {
    /// Of a script that separates words by spaces.
    Spaced,
    /// A run of a script that does not.
    Unspaced,
    /// `+` and `#` after another word.
    Suffix,
}

/// A word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) kind: WordKind,
    /// Its place in the text, in bytes.
    pub(super) range: Range<usize>,
}

/// The words of a text, in order. Words of different kinds may follow each other without a separator.
pub(super) fn words(text: &str) -> impl Iterator<Item = Word> + '_ {
    let mut characters = text.char_indices().peekable();
    let mut follows_word = false;
    std::iter::from_fn(move || {
        let mut word: Option<Word> = None;
        while let Some((at, character)) = characters.peek().copied() {
            let own = kind(character, follows_word);
            let end = at + character.len_utf8();
            match (&mut word, own) {
                (Some(word), Some(own)) if word.kind == own || is_mark_of(word.kind, character) => word.range.end = end,
                (Some(_), _) => break,
                (None, Some(kind)) => word = Some(Word { kind, range: at..end }),
                (None, None) => {}
            }
            follows_word = own.is_some();
            characters.next();
        }
        word
    })
}

fn is_mark_of(word: WordKind, character: char) -> bool {
    word != WordKind::Suffix && is_combining_mark(character)
}

/// The kind of word that a character belongs to. A mark and a suffix need a word before them.
fn kind(character: char, follows_word: bool) -> Option<WordKind> {
    let is_letter = character.is_alphanumeric() || (follows_word && is_combining_mark(character));
    match character {
        '+' | '#' if follows_word => Some(WordKind::Suffix),
        _ if is_letter && is_unspaced(character) => Some(WordKind::Unspaced),
        _ if is_letter => Some(WordKind::Spaced),
        _ => None,
    }
}

/// Whether the character is of a script that is written without spaces between words, or of Korean, whose words carry
/// particles.
const fn is_unspaced(character: char) -> bool {
    matches!(
        character,
        // Thai and Lao, Burmese, Hangul letters, Khmer.
        '\u{e00}'..='\u{eff}'
            | '\u{1000}'..='\u{109f}'
            | '\u{1100}'..='\u{11ff}'
            | '\u{1780}'..='\u{17ff}'
            // Chinese and Japanese marks of repetition, kana, Bopomofo, Hangul letters.
            | '\u{3005}'..='\u{3007}'
            | '\u{3040}'..='\u{318f}'
            | '\u{31a0}'..='\u{31bf}'
            | '\u{31f0}'..='\u{31ff}'
            // Chinese characters, Hangul syllables, halfwidth forms, and the supplementary planes of both.
            | '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{a960}'..='\u{a97f}'
            | '\u{ac00}'..='\u{d7ff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{ff66}'..='\u{ffdc}'
            | '\u{1aff0}'..='\u{1b16f}'
            | '\u{20000}'..='\u{3ffff}'
    )
}

/// A word as it is compared: in lower case, without accents and compatibility forms. Empty if nothing remains.
pub(super) fn fold(kind: WordKind, word: &str) -> String {
    let mut folded: String = if word.is_ascii() {
        word.to_ascii_lowercase()
    } else if kind == WordKind::Unspaced && word.chars().all(is_folded) {
        word.to_owned()
    } else {
        let lower = word.nfkd().flat_map(char::to_lowercase).nfkd();
        let plain = lower.filter(|c| !matches!(c, '\u{300}'..='\u{36f}')).map(|c| if c == 'ς' { 'σ' } else { c });
        // Compatibility forms such as ⑴ contain punctuation.
        plain.nfc().filter(|c| c.is_alphanumeric() || is_combining_mark(*c)).collect()
    };
    if kind == WordKind::Spaced && folded.len() > MAX_WORD_BYTES {
        folded.truncate(folded.floor_char_boundary(MAX_WORD_BYTES));
    }
    folded
}

/// Whether folding leaves the character as it is: most Chinese characters, kana and Hangul syllables.
const fn is_folded(character: char) -> bool {
    matches!(
        character,
        '\u{3041}'..='\u{3096}'
            | '\u{30a1}'..='\u{30fa}'
            | '\u{30fc}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7a3}'
    )
}

/// Each two adjacent characters.
pub(super) fn bigrams(folded: &str) -> impl Iterator<Item = &str> {
    let starts = folded.char_indices().map(|(at, _)| at);
    let ends = folded.char_indices().map(|(at, character)| at + character.len_utf8()).skip(1);
    starts.zip(ends).map(|(start, end)| &folded[start..end])
}

pub(super) fn last_character(folded: &str) -> &str {
    let at = folded.char_indices().next_back().map_or(0, |(at, _)| at);
    &folded[at..]
}

/// The terms of a text in the index, each followed by a space.
pub fn index_terms(owner: IndexOwner, text: &str) -> String {
    let mut terms = String::with_capacity(text.len() + text.len() / 2);
    let mut add = |term: &str| {
        // Writing to a string cannot fail.
        let _ = write!(terms, "{owner}{term} ");
    };
    for Word { kind, range } in words(text) {
        let folded = fold(kind, &text[range]);
        if folded.is_empty() {
            continue;
        }
        if kind == WordKind::Unspaced {
            bigrams(&folded).for_each(&mut add);
            add(last_character(&folded));
        } else {
            add(&folded);
        }
    }
    terms
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("Deploy the Café!", "deploy the cafe")]
    #[case::symbols("C++ and C# -x a\"b user_id", "c ++ and c # x a b user id")]
    #[case::symbols_alone("## Title + more ++", "title more")]
    #[case::inside("c++17 a+b", "c ++ 17 a + b")]
    #[case::fullwidth("ＡＢＣ １２ ﬁn ½", "abc 12 fin 12")]
    #[case::parenthesised("⑴ ⒈ ﷺ", "1 1 صلىاللهعليهوسلم")]
    #[case::greek("ΟΔΟΣ οδος", "οδοσ οδοσ")]
    #[case::decomposed("cafe\u{301} İstanbul", "cafe istanbul")]
    #[case::hindi("हिन्दी में", "हिन्दी में")]
    #[case::chinese("机器学习", "机器 器学 学习 习")]
    #[case::mixed("GPT模型3 猫", "gpt 模型 型 3 猫")]
    #[case::halfwidth_kana("ｶﾞｰﾄﾞ", "ガー ード ド")]
    #[case::decomposed_kana("か\u{3099}く", "がく く")]
    #[case::korean("학교에서", "학교 교에 에서 서")]
    #[case::middle_dot("東京・大阪", "東京 京 大阪 阪")]
    fn a_text_has_these_terms(#[case] text: &str, #[case] expected: &str) {
        let terms = index_terms(IndexOwner(7), text);
        assert_eq!(terms, format!("7x{} ", expected.replace(' ', " 7x")));
    }

    #[test]
    fn a_long_word_is_cut_and_a_long_run_is_not() {
        assert_eq!(index_terms(IndexOwner(1), &"a".repeat(1_000)).len(), MAX_WORD_BYTES + "1x ".len());
        assert_eq!(index_terms(IndexOwner(1), &"猫".repeat(1_000)).split_whitespace().count(), 1_000);
    }

    proptest! {
        #[test]
        fn every_term_is_its_owners_and_has_no_character_of_the_engines_syntax(text in "\\PC{0,60}|[a+#\"*^ 東京\u{fdfa}⑴\u{37a}\u{301}]{0,30}") {
            let terms = index_terms(IndexOwner(42), &text);
            for term in terms.split(' ').filter(|term| !term.is_empty()) {
                let word = term.strip_prefix("42x").expect("the owner");
                prop_assert!(!word.is_empty());
                let plain = |c: char| matches!(c, '+' | '#') || c.is_alphanumeric() || is_combining_mark(c);
                prop_assert!(word.chars().all(plain), "{:?}", term);
            }
        }

        #[test]
        fn folding_leaves_most_characters_of_unspaced_scripts(text in "[\u{3041}-\u{3096}\u{30a1}-\u{30fa}\u{30fc}\u{4e00}-\u{9fff}\u{ac00}-\u{d7a3}]{1,20}") {
            prop_assert!(text.chars().all(is_folded));
            // A character that is not left as it is makes the whole word take the other way.
            prop_assert_eq!(fold(WordKind::Unspaced, &format!("{text}\u{3005}")), format!("{text}\u{3005}"));
        }

        #[test]
        fn words_are_in_order_and_do_not_overlap(text in "\\PC{0,60}|[a+# 東京\u{301}]{0,30}") {
            let mut end = 0;
            for word in words(&text) {
                prop_assert!(word.range.start >= end && word.range.end > word.range.start);
                prop_assert!(text.is_char_boundary(word.range.start) && text.is_char_boundary(word.range.end));
                end = word.range.end;
            }
        }
    }
}
