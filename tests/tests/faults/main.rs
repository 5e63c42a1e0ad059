//! Fault tests: the real `gantry` on the real engine, while everything below it dies, hangs, fills up or is removed.
//! After every fault the same invariants are checked (`invariants.rs`): no job lost, none run twice, nothing left over.
//! docs/faults.md lists the test of each fault. The tests fail, and are never skipped, when the engine, the image or
//! permissions are missing.

#[cfg(test)]
mod containers;
#[cfg(test)]
mod database;
#[cfg(test)]
mod engines;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod load;
#[cfg(test)]
mod random_walk;
#[cfg(test)]
mod routines;
#[cfg(test)]
mod schedule;
#[cfg(test)]
mod setup;
