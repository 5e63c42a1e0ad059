//! The error of every operation on a workspace's files.
//!
//! Each variant is one that a caller reports differently. Never maps to HTTP: the API does.

use std::io;

/// An operation on a workspace's files failed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// No entry has this path.
    #[error("no such file or directory")]
    NotFound,
    /// The path names something other than a readable regular file; the text says what.
    #[error("{0}")]
    NotAFile(&'static str),
    /// A component of the path is not a directory.
    #[error("a component of the path is a file or a symbolic link; links are not followed")]
    NotADirectory,
    /// A limit of the workspace or of an archive is exceeded; the text says which.
    #[error("{0}")]
    TooLarge(String),
    /// An archive was rejected because of one entry.
    #[error("{entry}: {reason}")]
    RejectedEntry {
        /// The entry's path as the archive gives it, without control characters and cut to a bounded length.
        entry: String,
        /// Why it is not accepted.
        reason: &'static str,
    },
    /// Not an archive, or a truncated one.
    #[error("{0}")]
    MalformedArchive(String),
    /// The deadline passed, or the operation was cancelled.
    #[error("timed out: the workspace has too many entries")]
    TimedOut,
    /// A directory's mode keeps the orchestrator's user out, which happens only without root.
    #[error("a directory of the workspace is not readable by the orchestrator, which does not run as root")]
    PermissionDenied,
    /// The file system has less free space than its floor, or none.
    #[error("{0}")]
    NoSpace(String),
    /// The job has an upload already.
    #[error("another upload to this job is in progress; retry when it has finished")]
    UploadInProgress,
    /// The staging space is used up; the text says whether it is the user's share or the total.
    #[error("{0}; retry when an upload has finished")]
    StagingFull(&'static str),
    /// Any other I/O error.
    #[error("file system error")]
    Io(#[source] io::Error),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename => Self::NotFound,
            io::ErrorKind::NotADirectory => Self::NotADirectory,
            io::ErrorKind::PermissionDenied => Self::NotAFile("permission denied"),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace("the server's disk is full; try again later".to_owned())
            }
            io::ErrorKind::IsADirectory => Self::NotAFile("the path is a directory"),
            _ => Self::Io(error),
        }
    }
}

impl From<rustix::io::Errno> for FileError {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}
