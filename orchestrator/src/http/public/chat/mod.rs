//! Chat: threads, their messages and events; one endpoint per file. Contents only.

mod delete;
mod history;
mod list;
mod routes;
mod send;
mod stop;
mod thread;

pub(super) use routes::routes;
