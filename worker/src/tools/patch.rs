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
use protocol::ToolErrorKind;
use serde::Deserialize;
use serde_json::{Value, json};
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
    description: "Changes files of the workspace by a patch: a unified diff (---/+++/@@, git's too), or \
                  `*** Begin Patch` with `*** Add File: P`, `*** Update File: P`, `*** Delete File: P` sections and \
                  `*** End Patch`. Applied whole or not at all.",
    parameters: || {
        json!({
            "type": "object",
            "properties": {"patch": {"type": "string", "minLength": 1}},
            "required": ["patch"],
            "additionalProperties": false
        })
    },
    approval: ApprovalRequirement::UnlessAutoApproved,
    parallel: false,
    work: apply_patch,
};

#[derive(Deserialize)]
struct ApplyPatch {
    patch: String,
}

fn apply_patch(workspace: &Workspace, arguments: Value, _: &CancellationToken) -> Result<String, ToolError> {
    let ApplyPatch { patch } = parsed(arguments)?;
    let edits = parse(&patch).map_err(|why| refused(&why))?;
    let mut plan = Plan { workspace, before: BTreeMap::new(), after: BTreeMap::new() };
    for edit in &edits {
        plan.add(edit)?;
    }
    plan.carry_out()
}

fn refused(message: &str) -> ToolError {
    ToolError::new(ToolErrorKind::Failed, format!("{message}; nothing was changed"))
}

/// What files will hold; `None` is no file.
struct Plan<'a> {
    workspace: &'a Workspace,
    before: BTreeMap<PathBuf, Option<String>>,
    after: BTreeMap<PathBuf, Option<String>>,
}

impl Plan<'_> {
    fn add(&mut self, edit: &Edit<'_>) -> Result<(), ToolError> {
        match edit {
            Edit::Add { path, content } => {
                let path = self.workspace.relative(path)?;
                if self.content(&path)?.is_some() {
                    return Err(refused(&format!("{} exists already; update it instead", path.display())));
                }
                self.after.insert(path, Some(content.clone()));
            }
            Edit::Delete { path } => {
                let path = self.workspace.relative(path)?;
                self.required(&path)?;
                self.after.insert(path, None);
            }
            Edit::Update { path, to, change } => {
                let path = self.workspace.relative(path)?;
                let old = self.required(&path)?;
                let new = change.apply(&old).map_err(|why| refused(&format!("{}: {why}", path.display())))?;
                if new.len() > WRITE_BYTES {
                    return Err(refused(&format!("{} would have more than {WRITE_BYTES} bytes", path.display())));
                }
                let target = to.as_deref().map(|to| self.workspace.relative(to)).transpose()?;
                if let Some(target) = target.filter(|target| *target != path) {
                    if self.content(&target)?.is_some() {
                        return Err(refused(&format!("{} exists already", target.display())));
                    }
                    self.after.insert(path, None);
                    self.after.insert(target, Some(new));
                } else {
                    self.after.insert(path, Some(new));
                }
            }
        }
        Ok(())
    }

    /// A file's content as planned so far.
    fn content(&mut self, path: &Path) -> Result<Option<String>, ToolError> {
        if let Some(content) = self.after.get(path) {
            return Ok(content.clone());
        }
        let shown = path.display().to_string();
        let content = match open_file(self.workspace.dir(), path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failure(&shown, &error)),
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(WRITE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| failure(&shown, &error))?;
                if bytes.len() > WRITE_BYTES {
                    return Err(refused(&format!("{shown} has more than {WRITE_BYTES} bytes")));
                }
                Some(String::from_utf8(bytes).map_err(|_| refused(&format!("{shown} is not a text file")))?)
            }
        };
        self.before.insert(path.to_owned(), content.clone());
        Ok(content)
    }

    fn required(&mut self, path: &Path) -> Result<String, ToolError> {
        self.content(path)?.ok_or_else(|| refused(&format!("{}: there is no such file", path.display())))
    }

    fn carry_out(self) -> Result<String, ToolError> {
        let mut told = Vec::new();
        for (done, (path, content)) in self.after.iter().enumerate() {
            if let Err(error) = self.place(path, content.as_deref()) {
                for (path, _) in self.after.iter().take(done) {
                    // Nothing better is left to do when this fails too; the error told is the first.
                    let _ = self.place(path, self.before.get(path).and_then(Option::as_deref));
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
            told.push(format!("{verb} {}", path.display()));
        }
        Ok(told.join("\n"))
    }

    fn place(&self, path: &Path, content: Option<&str>) -> std::io::Result<()> {
        let dir = self.workspace.dir();
        match content {
            Some(content) => put(dir, path, content.as_bytes()),
            None if dir.symlink_metadata(path).is_ok() => dir.remove_file(path),
            None => Ok(()),
        }
    }
}
