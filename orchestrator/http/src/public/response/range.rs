//! Byte ranges of a request (RFC 9110, section 14): which part of a content it asks for. Pure.
//!
//! One range is served. Several ranges, other units and what is no range are ignored, as the RFC allows: the whole content is sent.

use std::ops::RangeInclusive;

use axum::http::{HeaderMap, HeaderValue, header};

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::public) enum Requested {
    Whole,
    /// From the first to the last byte.
    Part(RangeInclusive<u64>),
    /// A part that begins after the end.
    Unsatisfiable,
}

/// What tells the versions of a content apart, as the response shows them.
#[derive(Debug)]
pub(in crate::public) struct Validators {
    /// A strong tag; none while the content may change without another one.
    pub(in crate::public) etag: Option<HeaderValue>,
    /// `Last-Modified`, if another content has another one.
    pub(in crate::public) date: Option<HeaderValue>,
}

/// What the headers ask for of a content of `size` bytes. `If-Range` with another version asks for the whole.
pub(in crate::public) fn requested(headers: &HeaderMap, size: u64, validators: &Validators) -> Requested {
    let mut ranges = headers.get_all(header::RANGE).iter();
    let (Some(range), None) = (ranges.next(), ranges.next()) else { return Requested::Whole };
    let is_same = headers.get(header::IF_RANGE).is_none_or(|condition| {
        [&validators.etag, &validators.date].into_iter().flatten().any(|validator| validator == condition)
    });
    if !is_same {
        return Requested::Whole;
    }
    range.to_str().ok().and_then(|range| part(range, size)).unwrap_or(Requested::Whole)
}

/// One valid range.
fn part(range: &str, size: u64) -> Option<Requested> {
    let (unit, range) = range.split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.trim().split_once('-')?;
    if first.is_empty() {
        return Some(match number(last)? {
            0 => Requested::Unsatisfiable,
            // No range of an empty content can be named in the response.
            _ if size == 0 => Requested::Whole,
            length => Requested::Part(size.saturating_sub(length)..=size - 1),
        });
    }
    let first = number(first)?;
    let last = if last.is_empty() { u64::MAX } else { number(last)? };
    if last < first {
        return None;
    }
    Some(if first < size { Requested::Part(first..=last.min(size - 1)) } else { Requested::Unsatisfiable })
}

/// Digits only; what is too large for a number is beyond every end.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use Requested::{Part, Unsatisfiable, Whole};

    fn headers(of: &[(header::HeaderName, &str)]) -> HeaderMap {
        of.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    const NONE: Validators = Validators { etag: None, date: None };

    #[rstest]
    #[case::a_part("bytes=2-4", 10, Part(2..=4))]
    #[case::one_byte("bytes=0-0", 10, Part(0..=0))]
    #[case::the_rest("bytes=4-", 10, Part(4..=9))]
    #[case::up_to_the_end("bytes=4-99", 10, Part(4..=9))]
    #[case::the_end("bytes=-3", 10, Part(7..=9))]
    #[case::more_than_all("bytes=-30", 10, Part(0..=9))]
    #[case::a_huge_number("Bytes=4-99999999999999999999999999", 10, Part(4..=9))]
    #[case::after_the_end("bytes=10-", 10, Unsatisfiable)]
    #[case::far_after_the_end("bytes=99999999999999999999999999-", 10, Unsatisfiable)]
    #[case::no_byte("bytes=-0", 10, Unsatisfiable)]
    #[case::of_an_empty_file("bytes=0-", 0, Unsatisfiable)]
    #[case::the_end_of_an_empty_file("bytes=-5", 0, Whole)]
    #[case::backwards("bytes=4-2", 10, Whole)]
    #[case::several("bytes=0-1,4-5", 10, Whole)]
    #[case::another_unit("lines=0-1", 10, Whole)]
    #[case::a_sign("bytes=+1-2", 10, Whole)]
    #[case::nothing("bytes=-", 10, Whole)]
    #[case::no_range("bytes", 10, Whole)]
    fn a_range_is_read_as_the_rfc_says(#[case] range: &str, #[case] size: u64, #[case] asked: Requested) {
        assert_eq!(requested(&headers(&[(header::RANGE, range)]), size, &NONE), asked);
    }

    #[test]
    fn two_headers_or_none_ask_for_the_whole() {
        assert_eq!(requested(&HeaderMap::new(), 10, &NONE), Whole);
        let mut twice = headers(&[(header::RANGE, "bytes=0-1")]);
        twice.append(header::RANGE, HeaderValue::from_static("bytes=0-1"));
        assert_eq!(requested(&twice, 10, &NONE), Whole);
    }

    #[rstest]
    #[case("\"a\"", true)]
    #[case("\"b\"", false)]
    #[case("W/\"a\"", false)]
    #[case("Sun, 06 Nov 1994 08:49:37 GMT", true)]
    #[case("Sun, 06 Nov 1994 08:49:38 GMT", false)]
    fn a_part_of_another_version_is_the_whole(#[case] condition: &str, #[case] same: bool) {
        let known = Validators {
            etag: Some(HeaderValue::from_static("\"a\"")),
            date: Some(HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT")),
        };
        let asked = headers(&[(header::RANGE, "bytes=1-2"), (header::IF_RANGE, condition)]);
        assert_eq!(requested(&asked, 10, &known), if same { Part(1..=2) } else { Whole });
        assert_eq!(requested(&asked, 10, &NONE), Whole, "without a validator nothing is the same");
    }
}
