//! A record for tests: an ordinary job in a given state.

use super::*;

/// Noon.
pub(crate) fn now() -> DateTime<Utc> {
    "2026-11-22T12:00:00Z".parse().unwrap()
}

/// An ordinary job; one that runs is in its first attempt.
pub(crate) fn job(state: JobState) -> JobRecord {
    let open = matches!(state, JobState::InProgress | JobState::Stuck);
    JobRecord {
        id: JobId::generate(),
        rev: 7,
        user_id: "a".to_owned(),
        title: "t".to_owned(),
        prompt: "p".to_owned(),
        mode: JobMode::Worker,
        placement: Placement::Container,
        state,
        reason: None,
        message: None,
        priority: 0,
        labels: BTreeMap::new(),
        metadata: Metadata::default(),
        limits: Limits::default(),
        tools: None,
        image: "i".to_owned(),
        model: "m".to_owned(),
        plan: false,
        review: false,
        source: Source::Api,
        restarted_from: None,
        parent_id: None,
        depth: 0,
        attempt: u32::from(open),
        repair_attempts: 0,
        created_at: now(),
        started_at: open.then(now),
        last_activity_at: None,
        cancel_requested_at: None,
        cancel_message: None,
        cancelled_by_parent: false,
        finished_at: None,
        not_before: None,
        result: None,
        token_hash: open.then(|| "h".to_owned()),
        session: WorkerSession::default(),
        session_rejected: false,
        lease_expires_at: None,
        calls_before_attempt: 0,
        worker_seen_at: None,
        container: None,
        prompts_closed: false,
        held: false,
        traceparent: None,
        usage: Usage::default(),
    }
}
