//! An open job as the dispatcher keeps it in memory: what a plan needs of its record, without the texts of its user.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use protocol::{ContainerInfo, JobId, Placement};

use super::{Activity, JobRecord, JobVersion, Queued, Running, Stage};

/// The facts about a job that is queued or running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenJob {
    pub id: JobId,
    pub rev: i64,
    pub user: Arc<str>,
    pub placement: Placement,
    pub priority: i32,
    pub parent: Option<JobId>,
    pub timeout_seconds: u64,
    /// Number of the latest attempt; 0 before the first.
    pub attempt: u32,
    pub repair_attempts: u32,
    pub stage: OpenStage,
    /// The container of the latest attempt.
    pub container: Option<AttemptContainer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenStage {
    Queued {
        /// Not started until it is released.
        held: bool,
        /// Not started before this time: backoff between attempts.
        not_before: Option<DateTime<Utc>>,
    },
    Running {
        /// The attempt's worker has called at least once.
        has_worker_called: bool,
        activity: OpenActivity,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenActivity {
    Working,
    Stuck {
        /// The dispatcher's own explanation.
        message: String,
    },
    /// It is to be cancelled.
    Stopping,
}

/// The container of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptContainer {
    pub name: String,
    /// Its exit code, and whether its worker was killed since it ran out of memory, once they are recorded.
    pub exit: Option<(i64, bool)>,
}

impl AttemptContainer {
    pub fn of(container: &ContainerInfo) -> Self {
        Self { name: container.name.clone(), exit: container.exit_code.zip(container.oom_killed) }
    }
}

impl OpenActivity {
    fn of(activity: &Activity) -> Self {
        match activity {
            Activity::Working => Self::Working,
            Activity::Stuck { message } => Self::Stuck { message: message.clone() },
            Activity::Stopping { .. } => Self::Stopping,
        }
    }
}

impl OpenStage {
    /// `None` for a job that is not open.
    pub fn of(stage: &Stage) -> Option<Self> {
        match stage {
            Stage::Queued(Queued { held, not_before, .. }) => {
                Some(Self::Queued { held: *held, not_before: *not_before })
            }
            Stage::Running(Running { worker_seen_at, activity, .. }) => Some(Self::Running {
                has_worker_called: worker_seen_at.is_some(),
                activity: OpenActivity::of(activity),
            }),
            Stage::Submitted { .. } | Stage::Finished(_) => None,
        }
    }
}

impl JobRecord {
    /// The facts about it while it is open.
    pub fn to_open(&self) -> Option<OpenJob> {
        let brief = &self.brief;
        Some(OpenJob {
            id: self.id,
            rev: self.rev,
            user: brief.user_id.as_str().into(),
            placement: brief.placement,
            priority: brief.priority,
            parent: brief.parent_id,
            timeout_seconds: brief.limits.timeout_seconds,
            attempt: self.attempt,
            repair_attempts: self.repair_attempts,
            stage: OpenStage::of(&self.stage)?,
            container: self.container.as_ref().map(AttemptContainer::of),
        })
    }
}

impl OpenJob {
    /// Whether an attempt runs.
    pub const fn is_running(&self) -> bool {
        matches!(self.stage, OpenStage::Running { .. })
    }

    /// Whether it is held in the queue until it is released.
    pub const fn is_held(&self) -> bool {
        matches!(self.stage, OpenStage::Queued { held: true, .. })
    }

    pub const fn is_stuck(&self) -> bool {
        matches!(self.stage, OpenStage::Running { activity: OpenActivity::Stuck { .. }, .. })
    }

    /// Why it is stuck, if it is.
    pub fn stuck_message(&self) -> Option<&str> {
        match &self.stage {
            OpenStage::Running { activity: OpenActivity::Stuck { message }, .. } => Some(message),
            _ => None,
        }
    }

    /// Whether it runs and is to be cancelled.
    pub const fn is_stopping(&self) -> bool {
        matches!(self.stage, OpenStage::Running { activity: OpenActivity::Stopping, .. })
    }

    pub const fn has_worker_called(&self) -> bool {
        matches!(self.stage, OpenStage::Running { has_worker_called: true, .. })
    }

    /// Whether the orchestrator runs its loop itself.
    pub const fn is_on_host(&self) -> bool {
        matches!(self.placement, Placement::Host)
    }

    pub const fn version(&self) -> JobVersion {
        JobVersion { rev: self.rev, has_worker_called: self.has_worker_called() }
    }
}
