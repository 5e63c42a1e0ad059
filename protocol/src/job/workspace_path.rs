//! A path inside a workspace, as a user gives it.
//!
//! Pure. A path to read may contain any name that an agent can give a file; a path to write must be a plain one.

use std::ffi::OsStr;

use crate::limits::{MAX_COMPONENT_BYTES, MAX_PATH_BYTES, MAX_PATH_DEPTH};

/// `PATH_MAX` without its NUL: more than a path that is written may have.
const MAX_READ_PATH_BYTES: usize = 4_095;

/// The components of a relative path; none for the workspace itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspacePath(Vec<String>);

impl WorkspacePath {
    /// Parses the path of a file to read.
    pub fn parse_for_read(path: &str) -> Result<Self, &'static str> {
        if path.is_empty() {
            return Err("must not be empty");
        }
        if path.len() > MAX_READ_PATH_BYTES {
            return Err("must be at most 4095 bytes");
        }
        if path.starts_with('/') {
            return Err("must be relative to the workspace");
        }
        for name in path.split('/') {
            match name {
                "" => return Err("must not have empty components or end in /"),
                "." | ".." => return Err("must not have . or .. components"),
                name if name.contains('\0') => return Err("must not contain NUL characters"),
                name if name.len() > MAX_COMPONENT_BYTES => return Err("must have components of at most 255 bytes"),
                _ => {}
            }
        }
        Ok(Self(path.split('/').map(str::to_owned).collect()))
    }

    /// Parses the path of a directory to list. An empty path is the workspace itself; a trailing slash is allowed.
    pub fn parse_for_list(path: &str) -> Result<Self, &'static str> {
        match path {
            "" | "." => Ok(Self(vec![])),
            _ => Self::parse_for_read(path.strip_suffix('/').unwrap_or(path)),
        }
    }

    /// Parses the path of a file to write.
    pub fn parse_for_write(path: &str) -> Result<Self, &'static str> {
        check_path(path)?;
        Self::parse_for_read(path)
    }

    /// The parent's components and the last one; none for the workspace itself.
    pub fn split_last(&self) -> Option<(Vec<&OsStr>, &OsStr)> {
        let (last, parent) = self.0.split_last()?;
        Some((parent.iter().map(OsStr::new).collect(), OsStr::new(last)))
    }

    /// The components, in order.
    pub fn components(&self) -> impl Iterator<Item = &OsStr> {
        self.0.iter().map(OsStr::new)
    }

    /// Whether it is the workspace itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path of an entry in this directory, with replacement characters for what is not UTF-8.
    pub fn join_lossy(&self, name: &OsStr) -> String {
        let mut path = self.0.join("/");
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&name.to_string_lossy());
        path
    }

    /// The last component, as a download's file name; `archive` for the workspace itself.
    pub fn file_name(&self) -> &str {
        self.0.last().map_or("archive", String::as_str)
    }
}

impl std::fmt::Display for WorkspacePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("/"))
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
    #[case::plain("a/b.txt", true, true)]
    #[case::backslash("a\\b", true, false)]
    #[case::newline("a\nb", true, false)]
    #[case::dots_in_a_name("..a/b..", true, true)]
    #[case::empty("", false, false)]
    #[case::absolute("/etc/passwd", false, false)]
    #[case::parent("..", false, false)]
    #[case::inner_parent("a/../b", false, false)]
    #[case::dot("a/./b", false, false)]
    #[case::double_slash("a//b", false, false)]
    #[case::final_slash("a/", false, false)]
    #[case::nul("a\0b", false, false)]
    fn paths_are_accepted_or_rejected(#[case] path: &str, #[case] readable: bool, #[case] writable: bool) {
        assert_eq!(
            (WorkspacePath::parse_for_read(path).is_ok(), WorkspacePath::parse_for_write(path).is_ok()),
            (readable, writable)
        );
    }

    proptest! {
        #[test]
        fn accepted_paths_have_plain_components_only(path in "[./\\\\a-c\0\u{e9}]{0,12}|\\PC{0,40}") {
            for parsed in [WorkspacePath::parse_for_read(&path), WorkspacePath::parse_for_write(&path)].into_iter().flatten() {
                for name in &parsed.0 {
                    let plain = !name.is_empty() && !matches!(name.as_str(), "." | "..");
                    prop_assert!(plain && !name.contains(['/', '\0']) && name.len() <= MAX_COMPONENT_BYTES, "{:?}", name);
                }
                prop_assert_eq!(parsed.to_string(), path.clone(), "the path is not normalised");
                prop_assert_eq!(WorkspacePath::parse_for_list(&format!("{path}/")), Ok(parsed));
            }
            if let Ok(listed) = WorkspacePath::parse_for_list(&path) {
                prop_assert!(listed.components().all(|name| name != ".." && name != "."));
            }
        }
    }
}
