//! Searching the workspace for `glob` and `grep`, in a process of its own. Contents only.
//!
//! A workspace is hostile: a search may hang in it, or need more memory than there is. As a child process it can be
//! killed, and the kernel takes it before the worker when memory runs out.

mod child;
mod find;
mod ignore_rules;
mod request;
mod walk;

#[cfg(test)]
mod tests;

pub(crate) use child::SUBCOMMAND;
pub use child::run;
#[cfg(test)]
pub(crate) use find::answer;
pub(crate) use request::{MAX_ANSWER_BYTES, SearchKind, SearchRequest, SearchResult};
