//! Workspaces: the folders that jobs work in. Contents only.

mod error;
mod folder;
mod pack;
mod path;
mod retention;
mod room;
mod staging;
mod unborn;
mod unpack;
mod walk;
mod workspaces;

pub use error::FileError;
pub use pack::Pack;
pub use path::WorkspacePath;
pub use retention::{Retention, RetentionSweep};
pub use room::Room;
pub use staging::Staged;
pub use workspaces::{Listing, WorkspaceError, Workspaces};
