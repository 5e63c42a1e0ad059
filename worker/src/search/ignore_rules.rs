//! The rules of `.gitignore`, `.ignore` and `.git/info/exclude`, from the start of a walk down to its current
//! directory.
//!
//! Ignore files belong to the workspace and are untrusted: they are opened like any other file (regular files only, no
//! links, non-blocking) and read up to fixed limits. The `ignore` crate parses and matches lines; it never opens a
//! file.

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

use super::walk::{open_directory, open_file};

/// Bytes read from one file. The longest of GitHub's gitignore templates has 10 KiB.
const MAX_FILE_BYTES: usize = 256 * 1024;
/// Bytes of one pattern: `PATH_MAX`.
const MAX_PATTERN_BYTES: usize = 4096;
/// Patterns of one walk. A compiled pattern takes about 5 KiB of memory.
const MAX_PATTERNS: usize = 10_000;
/// Bytes read from all ignore files of one walk.
const MAX_TOTAL_BYTES: usize = 2 * 1024 * 1024;

/// The ignore rules that apply to the current directory.
pub(super) struct IgnoreRules {
    levels: Vec<Level>,
    patterns_left: usize,
    bytes_left: usize,
    pub(super) all_read: bool,
}

/// The rules of one directory.
struct Level {
    directory: PathBuf,
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
    /// Loads the rules of `directory`, whose path relative to the start is `path`.
    pub(super) fn enter<'a>(&mut self, directory: BorrowedFd<'_>, path: &Path, names: impl Iterator<Item = &'a OsStr>) {
        let (mut has_ignore, mut has_gitignore, mut is_repository) = (false, false, false);
        for name in names {
            has_ignore |= name == ".ignore";
            has_gitignore |= name == ".gitignore";
            is_repository |= name == ".git";
        }
        let level = Level {
            directory: path.to_owned(),
            ignore: has_ignore.then(|| self.read(directory, ".ignore")).flatten(),
            gitignore: has_gitignore.then(|| self.read(directory, ".gitignore")).flatten(),
            exclude: is_repository.then(|| self.read_exclude(directory)).flatten(),
            is_repository,
        };
        self.levels.push(level);
    }

    /// Drops the rules of the directory entered last.
    pub(super) fn leave(&mut self) {
        self.levels.pop();
    }

    /// Whether the entry at `path` is ignored. The nearest directory's rules win. `.ignore` takes precedence over git's
    /// files, which apply only within their repository.
    pub(super) fn ignores(&self, path: &Path, is_directory: bool) -> bool {
        let (mut ignore, mut gitignore, mut exclude) = (Verdict::None, Verdict::None, Verdict::None);
        let mut beyond_repository = false;
        for level in self.levels.iter().rev() {
            let Ok(below) = path.strip_prefix(&level.directory) else { continue };
            let verdict =
                |rules: &Option<Gitignore>| match rules.as_ref().map(|rules| rules.matched(below, is_directory)) {
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

    fn read_exclude(&mut self, directory: BorrowedFd<'_>) -> Option<Gitignore> {
        let git = open_directory(directory, OsStr::new(".git")).ok()?;
        let info = open_directory(git.as_fd(), OsStr::new("info")).ok()?;
        self.read(info.as_fd(), "exclude")
    }

    fn read(&mut self, directory: BorrowedFd<'_>, name: &str) -> Option<Gitignore> {
        let file = File::from(open_file(directory, OsStr::new(name)).ok()?);
        let limit = MAX_FILE_BYTES.min(self.bytes_left);
        let mut bytes = Vec::new();
        file.take(limit as u64 + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() > limit {
            self.all_read = false;
            // Drop the last line: it may be truncated, and a truncated pattern would match other files.
            bytes.truncate(limit);
            bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
        }
        self.bytes_left -= bytes.len();
        self.compile(&bytes)
    }

    fn compile(&mut self, bytes: &[u8]) -> Option<Gitignore> {
        let text = String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes));
        // Paths are matched relative to the directory, so there is no root to strip.
        let mut builder = GitignoreBuilder::new(".");
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            if self.patterns_left == 0 || line.len() > MAX_PATTERN_BYTES {
                self.all_read = false;
                continue;
            }
            self.patterns_left -= 1;
            // Invalid patterns are skipped.
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
