//! The workspace: the only directory that file tools can access.
//!
//! Resolves paths from the model below the workspace through a directory capability. Never follows `..`, an absolute
//! path or a link out of it.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use agent::ToolError;
use cap_std::{ambient_authority, fs::Dir};
use protocol::ToolErrorKind;

/// A handle on the workspace directory.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The path it was opened by, which may contain links.
    pub(super) given_root: PathBuf,
    root: PathBuf,
    dir: Dir,
}

impl Workspace {
    /// Opens the directory at `root`.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let real = root.canonicalize()?;
        let dir = Dir::open_ambient_dir(&real, ambient_authority())?;
        Ok(Self { given_root: root.to_owned(), root: real, dir })
    }

    /// The directory capability.
    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Its absolute path with links resolved.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Converts `path` to a path relative to the workspace. Links are not resolved: the capability checks them on use.
    pub(crate) fn relative(&self, path: &str) -> Result<PathBuf, ToolError> {
        if path.contains('\0') {
            return Err(ToolError::new(ToolErrorKind::InvalidParameters, "a path must not contain NUL characters"));
        }
        let given = Path::new(path);
        let below = if given.is_absolute() {
            given
                .strip_prefix(&self.given_root)
                .or_else(|_| given.strip_prefix(&self.root))
                .map_err(|_| outside(path))?
        } else {
            given
        };
        let mut depth = 0_usize;
        for component in below.components() {
            match component {
                Component::Normal(_) => depth += 1,
                Component::ParentDir => depth = depth.checked_sub(1).ok_or_else(|| outside(path))?,
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        Ok(if below.as_os_str().is_empty() { PathBuf::from(".") } else { below.to_owned() })
    }

    /// Like [`Self::relative`] for an existing path, with all links resolved.
    pub(crate) fn existing(&self, path: &str) -> Result<PathBuf, ToolError> {
        let relative = self.relative(path)?;
        let resolved = self.dir.canonicalize(&relative).map_err(|error| failure(path, &error))?;
        Ok(if resolved.as_os_str().is_empty() { PathBuf::from(".") } else { resolved })
    }

    /// The absolute path of a directory, as a command's working directory.
    pub(crate) fn directory(&self, path: &str) -> Result<PathBuf, ToolError> {
        let resolved = self.existing(path)?;
        if !self.dir.is_dir(&resolved) {
            return Err(ToolError::new(ToolErrorKind::Failed, format!("{path}: not a directory")));
        }
        Ok(if resolved == Path::new(".") { self.root.clone() } else { self.root.join(resolved) })
    }
}

/// Describes an I/O error on `path` to the model.
pub(crate) fn failure(path: &str, error: &io::Error) -> ToolError {
    // An error of the capability itself has no OS error number.
    let escape = error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none();
    if escape || error.kind() == io::ErrorKind::CrossesDevices {
        return outside(path);
    }
    let what = match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::IsADirectory => "is a directory".to_owned(),
        io::ErrorKind::NotADirectory => "a component of the path is not a directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::FileTooLarge | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the workspace's size limit is reached".to_owned()
        }
        _ => error.to_string(),
    };
    ToolError::new(ToolErrorKind::Failed, format!("{path}: {what}"))
}

fn outside(path: &str) -> ToolError {
    ToolError::new(ToolErrorKind::Sandbox, format!("{path} is outside the workspace; only paths below it can be used"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("a/b.txt", Some("a/b.txt"))]
    #[case::empty("", Some("."))]
    #[case::dot(".", Some("."))]
    #[case::inner_parent("a/../b", Some("a/../b"))]
    #[case::parent("..", None)]
    #[case::parent_deep("a/../../b", None)]
    #[case::absolute("/etc/passwd", None)]
    #[case::proc("/proc/self/root/etc/passwd", None)]
    fn only_paths_below_the_workspace_are_accepted(#[case] path: &str, #[case] expected: Option<&str>) {
        let root = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(root.path()).unwrap();
        assert_eq!(workspace.relative(path).ok(), expected.map(PathBuf::from));
        if expected.is_none() {
            assert_eq!(workspace.relative(path).unwrap_err().0.kind, ToolErrorKind::Sandbox);
        }
    }

    #[test]
    fn absolute_paths_are_accepted_only_below_the_workspace() {
        let root = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(root.path()).unwrap();
        let below = |tail: &str| format!("{}{tail}", root.path().display());
        assert_eq!(workspace.relative(&below("/x/y")).unwrap(), PathBuf::from("x/y"));
        assert_eq!(workspace.relative(&below("")).unwrap(), PathBuf::from("."));
        assert!(workspace.relative(&below("/../z")).is_err());
        assert!(workspace.relative(&below("-other/z")).is_err());
    }
}
