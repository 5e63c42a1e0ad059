//! Stories: the behaviour of a whole orchestrator as users, workers and the engine see it.

#[cfg(test)]
mod access;
#[cfg(test)]
mod api;
#[cfg(test)]
mod chat;
#[cfg(test)]
mod hooks;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod mcp;
#[cfg(test)]
mod models;
#[cfg(test)]
mod notifications;
#[cfg(test)]
mod routines;
#[cfg(test)]
mod server;
#[cfg(test)]
mod source;
#[cfg(test)]
mod tools;
#[cfg(test)]
mod worker_api;
#[cfg(test)]
mod workspaces;
