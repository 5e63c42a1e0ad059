//! Routines: their definitions and firings; one endpoint per file. Contents only.

mod create;
mod delete;
mod get;
mod list;
mod patch;
mod problem;
mod routes;
mod runs;
mod summary;
mod switch;
mod trigger;
mod upcoming;

pub(super) use routes::routes;
