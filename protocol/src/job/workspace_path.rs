//! A path inside a workspace, as a user gives it.
//!
//! Pure. A path to read may contain any name that an agent can give a file; a path to write must be a plain one.

use std::borrow::Cow;

use crate::limits::{MAX_COMPONENT_BYTES, MAX_PATH_BYTES, MAX_PATH_DEPTH};

/// `PATH_MAX` without its NUL: more than a path that is written may have.
const MAX_READ_PATH_BYTES: usize = 4_095;

/// The components of a relative path; none for the workspace itself. A path to read may have any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspacePath(Vec<Vec<u8>>);

impl WorkspacePath {
    /// Parses the path of a file to read.
    pub fn parse_for_read(path: impl AsRef<[u8]>) -> Result<Self, &'static str> {
        let path = path.as_ref();
        if path.is_empty() {
            return Err("must not be empty");
        }
        if path.len() > MAX_READ_PATH_BYTES {
            return Err("must be at most 4095 bytes");
        }
        if path.starts_with(b"/") {
            return Err("must be relative to the workspace");
        }
        let names = || path.split(|byte| *byte == b'/');
        for name in names() {
            match name {
                b"" => return Err("must not have empty components or end in /"),
                b"." | b".." => return Err("must not have . or .. components"),
                name if name.contains(&0) => return Err("must not contain NUL characters"),
                name if name.len() > MAX_COMPONENT_BYTES => return Err("must have components of at most 255 bytes"),
                _ => {}
            }
        }
        Ok(Self(names().map(<[u8]>::to_vec).collect()))
    }

    /// Parses the path of a directory to list. An empty path is the workspace itself; a trailing slash is allowed.
    pub fn parse_for_list(path: impl AsRef<[u8]>) -> Result<Self, &'static str> {
        match path.as_ref() {
            b"" | b"." => Ok(Self(vec![])),
            path => Self::parse_for_read(path.strip_suffix(b"/").unwrap_or(path)),
        }
    }

    /// Parses the path of a file to write.
    pub fn parse_for_write(path: impl AsRef<[u8]>) -> Result<Self, &'static str> {
        check_path(std::str::from_utf8(path.as_ref()).map_err(|_| "must be UTF-8")?)?;
        Self::parse_for_read(path)
    }

    /// The parent's components and the last one; none for the workspace itself.
    pub fn split_last(&self) -> Option<(&[Vec<u8>], &[u8])> {
        let (last, parent) = self.0.split_last()?;
        Some((parent, last))
    }

    /// The components, in order.
    pub fn components(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// Whether it is the workspace itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The whole path.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.join(&b'/')
    }

    /// The path of an entry in this directory.
    pub fn join(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.to_bytes();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// The last component, as a download's file name; `archive` for the workspace itself.
    pub fn file_name(&self) -> Cow<'_, str> {
        self.0.last().map_or(Cow::Borrowed("archive"), |name| String::from_utf8_lossy(name))
    }
}

/// Validates the path of a file or document: relative, with plain components that every program interprets alike.
pub fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("must not be empty");
    }
    if path.len() > MAX_PATH_BYTES {
        return Err("must be at most 1024 bytes");
    }
    if path.chars().any(char::is_control) || path.contains('\\') {
        return Err("must not contain control characters or backslashes");
    }
    if path.starts_with('/') {
        return Err("must be relative, without / at its beginning");
    }
    if path.split('/').count() > MAX_PATH_DEPTH {
        return Err("must be at most 128 directories deep");
    }
    for component in path.split('/') {
        match component {
            "" => return Err("must not have empty components or end in /"),
            "." | ".." => return Err("must not have . or .. components"),
            long if long.len() > MAX_COMPONENT_BYTES => return Err("must have components of at most 255 bytes"),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain(b"a/b.txt", true, true)]
    #[case::backslash(b"a\\b", true, false)]
    #[case::newline(b"a\nb", true, false)]
    #[case::dots_in_a_name(b"..a/b..", true, true)]
    #[case::empty(b"", false, false)]
    #[case::absolute(b"/etc/passwd", false, false)]
    #[case::parent(b"..", false, false)]
    #[case::inner_parent(b"a/../b", false, false)]
    #[case::dot(b"a/./b", false, false)]
    #[case::double_slash(b"a//b", false, false)]
    #[case::final_slash(b"a/", false, false)]
    #[case::nul(b"a\0b", false, false)]
    #[case::not_utf8(b"caf\xe9/x", true, false)]
    fn paths_are_accepted_or_rejected(#[case] path: &[u8], #[case] readable: bool, #[case] writable: bool) {
        assert_eq!(
            (WorkspacePath::parse_for_read(path).is_ok(), WorkspacePath::parse_for_write(path).is_ok()),
            (readable, writable)
        );
    }

    proptest! {
        #[test]
        fn accepted_paths_have_plain_components_only(
            path in prop_oneof![
                "[./\\\\a-c\0\u{e9}]{0,12}|\\PC{0,40}".prop_map(String::into_bytes),
                prop::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), any::<u8>()], 0..12),
            ]
        ) {
            for parsed in [WorkspacePath::parse_for_read(&path), WorkspacePath::parse_for_write(&path)].into_iter().flatten() {
                for name in &parsed.0 {
                    let plain = !matches!(name.as_slice(), b"" | b"." | b"..");
                    prop_assert!(plain && !name.iter().any(|byte| matches!(byte, b'/' | 0)) && name.len() <= MAX_COMPONENT_BYTES, "{:?}", name);
                }
                prop_assert_eq!(parsed.to_bytes(), path.clone(), "the path is not normalised");
                prop_assert_eq!(WorkspacePath::parse_for_list([&path, b"/".as_slice()].concat()), Ok(parsed));
            }
            if let Ok(listed) = WorkspacePath::parse_for_list(&path) {
                prop_assert!(listed.components().iter().all(|name| name != b".." && name != b"."));
            }
        }
    }
}
