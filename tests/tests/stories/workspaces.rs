//! Stories of workspaces: files of jobs and parts of them, archives, changes and disk limits.

mod archives;
mod changes;
mod disk;
mod files;
mod parts;
