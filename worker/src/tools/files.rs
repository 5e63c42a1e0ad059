//! `read_file`, `write_file`, `list_dir`.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use agent::ToolError;
use cap_std::fs::{Dir, File, FileType, OpenOptions, OpenOptionsExt, Permissions};
use protocol::{CallId, ToolErrorKind};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    file_tool::{FileToolKind, parse_arguments},
    workspace::{Workspace, failure},
};

const MAX_READ_LINES: u64 = 2_000;
const MAX_READ_BYTES: usize = 96 * 1024;
/// How far into a file `read_file` reads.
const MAX_SCAN_BYTES: u64 = 64 * 1024 * 1024;
const BEYOND_SCAN: &str = "beyond the first 64 MiB, which is all that this tool reads; use shell (sed -n) instead";
pub(crate) const MAX_WRITE_BYTES: usize = 8 * 1024 * 1024;
const MAX_LIST_ENTRIES: usize = 2_000;

/// Reads lines of a text file.
pub(crate) const READ_FILE: FileToolKind = FileToolKind { name: "read_file", parallel: true, work: read_file };

/// Writes a whole file.
pub(crate) const WRITE_FILE: FileToolKind = FileToolKind { name: "write_file", parallel: false, work: write_file };

/// Lists a directory.
pub(crate) const LIST_DIR: FileToolKind = FileToolKind { name: "list_dir", parallel: true, work: list_dir };

#[derive(Deserialize)]
struct ReadFile {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

fn read_file(workspace: &Workspace, arguments: Value, stop: &CancellationToken) -> Result<String, ToolError> {
    let ReadFile { path, offset, limit } = parse_arguments(arguments)?;
    let relative = workspace.relative(&path)?;
    let mut reader = BufReader::new(
        open_file(workspace.dir(), &relative).map_err(|error| failure(&path, &error))?.take(MAX_SCAN_BYTES + 1),
    );
    if reader.fill_buf().map_err(|error| failure(&path, &error))?.contains(&0) {
        return Err(ToolError::new(
            ToolErrorKind::Failed,
            format!("{path} is not a text file; use shell to inspect it"),
        ));
    }
    let first = offset.unwrap_or(1);
    let wanted = limit.unwrap_or(MAX_READ_LINES).min(MAX_READ_LINES);
    let (mut text, mut line_number) = (Vec::new(), 0);
    loop {
        let keep = line_number + 1 >= first;
        let before = text.len();
        let length = next_line(&mut reader, keep.then_some(&mut text)).map_err(|error| failure(&path, &error))?;
        if length == 0 || stop.is_cancelled() {
            break;
        }
        line_number += 1;
        let cut = keep && (text.len() - before < length || text.len() >= MAX_READ_BYTES);
        if cut || (keep && line_number + 1 - first >= wanted) {
            return Ok(with_truncation_notice(&text, &mut reader, cut, line_number));
        }
    }
    let is_at_limit = reader.get_ref().limit() == 0;
    if is_at_limit && line_number < first {
        let message = format!("line {first} of {path} is {BEYOND_SCAN}");
        return Err(ToolError::new(ToolErrorKind::Failed, message));
    }
    if is_at_limit {
        let text = String::from_utf8_lossy(&text);
        return Ok(format!("{text}\n[… the rest after line {line_number} is {BEYOND_SCAN}]"));
    }
    if line_number < first && first > 1 {
        let message = format!("{path} has {line_number} lines; offset {first} is past the end");
        return Err(ToolError::new(ToolErrorKind::Failed, message));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn with_truncation_notice(text: &[u8], rest: &mut impl BufRead, cut: bool, line_number: u64) -> String {
    let mut text = String::from_utf8_lossy(text).into_owned();
    let more = rest.fill_buf().is_ok_and(|rest| !rest.is_empty());
    if more || cut {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let cut = if cut { "; the last line may be truncated" } else { "" };
        return format!("{text}[… more lines after line {line_number}{cut}; continue with offset {}]", line_number + 1);
    }
    text
}

/// Reads the next line into `keep` up to [`MAX_READ_BYTES`]. Returns its length including the newline, or 0 at
/// end-of-file.
fn next_line(reader: &mut impl BufRead, mut keep: Option<&mut Vec<u8>>) -> io::Result<usize> {
    let mut length = 0;
    loop {
        let chunk = reader.fill_buf()?;
        if chunk.is_empty() {
            return Ok(length);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(chunk.len(), |end| end + 1);
        if let Some(text) = keep.as_deref_mut() {
            let room = MAX_READ_BYTES.saturating_sub(text.len());
            text.extend_from_slice(&chunk[..taken.min(room)]);
        }
        reader.consume(taken);
        length += taken;
        if end.is_some() {
            return Ok(length);
        }
    }
}

/// Opens a regular file without blocking. Pipes and devices are rejected: reading them could block forever.
pub(crate) fn open_file(dir: &Dir, path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    let file = dir.open_with(path, &options)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        Ok(file)
    } else if kind.is_dir() {
        Err(io::ErrorKind::IsADirectory.into())
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

#[derive(Deserialize)]
struct WriteFile {
    path: String,
    content: String,
}

fn write_file(workspace: &Workspace, arguments: Value, _: &CancellationToken) -> Result<String, ToolError> {
    let WriteFile { path, content } = parse_arguments(arguments)?;
    let relative = workspace.relative(&path)?;
    if content.len() > MAX_WRITE_BYTES {
        let message = format!("the content exceeds {MAX_WRITE_BYTES} bytes; write it in parts with shell");
        return Err(ToolError::new(ToolErrorKind::Failed, message));
    }
    put(workspace.dir(), &relative, content.as_bytes(), None).map_err(|error| failure(&path, &error))?;
    Ok(format!("wrote {} bytes to {path}", content.len()))
}

/// Writes a file atomically: to a temporary file, which then replaces it. Creates missing parent directories. An
/// existing file keeps its mode; a new file gets `permissions`.
pub(crate) fn put(dir: &Dir, path: &Path, content: &[u8], permissions: Option<&Permissions>) -> io::Result<()> {
    // A symbolic link stays a link: its target is written.
    let target = match dir.canonicalize(path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let old = dir.metadata(&target).ok();
    if old.as_ref().is_some_and(cap_std::fs::Metadata::is_dir) || target.file_name().is_none() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let directory =
        target.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    dir.create_dir_all(directory)?;
    let draft: PathBuf = directory.join(format!(".gantry-{}.part", CallId::generate()));
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut file = dir.open_with(&draft, options.write(true).create_new(true))?;
        file.write_all(content)?;
        let kept = old.map(|old| old.permissions());
        if let Some(permissions) = kept.or_else(|| permissions.cloned()) {
            file.set_permissions(permissions)?;
        }
        dir.rename(&draft, dir, &target)
    })();
    if written.is_err() {
        // The first error is returned.
        let _ = dir.remove_file(&draft);
    }
    written
}

#[derive(Deserialize)]
struct ListDir {
    path: Option<String>,
}

fn list_dir(workspace: &Workspace, arguments: Value, stop: &CancellationToken) -> Result<String, ToolError> {
    let ListDir { path } = parse_arguments(arguments)?;
    let path = path.unwrap_or_default();
    let relative = workspace.relative(&path)?;
    let path_error = |error: io::Error| failure(if path.is_empty() { "." } else { &path }, &error);
    let mut lines = Vec::new();
    let mut more = 0_usize;
    for entry in workspace.dir().read_dir(&relative).map_err(path_error)? {
        let entry = entry.map_err(path_error)?;
        if stop.is_cancelled() {
            break;
        }
        if lines.len() == MAX_LIST_ENTRIES {
            more += 1;
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let size = entry.metadata().map_or(0, |metadata| metadata.len());
        lines.push(match entry.file_type().map_err(path_error)? {
            kind if kind.is_dir() => format!("{name}/"),
            kind if kind.is_symlink() => format!("{name} (link)"),
            kind if FileType::is_file(&kind) => format!("{name} ({size} bytes)"),
            _ => format!("{name} (special)"),
        });
    }
    lines.sort_unstable();
    if more > 0 {
        lines.push(format!("[… {more} more entries]"));
    }
    Ok(if lines.is_empty() { "the directory is empty".to_owned() } else { lines.join("\n") })
}
