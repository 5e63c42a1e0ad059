//! The programs, one per file, and what each is given.

pub(crate) mod api;
pub(crate) mod contain;
pub(crate) mod events;
pub(crate) mod footprint;
pub(crate) mod gateway;
pub(crate) mod job_burst;
pub(crate) mod job_end;
pub(crate) mod job_start;
pub(crate) mod replay;
pub(crate) mod soak;
pub(crate) mod turn;

use crate::{containers::Destroyed, report::Report, stack::Stack, upstream::Upstream};

/// What a program works with.
pub(crate) struct Bench {
    /// The Gantry that is measured.
    pub(crate) stack: Stack,
    /// The model provider, for a program that brings one.
    pub(crate) upstream: Option<Upstream>,
    /// When containers were destroyed.
    pub(crate) destroyed: Destroyed,
    /// Where the figures go.
    pub(crate) report: Report,
    /// How often.
    pub(crate) runs: u32,
    /// How long, for what goes on for a time.
    pub(crate) minutes: u32,
}
