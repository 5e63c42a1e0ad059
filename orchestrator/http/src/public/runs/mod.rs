//! Runs of all routines; one endpoint per file. Contents only.

mod actions;
mod cancel;
mod get;
mod list;
mod routes;

pub(super) use routes::routes;
