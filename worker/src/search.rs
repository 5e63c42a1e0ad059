//! Searches of the workspace for `glob` and `grep`, each in a separate process. Contents only.
//!
//! The workspace is untrusted: a search may hang or exhaust memory. A child process can be killed, and the OOM killer
//! picks it before the worker.

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
pub(crate) use find::search;
pub(crate) use request::{MAX_RESPONSE_BYTES, SearchKind, SearchRequest, SearchResult};
