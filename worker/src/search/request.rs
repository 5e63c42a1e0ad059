//! What the worker asks of a search process over its standard input, and what that answers over its standard output.

use std::path::PathBuf;

use protocol::ToolFailure;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// More than a result within its own limits can have, JSON's escapes included.
pub(crate) const MAX_ANSWER_BYTES: usize = 2 * 1024 * 1024;

/// Which search.
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
    /// Which.
    pub(crate) kind: SearchKind,
    /// The workspace, as the container's environment names it.
    pub(crate) workspace: PathBuf,
    /// As the model gave them, valid against the tool's schema.
    pub(crate) arguments: Value,
}

/// Text for the model, or why there is none.
pub(crate) type SearchResult = Result<String, ToolFailure>;
