//! The attack tests: the real `gantry` on the real engine, with a hostile job or a hostile user. What is attacked may refuse
//! as it likes; what must hold is that nobody else notices (`verdict.rs`). Fails, and never skips, when engine, image or
//! rights are missing.
//!
//! The tests run one at a time (`.config/nextest.toml`): each measures times and memory.

#[cfg(test)]
mod disk;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod public_api;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod search;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod verdict;
#[cfg(test)]
mod worker_socket;
