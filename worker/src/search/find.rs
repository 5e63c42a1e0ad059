//! `glob` finds files by name; `grep` finds lines by a regular expression.
//!
//! Owns the patterns and the limits of a result. Skips ignored files, `.git` and binary files.

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
    walk::{Completeness, FoundFile, open_directory, open_file, walk},
};
use crate::tools::{Workspace, failure};

const MAX_GLOB_MATCHES: usize = 1_000;
const MAX_GREP_MATCHES: usize = 500;
const MAX_GREP_LINE_BYTES: usize = 400;
const MAX_GREP_FILE_BYTES: u64 = 16 * 1024 * 1024;
const MAX_REGEX_BYTES: usize = 4 * 1024 * 1024;
/// Total bytes of a result's lines. The model sees less.
const MAX_RESULT_BYTES: usize = 256 * 1024;
/// Shorter than the tool's timeout (60 s), so that partial results are returned.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(45);

/// Runs one search.
pub(crate) fn search(request: &SearchRequest) -> SearchResult {
    let deadline = Instant::now() + SEARCH_TIMEOUT;
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
    let Glob { pattern, path } = parse_arguments(arguments)?;
    let pattern = PathPattern::new(&pattern)?;
    let root = SearchRoot::open(workspace, path.as_deref().unwrap_or_default())?;
    let mut found = MatchLines::new(MAX_GLOB_MATCHES);
    let complete = root.visit(deadline, &mut |file, path| {
        if pattern.matches(file.relative_path) {
            found.add(path.display().to_string())
        } else {
            ControlFlow::Continue(())
        }
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
    let Grep { pattern, path, include } = parse_arguments(arguments)?;
    let regex = RegexBuilder::new(&pattern).size_limit(MAX_REGEX_BYTES).build().map_err(|error| {
        ToolError::new(ToolErrorKind::InvalidParameters, format!("invalid regular expression: {error}"))
    })?;
    let include = include.as_deref().map(PathPattern::new).transpose()?;
    let root = SearchRoot::open(workspace, path.as_deref().unwrap_or_default())?;
    let mut found = MatchLines::new(MAX_GREP_MATCHES);
    let complete = root.visit(deadline, &mut |file, path| {
        if include.as_ref().is_none_or(|include| include.matches(file.relative_path)) {
            return grep_file(file, path, &regex, deadline, &mut found);
        }
        ControlFlow::Continue(())
    });
    Ok(found.into_text(complete, "no line matches"))
}

/// Adds the matching lines of a file. Unreadable and binary files have none.
fn grep_file(
    file: &FoundFile<'_>,
    path: &Path,
    regex: &Regex,
    deadline: Instant,
    found: &mut MatchLines,
) -> ControlFlow<()> {
    let Ok(open) = open_file(file.directory, file.name) else { return ControlFlow::Continue(()) };
    let mut reader = BufReader::new(File::from(open).take(MAX_GREP_FILE_BYTES));
    if reader.fill_buf().is_ok_and(|start| start.contains(&0)) {
        return ControlFlow::Continue(());
    }
    let is_cut = reader.get_ref().get_ref().metadata().is_ok_and(|metadata| metadata.len() > MAX_GREP_FILE_BYTES);
    if is_cut {
        found.add_cut_file(path);
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
            let text = String::from_utf8_lossy(&text[..text.len().min(MAX_GREP_LINE_BYTES)]);
            found.add(format!("{}:{number}:{}", path.display(), text.trim_end()))?;
        }
    }
    ControlFlow::Continue(())
}

/// The directory or file where a search starts.
struct SearchRoot {
    /// Relative to the workspace.
    path: PathBuf,
    handle: RootHandle,
}

enum RootHandle {
    Directory(OwnedFd),
    /// The directory of a single file.
    File(OwnedFd),
}

impl SearchRoot {
    /// Opens `path`. Links are resolved and must stay inside the workspace.
    fn open(workspace: &Path, path: &str) -> Result<Self, ToolError> {
        let path_error = |error: std::io::Error| failure(path, &error);
        let workspace = Workspace::open(workspace).map_err(path_error)?;
        let base = workspace.existing(path)?;
        let is_directory = workspace.dir().is_dir(&base);
        let directory = match (is_directory, base.parent().filter(|parent| !parent.as_os_str().is_empty())) {
            (true, _) => base.as_path(),
            (false, Some(parent)) => parent,
            (false, None) => Path::new("."),
        };
        let handle = workspace.dir().open_dir(directory).map_err(path_error)?;
        // The capability's own handle cannot be listed.
        let directory = open_directory(handle.as_fd(), OsStr::new(".")).map_err(|error| path_error(error.into()))?;
        let path = if base == Path::new(".") { PathBuf::new() } else { base };
        Ok(Self {
            path,
            handle: if is_directory { RootHandle::Directory(directory) } else { RootHandle::File(directory) },
        })
    }

    /// Visits each file with its path relative to the workspace.
    fn visit(self, deadline: Instant, visit: &mut dyn FnMut(&FoundFile<'_>, &Path) -> ControlFlow<()>) -> Completeness {
        match self.handle {
            RootHandle::Directory(directory) => {
                walk(&directory, deadline, &mut |file| visit(file, &self.path.join(file.relative_path)))
            }
            RootHandle::File(directory) => {
                let name = self.path.file_name().unwrap_or_default();
                let file = FoundFile { directory: directory.as_fd(), name, relative_path: &self.path };
                let all_files = visit(&file, &self.path).is_continue();
                Completeness { all_files, all_rules: true }
            }
        }
    }
}

/// The matches found so far, within the limits of a result.
struct MatchLines {
    lines: Vec<String>,
    max_lines: usize,
    bytes_left: usize,
    /// Files that were searched only as far as [`MAX_GREP_FILE_BYTES`].
    cut_files: usize,
    first_cut_file: PathBuf,
}

impl MatchLines {
    const fn new(max_lines: usize) -> Self {
        Self {
            lines: Vec::new(),
            max_lines,
            bytes_left: MAX_RESULT_BYTES,
            cut_files: 0,
            first_cut_file: PathBuf::new(),
        }
    }

    /// Adds a line. Breaks when the result is full.
    fn add(&mut self, line: String) -> ControlFlow<()> {
        let Some(left) = self.bytes_left.checked_sub(line.len()) else { return ControlFlow::Break(()) };
        self.bytes_left = left;
        self.lines.push(line);
        if self.lines.len() < self.max_lines { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn add_cut_file(&mut self, path: &Path) {
        if self.cut_files == 0 {
            path.clone_into(&mut self.first_cut_file);
        }
        self.cut_files += 1;
    }

    fn into_text(mut self, complete: Completeness, nothing: &str) -> String {
        if self.lines.is_empty() {
            self.lines.push(nothing.to_owned());
        }
        if !complete.all_files {
            self.lines.push("[… there may be more matches; use a narrower search]".to_owned());
        }
        if self.cut_files > 0 {
            let (path, mebibytes) = (self.first_cut_file.display(), MAX_GREP_FILE_BYTES >> 20);
            let more =
                if self.cut_files > 1 { format!(" and of {} more files", self.cut_files - 1) } else { String::new() };
            self.lines.push(format!("[… only the first {mebibytes} MiB of {path}{more} were searched]"));
        }
        if !complete.all_rules {
            self.lines.push("[… some ignore rules were not applied: too many or too long]".to_owned());
        }
        self.lines.join("\n")
    }
}

/// A glob pattern. Without a slash it matches file names at any depth; with a slash, paths relative to the search root.
struct PathPattern {
    matcher: GlobMatcher,
    whole_path: bool,
}

impl PathPattern {
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

fn parse_arguments<T: DeserializeOwned>(arguments: &Value) -> Result<T, ToolError> {
    T::deserialize(arguments).map_err(|error| ToolError::new(ToolErrorKind::InvalidParameters, error.to_string()))
}
