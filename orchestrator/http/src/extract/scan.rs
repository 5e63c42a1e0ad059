//! Bounds the number of values of a JSON text without parsing it: parsed values take up to a hundred times the bytes of the text.
//!
//! Owns the limits. Does not validate the text; the parser does.

use std::fmt;

/// Values and names in one large body. As parsed values they take some 25 MB; a conversation of 32 MB has a few long strings,
/// and one with ten thousand calls of ten arguments each stays below.
const MAX_VALUES: usize = 250_000;
/// Arrays and objects inside each other; the parser's own limit.
const MAX_DEPTH: usize = 128;

/// More than a body may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    Values,
    Depth,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values => write!(f, "the body has more than {MAX_VALUES} JSON values"),
            Self::Depth => write!(f, "the body is nested more than {MAX_DEPTH} levels deep"),
        }
    }
}

/// Counts what starts a value or a name: each comma, colon and opening bracket outside strings.
pub(super) fn check(json: &[u8]) -> Result<(), Excess> {
    let (mut values, mut depth) = (1_usize, 0_usize);
    let mut rest = json.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => skip_string(&mut rest),
            b'[' | b'{' => {
                values += 1;
                depth += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' | b':' => values += 1,
            _ => {}
        }
        if values > MAX_VALUES {
            return Err(Excess::Values);
        }
        if depth > MAX_DEPTH {
            return Err(Excess::Depth);
        }
    }
    Ok(())
}

fn skip_string(rest: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = rest.find(|byte| matches!(byte, b'"' | b'\\')) {
        if *byte == b'"' {
            return;
        }
        // An escaped character does not end the string.
        rest.next();
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::zeros(format!("[{}0]", "0,".repeat(MAX_VALUES)), Err(Excess::Values))]
    #[case::empty_objects(format!("[{}{{}}]", "{},".repeat(MAX_VALUES / 2)), Err(Excess::Values))]
    #[case::names(format!("{{{}\"a\":1}}", "\"a\":1,".repeat(MAX_VALUES / 2)), Err(Excess::Values))]
    #[case::deep("[".repeat(MAX_DEPTH + 1), Err(Excess::Depth))]
    #[case::as_deep_as_may_be(format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH)), Ok(()))]
    #[case::many(format!("[{}0]", "0,".repeat(MAX_VALUES - 3)), Ok(()))]
    #[case::in_a_string(format!("[\"{}\"]", "[0,".repeat(MAX_VALUES)), Ok(()))]
    #[case::behind_an_escaped_quote(format!("[\"\\\"{}\"]", "[0,".repeat(MAX_VALUES)), Ok(()))]
    #[case::behind_an_escaped_backslash(format!("[\"\\\\\",{}0]", "0,".repeat(MAX_VALUES)), Err(Excess::Values))]
    #[case::broken("\"\\".to_owned(), Ok(()))]
    fn values_outside_strings_are_counted(#[case] json: String, #[case] expected: Result<(), Excess>) {
        assert_eq!(check(json.as_bytes()), expected);
    }
}
