//! Workspaces: the folders that jobs work in. Contents only.

mod error;
mod folder;
mod pack;
mod path;
mod retention;
mod room;
mod space;
mod staging;
mod unborn;
mod unpack;
mod uploads;
mod walk;
mod workspaces;

pub use error::FileError;
pub use pack::Pack;
pub use path::WorkspacePath;
pub use retention::{Retention, RetentionSweep};
pub use room::{Room, Usage};
pub use space::{FreeSpace, ReadSpace, Space};
pub use staging::Staged;
pub use uploads::{Upload, Uploads};
pub use walk::Cutoff;
pub use workspaces::{Listing, WorkspaceError, Workspaces};
