//! Validation of input files and of paths in a workspace.

use std::collections::BTreeSet;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use protocol::InputFile;

use super::Errors;

/// Maximum number of inline files.
pub const MAX_FILES: usize = 1_000;
/// Maximum total size of inline files; larger inputs are uploaded as an archive.
pub const MAX_FILES_BYTES: usize = 16 * 1024 * 1024;
/// Maximum length of a path, as in tar.
pub const MAX_PATH_BYTES: usize = 1_024;
/// Maximum length of a path component, as in ext4.
const MAX_COMPONENT_BYTES: usize = 255;
/// Maximum depth of a workspace, for every walk.
pub const MAX_PATH_DEPTH: usize = 128;

/// A file for the workspace with a valid path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceFile {
    /// A relative path of plain components.
    pub path: String,
    pub content: Vec<u8>,
}

/// Validates and decodes the input files.
pub(super) fn check_files(files: &[InputFile], errors: &mut Errors) -> Vec<WorkspaceFile> {
    if files.len() > MAX_FILES {
        errors.add("files", format!("must be at most {MAX_FILES}"));
        return vec![];
    }
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    let mut checked = Vec::with_capacity(files.len());
    let mut total = 0;
    for (index, file) in files.iter().enumerate() {
        let field = format!("files[{index}]");
        if let Err(rule) = check_path(&file.path) {
            errors.add(format!("{field}.path"), rule);
            continue;
        }
        if !taken.insert(&file.path) {
            errors.add(format!("{field}.path"), "is given twice");
        }
        let content = match (&file.content, &file.content_base64) {
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(encoded)) => match BASE64_STANDARD.decode(encoded) {
                Ok(bytes) => bytes,
                Err(error) => {
                    errors.add(format!("{field}.content_base64"), format!("is not padded standard base64: {error}"));
                    continue;
                }
            },
            _ => {
                errors.add(field, "must have exactly one of content and content_base64");
                continue;
            }
        };
        total += content.len();
        checked.push(WorkspaceFile { path: file.path.clone(), content });
    }
    if total > MAX_FILES_BYTES {
        errors.add("files", format!("must be at most {MAX_FILES_BYTES} bytes together"));
    }
    for path in &taken {
        let below = format!("{path}/");
        if taken.range(below.as_str()..).next().is_some_and(|next| next.starts_with(&below)) {
            errors.add("files", format!("{path:?} is both a file and a directory"));
        }
    }
    checked
}

/// Validates the path of a file or document: relative, with plain components that every program interprets alike.
pub fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("must not be empty");
    }
    if path.len() > MAX_PATH_BYTES {
        return Err("must be at most 1024 bytes");
    }
    if path.chars().any(char::is_control) || path.contains('\\') {
        return Err("must not contain control characters or backslashes");
    }
    if path.starts_with('/') {
        return Err("must be relative, without / at its beginning");
    }
    if path.split('/').count() > MAX_PATH_DEPTH {
        return Err("must be at most 128 directories deep");
    }
    for component in path.split('/') {
        match component {
            "" => return Err("must not have empty components or end in /"),
            "." | ".." => return Err("must not have . or .. components"),
            long if long.len() > MAX_COMPONENT_BYTES => return Err("must have components of at most 255 bytes"),
            _ => {}
        }
    }
    Ok(())
}
