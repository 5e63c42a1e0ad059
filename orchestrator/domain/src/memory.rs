//! Memory: documents of a user, by path. Paths, limits, and the words that a search compares. Pure.

mod path;
mod query;
mod snippet;
mod words;

pub use path::{MemoryPath, ModelWrite};
pub use protocol::limits::MAX_MEMORY_DOCUMENT_BYTES;
pub use query::{MAX_QUERY_BYTES, MemoryQuery, Phrase};
pub use snippet::snippet;
pub use words::{IndexOwner, index_terms};

/// Maximum number of documents of a user.
pub const MAX_DOCUMENTS: u64 = 20_000;
/// Versions that are kept of a document, with the current one.
pub const MAX_VERSIONS: u64 = 50;

/// A system prompt that begins with the user's document about the assistant, if there is one. Never for a job in a container.
pub fn with_identity(identity: Option<&str>, prompt: &str) -> String {
    match identity.map(str::trim).filter(|text| !text.is_empty()) {
        Some(identity) => format!("{identity}\n\n{prompt}"),
        None => prompt.to_owned(),
    }
}

/// The text of a document after text was added at its end. The added text begins on a new line.
pub fn appended(mut content: String, added: &str) -> String {
    if !content.is_empty() && !content.ends_with('\n') {
        content.push('\n');
    }
    content.push_str(added);
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_text_begins_on_a_new_line() {
        for (content, added, whole) in [("", "a", "a"), ("a", "b", "a\nb"), ("a\n", "b\n", "a\nb\n"), ("a", "", "a\n")]
        {
            assert_eq!(appended(content.to_owned(), added), whole);
        }
    }
}
