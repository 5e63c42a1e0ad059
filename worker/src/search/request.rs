//! The request that a search process reads from its standard input, and the result that it writes to its standard output.

use std::path::PathBuf;

use protocol::ToolFailure;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// More than a result within its own limits can have, JSON's escapes included.
pub(crate) const MAX_ANSWER_BYTES: usize = 2 * 1024 * 1024;

/// The kinds of search.
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
    /// Which search.
    pub(crate) kind: SearchKind,
    /// The workspace, as the container's environment names it.
    pub(crate) workspace: PathBuf,
    /// As the model gave them, valid against the tool's schema.
    pub(crate) arguments: Value,
}

/// The text for the model, or the failure.
pub(crate) type SearchResult = Result<String, ToolFailure>;
