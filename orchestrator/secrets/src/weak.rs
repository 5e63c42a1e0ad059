//! Values that ordinary text contains, so that their redaction would change it. Pure.

use std::net::{IpAddr, SocketAddr};

/// Shorter values of one kind of characters are words, or numbers such as dates.
const MIN_CHARS_OF_ONE_KIND: usize = 12;

/// A word with a number after it, such as a season with its year, is no longer.
const MAX_CHARS_OF_A_WORD_WITH_A_NUMBER: usize = 12;
const MAX_DIGITS_AFTER_A_WORD: usize = 4;

/// A number with separators has no more digits: a date with its time, an address.
const MAX_DIGITS_OF_A_NUMBER: usize = 14;

/// Words and placeholders that ordinary text contains and that are longer, have other characters, or are written in several
/// ways: in lower case, without what follows the last letter.
const EVERYDAY: [&str; 46] = [
    "admin",
    "administrator",
    "application/json",
    "authentication",
    "authorization",
    "change-me",
    "change_me",
    "changeme",
    "configuration",
    "development",
    "documentation",
    "environment",
    "example.com",
    "hello",
    "hello world",
    "http",
    "https",
    "iloveyou",
    "infrastructure",
    "integration",
    "international",
    "letmein",
    "localhost",
    "my-secret",
    "my-token",
    "not-a-secret",
    "organization",
    "passphrase",
    "passw0rd",
    "password",
    "placeholder",
    "production",
    "qwerty",
    "secret",
    "secret-key",
    "specification",
    "test",
    "text/html",
    "text/plain",
    "token",
    "user",
    "username",
    "welcome",
    "your-api-key",
    "your-password",
    "your-token",
];

/// Whether the value is an everyday word, a short word with a number, or a number such as a date or an address, has no letter and no
/// digit or only one of them, or has few characters of one kind: lower-case letters (the first may be a capital), capitals, letters of a script without
/// cases, or digits.
pub fn is_weak(value: &str) -> bool {
    is_everyday(value)
        || is_repeated(value)
        || is_number(value)
        || is_word_with_number(value)
        || (value.chars().count() < MIN_CHARS_OF_ONE_KIND && is_of_one_kind(value))
}

fn is_everyday(value: &str) -> bool {
    let value = value.trim().to_lowercase();
    EVERYDAY.contains(&value.trim_end_matches(|c: char| !c.is_alphabetic()))
}

/// Whether all letters and digits are the same, or there are none.
fn is_repeated(value: &str) -> bool {
    let mut characters = value.chars().filter(|c| c.is_alphanumeric());
    characters.next().is_none_or(|first| characters.all(|c| c == first))
}

/// Whether the value is a word and up to four digits, as passwords that people think of are.
fn is_word_with_number(value: &str) -> bool {
    let named = value.trim();
    let numbered = named.strip_suffix(['!', '.']).unwrap_or(named);
    let word = numbered.trim_end_matches(|c: char| c.is_ascii_digit());
    named.chars().count() <= MAX_CHARS_OF_A_WORD_WITH_A_NUMBER
        && (1..=MAX_DIGITS_AFTER_A_WORD).contains(&(numbered.len() - word.len()))
        && !word.is_empty()
        && is_of_one_kind(word)
}

/// Whether the value is digits with separators, as dates, times and addresses have.
fn is_number(value: &str) -> bool {
    let is_separator = |c: char| c.is_whitespace() || matches!(c, '-' | '.' | '/' | ':' | '_');
    let digits = value.chars().filter(char::is_ascii_digit).count();
    let has_separators = value.trim().contains(is_separator);
    let is_address = value.parse::<IpAddr>().is_ok() || value.parse::<SocketAddr>().is_ok();
    is_address
        || (has_separators
            && digits <= MAX_DIGITS_OF_A_NUMBER
            && value.chars().all(|c| c.is_ascii_digit() || is_separator(c)))
}

fn is_of_one_kind(value: &str) -> bool {
    let rest = value.strip_prefix(char::is_uppercase).unwrap_or(value);
    let is_caseless = |c: char| c.is_alphabetic() && !c.is_lowercase() && !c.is_uppercase();
    rest.chars().all(char::is_lowercase)
        || value.chars().all(char::is_uppercase)
        || value.chars().all(is_caseless)
        || value.chars().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("hunterhunt")]
    #[case("Engineering")]
    #[case("DATABASE")]
    #[case("20261127")]
    #[case("straßenbahn")]
    #[case("日本語日本語")]
    #[case("production")]
    #[case("PassWord")]
    #[case("password123!")]
    #[case(" Authentication\n")]
    #[case("test1234")]
    #[case("Summer2026")]
    #[case("summer2026!")]
    #[case("BERLIN26.")]
    #[case("hunter22")]
    #[case("Straßen7")]
    #[case("example.com")]
    #[case("--------")]
    #[case("        ")]
    #[case("\n\n\n\n\n\n\n\n")]
    #[case("aaaaaaaaaaaaaa")]
    #[case("a-a-a-a-a-a-a-a")]
    #[case("00000000-0000-0000-0000-000000000000")]
    #[case("2026-11-27")]
    #[case("2026-11-27 16:30:00")]
    #[case("27.11.2026")]
    #[case("127.0.0.1")]
    #[case("192.168.100.200:8080")]
    #[case("https://")]
    #[case("text/html")]
    #[case("application/json")]
    fn ordinary_text_contains_it(#[case] value: &str) {
        assert!(is_weak(value), "{value}");
    }

    #[rstest]
    #[case("Summertime2026")]
    #[case("summer20261")]
    #[case("summer2026!!")]
    #[case("26summer")]
    #[case("suMmer26")]
    #[case("s3cr3t-x")]
    #[case("hunterhunter")]
    #[case("123456789012")]
    #[case("correct-horse")]
    #[case("passwords-are-9-words")]
    #[case("fooBARbaz")]
    #[case("1234-5678-9012-3456-7890")]
    #[case("-aB3-xY9-")]
    #[case("https://ada:hunter22@host")]
    fn other_values_are_not_weak(#[case] value: &str) {
        assert!(!is_weak(value), "{value}");
    }
}
