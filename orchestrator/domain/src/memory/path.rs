//! A document's path, and which documents a model may write.

use protocol::is_invisible;

use protocol::check_path;

/// The document that opens the system prompt of the user's chats, routines and jobs without a container.
const IDENTITY: &str = "IDENTITY.md";
/// The document that the routines' heartbeat reads.
const HEARTBEAT: &str = "HEARTBEAT.md";
/// The directory of documents that are given to models as context.
const CONTEXT: &str = "context/";

/// A valid path of a document: relative, with plain components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPath(String);

/// Whether a model may write a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelWrite {
    /// Like any tool call that changes something.
    Allowed,
    /// Each write needs a person's approval: the document steers later work.
    NeedsApproval,
    /// Only the user writes it.
    Denied,
}

impl MemoryPath {
    /// Parses a path. It is kept as it is: no two paths name the same document.
    pub fn parse(path: &str) -> Result<Self, &'static str> {
        check_path(path)?;
        if path.chars().any(is_unseen) {
            return Err("must not contain invisible characters");
        }
        if path.split('/').any(|component| component.trim() != component) {
            return Err("must not have components that begin or end with a space");
        }
        Ok(Self(path.to_owned()))
    }

    /// Parses the path of a directory; a trailing slash is allowed. `None` is the top.
    pub fn parse_directory(path: &str) -> Result<Option<Self>, &'static str> {
        if path.is_empty() {
            return Ok(None);
        }
        Self::parse(path.strip_suffix('/').unwrap_or(path)).map(Some)
    }

    /// The document that opens the system prompt of the user's chats, routines and jobs without a container.
    pub fn identity() -> Self {
        Self(IDENTITY.to_owned())
    }

    /// The checklist of the user's heartbeats.
    pub fn heartbeat() -> Self {
        Self(HEARTBEAT.to_owned())
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a model may write this document. Other spellings of the names in ASCII count, too, so that no reader has
    /// to tell them apart.
    pub fn model_write(&self) -> ModelWrite {
        let begins_with = |start: &str| self.0.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start));
        if self.0.eq_ignore_ascii_case(IDENTITY) {
            ModelWrite::Denied
        } else if self.0.eq_ignore_ascii_case(HEARTBEAT) || begins_with(CONTEXT) {
            ModelWrite::NeedsApproval
        } else {
            ModelWrite::Allowed
        }
    }
}

/// Characters that are not seen in a path: invisible ones, and the separators of lines and paragraphs.
const fn is_unseen(character: char) -> bool {
    is_invisible(character) || matches!(character, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("notes.md", true)]
    #[case("projects/gantry/to do.md", true)]
    #[case("日記/2026年.md", true)]
    #[case("..a/b..", true)]
    #[case("", false)]
    #[case("/etc/passwd", false)]
    #[case("..", false)]
    #[case("a/../b", false)]
    #[case("./HEARTBEAT.md", false)]
    #[case("context//a.md", false)]
    #[case("a/", false)]
    #[case("a\\..\\b", false)]
    #[case("a\nb", false)]
    #[case("a\0b", false)]
    #[case("context /a.md", false)]
    #[case(" notes.md", false)]
    #[case("con\u{200b}text/a.md", false)]
    #[case("a\u{202e}dm.b", false)]
    #[case(&"a".repeat(256), false)]
    #[case(&"a/".repeat(600), false)]
    fn odd_paths_are_refused(#[case] path: &str, #[case] is_valid: bool) {
        assert_eq!(MemoryPath::parse(path).is_ok(), is_valid, "{path:?}");
    }

    #[rstest]
    #[case("IDENTITY.md", ModelWrite::Denied)]
    #[case("identity.MD", ModelWrite::Denied)]
    #[case("notes/IDENTITY.md", ModelWrite::Allowed)]
    #[case("HEARTBEAT.md", ModelWrite::NeedsApproval)]
    #[case("Heartbeat.md", ModelWrite::NeedsApproval)]
    #[case("context/team.md", ModelWrite::NeedsApproval)]
    #[case("context/a/b.md", ModelWrite::NeedsApproval)]
    #[case("CONTEXT/a.md", ModelWrite::NeedsApproval)]
    #[case("context", ModelWrite::Allowed)]
    #[case("contexts/a.md", ModelWrite::Allowed)]
    #[case("notes.md", ModelWrite::Allowed)]
    fn documents_that_steer_later_work_are_guarded(#[case] path: &str, #[case] expected: ModelWrite) {
        assert_eq!(MemoryPath::parse(path).unwrap().model_write(), expected);
    }

    #[test]
    fn a_directory_may_end_in_a_slash() {
        let parsed = |path| MemoryPath::parse_directory(path).map(|path| path.map(|path| path.0));
        assert_eq!(parsed(""), Ok(None));
        assert_eq!(parsed("a/b/"), Ok(Some("a/b".to_owned())));
        assert_eq!(parsed("a"), Ok(Some("a".to_owned())));
        assert!(parsed("/").is_err() && parsed("../").is_err());
    }

    proptest! {
        #[test]
        fn a_valid_path_has_plain_components_only(path in "[./\\\\a \0\u{200b}\u{e9}]{0,12}|\\PC{0,40}") {
            if let Ok(parsed) = MemoryPath::parse(&path) {
                prop_assert_eq!(parsed.as_str(), &path);
                prop_assert!(path.split('/').all(|name| !matches!(name, "" | "." | "..") && name.trim() == name));
                prop_assert!(!path.chars().any(|c| c.is_control() || is_unseen(c) || c == '\\'));
            }
        }
    }
}
