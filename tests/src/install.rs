//! An install as an operator has it: the real `gantry` as a process, the real engine, a data directory and an address.
//!
//! Owns starting, killing and ending it without leftovers. Never looks into the process.

pub mod engine;
pub mod jobs;
pub mod program;
pub mod stack;
