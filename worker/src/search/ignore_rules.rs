//! The rules of `.gitignore`, `.ignore` and `.git/info/exclude` for the folders from the start of a walk to where it is.
//!
//! The files are the workspace's own and so hostile: they are opened like any other file there (regular, no link, no
//! waiting), and read up to limits of their own. The `ignore` crate parses and matches their lines; it never opens them.

use std::{
    ffi::OsStr,
    fs::File,
    io::Read,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use super::walk::{open_file, open_folder};

/// Of one file. The longest in GitHub's collection of templates has 10 KiB.
const MAX_FILE_BYTES: usize = 256 * 1024;
/// Of one pattern: a path of the system's greatest length.
const MAX_PATTERN_BYTES: usize = 4096;
/// Of one walk: about 5 KiB of memory each when compiled.
const MAX_PATTERNS: usize = 10_000;
/// Of one walk, whatever is in them.
const MAX_TOTAL_BYTES: usize = 2 * 1024 * 1024;

/// The rules in force.
pub(super) struct IgnoreRules {
    levels: Vec<Level>,
    patterns_left: usize,
    bytes_left: usize,
    all_read: bool,
}

/// The rules of one folder.
struct Level {
    folder: PathBuf,
    ignore: Option<Gitignore>,
    gitignore: Option<Gitignore>,
    exclude: Option<Gitignore>,
    is_repository: bool,
}

impl Default for IgnoreRules {
    fn default() -> Self {
        Self { levels: Vec::new(), patterns_left: MAX_PATTERNS, bytes_left: MAX_TOTAL_BYTES, all_read: true }
    }
}

impl IgnoreRules {
    /// The walk enters `folder`, whose path from the start is `path`.
    pub(super) fn enter<'a>(&mut self, folder: BorrowedFd<'_>, path: &Path, names: impl Iterator<Item = &'a OsStr>) {
        let (mut has_ignore, mut has_gitignore, mut is_repository) = (false, false, false);
        for name in names {
            has_ignore |= name == ".ignore";
            has_gitignore |= name == ".gitignore";
            is_repository |= name == ".git";
        }
        let level = Level {
            folder: path.to_owned(),
            ignore: has_ignore.then(|| self.read(folder, ".ignore")).flatten(),
            gitignore: has_gitignore.then(|| self.read(folder, ".gitignore")).flatten(),
            exclude: is_repository.then(|| self.read_exclude(folder)).flatten(),
            is_repository,
        };
        self.levels.push(level);
    }

    /// The walk leaves the folder that it entered last.
    pub(super) fn leave(&mut self) {
        self.levels.pop();
    }

    /// Whether every line of every file was taken.
    pub(super) const fn all_read(&self) -> bool {
        self.all_read
    }

    /// Whether the entry at `path` is left out. The nearest folder's rules win; `.ignore` wins over git's own files,
    /// which hold within their repository only.
    pub(super) fn ignores(&self, path: &Path, is_folder: bool) -> bool {
        let (mut ignore, mut gitignore, mut exclude) = (Verdict::None, Verdict::None, Verdict::None);
        let mut beyond_repository = false;
        for level in self.levels.iter().rev() {
            let Ok(below) = path.strip_prefix(&level.folder) else { continue };
            let verdict = |rules: &Option<Gitignore>| match rules.as_ref().map(|rules| rules.matched(below, is_folder))
            {
                Some(Match::Ignore(_)) => Verdict::Ignore,
                Some(Match::Whitelist(_)) => Verdict::Keep,
                Some(Match::None) | None => Verdict::None,
            };
            ignore = ignore.or(verdict(&level.ignore));
            if !beyond_repository {
                gitignore = gitignore.or(verdict(&level.gitignore));
                exclude = exclude.or(verdict(&level.exclude));
            }
            beyond_repository |= level.is_repository;
        }
        ignore.or(gitignore).or(exclude) == Verdict::Ignore
    }

    fn read_exclude(&mut self, folder: BorrowedFd<'_>) -> Option<Gitignore> {
        let git = open_folder(folder, OsStr::new(".git")).ok()?;
        let info = open_folder(git.as_fd(), OsStr::new("info")).ok()?;
        self.read(info.as_fd(), "exclude")
    }

    fn read(&mut self, folder: BorrowedFd<'_>, name: &str) -> Option<Gitignore> {
        let file = File::from(open_file(folder, OsStr::new(name)).ok()?);
        let limit = MAX_FILE_BYTES.min(self.bytes_left);
        let mut bytes = Vec::new();
        file.take(limit as u64 + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() > limit {
            self.all_read = false;
            // The last line may be cut, and half a pattern is another one.
            bytes.truncate(limit);
            bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
        }
        self.bytes_left -= bytes.len();
        self.compile(&bytes)
    }

    fn compile(&mut self, bytes: &[u8]) -> Option<Gitignore> {
        let text = String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes));
        // Paths are given relative to the folder, so there is no root to strip.
        let mut builder = GitignoreBuilder::new(".");
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            if self.patterns_left == 0 || line.len() > MAX_PATTERN_BYTES {
                self.all_read = false;
                continue;
            }
            self.patterns_left -= 1;
            // A line that is no pattern is no rule.
            let _ = builder.add_line(None, line);
        }
        builder.build().inspect_err(|_| self.all_read = false).ok().filter(|rules| !rules.is_empty())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ignore,
    Keep,
    None,
}

impl Verdict {
    fn or(self, other: Self) -> Self {
        if self == Self::None { other } else { self }
    }
}
