//! One-line rendering of an error with its causes.

use std::error::Error;

/// An error and its sources, outermost first, separated by `: `.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
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

    #[test]
    fn sources_follow_their_error() {
        assert_eq!(error_chain(&Outer(io::Error::other("disk full"))), "cannot open the store: disk full");
        assert_eq!(error_chain(&io::Error::other("disk full")), "disk full");
    }
}
