//! Child jobs, created by a job's tool: their number, depth and owner. The tool does not exist yet; until then only tests
//! create children.

use protocol::{JobState, Source};

use super::{Brief, JobRecord};

/// Ancestors that a job may have (contract: jobs, Budgets).
pub const MAX_DEPTH: u32 = 3;
/// Maximum number of children of a job, in addition to its own limit.
pub const MAX_CHILDREN: u32 = 10;

/// Why a child is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChildRefused {
    /// The job does not run, or is to be cancelled.
    #[error("a job that is {0} cannot create children")]
    NotRunning(JobState),
    /// It has reached its limit of children.
    #[error("the job has its limits.max_children = {0}")]
    LimitReached(u32),
    /// It is at the maximum depth.
    #[error("child jobs can be nested at most {MAX_DEPTH} deep")]
    TooDeep,
}

impl JobRecord {
    /// Makes `child` a child of this job, which has `children` already: same owner, one deeper, within this job's budgets.
    pub fn adopt(&self, mut child: Self, children: u32) -> Result<Self, ChildRefused> {
        if !self.is_running() || self.is_stopping() {
            return Err(ChildRefused::NotRunning(self.state()));
        }
        let max_children = self.brief.limits.max_children.min(MAX_CHILDREN);
        if children >= max_children {
            return Err(ChildRefused::LimitReached(max_children));
        }
        if self.brief.depth >= MAX_DEPTH {
            return Err(ChildRefused::TooDeep);
        }
        child.brief = std::sync::Arc::new(Brief {
            parent_id: Some(self.id),
            depth: self.brief.depth + 1,
            user_id: self.brief.user_id.clone(),
            source: Source::Tool,
            ..(*child.brief).clone()
        });
        Ok(child)
    }
}
