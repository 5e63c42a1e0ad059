//! Records for tests: an ordinary job in a given state.

use std::{collections::BTreeMap, sync::Arc};

use chrono::{DateTime, Utc};
use protocol::{JobId, JobMode, JobResult, JobState, Limits, Metadata, Placement, Source, Usage};

use super::{Activity, Brief, End, Finished, JobRecord, Queued, Running, Stage, Step, WorkerSession};

/// Noon.
pub fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_348_800, 0).unwrap_or_default()
}

/// The brief of an ordinary job.
pub fn brief() -> Brief {
    Brief {
        user_id: "a".to_owned(),
        title: "t".to_owned(),
        prompt: "p".to_owned(),
        note: None,
        mode: JobMode::Worker,
        placement: Placement::Container,
        priority: 0,
        labels: BTreeMap::new(),
        metadata: Metadata::default(),
        limits: Limits::default(),
        tools: None,
        approve: vec![],
        egress: None,
        delimiter_nonce: None,
        image: "i".to_owned(),
        model: "m".to_owned(),
        effort: None,
        plan: false,
        review: false,
        source: Source::Api,
        routine: None,
        restarted_from: None,
        parent_id: None,
        depth: 0,
        created_at: now(),
        traceparent: None,
    }
}

/// The facts of an ordinary attempt.
pub fn running(activity: Activity) -> Running {
    Running {
        token_hash: Some("h".to_owned()),
        lease_expires_at: None,
        calls_before_attempt: 0,
        worker_seen_at: None,
        activity,
        reported: None,
    }
}

/// An ordinary job; one that runs is in its first attempt.
pub fn job(state: JobState) -> JobRecord {
    let ended =
        |end| Stage::Finished(Finished { end, at: now(), reason: None, message: None, result: None, cancel: None });
    let current = match state {
        JobState::Pending => Stage::Queued(Queued::default()),
        JobState::InProgress => Stage::Running(running(Activity::Working)),
        JobState::Stuck => Stage::Running(running(Activity::Stuck { message: "silent".to_owned() })),
        JobState::Submitted => {
            Stage::Submitted { result: JobResult { text: Some("done".to_owned()), ..JobResult::default() } }
        }
        JobState::Completed => ended(End::Completed),
        JobState::Accepted => ended(End::Accepted),
        JobState::Failed => ended(End::Failed),
        JobState::Cancelled => ended(End::Cancelled),
    };
    let open = matches!(current, Stage::Running(_));
    JobRecord {
        id: JobId::generate(),
        rev: 7,
        brief: Arc::new(brief()),
        stage: current,
        attempt: u32::from(open),
        repair_attempts: 0,
        started_at: open.then(now),
        last_activity_at: None,
        container: None,
        session: WorkerSession::default(),
        session_rejected: false,
        prompts_closed: false,
        usage: Usage::default(),
    }
}

impl JobRecord {
    /// A transition to any stage, without an event.
    pub fn step_to(self, stage: Stage) -> Step {
        Step::new(self.with_stage(stage), vec![])
    }

    /// The brief, to be changed.
    pub fn brief_mut(&mut self) -> &mut Brief {
        Arc::make_mut(&mut self.brief)
    }

    /// With another brief.
    #[must_use]
    pub fn with_brief(mut self, change: impl FnOnce(&mut Brief)) -> Self {
        change(self.brief_mut());
        self
    }

    /// The attempt's facts, to be changed.
    ///
    /// # Panics
    /// If the job is not running.
    pub fn running_mut(&mut self) -> &mut Running {
        match &mut self.stage {
            Stage::Running(running) => running,
            other => panic!("not running: {other:?}"),
        }
    }
}
