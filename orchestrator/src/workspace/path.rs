//! A path inside a workspace, as a user names it.
//!
//! Pure. What is read may have any name that an agent gives a file; what is written has a plain one.

use std::ffi::OsStr;

use crate::domain::request::check_path;

/// As long as the system takes.
const MAX_PATH_BYTES: usize = 4_095;
const MAX_NAME_BYTES: usize = 255;

/// Names one below the other; none is the workspace itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspacePath(Vec<String>);

impl WorkspacePath {
    /// Of a file to read.
    pub fn to_read(path: &str) -> Result<Self, &'static str> {
        if path.is_empty() {
            return Err("must not be empty");
        }
        if path.len() > MAX_PATH_BYTES {
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
                name if name.len() > MAX_NAME_BYTES => return Err("must have components of at most 255 bytes"),
                _ => {}
            }
        }
        Ok(Self(path.split('/').map(str::to_owned).collect()))
    }

    /// Of a directory to list: nothing is the workspace itself, and a final slash does no harm.
    pub fn to_list(path: &str) -> Result<Self, &'static str> {
        match path {
            "" | "." => Ok(Self(vec![])),
            _ => Self::to_read(path.strip_suffix('/').unwrap_or(path)),
        }
    }

    /// Of a file to write.
    pub fn to_write(path: &str) -> Result<Self, &'static str> {
        check_path(path)?;
        Self::to_read(path)
    }

    /// The folders on the way and the last name; none for the workspace itself.
    pub(super) fn split(&self) -> Option<(Vec<&OsStr>, &OsStr)> {
        let (last, folders) = self.0.split_last()?;
        Some((folders.iter().map(OsStr::new).collect(), OsStr::new(last)))
    }

    /// Every name.
    pub(super) fn names(&self) -> Vec<&OsStr> {
        self.0.iter().map(OsStr::new).collect()
    }

    /// Of an entry in the folder that this names.
    pub(super) fn shown(&self, name: &OsStr) -> String {
        let mut shown = self.0.join("/");
        if !shown.is_empty() {
            shown.push('/');
        }
        shown.push_str(&name.to_string_lossy());
        shown
    }

    /// The last name, for a download; `archive` for the workspace itself.
    pub fn file_name(&self) -> &str {
        self.0.last().map_or("archive", String::as_str)
    }
}

impl std::fmt::Display for WorkspacePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("/"))
    }
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
    fn what_is_written_is_plainer_than_what_is_read(#[case] path: &str, #[case] read: bool, #[case] written: bool) {
        assert_eq!((WorkspacePath::to_read(path).is_ok(), WorkspacePath::to_write(path).is_ok()), (read, written));
    }

    proptest! {
        #[test]
        fn a_path_that_is_taken_is_names_that_each_name_one_entry(path in "[./\\\\a-c\0\u{e9}]{0,12}|\\PC{0,40}") {
            for parsed in [WorkspacePath::to_read(&path), WorkspacePath::to_write(&path)].into_iter().flatten() {
                for name in &parsed.0 {
                    let plain = !name.is_empty() && !matches!(name.as_str(), "." | "..");
                    prop_assert!(plain && !name.contains(['/', '\0']) && name.len() <= MAX_NAME_BYTES, "{:?}", name);
                }
                prop_assert_eq!(parsed.to_string(), path.clone(), "nothing is normalised away");
                prop_assert_eq!(WorkspacePath::to_list(&format!("{path}/")), Ok(parsed));
            }
            if let Ok(listed) = WorkspacePath::to_list(&path) {
                prop_assert!(listed.names().iter().all(|name| *name != ".." && *name != "."));
            }
        }
    }
}
