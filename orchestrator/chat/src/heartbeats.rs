//! Runs the heartbeats of main sessions: reads the users whose heartbeat may be due, and begins those that are.
//!
//! The rows are the truth: a wake carries no data, and a request that comes before this runs is found when it does.
//! Owns how many heartbeats there are at once. Never decides when one is due: `domain::heartbeat` does.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::engine::{ActiveTurn, ChatEngine};
use base::{Zone, clock::Clock, per_user_semaphore::PerUserSemaphore};
use domain::heartbeat::{HeartbeatDecision, HeartbeatFacts, interval};
use store::{DeferredHeartbeat, DueHeartbeat, Store, StoreError};

/// Maximum time between two polls, so that a clock that was set is noticed. Without due heartbeats a poll reads one
/// index entry.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Minimum time between two polls.
const MIN_WAIT: Duration = Duration::from_millis(10);
/// Maximum number of users that one poll decides on.
const BATCH: u32 = 100;
/// When a user whose settings cannot be read is polled again.
const UNREADABLE_RETRY: TimeDelta = TimeDelta::hours(1);
/// When a heartbeat that could not begin is tried again.
const BEGIN_RETRY: TimeDelta = TimeDelta::seconds(1);
/// The same after an error: what is stored may be the cause.
const FAILED_BEGIN_RETRY: TimeDelta = TimeDelta::minutes(1);
/// Time for heartbeats in progress to end once the process drains; less than the process gives its tasks.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatSettings {
    /// Whether the environment lets Gantry start work by itself.
    pub enabled: bool,
    /// Seconds between two heartbeats of users who have chosen no other interval; 0 for none.
    pub every_seconds: u64,
    /// Heartbeats in progress at once; one of each user.
    pub max_concurrent: u32,
}

/// Runs the heartbeats of main sessions.
pub struct Heartbeats {
    engine: Arc<ChatEngine>,
    settings: HeartbeatSettings,
    permits: PerUserSemaphore,
}

impl Heartbeats {
    /// A runner that has begun nothing yet.
    pub fn new(engine: Arc<ChatEngine>, settings: HeartbeatSettings) -> Self {
        let permits = PerUserSemaphore::new(settings.max_concurrent as usize, 1);
        Self { engine, settings, permits }
    }

    /// Runs until the drain fires; heartbeats in progress then have a moment to end. The next process begins the others
    /// again.
    pub async fn run(self, drain: CancellationToken) {
        if !self.settings.enabled {
            return drain.cancelled().await;
        }
        let mut running = JoinSet::new();
        let notifier = Arc::clone(self.store().event_notifier());
        let mut is_noted = false;
        while !drain.is_cancelled() {
            let look = async {
                if !is_noted {
                    self.store().sync_default_interval(self.settings.every_seconds, self.clock().now()).await?;
                    is_noted = true;
                }
                self.look(&mut running).await
            };
            let wait = look.await.unwrap_or_else(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "the due heartbeats could not be read");
                MAX_WAIT
            });
            tokio::select! {
                () = notifier.heartbeats.notified() => tokio::time::sleep(MIN_WAIT).await,
                Some(_) = running.join_next() => {}
                () = tokio::time::sleep(wait) => {}
                () = drain.cancelled() => {}
            }
        }
        let all_ended = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, all_ended).await.is_err() {
            tracing::warn!(heartbeats = running.len(), "drain timeout: heartbeats were still in progress");
        }
    }

    /// Begins the heartbeats that are due, as far as there are permits, and returns how long to wait for the next poll.
    async fn look(&self, running: &mut JoinSet<()>) -> Result<Duration, StoreError> {
        if !self.store().heartbeats_enabled().await? {
            return Ok(MAX_WAIT);
        }
        let now = self.clock().now();
        let due = self.store().due_heartbeats(now, BATCH).await?;
        let (mut deferred, mut is_full) = (Vec::new(), false);
        for one in due {
            match self.decide(&one, now) {
                HeartbeatDecision::Begin if running.len() >= self.settings.max_concurrent as usize => is_full = true,
                HeartbeatDecision::Begin => {
                    if let Some(retry) = self.begin(&one, now, running).await {
                        deferred.push(defer(one, Some(now + retry)));
                    }
                }
                HeartbeatDecision::Wait(until) => deferred.push(defer(one, Some(until))),
                HeartbeatDecision::Off | HeartbeatDecision::NoWork => deferred.push(defer(one, None)),
            }
        }
        if !deferred.is_empty() {
            self.store().defer_heartbeats(deferred, self.settings.every_seconds, now).await?;
        }
        // Those that are due wait for a permit.
        if is_full {
            return Ok(MAX_WAIT);
        }
        let next = self.store().next_heartbeat_check().await?;
        let wait = next.map_or(MAX_WAIT, |next| (next - self.clock().now()).to_std().unwrap_or_default());
        Ok(wait.clamp(MIN_WAIT, MAX_WAIT))
    }

    fn decide(&self, due: &DueHeartbeat, now: DateTime<Utc>) -> HeartbeatDecision {
        let Some(settings) = &due.settings else {
            tracing::error!(user = %due.user, "the settings of a user cannot be read; they have no heartbeat");
            return HeartbeatDecision::Wait(now + UNREADABLE_RETRY);
        };
        let facts = HeartbeatFacts {
            every: interval(settings, self.settings.every_seconds),
            quiet_hours: settings.quiet_hours,
            zone: settings.zone_name().parse().unwrap_or(Zone::UTC),
            has_work: due.has_work,
            since: due.since.unwrap_or(now),
            requested_at: due.requested_at,
            is_busy: due.is_busy,
        };
        facts.decide(now)
    }

    /// Begins a heartbeat. If it could not begin: after how long to try again.
    async fn begin(&self, due: &DueHeartbeat, now: DateTime<Utc>, running: &mut JoinSet<()>) -> Option<TimeDelta> {
        let Some(permit) = self.permits.try_acquire(&due.user) else { return Some(BEGIN_RETRY) };
        match self.store().begin_heartbeat(&due.user, due.rev, now).await {
            Ok(Some(started)) => {
                let (thread, user) = (started.turn.key.thread, due.user.clone());
                let active = ActiveTurn::begin(&self.engine, thread, user, permit);
                running.spawn(async move { active.engine.process_heartbeat(started, &active.stop).await });
                None
            }
            Ok(None) => Some(BEGIN_RETRY),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(user = %due.user, error, "a heartbeat could not begin");
                Some(FAILED_BEGIN_RETRY)
            }
        }
    }

    fn store(&self) -> &Store {
        &self.engine.parts.store
    }

    fn clock(&self) -> &Clock {
        &self.engine.parts.clock
    }
}

fn defer(due: DueHeartbeat, check_at: Option<DateTime<Utc>>) -> DeferredHeartbeat {
    DeferredHeartbeat { user: due.user, rev: due.rev, check_at, has_work: due.has_work }
}
