//! Tools for the owner's memory, one per file. Contents only.

mod access;
mod read;
mod search;
mod tree;
mod write;

pub(super) use access::memory_tools;
