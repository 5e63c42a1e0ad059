//! The value of a secret, read from standard input: never from an argument, which every process of the machine can
//! read.

use std::io::{self, IsTerminal, Read};

use protocol::limits::{MAX_SECRET_BYTES, MIN_SECRET_BYTES};
use secrecy::{SecretString, zeroize::Zeroizing};

use crate::{exit::CliError, unix::hidden_line};

/// A line break that is removed.
const LINE_BREAK_BYTES: usize = 2;

/// Reads the value; from a terminal one line, without showing it.
pub(super) fn from_standard_input(keeps_newline: bool) -> Result<SecretString, CliError> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return read(&mut stdin.lock(), keeps_newline);
    }
    let line = hidden_line("Value: ")?;
    read(&mut line.as_bytes(), false)
}

fn read(input: &mut impl Read, keeps_newline: bool) -> Result<SecretString, CliError> {
    let most = MAX_SECRET_BYTES + LINE_BREAK_BYTES + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(most));
    input
        .take(most as u64)
        .read_to_end(&mut bytes)
        .map_err(|error| CliError::failed("cannot read standard input", error))?;
    let invalid = |message: String| CliError::Usage(format!("the value on standard input {message}"));
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| invalid("must be UTF-8 text; encode other data, for example with base64".to_owned()))?;
    let value = if keeps_newline { text } else { without_line_break(text) };
    if (MIN_SECRET_BYTES..=MAX_SECRET_BYTES).contains(&value.len()) {
        return Ok(SecretString::from(value));
    }
    Err(invalid(format!("must be {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes")))
}

/// One line break at the end belongs to `echo` or to the editor, not to the value.
fn without_line_break(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use secrecy::ExposeSecret;

    use super::*;

    #[rstest]
    #[case("hunter22", "hunter22")]
    #[case("hunter22\n", "hunter22")]
    #[case("hunter22\r\n", "hunter22")]
    #[case("hunter22\n\n", "hunter22\n")]
    #[case(" hunter22 \n", " hunter22 ")]
    #[case("-----BEGIN\nKEY-----\n", "-----BEGIN\nKEY-----")]
    fn one_line_break_at_the_end_is_removed(#[case] input: &str, #[case] value: &str) {
        assert_eq!(read(&mut input.as_bytes(), false).unwrap().expose_secret(), value);
        assert_eq!(read(&mut input.as_bytes(), true).unwrap().expose_secret(), input);
    }

    #[test]
    fn values_have_bounds_and_an_error_shows_none() {
        let at_most = "x".repeat(MAX_SECRET_BYTES);
        for input in [format!("{at_most}\r\n"), at_most.clone(), "x".repeat(8)] {
            assert!(read(&mut input.as_bytes(), false).is_ok(), "{} bytes", input.len());
        }
        for input in ["", "hunter2\n", &format!("{at_most}x"), &"hunter22".repeat(100_000)] {
            let error = read(&mut input.as_bytes(), false).unwrap_err().to_string();
            assert!(error.contains("8 to 65536 bytes") && !error.contains("hunter"), "{error}");
        }
        let error = read(&mut &b"hunter22\xff"[..], false).unwrap_err().to_string();
        assert!(error.contains("UTF-8") && !error.contains("hunter"), "{error}");
    }
}
