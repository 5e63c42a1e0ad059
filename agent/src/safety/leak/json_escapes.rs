//! A text with the escapes of JSON strings undone, once and twice, while it is being read.
//!
//! Encoders escape different characters: some all that are not ASCII, some `/`, some those that HTML reserves. A
//! document in a string of another one is escaped twice.

use super::{LeakDetector, scanner::Hits, views::View};

/// Length of the longest escape: a surrogate pair, as `\\ud83d\\ude00`.
const MAX_ESCAPE_BYTES: usize = 12;
/// Length of the escape of one UTF-16 unit.
const UNIT_BYTES: usize = 6;

/// Where a character of a view is in the text.
type Place = (usize, usize);

/// The views of the text with the escapes undone once and twice.
pub(super) struct JsonUnescaped {
    once: Unescaper,
    twice: Unescaper,
    views: [View; 2],
}

impl JsonUnescaped {
    /// Both views begin as the text does.
    pub(super) fn new(view: impl Fn() -> View) -> Self {
        Self { once: Unescaper::default(), twice: Unescaper::default(), views: [view(), view()] }
    }

    /// Takes the byte at this offset.
    pub(super) fn push(&mut self, detector: &LeakDetector, byte: u8, at: usize, hits: &mut Hits) {
        let Self { once, twice, views: [first, second] } = self;
        once.push(byte, (at, at + 1), &mut |byte, place| {
            first.push(detector, byte, place, hits);
            twice.push(byte, place, &mut |byte, place| second.push(detector, byte, place, hits));
        });
    }

    /// Where the earliest pattern or escape that may still be completed begins.
    pub(super) fn pending(&self) -> Option<usize> {
        let [first, second] = &self.views;
        [first.pending(), second.pending(), self.once.pending(), self.twice.pending()].into_iter().flatten().min()
    }
}

/// Undoes escapes in a sequence of bytes.
#[derive(Default)]
struct Unescaper {
    /// The bytes of an escape that is not complete.
    held: Vec<(u8, Place)>,
}

/// What a sequence that begins with a backslash is.
#[derive(Debug, PartialEq, Eq)]
enum Escape {
    /// The beginning of an escape.
    Incomplete,
    /// The escape of this character.
    Of(char),
    /// Text.
    Invalid,
}

impl Unescaper {
    /// Takes a byte. `emit` gets the bytes of the text without escapes.
    fn push(&mut self, byte: u8, place: Place, emit: &mut impl FnMut(u8, Place)) {
        if self.held.is_empty() && byte != b'\\' {
            return emit(byte, place);
        }
        self.held.push((byte, place));
        match self.escape() {
            Escape::Incomplete => {}
            Escape::Of(character) => {
                let start = self.held.first().map_or(place.0, |(_, (start, _))| *start);
                self.held.clear();
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    emit(byte, (start, place.1));
                }
            }
            // The backslash is a character; what follows it may begin an escape.
            Escape::Invalid => {
                let mut held = std::mem::take(&mut self.held).into_iter();
                if let Some((byte, place)) = held.next() {
                    emit(byte, place);
                }
                held.for_each(|(byte, place)| self.push(byte, place, emit));
            }
        }
    }

    fn escape(&self) -> Escape {
        let mut bytes = [0; MAX_ESCAPE_BYTES];
        let held = &mut bytes[..self.held.len().min(MAX_ESCAPE_BYTES)];
        for (byte, (held, _)) in held.iter_mut().zip(&self.held) {
            *byte = *held;
        }
        escape(held)
    }

    fn pending(&self) -> Option<usize> {
        self.held.first().map(|(_, (start, _))| *start)
    }
}

/// Reads bytes that begin with a backslash.
fn escape(bytes: &[u8]) -> Escape {
    match bytes {
        [_] | [_, b'u'] => Escape::Incomplete,
        [_, b'u', ..] => unicode_escape(bytes),
        [_, byte] => match byte {
            b'"' | b'\\' | b'/' => Escape::Of(char::from(*byte)),
            b'b' => Escape::Of('\u{8}'),
            b'f' => Escape::Of('\u{c}'),
            b'n' => Escape::Of('\n'),
            b'r' => Escape::Of('\r'),
            b't' => Escape::Of('\t'),
            _ => Escape::Invalid,
        },
        _ => Escape::Invalid,
    }
}

/// Reads `\uXXXX`, or two of them that are a surrogate pair.
fn unicode_escape(bytes: &[u8]) -> Escape {
    let (first, second) = bytes.split_at(bytes.len().min(UNIT_BYTES));
    let (Some(high), Some(low)) = (unit(first), unit(second)) else { return Escape::Invalid };
    let units: Vec<u16> = [high, low].into_iter().flatten().collect();
    let is_high = high.is_some_and(|unit| (0xd800..0xdc00).contains(&unit));
    if first.len() < UNIT_BYTES || (is_high && second.len() < UNIT_BYTES) {
        return Escape::Incomplete;
    }
    match char::decode_utf16(units).next() {
        Some(Ok(character)) => Escape::Of(character),
        _ => Escape::Invalid,
    }
}

/// The UTF-16 unit of a possibly incomplete escape, if it is complete. `None`: it is no such escape.
#[expect(clippy::option_option, reason = "incomplete and invalid are different")]
fn unit(bytes: &[u8]) -> Option<Option<u16>> {
    let is_valid = bytes.iter().enumerate().all(|(index, byte)| match index {
        0 => *byte == b'\\',
        1 => *byte == b'u',
        _ => byte.is_ascii_hexdigit(),
    });
    if !is_valid {
        return None;
    }
    let digits = bytes.get(2..).filter(|digits| digits.len() + 2 == UNIT_BYTES);
    let digits = digits.and_then(|digits| str::from_utf8(digits).ok());
    Some(digits.and_then(|digits| u16::from_str_radix(digits, 16).ok()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(r"plain", "plain")]
    #[case(r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t")]
    #[case(r"\u0041\u00e9\u00E9\u65e5", "Aéé日")]
    #[case(r"\ud83d\ude00!", "😀!")]
    #[case(r"\ud83dx \ud83d\n \ude00 \ud83d\ud83d\ude00", "\\ud83dx \\ud83d\n \\ude00 \\ud83d😀")]
    #[case(r"C:\dir \x41 \u12g \'", r"C:\dir \x41 \u12g \'")]
    #[case(r"\\u0041", r"\u0041")]
    #[case("\\é", "\\é")]
    fn escapes_are_undone(#[case] text: &str, #[case] expected: &str) {
        let (mut unescaper, mut bytes) = (Unescaper::default(), Vec::new());
        for (at, byte) in text.bytes().enumerate() {
            unescaper.push(byte, (at, at + 1), &mut |byte, _| bytes.push(byte));
        }
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        assert_eq!(unescaper.pending(), None);
    }
}
