//! Chat: threads, their messages and events; one endpoint per file. Contents only.

mod actions;
mod delete;
mod events;
mod history;
mod list;
mod routes;
mod send;
mod stop;
mod stream;
mod thread;

pub(super) use routes::routes;
