//! The programs, one per file, and what each is given.

pub(crate) mod footprint;
pub(crate) mod job_end;
pub(crate) mod job_start;
pub(crate) mod turn;

use crate::{containers::Destroyed, report::Report, stack::Stack};

/// What a program works with.
pub(crate) struct Bench {
    /// The Gantry that is measured.
    pub(crate) stack: Stack,
    /// When containers were destroyed.
    pub(crate) destroyed: Destroyed,
    /// Where the figures go.
    pub(crate) report: Report,
    /// How often.
    pub(crate) runs: u32,
}
