//! `apply_patch`: unified diffs and the `*** Begin Patch` format, all of a patch or nothing of it.
//!
//! Owns planning the result of a patch in memory and putting it in place. Never leaves half a patch behind: a write
//! that fails takes the earlier ones back.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};

use agent::{ApprovalRequirement, ToolError};
use cap_std::fs::{File, Permissions};
use protocol::ToolErrorKind;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    file_tool::{FileToolKind, parsed},
    files::{WRITE_BYTES, open_file, put},
    patch_format::{Edit, parse},
    workspace::{Workspace, failure},
};

/// Changes files by a patch.
pub(crate) const APPLY_PATCH: FileToolKind = FileToolKind {
    name: "apply_patch",
    approval: ApprovalRequirement::UnlessAutoApproved,
    parallel: false,
    work: apply_patch,
};

#[derive(Deserialize)]
struct ApplyPatch {
    patch: String,
}

fn apply_patch(workspace: &Workspace, arguments: Value, stop: &CancellationToken) -> Result<String, ToolError> {
    let ApplyPatch { patch } = parsed(arguments)?;
    let edits = parse(&patch).map_err(|why| refused(&why))?;
    let mut plan = Plan { workspace, before: BTreeMap::new(), after: BTreeMap::new() };
    for edit in &edits {
        if stop.is_cancelled() {
            return Err(refused("stopped before it was done"));
        }
        plan.add(edit)?;
    }
    plan.carry_out()
}

fn refused(message: &str) -> ToolError {
    ToolError::new(ToolErrorKind::Failed, format!("{message}; nothing was changed"))
}

/// A file's content and, where it comes from a file that is there, its mode.
#[derive(Debug, Clone)]
struct Content {
    text: String,
    permissions: Option<Permissions>,
}

/// What files hold before and after the patch, by resolved path; `None` is no file.
struct Plan<'a> {
    workspace: &'a Workspace,
    before: BTreeMap<PathBuf, Option<Content>>,
    after: BTreeMap<PathBuf, Option<Content>>,
}

impl Plan<'_> {
    fn add(&mut self, edit: &Edit<'_>) -> Result<(), ToolError> {
        match edit {
            Edit::Add { path, content } => {
                let path = self.resolved(path)?;
                if self.content(&path)?.is_some() {
                    return Err(refused(&format!("{} exists already; update it instead", path.display())));
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
                let Content { text, permissions } = self.required(&path)?;
                let text = change.apply(&text).map_err(|why| refused(&format!("{}: {why}", path.display())))?;
                if text.len() > WRITE_BYTES {
                    return Err(refused(&format!("{} would have more than {WRITE_BYTES} bytes", path.display())));
                }
                let target = to.as_deref().map(|to| self.resolved(to)).transpose()?;
                let new = Some(Content { text, permissions });
                if let Some(target) = target.filter(|target| *target != path) {
                    if self.content(&target)?.is_some() {
                        return Err(refused(&format!("{} exists already", target.display())));
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

    /// One path for each file however a patch names it (`./f`, `a/../f`, by a link), so that no edit overwrites another.
    fn resolved(&self, path: &str) -> Result<PathBuf, ToolError> {
        let relative = self.workspace.relative(path)?;
        match self.workspace.dir().canonicalize(&relative) {
            Ok(resolved) => Ok(resolved),
            // It is not there yet, or cannot be reached, which shows when it is read.
            Err(_) => self.resolved_entry(path),
        }
    }

    /// The same for the name itself: a link is not followed.
    fn resolved_entry(&self, path: &str) -> Result<PathBuf, ToolError> {
        let relative = self.workspace.relative(path)?;
        let dir = self.workspace.dir();
        let mut rest = PathBuf::new();
        let mut folder = relative.as_path();
        // The part of the path that is there, its links resolved, and the part that is not, which has none.
        while let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) {
            rest = if rest.as_os_str().is_empty() { PathBuf::from(name) } else { Path::new(name).join(rest) };
            folder = parent;
            let at = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            if let Ok(resolved) = dir.canonicalize(at) {
                return Ok(if resolved == Path::new(".") { rest } else { resolved.join(rest) });
            }
        }
        Ok(relative)
    }

    /// A file's content as planned so far.
    fn content(&mut self, path: &Path) -> Result<Option<Content>, ToolError> {
        if let Some(content) = self.after.get(path) {
            return Ok(content.clone());
        }
        let shown = path.display().to_string();
        let content = match open_file(self.workspace.dir(), path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failure(&shown, &error)),
            Ok(file) => Some(read(file, &shown)?),
        };
        self.before.insert(path.to_owned(), content.clone());
        Ok(content)
    }

    fn required(&mut self, path: &Path) -> Result<Content, ToolError> {
        self.content(path)?.ok_or_else(|| refused(&format!("{}: there is no such file", path.display())))
    }

    fn carry_out(self) -> Result<String, ToolError> {
        let mut changes = Vec::new();
        for (done, (path, content)) in self.after.iter().enumerate() {
            if let Err(error) = self.place(path, content.as_ref()) {
                for (path, _) in self.after.iter().take(done) {
                    // Nothing better is left to do when this fails too; the first error is the one that counts.
                    let _ = self.place(path, self.before.get(path).and_then(Option::as_ref));
                }
                let ToolError(mut failure) = failure(&path.display().to_string(), &error);
                failure.message.push_str("; nothing was changed");
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

    fn place(&self, path: &Path, content: Option<&Content>) -> std::io::Result<()> {
        let dir = self.workspace.dir();
        match content {
            Some(Content { text, permissions }) => put(dir, path, text.as_bytes(), permissions.as_ref()),
            None if dir.symlink_metadata(path).is_ok() => dir.remove_file(path),
            None => Ok(()),
        }
    }
}

fn read(file: File, shown: &str) -> Result<Content, ToolError> {
    let permissions = file.metadata().map_err(|error| failure(shown, &error))?.permissions();
    let mut bytes = Vec::new();
    file.take(WRITE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| failure(shown, &error))?;
    if bytes.len() > WRITE_BYTES {
        return Err(refused(&format!("{shown} has more than {WRITE_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| refused(&format!("{shown} is not a text file")))?;
    Ok(Content { text, permissions: Some(permissions) })
}
