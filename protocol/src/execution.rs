//! What agents work on, and one execution of it: who makes model calls and tool calls, writes documents and causes
//! events.

use std::fmt;

use uuid::Uuid;

use crate::{JobId, RunId, ThreadId};

/// A job, a chat thread or a run of a routine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkId {
    /// A job, whose loop runs in its container or in the orchestrator.
    Job(JobId),
    /// A chat thread.
    Thread(ThreadId),
    /// A lightweight run of a routine.
    Run(RunId),
}

/// One execution of the loop: an attempt of a job or a run, or a turn of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Execution {
    /// What is worked on.
    pub work: WorkId,
    /// The number of the attempt or the turn.
    pub attempt: u32,
}

impl WorkId {
    /// The work of this kind, by its name in [`Self::kind`].
    pub fn of_kind(kind: &str, id: Uuid) -> Option<Self> {
        match kind {
            "job" => Some(Self::Job(JobId::from_uuid(id))),
            "thread" => Some(Self::Thread(ThreadId::from_uuid(id))),
            "run" => Some(Self::Run(RunId::from_uuid(id))),
            _ => None,
        }
    }

    /// The name of its kind: `job`, `thread` or `run`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Job(_) => "job",
            Self::Thread(_) => "thread",
            Self::Run(_) => "run",
        }
    }

    /// The UUID. No two kinds of work share one.
    pub const fn as_uuid(&self) -> &Uuid {
        match self {
            Self::Job(id) => id.as_uuid(),
            Self::Thread(id) => id.as_uuid(),
            Self::Run(id) => id.as_uuid(),
        }
    }

    /// The job, if it is one.
    pub const fn job(self) -> Option<JobId> {
        if let Self::Job(id) = self { Some(id) } else { None }
    }

    /// The thread, if it is one.
    pub const fn thread(self) -> Option<ThreadId> {
        if let Self::Thread(id) = self { Some(id) } else { None }
    }

    /// The run, if it is one.
    pub const fn run(self) -> Option<RunId> {
        if let Self::Run(id) = self { Some(id) } else { None }
    }
}

impl fmt::Display for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.as_uuid())
    }
}

impl From<JobId> for WorkId {
    fn from(id: JobId) -> Self {
        Self::Job(id)
    }
}

impl From<ThreadId> for WorkId {
    fn from(id: ThreadId) -> Self {
        Self::Thread(id)
    }
}

impl From<RunId> for WorkId {
    fn from(id: RunId) -> Self {
        Self::Run(id)
    }
}

impl Execution {
    /// An attempt or a turn of some work.
    pub fn new(work: impl Into<WorkId>, attempt: u32) -> Self {
        Self { work: work.into(), attempt }
    }
}
