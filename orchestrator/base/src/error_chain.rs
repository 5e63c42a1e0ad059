//! One-line rendering of an error with its causes.

use std::error::Error;

/// An error and its sources, outermost first, separated by `: `. A source that its error's text already contains is not
/// repeated.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let line = source.to_string();
        if !text.contains(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the store")]
    struct Outer(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the store: {0}")]
    struct Verbose(#[source] io::Error);

    #[test]
    fn a_source_is_shown_once() {
        assert_eq!(error_chain(&Verbose(io::Error::other("disk full"))), "cannot open the store: disk full");
    }

    #[test]
    fn sources_follow_their_error() {
        assert_eq!(error_chain(&Outer(io::Error::other("disk full"))), "cannot open the store: disk full");
        assert_eq!(error_chain(&io::Error::other("disk full")), "disk full");
    }
}
