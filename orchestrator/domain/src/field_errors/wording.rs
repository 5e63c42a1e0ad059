//! The messages about values that cannot be read.
//!
//! Owns the translation of a deserializer's messages, which name types of the program, into the terms of the API. A message of a
//! type's own parser is kept as it is.
//!
//! Why by text: serde's errors have no kinds, only messages. A JSON schema would give kinds, but the published one is open in unions and
//! does not check times, so the types would have to be asked again. When serde or chrono words a message differently,
//! `messages_name_no_type_of_the_program` below fails, or the story `refused_values` in `tests`.

use std::ops::RangeInclusive;

/// What a time must look like.
const TIME: &str = "must be a time such as 2030-01-31T08:00:00Z (RFC 3339)";
/// The messages of the parser of times.
pub(super) const TIME_ERRORS: &[&str] = &[
    "premature end of input",
    "input contains invalid characters",
    "input is out of range",
    "input is not enough for unique date and time",
    "no possible date and time matching input",
    "trailing input",
];

/// Describes the error of a deserializer.
pub fn describe(message: &str) -> String {
    if message.starts_with("missing field `") {
        return "is required".to_owned();
    }
    if message.starts_with("duplicate field `") {
        return "must be given only once".to_owned();
    }
    if message.starts_with("unknown field `") {
        return match names(message).as_slice() {
            [] => "unknown field".to_owned(),
            names => format!("unknown field; the fields are {}", names.join(", ")),
        };
    }
    if message.starts_with("unknown variant `") {
        return match names(message).as_slice() {
            [] => "unknown value".to_owned(),
            [name] => format!("must be {name}"),
            names => format!("must be one of {}", names.join(", ")),
        };
    }
    if message.starts_with("data did not match any variant") {
        return "has none of the valid forms".to_owned();
    }
    if TIME_ERRORS.contains(&message) {
        return TIME.to_owned();
    }
    let is_about_a_type =
        ["invalid type: ", "invalid value: ", "invalid length "].iter().any(|s| message.starts_with(s));
    match message.rsplit_once(", expected ").filter(|_| is_about_a_type) {
        Some((found, expected)) => must_be(found, expected),
        None => message.to_owned(),
    }
}

/// The names that a message ends with, as in "unknown field `x`, expected one of `a`, `b`".
fn names(message: &str) -> Vec<&str> {
    let expected = message.rsplit_once("`, expected ").map_or("", |(_, expected)| expected);
    expected.split('`').skip(1).step_by(2).collect()
}

/// A message about a value that is not what was expected.
fn must_be(found: &str, expected: &str) -> String {
    if expected.starts_with("fewer elements") {
        return "has too many items".to_owned();
    }
    if let Some(range) = range(expected) {
        let number =
            found.strip_prefix("invalid value: integer `").and_then(|found| found.trim_end_matches('`').parse().ok());
        return number.map_or_else(|| kind_of_integer(&range).to_owned(), |number| out_of_range(number, &range));
    }
    if expected == "map with a single key" {
        // What an enumeration would be with contents, which none of the API has.
        return "must be a string".to_owned();
    }
    let starts = |words: &[&str]| words.iter().any(|word| expected.starts_with(word));
    let kind = if starts(&["struct ", "a map", "map", "internally tagged", "adjacently tagged", "an object"]) {
        "an object"
    } else if starts(&["a sequence", "sequence", "a tuple", "tuple ", "an array"]) {
        "an array"
    } else if starts(&[
        "a string",
        "string",
        "a borrowed string",
        "str",
        "variant ",
        "enum ",
        "identifier",
        "field identifier",
    ]) {
        "a string"
    } else if starts(&["a boolean", "bool"]) {
        "true or false"
    } else if starts(&["f32", "f64", "a number"]) {
        "a number"
    } else if starts(&["char", "a character"]) {
        "a single character"
    } else if starts(&["unit", "null"]) {
        "null"
    } else if starts(&["an RFC 3339", "a formatted date"]) {
        return TIME.to_owned();
    } else {
        return "has a value that is not valid here".to_owned();
    };
    format!("must be {kind}")
}

/// The values of an integer type.
pub fn range(name: &str) -> Option<RangeInclusive<i128>> {
    let range = match name {
        "u8" => 0..=u8::MAX.into(),
        "u16" => 0..=u16::MAX.into(),
        "u32" => 0..=u32::MAX.into(),
        "u64" | "usize" => 0..=u64::MAX.into(),
        "i8" => i8::MIN.into()..=i8::MAX.into(),
        "i16" => i16::MIN.into()..=i16::MAX.into(),
        "i32" => i32::MIN.into()..=i32::MAX.into(),
        "i64" | "isize" => i64::MIN.into()..=i64::MAX.into(),
        _ => return None,
    };
    Some(range)
}

/// What a value of an integer type must be.
pub fn kind_of_integer(range: &RangeInclusive<i128>) -> &'static str {
    if *range.start() < 0 { "must be an integer" } else { "must be an integer of at least 0" }
}

/// A message about an integer outside of the range of its type.
pub fn out_of_range(number: i128, range: &RangeInclusive<i128>) -> String {
    if number < *range.start() {
        format!("must be an integer of at least {}", range.start())
    } else {
        format!("must be an integer of at most {}", range.end())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("missing field `prompt`", "is required")]
    #[case("duplicate field `prompt`", "must be given only once")]
    #[case("unknown field `a`, expected one of `b`, `c`", "unknown field; the fields are b, c")]
    #[case("unknown field `a`, expected `b` or `c`", "unknown field; the fields are b, c")]
    #[case("unknown field `a`, there are no fields", "unknown field")]
    #[case("unknown variant `a`, expected one of `b`, `c`, `d`", "must be one of b, c, d")]
    #[case("unknown variant `x`, expected `y`, expected `b` or `c`", "must be one of b, c")]
    #[case("unknown variant `a`, expected `b`", "must be b")]
    #[case("data did not match any variant of untagged enum Thing", "has none of the valid forms")]
    #[case("invalid type: string \"x\", expected u64", "must be an integer of at least 0")]
    #[case("invalid type: floating point `1.5`, expected u32", "must be an integer of at least 0")]
    #[case("invalid value: integer `-1`, expected u32", "must be an integer of at least 0")]
    #[case("invalid value: integer `300`, expected u8", "must be an integer of at most 255")]
    #[case("invalid value: integer `5000000000`, expected i32", "must be an integer of at most 2147483647")]
    #[case("invalid type: null, expected i64", "must be an integer")]
    #[case("invalid type: string \", expected u64\", expected f64", "must be a number")]
    #[case("invalid type: integer `7`, expected a string", "must be a string")]
    #[case("invalid type: integer `7`, expected string or map", "must be a string")]
    #[case("invalid value: map, expected map with a single key", "must be a string")]
    #[case("invalid type: null, expected variant identifier", "must be a string")]
    #[case("invalid type: integer `7`, expected a boolean", "must be true or false")]
    #[case("invalid type: null, expected struct CreateJob", "must be an object")]
    #[case("invalid type: sequence, expected an object", "must be an object")]
    #[case("invalid type: string \"x\", expected internally tagged enum RoutineTrigger", "must be an object")]
    #[case("invalid type: string \"x\", expected a map", "must be an object")]
    #[case("invalid type: map, expected a sequence", "must be an array")]
    #[case("invalid length 3, expected fewer elements in array", "has too many items")]
    #[case("invalid type: integer `7`, expected an RFC 3339 formatted date and time string", TIME)]
    #[case("premature end of input", TIME)]
    #[case("invalid type: map, expected something::Else<u8>", "has a value that is not valid here")]
    #[case("not a UUID in its hyphenated form (36 characters)", "not a UUID in its hyphenated form (36 characters)")]
    fn messages_name_no_type_of_the_program(#[case] message: &str, #[case] described: &str) {
        assert_eq!(describe(message), described);
    }
}
