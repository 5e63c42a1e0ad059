//! Workspaces: the directories that jobs work in. Contents only.

mod baseline;
mod changes;
mod dir;
mod error;
mod file_work;
mod files;
mod free_space;
mod provisional;
mod quota;
mod retention;
mod search;
mod sparse_copy;
mod tar_stream;
mod uploads;
mod workspaces;

pub use changes::Comparison;
pub use dir::cutoff::Cutoff;
pub use error::FileError;
pub use file_work::FileWork;
pub use files::{DirPage, OpenFile};
pub use free_space::{DiskSpace, FreeSpace, ReadDiskSpace};
pub use protocol::WorkspacePath;
pub use quota::{DiskUsage, Quota};
pub use retention::{RetentionPeriod, RetentionSweep, remove_container_logs};
pub use search::NameSearch;
pub use tar_stream::TarStream;
pub use uploads::{Upload, UploadRegistry, staging::StagingDir};
pub use workspaces::{WorkspaceError, Workspaces};

/// The permissions of a mode that are kept when a file is copied or packed: no setuid, setgid or sticky bit.
const PERMISSION_BITS: u32 = 0o777;
