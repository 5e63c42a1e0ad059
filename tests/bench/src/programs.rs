//! The benchmark programs, one per file, and the context they share.

pub(crate) mod agent_loop;
pub(crate) mod api;
pub(crate) mod chat;
pub(crate) mod contain;
pub(crate) mod events;
pub(crate) mod footprint;
pub(crate) mod gateway;
pub(crate) mod job_burst;
pub(crate) mod job_end;
pub(crate) mod job_start;
pub(crate) mod memory;
pub(crate) mod replay;
pub(crate) mod routines;
pub(crate) mod soak;
pub(crate) mod tool_call;

use crate::{containers::DestroyEvents, report::Report, stack::Stack, upstream::Upstream};

/// The context of a program.
pub(crate) struct Bench {
    /// The Gantry under test.
    pub(crate) stack: Stack,
    /// The model provider, for programs that need one.
    pub(crate) upstream: Option<Upstream>,
    /// The engine's destroy events.
    pub(crate) destroyed: DestroyEvents,
    /// The results.
    pub(crate) report: Report,
    /// Number of runs; see each program.
    pub(crate) runs: u32,
    /// Duration, for programs that run for a given time.
    pub(crate) minutes: u32,
    /// Whether the program only has to prove that it runs.
    pub(crate) smoke: bool,
}

impl Bench {
    /// The size of a measurement, or that of a smoke run.
    pub(crate) fn size<T>(&self, full: T, smoke: T) -> T {
        if self.smoke { smoke } else { full }
    }
}
