//! Files of a job's workspace as the public API shows them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// What is there. A symbolic link is told as such and never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    /// A FIFO, a socket, a device.
    Other,
}

/// One entry of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileEntry {
    /// Relative to the workspace. What is not UTF-8 in it is shown as U+FFFD.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// As it claims: a file with holes takes less.
    pub size_bytes: u64,
    /// When its content last changed.
    pub modified_at: DateTime<Utc>,
    /// Permissions in octal, such as `0644`.
    pub mode: String,
}

/// What `PUT …/archive` unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unpacked {
    /// Files, directories and links.
    pub entries: u64,
    /// Content of the files.
    pub size_bytes: u64,
}
