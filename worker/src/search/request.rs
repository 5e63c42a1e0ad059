//! The request that a search process reads from standard input, and the result that it writes to standard output.

use std::path::PathBuf;

use protocol::ToolFailure;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// More than a result within its limits can have, JSON escapes included.
pub(crate) const MAX_RESPONSE_BYTES: usize = 2 * 1024 * 1024;

/// The kind of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SearchKind {
    /// Files by name.
    Glob,
    /// Lines by a regular expression.
    Grep,
}

/// One search.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SearchRequest {
    /// The kind.
    pub(crate) kind: SearchKind,
    /// The path of the workspace.
    pub(crate) workspace: PathBuf,
    /// The model's arguments, valid against the tool's schema.
    pub(crate) arguments: Value,
}

/// The text for the model, or the failure.
pub(crate) type SearchResult = Result<String, ToolFailure>;
