//! The fault ring: the real `gantry` on the real engine, and everything under it dies, hangs, fills up or is pulled away.
//! After every fault the same check (`after.rs`): no job lost, none run twice, nothing left over. docs/faults.md says
//! which test shows which fault. Fails, and never skips, when engine, image or rights are missing.

#[cfg(test)]
mod after;
#[cfg(test)]
mod containers;
#[cfg(test)]
mod crowds;
#[cfg(test)]
mod database;
#[cfg(test)]
mod engines;
#[cfg(test)]
mod ground;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod walk;
