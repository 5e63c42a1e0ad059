//! Values that ordinary text contains, so that their redaction would change it. Pure.

/// Shorter values of one kind of characters are words, or numbers such as dates.
const MIN_CHARS_OF_ONE_KIND: usize = 12;

/// Words and placeholders that ordinary text contains and that are longer, have other characters, or are written in several
/// ways: in lower case, without what follows the last letter.
const EVERYDAY: [&str; 41] = [
    "admin",
    "administrator",
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
    "token",
    "user",
    "username",
    "welcome",
    "your-api-key",
    "your-password",
    "your-token",
];

/// Whether the value is an everyday word, or has few characters of one kind: lower-case letters (the first may be a capital),
/// capitals, letters of a script without cases, or digits.
pub fn is_weak(value: &str) -> bool {
    is_everyday(value) || (value.chars().count() < MIN_CHARS_OF_ONE_KIND && is_of_one_kind(value))
}

fn is_everyday(value: &str) -> bool {
    let value = value.trim().to_lowercase();
    EVERYDAY.contains(&value.trim_end_matches(|c: char| !c.is_alphabetic()))
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
    #[case("example.com")]
    fn ordinary_text_contains_it(#[case] value: &str) {
        assert!(is_weak(value), "{value}");
    }

    #[rstest]
    #[case("hunter22")]
    #[case("s3cr3t-x")]
    #[case("hunterhunter")]
    #[case("123456789012")]
    #[case("correct-horse")]
    #[case("passwords-are-9-words")]
    #[case("fooBARbaz")]
    fn other_values_are_not_weak(#[case] value: &str) {
        assert!(!is_weak(value), "{value}");
    }
}
