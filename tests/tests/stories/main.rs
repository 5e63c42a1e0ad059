//! The stories: what a user, a worker and an engine see of a whole orchestrator, told at the boundary.

#[cfg(test)]
mod create;
