//! Child jobs, created by a job's tool: how many, how deep, and when.
//!
//! What a child inherits from its parent is decided in `domain::request`.

use protocol::{JobId, JobState};

use super::JobRecord;

/// Ancestors that a job may have.
pub const MAX_DEPTH: u32 = 3;
/// Maximum number of jobs below a job, in addition to its own limit.
pub(crate) const MAX_CHILDREN: u32 = 10;

/// The parent of a child job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    pub id: JobId,
    /// The number of its ancestors.
    pub depth: u32,
}

/// The jobs below a job, at any depth, and how many it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descendants {
    /// The job's `limits.max_children`.
    pub max_children: u32,
    /// All jobs below it, those that have ended included.
    pub count: u32,
}

/// Why a child is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChildRefused {
    /// The job does not run, or is to be cancelled.
    #[error("a job that is {0} cannot create children")]
    NotRunning(JobState),
    /// This job, or one above it, has reached its limit.
    #[error("limits.max_children = {0} is reached; it counts all jobs below the job that it was set for")]
    LimitReached(u32),
    /// It is at the maximum depth.
    #[error("child jobs can be nested at most {MAX_DEPTH} deep")]
    TooDeep,
}

impl JobRecord {
    /// Itself, as the parent of a child.
    pub fn as_parent(&self) -> Parent {
        Parent { id: self.id, depth: self.brief.depth }
    }

    /// Whether it may create a child now. `trees` are the jobs below it and below each job above it.
    pub fn check_child(&self, trees: &[Descendants]) -> Result<(), ChildRefused> {
        if !self.is_running() || self.is_stopping() {
            return Err(ChildRefused::NotRunning(self.state()));
        }
        if let Some(full) = trees.iter().find(|tree| tree.left() == 0) {
            return Err(ChildRefused::LimitReached(full.max()));
        }
        if self.brief.depth >= MAX_DEPTH {
            return Err(ChildRefused::TooDeep);
        }
        Ok(())
    }

    /// The `max_children` of a child that is created now: what is left of each limit after it, and none at the maximum
    /// depth.
    pub(crate) fn max_children_of_child(&self, trees: &[Descendants]) -> u32 {
        if self.brief.depth + 1 >= MAX_DEPTH {
            return 0;
        }
        trees.iter().map(|tree| tree.left().saturating_sub(1)).min().unwrap_or(0)
    }
}

impl Descendants {
    fn max(self) -> u32 {
        self.max_children.min(MAX_CHILDREN)
    }

    fn left(self) -> u32 {
        self.max().saturating_sub(self.count)
    }
}
