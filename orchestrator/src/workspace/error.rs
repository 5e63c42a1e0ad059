//! Why a workspace's files are not read or written, as far as the one who asked can do something about it.

use std::io;

/// It was not done.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is no such entry.
    #[error("there is no such file or directory")]
    Missing,
    /// Something else is where a file is asked for.
    #[error("{0}")]
    NotAFile(&'static str),
    /// Something else is where a directory is asked for.
    #[error("a part of the path is a file or a link; links are not followed")]
    NotADirectory,
    /// It does not fit.
    #[error("{0}")]
    TooLarge(String),
    /// One entry of an archive must not be.
    #[error("{entry}: {rule}")]
    Refused {
        /// As the archive names it, harmless to show.
        entry: String,
        /// Why.
        rule: &'static str,
    },
    /// It is no archive, or not a whole one.
    #[error("{0}")]
    Malformed(String),
    /// It was given up: it took too long, or nobody waited for it any more.
    #[error("it took too long; the workspace has too many entries")]
    TooSlow,
    /// The orchestrator's own user may not look into a folder (it does not run as root).
    #[error("a folder of the workspace cannot be read by the orchestrator, which does not run as root")]
    NotReadable,
    /// The file system is full, or nearly so.
    #[error("{0}")]
    NoSpace(String),
    /// Another upload into the same job.
    #[error("another upload to this job is under way; send this one when it is done")]
    UploadUnderWay,
    /// Uploads take all of a share.
    #[error("{0}; try again when one of them is done")]
    Busy(&'static str),
    /// The machine.
    #[error("file system")]
    Io(#[source] io::Error),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename => Self::Missing,
            io::ErrorKind::NotADirectory => Self::NotADirectory,
            io::ErrorKind::PermissionDenied => Self::NotAFile("its permissions do not allow it"),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace("the server's disk is full; try again later".to_owned())
            }
            io::ErrorKind::IsADirectory => Self::NotAFile("it is a directory"),
            _ => Self::Io(error),
        }
    }
}

impl From<rustix::io::Errno> for FileError {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}
