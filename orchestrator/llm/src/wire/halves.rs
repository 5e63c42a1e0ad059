//! Characters that a server cut in two, between two pieces of one text.
//!
//! Each piece is a JSON string, so a half is replaced there by a mark: a character of the last private plane that stands for a
//! lone surrogate, or for a byte that is no UTF-8. Where pieces are put together the marks become the character again, and
//! U+FFFD where the other half never came. Pure.

use std::borrow::Cow;

use serde_json::Value;

/// Marks of bytes: this and the byte.
const BYTES: u32 = 0x0010_f700;
/// Marks of surrogates, in their order.
const SURROGATES: u32 = 0x0010_f800;
/// The first surrogate.
const FIRST_SURROGATE: u16 = 0xd800;
/// The first of those that come second.
const FIRST_LOW: u32 = SURROGATES + 0x400;
/// Bytes of a character, at most.
const MAX_UTF8_BYTES: usize = 4;

/// The mark of a lone surrogate.
pub(super) fn of_surrogate(surrogate: u16) -> char {
    mark(SURROGATES + u32::from(surrogate.saturating_sub(FIRST_SURROGATE)))
}

/// The mark of a byte that is no UTF-8.
pub(super) fn of_byte(byte: u8) -> char {
    mark(BYTES + u32::from(byte))
}

fn mark(code: u32) -> char {
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that a mark stands for.
fn byte(code: u32) -> Option<u8> {
    u8::try_from(code.checked_sub(BYTES)?).ok()
}

fn is_mark(char: char) -> bool {
    u32::from(char) >= BYTES
}

/// The text with the marks of both halves as one character, and other marks as U+FFFD.
pub(super) fn join(text: &str) -> Cow<'_, str> {
    if !text.contains(is_mark) {
        return Cow::Borrowed(text);
    }
    let mut joined = String::with_capacity(text.len());
    let mut marks = String::new();
    for char in text.chars() {
        if is_mark(char) {
            marks.push(char);
            continue;
        }
        joined.push_str(&characters(&std::mem::take(&mut marks)));
        joined.push(char);
    }
    joined.push_str(&characters(&marks));
    Cow::Owned(joined)
}

/// The characters that a run of marks stands for.
fn characters(marks: &str) -> String {
    let codes: Vec<u32> = marks.chars().map(u32::from).collect();
    let mut text = String::new();
    let mut rest = codes.as_slice();
    while let [first, others @ ..] = rest {
        let bytes: Vec<u8> = rest.iter().map_while(|code| byte(*code)).collect();
        if !bytes.is_empty() {
            text.push_str(&String::from_utf8_lossy(&bytes));
            rest = &rest[bytes.len()..];
            continue;
        }
        let second = others.first().filter(|second| *first < FIRST_LOW && **second >= FIRST_LOW);
        let both =
            second.and_then(|second| char::from_u32(0x1_0000 + ((first - SURROGATES) << 10) + (second - FIRST_LOW)));
        text.push(both.unwrap_or(char::REPLACEMENT_CHARACTER));
        rest = &others[usize::from(second.is_some())..];
    }
    text
}

/// Joins every text of a value.
pub(super) fn join_all(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(joined) = join(text) {
                *text = joined;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(join_all),
        Value::Object(fields) => fields.values_mut().for_each(join_all),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Puts the pieces of one text together as they arrive: a half waits for the other one.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    held: String,
}

impl Joiner {
    /// What can be shown with this piece.
    pub(super) fn push<'p>(&mut self, piece: &'p str) -> Cow<'p, str> {
        if self.held.is_empty() && !piece.ends_with(is_mark) {
            return join(piece);
        }
        self.held.push_str(piece);
        let shown = self.held.len() - open_bytes(&self.held);
        let rest = self.held.split_off(shown);
        Cow::Owned(join(&std::mem::replace(&mut self.held, rest)).into_owned())
    }

    /// What is left at the end.
    pub(super) fn finish(&mut self) -> String {
        join(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// How much of the end of a text may be the beginning of a character.
fn open_bytes(text: &str) -> usize {
    let marks = text.chars().rev().take_while(|char| is_mark(*char));
    let Some(last) = marks.clone().next().map(u32::from) else { return 0 };
    match last {
        SURROGATES..FIRST_LOW => mark(last).len_utf8(),
        FIRST_LOW.. => 0,
        _ => {
            let bytes: Vec<u8> = marks.map_while(|char| byte(u32::from(char))).collect();
            // As many as the first byte of a character says, unless they are all there.
            let is_start = |byte: &u8| *byte >= 0xc0;
            let begun = bytes.iter().take(MAX_UTF8_BYTES).position(is_start).map_or(0, |at| at + 1);
            let needed =
                bytes.get(begun.wrapping_sub(1)).map_or(0, |first| (first.leading_ones() as usize).min(MAX_UTF8_BYTES));
            if begun < needed { begun * mark(BYTES).len_utf8() } else { 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::json;

    /// The pieces of a text as a server sends them that cuts it at these places of its UTF-16.
    fn cut_units(text: &str, every: usize) -> Vec<String> {
        let units: Vec<u16> = text.encode_utf16().collect();
        let piece = |units: &[u16]| {
            let escaped = units.iter().map(|unit| format!("\\u{unit:04x}")).collect::<Vec<_>>().concat();
            let value = json::parse(format!("\"{escaped}\"").as_bytes()).unwrap();
            value.as_str().unwrap().to_owned()
        };
        units.chunks(every).map(piece).collect()
    }

    fn cut_bytes(text: &str, every: usize) -> Vec<String> {
        let piece = |bytes: &[u8]| json::parse(&[b"\"", bytes, b"\""].concat()).unwrap().as_str().unwrap().to_owned();
        text.as_bytes().chunks(every).map(piece).collect()
    }

    proptest! {
        #[test]
        fn a_text_is_whole_however_it_was_cut(text in "[a-z é🚀漢\u{301}]{0,40}", every in 1_usize..5) {
            for pieces in [cut_units(&text, every), cut_bytes(&text, every)] {
                let together = pieces.concat();
                prop_assert_eq!(&join(&together).into_owned(), &text);
                let mut joiner = Joiner::default();
                let mut shown: String = pieces.iter().map(|piece| {
                    let shown = joiner.push(piece).into_owned();
                    assert!(!shown.contains(char::REPLACEMENT_CHARACTER), "{pieces:?}");
                    shown
                }).collect();
                shown.push_str(&joiner.finish());
                prop_assert_eq!(&shown, &text);
            }
        }

        #[test]
        fn bytes_that_are_no_text_are_replaced_and_never_lost(bytes in prop::collection::vec(any::<u8>(), 0..30), every in 1_usize..7) {
            let bytes: Vec<u8> = bytes.into_iter().filter(|byte| *byte >= 0x20 && !matches!(byte, b'"' | b'\\')).collect();
            let pieces: Vec<String> = bytes.chunks(every)
                .map(|bytes| json::parse(&[b"\"", bytes, b"\""].concat()).unwrap().as_str().unwrap().to_owned())
                .collect();
            let joined = join(&pieces.concat()).into_owned();
            prop_assert_eq!(&joined, &String::from_utf8_lossy(&bytes));
            let mut joiner = Joiner::default();
            let shown: String = pieces.iter().map(|piece| joiner.push(piece).into_owned()).collect();
            prop_assert!(!shown.contains(is_mark));
            prop_assert_eq!((shown + &joiner.finish()).replace('\u{fffd}', ""), joined.replace('\u{fffd}', ""));
        }
    }

    #[test]
    fn a_half_without_the_other_one_is_replaced() {
        let high = of_surrogate(0xd83d);
        assert_eq!(join(&format!("a{high}b")), "a\u{fffd}b");
        assert_eq!(join(&format!("{}{high}", of_surrogate(0xde80))), "\u{fffd}\u{fffd}");
        let mut value = serde_json::json!({"a": [format!("{high}{}", of_surrogate(0xde80))]});
        join_all(&mut value);
        assert_eq!(value, serde_json::json!({"a": ["🚀"]}));
    }
}
