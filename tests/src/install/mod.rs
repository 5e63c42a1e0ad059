//! An install as an operator has it: the real `gantry` as a process, the real engine, a data folder and an address of its
//! own.
//!
//! Owns starting, killing and ending one, and that it leaves nothing behind. Never looks into the process.

pub mod engine;
pub mod program;
pub mod stack;
