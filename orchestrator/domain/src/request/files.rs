//! Validation of input files and of paths in a workspace.

use std::collections::BTreeSet;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use protocol::{FileMode, InputFile, check_path, limits::MAX_FILES_BYTES};

use super::Errors;

/// Maximum number of inline files.
pub const MAX_FILES: usize = 1_000;

/// A file for the workspace with a valid path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceFile {
    /// A relative path of plain components.
    pub path: String,
    pub content: Vec<u8>,
    pub mode: FileMode,
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
        checked.push(WorkspaceFile { path: file.path.clone(), content, mode: file.mode.unwrap_or_default() });
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
