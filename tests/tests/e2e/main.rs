//! The end-to-end ring: the real `gantry` as a process, the real engine, the real job image. Fails, and never skips, when
//! one of them is missing.
//!
//! Each story has a stack of its own: an instance id, a data folder and an address, and leaves nothing behind.

#[cfg(test)]
mod cancel;
#[cfg(test)]
mod closed;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod endings;
#[cfg(test)]
mod files;
#[cfg(test)]
mod first_light;
#[cfg(test)]
mod inside;
#[cfg(test)]
mod own_process;
#[cfg(test)]
mod prompts;
#[cfg(test)]
mod repair;
#[cfg(test)]
mod resume;

#[cfg(test)]
use tests::install::{engine, program, stack};
