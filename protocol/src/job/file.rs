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
    /// The bytes of the path as base64, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// The entry's kind.
    pub kind: FileKind,
    /// The apparent size; a sparse file takes less.
    pub size_bytes: u64,
    /// When the content last changed.
    pub modified_at: DateTime<Utc>,
    /// Permissions in octal, such as `0644`.
    pub mode: String,
}

/// A page of entries: of a directory by name, or those that a search found by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileList {
    /// The entries, in the list's order.
    pub items: Vec<FileEntry>,
    /// The `cursor` of the next page; `null` on the last page.
    pub next_cursor: Option<String>,
    /// Whether a search ended before it had looked at all names: there may be other entries.
    #[serde(default)]
    pub incomplete: bool,
}

/// How a file differs from what it was when the job first started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum FileChangeKind {
    Added,
    Modified,
    Deleted,
}

/// Why a change has no diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiffOmitted {
    /// The content is not UTF-8 text.
    Binary,
    /// The content or the diff is too large, or the diffs of the answer together are, or the earlier content was not kept.
    TooLarge,
}

/// One changed file or link of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileChange {
    /// The path relative to the workspace. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub path: String,
    /// The bytes of the path as base64, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// The kind of change.
    pub change: FileChangeKind,
    /// The size now; null for a deleted file.
    pub size_bytes: Option<u64>,
    /// The size when the job first started; null for an added file.
    pub previous_size_bytes: Option<u64>,
    /// A unified diff of the content.
    pub diff: Option<String>,
    /// Why there is no diff.
    pub diff_omitted: Option<DiffOmitted>,
}

/// What has changed in a workspace since the job first started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileChanges {
    /// By path, at most 1,000, with paths of 1 MiB together.
    pub items: Vec<FileChange>,
    /// Whether there may be other changes: there are more, or the workspace was or is too large to be compared as a whole.
    pub truncated: bool,
    /// Changes that were found and have no room in `items`. There may be others if `truncated`.
    #[serde(default)]
    pub left_out: u64,
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
