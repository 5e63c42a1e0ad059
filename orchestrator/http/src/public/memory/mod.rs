//! Memory: a user's documents; one endpoint per file. Contents only.

mod delete;
mod document;
mod get;
mod put;
mod routes;
mod search;
mod tree;
mod versions;

pub(super) use routes::routes;
