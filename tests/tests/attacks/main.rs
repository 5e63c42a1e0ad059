//! Attack tests: the real `gantry` on the real engine, with a hostile job or user. The attacked part may refuse
//! requests; other users must not be affected (`verdict.rs`). The tests fail, and are never skipped, when the engine,
//! the image or permissions are missing.
//!
//! They run one at a time (`.config/nextest.toml`): each measures times and memory.

#[cfg(test)]
mod disk;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod public_api;
#[cfg(test)]
mod scenario;
#[cfg(test)]
mod search;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod verdict;
#[cfg(test)]
mod worker_socket;
