//! Files of a job's workspace, as the public API returns them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The kind of an entry. A symbolic link is reported as such and never followed.
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
    /// The path relative to the workspace. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub path: String,
    /// The entry's kind.
    pub kind: FileKind,
    /// The apparent size; a sparse file takes less.
    pub size_bytes: u64,
    /// When the content last changed.
    pub modified_at: DateTime<Utc>,
    /// Permissions in octal, such as `0644`.
    pub mode: String,
}

/// The result of `PUT …/archive`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unpacked {
    /// Files, directories and links.
    pub entries: u64,
    /// Content of the files.
    pub size_bytes: u64,
}
