//! `glob` and `grep`: finding files by name and by content.
//!
//! Follows no links; leaves out what `.gitignore` names, `.git` itself, and binary files.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use agent::{ApprovalRequirement, ToolError};
use globset::{GlobBuilder, GlobMatcher};
use ignore::WalkBuilder;
use protocol::ToolErrorKind;
use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    file_tool::{FileToolKind, parsed},
    files::open_file,
    workspace::Workspace,
};

const GLOB_MATCHES: usize = 1_000;
const GREP_MATCHES: usize = 500;
const GREP_LINE_BYTES: usize = 400;
const GREP_FILE_BYTES: u64 = 16 * 1024 * 1024;
const WALK_ENTRIES: usize = 200_000;
const REGEX_BYTES: usize = 4 * 1024 * 1024;

/// Finds files by name.
pub(crate) const GLOB: FileToolKind =
    FileToolKind { name: "glob", approval: ApprovalRequirement::Never, parallel: true, work: glob };

/// Finds lines by a regular expression.
pub(crate) const GREP: FileToolKind =
    FileToolKind { name: "grep", approval: ApprovalRequirement::Never, parallel: true, work: grep };

#[derive(Deserialize)]
struct Glob {
    pattern: String,
    path: Option<String>,
}

fn glob(workspace: &Workspace, arguments: Value, stop: &CancellationToken) -> Result<String, ToolError> {
    let Glob { pattern, path } = parsed(arguments)?;
    let names = Names::new(&pattern)?;
    let base = workspace.existing(path.as_deref().unwrap_or_default())?;
    let mut found: Vec<String> = Vec::new();
    let complete = walk(workspace, &base, stop, |file, below| {
        if names.matches(below) {
            found.push(file.display().to_string());
        }
        found.len() < GLOB_MATCHES
    });
    found.sort_unstable();
    Ok(told(found, complete, "no file matches"))
}

#[derive(Deserialize)]
struct Grep {
    pattern: String,
    path: Option<String>,
    include: Option<String>,
}

fn grep(workspace: &Workspace, arguments: Value, stop: &CancellationToken) -> Result<String, ToolError> {
    let Grep { pattern, path, include } = parsed(arguments)?;
    let regex = RegexBuilder::new(&pattern)
        .size_limit(REGEX_BYTES)
        .build()
        .map_err(|error| ToolError::new(ToolErrorKind::InvalidParameters, format!("the pattern: {error}")))?;
    let include = include.as_deref().map(Names::new).transpose()?;
    let base = workspace.existing(path.as_deref().unwrap_or_default())?;
    let mut found = Vec::new();
    let complete = walk(workspace, &base, stop, |file, below| {
        if include.as_ref().is_none_or(|include| include.matches(below)) {
            grep_file(workspace, file, &regex, &mut found);
        }
        found.len() < GREP_MATCHES
    });
    Ok(told(found, complete, "no line matches"))
}

/// A file that cannot be read has no matching lines: it may have gone, or be no text.
fn grep_file(workspace: &Workspace, file: &Path, regex: &Regex, found: &mut Vec<String>) {
    let Ok(open) = open_file(workspace.dir(), file) else { return };
    let mut reader = BufReader::new(open.take(GREP_FILE_BYTES));
    if reader.fill_buf().is_ok_and(|start| start.contains(&0)) {
        return;
    }
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        if found.len() >= GREP_MATCHES || !reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            return;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if regex.is_match(text) {
            let text = String::from_utf8_lossy(&text[..text.len().min(GREP_LINE_BYTES)]);
            found.push(format!("{}:{number}:{}", file.display(), text.trim_end()));
        }
    }
}

/// A pattern without a slash is a file's name at any depth; with one, a path from where the search starts.
struct Names {
    matcher: GlobMatcher,
    whole_path: bool,
}

impl Names {
    fn new(pattern: &str) -> Result<Self, ToolError> {
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
        let glob = GlobBuilder::new(pattern).literal_separator(true).build();
        let glob = glob.map_err(|error| ToolError::new(ToolErrorKind::InvalidParameters, error.to_string()))?;
        Ok(Self { matcher: glob.compile_matcher(), whole_path: pattern.contains('/') })
    }

    fn matches(&self, path: &Path) -> bool {
        if self.whole_path {
            return self.matcher.is_match(path);
        }
        path.file_name().is_some_and(|name| self.matcher.is_match(name))
    }
}

/// Visits files below `base` in order of name, with their path in the workspace and their path from `base`, until
/// `visit` has enough. Whether all were seen.
fn walk(
    workspace: &Workspace,
    base: &Path,
    stop: &CancellationToken,
    mut visit: impl FnMut(&Path, &Path) -> bool,
) -> bool {
    let start = if base == Path::new(".") { workspace.root().to_owned() } else { workspace.root().join(base) };
    let mut walk = WalkBuilder::new(&start);
    walk.hidden(false).parents(false).git_global(false).require_git(false).follow_links(false);
    walk.sort_by_file_name(Ord::cmp).filter_entry(|entry| entry.file_name() != ".git");
    for (seen, entry) in walk.build().enumerate() {
        if stop.is_cancelled() || seen >= WALK_ENTRIES {
            return false;
        }
        let Ok(entry) = entry else { continue };
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(file) = entry.path().strip_prefix(workspace.root()).map(PathBuf::from) else { continue };
        let below = entry.path().strip_prefix(&start).ok().filter(|below| !below.as_os_str().is_empty());
        if !visit(&file, below.unwrap_or(&file)) {
            return false;
        }
    }
    true
}

fn told(mut lines: Vec<String>, complete: bool, nothing: &str) -> String {
    if lines.is_empty() {
        lines.push(nothing.to_owned());
    }
    if !complete {
        lines.push("[… there may be more; search for something narrower]".to_owned());
    }
    lines.join("\n")
}
