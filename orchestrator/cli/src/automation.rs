//! Routines, their schedules and runs, and what fires them. Contents only.

pub(crate) mod cron;
pub(crate) mod emit;
pub(crate) mod routine;
pub(crate) mod runs;
pub(crate) mod wake;
