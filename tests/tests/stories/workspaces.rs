//! Stories of workspaces: files of jobs, archives, changes and disk limits.

mod archives;
mod changes;
mod disk;
mod files;
