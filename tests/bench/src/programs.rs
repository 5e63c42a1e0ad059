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
pub(crate) mod scale;
pub(crate) mod soak;
pub(crate) mod tool_call;

use crate::{
    Failure, containers::DestroyEvents, report::Report, stack::Stack, stand_in_engine::StandInEngine,
    upstream::Upstream,
};

/// The context of a program.
pub(crate) struct Bench {
    /// The Gantry under test.
    pub(crate) stack: Stack,
    /// The model provider, for programs that need one.
    pub(crate) upstream: Option<Upstream>,
    /// The engine's destroy events; none of a stand-in engine.
    pub(crate) destroyed: Option<DestroyEvents>,
    /// The results.
    pub(crate) report: Report,
    /// Number of runs; see each program.
    pub(crate) runs: u32,
    /// Duration, for programs that run for a given time.
    pub(crate) minutes: u32,
    /// Whether the program only has to prove that it runs.
    pub(crate) smoke: bool,
    /// The stand-in engine, for programs without a real one.
    pub(crate) _engine: Option<StandInEngine>,
}

impl Bench {
    /// The engine's destroy events.
    pub(crate) fn destroyed(&mut self) -> Result<&mut DestroyEvents, Failure> {
        self.destroyed.as_mut().ok_or_else(|| "the engine is a stand-in".into())
    }

    /// The size of a measurement, or that of a smoke run.
    pub(crate) fn size<T>(&self, full: T, smoke: T) -> T {
        if self.smoke { smoke } else { full }
    }
}
