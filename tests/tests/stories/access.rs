//! Stories of users and their workers: who may do what, and what is kept for them and from them.

mod audit;
mod browser_sessions;
mod identity;
pub(crate) mod leaks;
mod secrets;
mod session;
mod settings;
mod tool_policy;
mod user_storage;
