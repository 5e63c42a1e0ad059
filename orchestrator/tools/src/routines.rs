//! Tools for routines, one per file. Contents only.

mod access;
mod create;
mod definition;
mod delete;
mod fire;
mod history;
mod list;
mod refusal;
mod update;

pub(super) use access::{NAMES_FOR_JOBS, routine_tools};
