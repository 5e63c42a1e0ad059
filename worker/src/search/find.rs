//! What `glob` and `grep` look for: files by name, and lines by a regular expression.
//!
//! Owns the patterns and the limits of a result. Leaves out what ignore files name, `.git` itself, and binary files.

use std::{
    ffi::OsStr,
    fs::File,
    io::{BufRead, BufReader, Read},
    ops::ControlFlow,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use agent::ToolError;
use globset::{GlobBuilder, GlobMatcher};
use protocol::ToolErrorKind;
use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    request::{SearchKind, SearchRequest, SearchResult},
    walk::{Completeness, FoundFile, open_file, open_folder, walk},
};
use crate::tools::{Workspace, failure};

const GLOB_MATCHES: usize = 1_000;
const GREP_MATCHES: usize = 500;
const GREP_LINE_BYTES: usize = 400;
const GREP_FILE_BYTES: u64 = 16 * 1024 * 1024;
const REGEX_BYTES: usize = 4 * 1024 * 1024;
/// Of all lines of a result; the model is shown less.
const RESULT_BYTES: usize = 256 * 1024;
/// Before the tool's timeout, so that what was found until then is returned.
const SEARCH_TIME: Duration = Duration::from_secs(45);

/// Does one search.
pub(crate) fn answer(request: &SearchRequest) -> SearchResult {
    let deadline = Instant::now() + SEARCH_TIME;
    let found = match request.kind {
        SearchKind::Glob => glob(&request.workspace, &request.arguments, deadline),
        SearchKind::Grep => grep(&request.workspace, &request.arguments, deadline),
    };
    found.map_err(|error| error.0)
}

#[derive(Deserialize)]
struct Glob {
    pattern: String,
    path: Option<String>,
}

fn glob(workspace: &Path, arguments: &Value, deadline: Instant) -> Result<String, ToolError> {
    let Glob { pattern, path } = parsed(arguments)?;
    let names = Names::new(&pattern)?;
    let start = Start::open(workspace, path.as_deref().unwrap_or_default())?;
    let mut found = Found::new(GLOB_MATCHES);
    let complete = start.visit(deadline, &mut |file, path| {
        if names.matches(file.below) { found.add(path.display().to_string()) } else { ControlFlow::Continue(()) }
    });
    found.lines.sort_unstable();
    Ok(found.into_text(complete, "no file matches"))
}

#[derive(Deserialize)]
struct Grep {
    pattern: String,
    path: Option<String>,
    include: Option<String>,
}

fn grep(workspace: &Path, arguments: &Value, deadline: Instant) -> Result<String, ToolError> {
    let Grep { pattern, path, include } = parsed(arguments)?;
    let regex = RegexBuilder::new(&pattern).size_limit(REGEX_BYTES).build().map_err(|error| {
        ToolError::new(ToolErrorKind::InvalidParameters, format!("the pattern is not a regular expression: {error}"))
    })?;
    let include = include.as_deref().map(Names::new).transpose()?;
    let start = Start::open(workspace, path.as_deref().unwrap_or_default())?;
    let mut found = Found::new(GREP_MATCHES);
    let complete = start.visit(deadline, &mut |file, path| {
        if include.as_ref().is_none_or(|include| include.matches(file.below)) {
            return grep_file(file, path, &regex, deadline, &mut found);
        }
        ControlFlow::Continue(())
    });
    Ok(found.into_text(complete, "no line matches"))
}

/// A file that cannot be read has no matching lines: it may have gone, or be no text.
fn grep_file(
    file: &FoundFile<'_>,
    path: &Path,
    regex: &Regex,
    deadline: Instant,
    found: &mut Found,
) -> ControlFlow<()> {
    let Ok(open) = open_file(file.folder, file.name) else { return ControlFlow::Continue(()) };
    let mut reader = BufReader::new(File::from(open).take(GREP_FILE_BYTES));
    if reader.fill_buf().is_ok_and(|start| start.contains(&0)) {
        return ControlFlow::Continue(());
    }
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        if !reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            break;
        }
        if Instant::now() >= deadline {
            return ControlFlow::Break(());
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if regex.is_match(text) {
            let text = String::from_utf8_lossy(&text[..text.len().min(GREP_LINE_BYTES)]);
            found.add(format!("{}:{number}:{}", path.display(), text.trim_end()))?;
        }
    }
    ControlFlow::Continue(())
}

/// Where a search starts.
struct Start {
    /// Its path in the workspace.
    path: PathBuf,
    at: At,
}

enum At {
    Folder(OwnedFd),
    /// One file alone: its folder and its path, which has a file name.
    File(OwnedFd),
}

impl Start {
    /// Resolves links, which must stay inside the workspace.
    fn open(workspace: &Path, path: &str) -> Result<Self, ToolError> {
        let path_error = |error: std::io::Error| failure(path, &error);
        let workspace = Workspace::open(workspace).map_err(path_error)?;
        let base = workspace.existing(path)?;
        let is_folder = workspace.dir().is_dir(&base);
        let folder = match (is_folder, base.parent().filter(|parent| !parent.as_os_str().is_empty())) {
            (true, _) => base.as_path(),
            (false, Some(parent)) => parent,
            (false, None) => Path::new("."),
        };
        let handle = workspace.dir().open_dir(folder).map_err(path_error)?;
        // The capability's own handle cannot be listed.
        let folder = open_folder(handle.as_fd(), OsStr::new(".")).map_err(|error| path_error(error.into()))?;
        let path = if base == Path::new(".") { PathBuf::new() } else { base };
        Ok(Self { path, at: if is_folder { At::Folder(folder) } else { At::File(folder) } })
    }

    /// Visits each file with its path in the workspace.
    fn visit(self, deadline: Instant, visit: &mut dyn FnMut(&FoundFile<'_>, &Path) -> ControlFlow<()>) -> Completeness {
        match self.at {
            At::Folder(folder) => walk(&folder, deadline, &mut |file| visit(file, &self.path.join(file.below))),
            At::File(folder) => {
                let name = self.path.file_name().unwrap_or_default();
                let file = FoundFile { folder: folder.as_fd(), name, below: &self.path };
                let all_files = visit(&file, &self.path).is_continue();
                Completeness { all_files, all_rules: true }
            }
        }
    }
}

/// Lines found so far, within the limits of a result.
struct Found {
    lines: Vec<String>,
    max_lines: usize,
    bytes_left: usize,
}

impl Found {
    const fn new(max_lines: usize) -> Self {
        Self { lines: Vec::new(), max_lines, bytes_left: RESULT_BYTES }
    }

    /// Breaks once nothing more fits.
    fn add(&mut self, line: String) -> ControlFlow<()> {
        let Some(left) = self.bytes_left.checked_sub(line.len()) else { return ControlFlow::Break(()) };
        self.bytes_left = left;
        self.lines.push(line);
        if self.lines.len() < self.max_lines { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn into_text(mut self, complete: Completeness, nothing: &str) -> String {
        if self.lines.is_empty() {
            self.lines.push(nothing.to_owned());
        }
        if !complete.all_files {
            self.lines.push("[… there may be more; search for something narrower]".to_owned());
        }
        if !complete.all_rules {
            self.lines
                .push("[… not all rules of the ignore files were applied: they are too many or too long]".to_owned());
        }
        self.lines.join("\n")
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

fn parsed<T: DeserializeOwned>(arguments: &Value) -> Result<T, ToolError> {
    T::deserialize(arguments).map_err(|error| ToolError::new(ToolErrorKind::InvalidParameters, error.to_string()))
}
