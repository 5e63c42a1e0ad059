//! The part of a job that never changes after it is created.

use std::collections::BTreeMap;

use agent::safety::DelimiterNonce;
use chrono::{DateTime, Utc};
use protocol::{Effort, Egress, EgressView, JobId, JobMode, Limits, Metadata, Placement, RoutineId, RunId, Source};

/// The run of a routine that a job is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLink {
    pub routine: RoutineId,
    pub run: RunId,
}

/// The values a job was created with. Immutable.
#[derive(Debug, Clone, PartialEq)]
pub struct Brief {
    pub user_id: String,
    pub title: String,
    pub prompt: String,
    /// What its agent is told of the job that it continues, after the prompt.
    pub note: Option<String>,
    /// How the worker carries out the task.
    pub mode: JobMode,
    pub placement: Placement,
    /// Higher is served first within the owner's queue.
    pub priority: i32,
    /// Labels, for filters.
    pub labels: BTreeMap<String, String>,
    /// Stored for the client, never interpreted.
    pub metadata: Metadata,
    /// Its limits, after the ceilings were applied.
    pub limits: Limits,
    /// The tools it may use; `None` is all that are offered.
    pub tools: Option<Vec<String>>,
    /// Tools with requirement `always` that a person has approved for it.
    pub approve: Vec<String>,
    /// The hosts that it may reach, as they were requested.
    pub egress: Option<Egress>,
    /// Of the markers around tool results in what its model reads: the same in all attempts, so that a provider's cache
    /// finds their common beginning.
    pub delimiter_nonce: Option<DelimiterNonce>,
    /// The image of its containers.
    pub image: String,
    pub model: String,
    /// How much the model thinks; the operator's default if it is not said.
    pub effort: Option<Effort>,
    /// Whether the agent plans first.
    pub plan: bool,
    /// Whether a person accepts or rejects the result.
    pub review: bool,
    pub source: Source,
    /// The run of a routine that it is for.
    pub routine: Option<RunLink>,
    /// The job whose files it continues with.
    pub restarted_from: Option<JobId>,
    /// The job whose tool created it.
    pub parent_id: Option<JobId>,
    /// Number of ancestors.
    pub depth: u32,
    pub created_at: DateTime<Utc>,
    /// W3C trace context of the request that created it.
    pub traceparent: Option<String>,
}

impl Brief {
    /// What its agent is told to do: the prompt, and the note.
    pub fn task(&self) -> String {
        format!("{}{}", self.prompt, self.note.as_deref().unwrap_or_default())
    }

    /// The hosts that the job's tools may reach.
    pub fn egress_view(&self) -> EgressView {
        let allow = self.egress.as_ref().map(|egress| egress.allow.clone()).unwrap_or_default();
        EgressView { enabled: !allow.is_empty(), allow }
    }
}
