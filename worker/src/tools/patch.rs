//! `apply_patch`: applies unified diffs and the `*** Begin Patch` format atomically.
//!
//! Owns planning the result of a patch in memory and writing it. A failed write rolls back
//! the earlier ones; where that fails, too, the error names the files that are changed.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};

use agent::ToolError;
use cap_std::fs::{File, MetadataExt, Permissions};
use protocol::ToolErrorKind;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    file_tool::{FileToolKind, parse_arguments},
    files::{MAX_WRITE_BYTES, open_file, put},
    patch_format::{Edit, parse},
    workspace::{Workspace, failure},
};

/// Applies a patch to files.
pub(crate) const APPLY_PATCH: FileToolKind = FileToolKind { name: "apply_patch", parallel: false, work: apply_patch };

#[derive(Deserialize)]
struct ApplyPatch {
    patch: String,
}

fn apply_patch(workspace: &Workspace, arguments: Value, stop: &CancellationToken) -> Result<String, ToolError> {
    let ApplyPatch { mut patch } = parse_arguments(arguments)?;
    // The last line of a diff has a line break, unless the diff says that the file ends without one.
    if !patch.ends_with('\n') {
        patch.push('\n');
    }
    let edits = parse(&patch).map_err(|message| refused(&message))?;
    let mut plan = Plan { workspace, before: BTreeMap::new(), after: BTreeMap::new(), hard_links: BTreeMap::new() };
    for edit in &edits {
        if stop.is_cancelled() {
            return Err(refused("stopped before it finished"));
        }
        plan.add(edit)?;
    }
    plan.write_all()
}

fn refused(message: &str) -> ToolError {
    ToolError::new(ToolErrorKind::Failed, format!("{message}; nothing was changed"))
}

/// A file's content and, if the file exists, its mode.
#[derive(Debug, Clone)]
struct Content {
    text: String,
    permissions: Option<Permissions>,
}

/// Contents before and after the patch, by resolved path. `None`: the file does not exist.
struct Plan<'a> {
    workspace: &'a Workspace,
    before: BTreeMap<PathBuf, Option<Content>>,
    after: BTreeMap<PathBuf, Option<Content>>,
    /// The updated files that have several hard links, by device and inode.
    hard_links: BTreeMap<(u64, u64), PathBuf>,
}

impl Plan<'_> {
    fn add(&mut self, edit: &Edit<'_>) -> Result<(), ToolError> {
        match edit {
            Edit::Add { path, content } => {
                let path = self.resolved(path)?;
                if self.content(&path)?.is_some() {
                    return Err(refused(&format!("{} already exists; update it instead", path.display())));
                }
                self.after.insert(path, Some(Content { text: content.clone(), permissions: None }));
            }
            Edit::Delete { path } => {
                let path = self.resolved_entry(path)?;
                self.required(&path)?;
                self.after.insert(path, None);
            }
            Edit::Update { path, to, change } => {
                let path = self.resolved(path)?;
                self.check_hard_links(&path)?;
                let Content { text, permissions } = self.required(&path)?;
                let text = change.apply(&text).map_err(|message| refused(&format!("{}: {message}", path.display())))?;
                if text.len() > MAX_WRITE_BYTES {
                    return Err(refused(&format!("{} would exceed {MAX_WRITE_BYTES} bytes", path.display())));
                }
                let target = to.as_deref().map(|to| self.resolved(to)).transpose()?;
                let new = Some(Content { text, permissions });
                if let Some(target) = target.filter(|target| *target != path) {
                    if self.content(&target)?.is_some() {
                        return Err(refused(&format!("{} already exists", target.display())));
                    }
                    self.after.insert(path, None);
                    self.after.insert(target, new);
                } else {
                    self.after.insert(path, new);
                }
            }
        }
        Ok(())
    }

    /// The canonical path of a file, so that edits of one file under several spellings (`./f`, `a/../f`, a symbolic
    /// link) do not overwrite each other.
    fn resolved(&self, path: &str) -> Result<PathBuf, ToolError> {
        let relative = self.workspace.relative(path)?;
        match self.workspace.dir().canonicalize(&relative) {
            Ok(resolved) => Ok(resolved),
            // It does not exist yet, or is not accessible, which is reported when it is read.
            Err(_) => self.resolved_entry(path),
        }
    }

    /// Like [`Self::resolved`], but a link in the last component is not followed.
    fn resolved_entry(&self, path: &str) -> Result<PathBuf, ToolError> {
        let relative = self.workspace.relative(path)?;
        let dir = self.workspace.dir();
        let mut rest = PathBuf::new();
        let mut directory = relative.as_path();
        // Resolve the longest existing prefix of the path and append the rest.
        while let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) {
            rest = if rest.as_os_str().is_empty() { PathBuf::from(name) } else { Path::new(name).join(rest) };
            directory = parent;
            let at = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
            if let Ok(resolved) = dir.canonicalize(at) {
                return Ok(if resolved == Path::new(".") { rest } else { resolved.join(rest) });
            }
        }
        Ok(relative)
    }

    /// Refuses an update of a file that the patch already updates under another hard link. Writing replaces the file,
    /// so each name would end up with only its own edits.
    fn check_hard_links(&mut self, path: &Path) -> Result<(), ToolError> {
        let Ok(metadata) = self.workspace.dir().symlink_metadata(path) else { return Ok(()) };
        if metadata.nlink() < 2 {
            return Ok(());
        }
        let first = self.hard_links.entry((metadata.dev(), metadata.ino())).or_insert_with(|| path.to_owned());
        if first.as_path() == path {
            return Ok(());
        }
        let (path, first) = (path.display(), first.display());
        Err(refused(&format!(
            "{path} is a hard link to {first}, which this patch also updates; update only one of them"
        )))
    }

    /// The file's content with the edits planned so far.
    fn content(&mut self, path: &Path) -> Result<Option<Content>, ToolError> {
        if let Some(content) = self.after.get(path) {
            return Ok(content.clone());
        }
        let name = path.display().to_string();
        let content = match open_file(self.workspace.dir(), path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failure(&name, &error)),
            Ok(file) => Some(read(file, &name)?),
        };
        self.before.insert(path.to_owned(), content.clone());
        Ok(content)
    }

    fn required(&mut self, path: &Path) -> Result<Content, ToolError> {
        self.content(path)?.ok_or_else(|| refused(&format!("{}: no such file", path.display())))
    }

    fn write_all(self) -> Result<String, ToolError> {
        let mut changes = Vec::new();
        for (done, (path, content)) in self.after.iter().enumerate() {
            if let Err(error) = self.write(path, content.as_ref()) {
                let written = self.after.keys().take(done);
                let restore = |path: &PathBuf| self.write(path, self.before.get(path).and_then(Option::as_ref));
                // The first error is the one that is reported.
                let kept: Vec<_> =
                    written.filter(|path| restore(path).is_err()).map(|path| path.display().to_string()).collect();
                let ToolError(mut failure) = failure(&path.display().to_string(), &error);
                let suffix = match kept.as_slice() {
                    [] => "; nothing was changed".to_owned(),
                    _ => format!("; these files are changed, because they could not be restored: {}", kept.join(", ")),
                };
                failure.message.push_str(&suffix);
                return Err(ToolError(failure));
            }
            let verb = match (self.before.get(path).is_some_and(Option::is_some), content) {
                (_, None) => "deleted",
                (true, Some(_)) => "changed",
                (false, Some(_)) => "added",
            };
            changes.push(format!("{verb} {}", path.display()));
        }
        Ok(changes.join("\n"))
    }

    fn write(&self, path: &Path, content: Option<&Content>) -> std::io::Result<()> {
        let dir = self.workspace.dir();
        match content {
            Some(Content { text, permissions }) => put(dir, path, text.as_bytes(), permissions.as_ref()),
            None if dir.symlink_metadata(path).is_ok() => dir.remove_file(path),
            None => Ok(()),
        }
    }
}

fn read(file: File, name: &str) -> Result<Content, ToolError> {
    let permissions = file.metadata().map_err(|error| failure(name, &error))?.permissions();
    let mut bytes = Vec::new();
    file.take(MAX_WRITE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| failure(name, &error))?;
    if bytes.len() > MAX_WRITE_BYTES {
        return Err(refused(&format!("{name} exceeds {MAX_WRITE_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| refused(&format!("{name} is not a text file")))?;
    Ok(Content { text, permissions: Some(permissions) })
}
