//! The texts in which a secret value can occur. Pure.

use std::collections::BTreeSet;

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD},
};

/// A longer text is looked for in parts of at most this length. It bounds what a stream holds back; the parts of a
/// whole occurrence touch each other, so that it is replaced as a whole.
const MAX_PATTERN_BYTES: usize = 256;

/// Bytes that base64 encodes together.
const BASE64_GROUP_BYTES: usize = 3;

/// Every pattern of a value but those with percent-encoding, other escapes of JSON or capital hexadecimal digits, which
/// are found in the decoded text.
pub(super) fn patterns_of(value: &str) -> BTreeSet<String> {
    let mut texts = BTreeSet::from([value.to_owned()]);
    if let Ok(quoted) = serde_json::to_string(value) {
        texts.insert(quoted[1..quoted.len() - 1].to_owned());
    }
    // A form has `+` for a space; its other characters are percent-encoded.
    texts.insert(value.replace(' ', "+"));
    texts.insert(hexadecimal(value));
    texts.insert(BASE64_STANDARD.encode(value));
    texts.insert(BASE64_URL_SAFE.encode(value));
    for offset in 0..BASE64_GROUP_BYTES {
        let bytes = [&[0; BASE64_GROUP_BYTES][..offset], value.as_bytes()].concat();
        texts.insert(own_characters(&BASE64_STANDARD_NO_PAD.encode(&bytes), offset, bytes.len()).to_owned());
        texts.insert(own_characters(&BASE64_URL_SAFE_NO_PAD.encode(&bytes), offset, bytes.len()).to_owned());
    }
    // Without padding the last character holds bits of the value only.
    texts.insert(BASE64_STANDARD_NO_PAD.encode(value));
    texts.insert(BASE64_URL_SAFE_NO_PAD.encode(value));
    texts.iter().flat_map(|text| parts(text)).collect()
}

fn hexadecimal(value: &str) -> String {
    let digits = value.bytes().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// The characters that depend on nothing but the bytes from `offset` to `end`.
fn own_characters(encoded: &str, offset: usize, end: usize) -> &str {
    &encoded[(offset * 8).div_ceil(6)..end * 8 / 6]
}

/// The text in parts of similar length, cut between characters.
fn parts(text: &str) -> Vec<String> {
    let count = text.len().div_ceil(MAX_PATTERN_BYTES).max(1);
    let cut = |index: usize| text.floor_char_boundary(text.len() * index / count);
    (0..count).map(|index| text[cut(index)..cut(index + 1)].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_a_base64_pattern_at_each_alignment() {
        let value = "hunter2-hunter2";
        let patterns = patterns_of(value);
        for before in ["", "u", "us", "user:", "another:"] {
            for after in ["", "!", "!!", "\n and more"] {
                let text = BASE64_STANDARD.encode(format!("{before}{value}{after}"));
                assert!(patterns.iter().any(|pattern| text.contains(pattern.as_str())), "{before}…{after}");
            }
        }
    }

    #[test]
    fn the_parts_of_a_long_text_are_the_text() {
        for length in [1, 255, 256, 257, 512, 513, 5_000] {
            let text = "é".repeat(length);
            let parts = parts(&text);
            assert_eq!(parts.concat(), text);
            assert!(parts.iter().all(|part| (1..=MAX_PATTERN_BYTES + 1).contains(&part.len())), "{length}");
        }
    }
}
