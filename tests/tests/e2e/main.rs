//! End-to-end tests: the real `gantry` as a process, the real engine, the real job image. They fail, and are never
//! skipped, when one of them is missing.
//!
//! Each test has its own instance id, data directory and address, and leaves nothing behind.

#[cfg(test)]
mod approvals;
#[cfg(test)]
mod cancel;
#[cfg(test)]
mod children;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod egress;
#[cfg(test)]
mod endings;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod files;
#[cfg(test)]
mod first_light;
#[cfg(test)]
mod inside;
#[cfg(test)]
mod no_sandbox;
#[cfg(test)]
mod own_process;
#[cfg(test)]
mod prompts;
#[cfg(test)]
mod repair;
#[cfg(test)]
mod resume;
#[cfg(test)]
mod routines;
#[cfg(test)]
mod terminal;

#[cfg(test)]
use tests::install::{engine, jobs, program, stack};
