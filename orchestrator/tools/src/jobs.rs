//! Tools for jobs, one per file. Contents only.

mod access;
mod cancel;
mod create;
mod events;
mod list;
mod prompt;
mod report;
mod status;
mod wait;

pub use access::JobAccess;
pub(super) use access::{NAMES_FOR_JOBS, job_tools};

#[cfg(test)]
mod tests;
