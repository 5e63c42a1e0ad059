//! The way of an agent's events and report into the store: quota, redaction, sequence.
//!
//! Guarantees that no event is stored whose texts were not searched for the owner's secrets. Never limits how fast
//! events come: that is the transport's task.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use protocol::{AgentEvent, CompleteReport, EventData, JobState, LimitName, WorkerEvent, limits::MAX_REPORT_BYTES};

use super::attempts::{
    Attempt, EgressCounts, EgressKind, EventAllowance, LogTails, MAX_EVENT_BYTES, Taken, is_essential,
};
use config::HookPoint;
use domain::job::JobRecord;
use hooks::{HookEvent, Hooks};
use secrets::{DetectorError, LeakDetectors, search};
use store::{Appended, BatchEvent, Store, StoreError};

/// Bytes of an event of egress, at most: a host name with its rule.
const EGRESS_EVENT_BYTES: usize = 1_024;

/// Stores the events of agents. Clones share everything.
#[derive(Clone)]
pub struct EventIngestion {
    pub store: Store,
    /// Find users' secrets.
    pub detectors: LeakDetectors,
    /// Asked about results.
    pub hooks: Arc<Hooks>,
}

/// Events that were not stored.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// The job has written as much as it may.
    #[error("the job's events have reached their limit")]
    QuotaReached,
    /// They could not be searched for secrets.
    #[error(transparent)]
    Unsearched(#[from] DetectorError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl IngestError {
    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::QuotaReached => false,
            Self::Unsearched(error) => error.is_transient(),
            Self::Store(error) => error.is_transient(),
        }
    }
}

impl EventIngestion {
    /// Redacts a batch of `bytes` and stores it: in order, each number once.
    pub async fn append(
        &self,
        attempt: &Attempt,
        now: DateTime<Utc>,
        events: Vec<WorkerEvent>,
        bytes: usize,
    ) -> Result<Appended, IngestError> {
        let key = attempt.key();
        let keeps_all = self.keeps_all_kinds(attempt, bytes).await?;
        let detector = self.detectors.of(&attempt.record().brief.user_id).await?;
        let mut known = attempt.log_tails.lock().await;
        let mut tails = known.clone();
        let (mut tails, batch) = search(bytes, move || {
            let batch = events.into_iter().map(|WorkerEvent { client_seq, data }| {
                let keeps = !tails.has_stored(client_seq) && (keeps_all || is_essential(data.kind()));
                let data = if keeps { tails.redact(&detector, data) } else { Vec::new() };
                BatchEvent { client_seq, data }
            });
            let batch: Vec<BatchEvent> = batch.collect();
            (tails, batch)
        })
        .await?;
        let appended = self.store.append_worker_events(key.job, key.attempt, now, batch).await?;
        if let Appended::Stored { last_client_seq, added_bytes } = appended {
            tails.stored(last_client_seq);
            *known = tails;
            if attempt.limits().event_quota.count_stored(added_bytes) {
                self.record_quota_reached(attempt, now).await?;
            }
        }
        Ok(appended)
    }

    /// Records progress of an attempt. A job that was marked stuck is in progress again.
    pub async fn record_progress(&self, attempt: &Attempt, now: DateTime<Utc>) -> Result<(), StoreError> {
        attempt.record_progress();
        if attempt.record().state() == JobState::Stuck {
            self.store.transition(attempt.key().job, now, None, JobRecord::revive).await?;
        }
        Ok(())
    }

    /// The report as the job's user reads it: without the owner's secrets, and with the text that the hooks let out.
    pub async fn shown_report(
        &self,
        job: &JobRecord,
        mut report: CompleteReport,
    ) -> Result<CompleteReport, DetectorError> {
        let detector = self.detectors.of(&job.brief.user_id).await?;
        let redact = move || {
            detector.redact_report(&mut report);
            report
        };
        let mut report = search(MAX_REPORT_BYTES, redact).await?;
        let event = HookEvent::new(HookPoint::OutboundMessage, &job.brief.user_id).of(job.id);
        if let Some(shown) = self.hooks.replacement(&event, &report.text).await {
            if let Some(partial) = &mut report.partial {
                partial.text.clone_from(&shown);
            }
            report.text = shown;
        }
        Ok(report)
    }

    /// Stores what the log streams of an attempt hold back, before its work is reported as ended.
    pub async fn finish_logs(&self, attempt: &Attempt, now: DateTime<Utc>) -> Result<(), IngestError> {
        let mut tails: tokio::sync::MutexGuard<'_, LogTails> = attempt.log_tails.lock().await;
        if tails.is_empty() {
            return Ok(());
        }
        let (key, detector) = (attempt.key(), self.detectors.of(&attempt.record().brief.user_id).await?);
        for event in tails.finish(&detector) {
            self.store.append_if_live(key.job, key.attempt, now, vec![event.into()]).await?;
        }
        Ok(())
    }

    /// Redacts one event that has no number of its worker and stores it, unless the attempt is over.
    pub async fn append_one(
        &self,
        attempt: &Attempt,
        now: DateTime<Utc>,
        mut event: AgentEvent,
    ) -> Result<(), IngestError> {
        let (key, detector) = (attempt.key(), self.detectors.of(&attempt.record().brief.user_id).await?);
        detector.redact_event(&mut event);
        Ok(self.store.append_if_live(key.job, key.attempt, now, vec![event.into()]).await?)
    }

    /// Counts a decision about a connection of the attempt, and stores the first one of its kind. Returns the counts of
    /// its kind, for what the connection carries.
    pub async fn record_egress(
        &self,
        attempt: &Attempt,
        now: DateTime<Utc>,
        kind: EgressKind,
    ) -> Result<Arc<EgressCounts>, IngestError> {
        let (kind, counts) = attempt.egress.counts_of(kind);
        let mut is_stored = counts.is_stored.lock().await;
        if *is_stored {
            counts.add_repetition();
        } else {
            self.append_egress(attempt, now, vec![kind.event(1, 0, 0)]).await?;
            *is_stored = true;
        }
        drop(is_stored);
        Ok(counts)
    }

    /// Stores what the attempt's connections have added since the last call, and the limit that they have reached. Beyond
    /// the job's quota of log-like events only the last sums are stored.
    pub async fn record_egress_sums(
        &self,
        attempt: &Attempt,
        now: DateTime<Utc>,
        is_last: bool,
    ) -> Result<(), IngestError> {
        let summing = attempt.egress.summing.lock().await;
        if is_last || self.keeps_all_kinds(attempt, 0).await? {
            let taken = attempt.egress.take();
            self.append_egress(attempt, now, taken.iter().map(Taken::event).collect()).await?;
            taken.into_iter().for_each(Taken::stored);
        }
        drop(summing);
        self.record_egress_limit(attempt, now).await
    }

    /// Stores the limit of bytes that the job's connections have reached, once.
    pub async fn record_egress_limit(&self, attempt: &Attempt, now: DateTime<Utc>) -> Result<(), IngestError> {
        let (key, quota) = (attempt.key(), &attempt.limits().egress_quota);
        if let Some(direction) = quota.reached()
            && quota.begin_record(direction)
        {
            let limit = EventData::Limit { limit: direction.limit(), value: direction.limit_mb().into() };
            let stored = self.store.append_if_live(key.job, key.attempt, now, vec![limit]).await;
            if stored.is_err() {
                quota.not_recorded(direction);
            }
            stored?;
        }
        Ok(())
    }

    /// Stores decisions, all or none, without secrets in the names of hosts. Beyond the job's quota of log-like events they
    /// are still stored: nothing is carried without a trace.
    async fn append_egress(
        &self,
        attempt: &Attempt,
        now: DateTime<Utc>,
        mut events: Vec<EventData>,
    ) -> Result<(), IngestError> {
        if events.is_empty() {
            return Ok(());
        }
        let (key, detector) = (attempt.key(), self.detectors.of(&attempt.record().brief.user_id).await?);
        let bytes = events.len() * EGRESS_EVENT_BYTES;
        self.keeps_all_kinds(attempt, bytes).await?;
        for event in &mut events {
            if let EventData::Egress { host, .. } = event {
                *host = detector.redact(host).0.into_owned();
            }
        }
        self.store.append_if_live(key.job, key.attempt, now, events).await?;
        if attempt.limits().event_quota.count_stored(bytes as u64)
            && let Err(error) = self.record_quota_reached(attempt, now).await
        {
            // The decisions are stored.
            let error = &error as &dyn std::error::Error;
            tracing::warn!(job.id = %key.job, error, "that the job has reached its event quota is not recorded");
        }
        Ok(())
    }

    /// Whether events of all kinds are stored, by what the job has written in all; otherwise only the essential ones
    /// are.
    async fn keeps_all_kinds(&self, attempt: &Attempt, bytes: usize) -> Result<bool, IngestError> {
        let quota = &attempt.limits().event_quota;
        if !quota.is_known() {
            quota.initialize(self.store.event_bytes(attempt.key().job).await?);
        }
        match quota.allowance(bytes as u64) {
            EventAllowance::All => Ok(true),
            EventAllowance::EssentialOnly => Ok(false),
            EventAllowance::None => Err(IngestError::QuotaReached),
        }
    }

    async fn record_quota_reached(&self, attempt: &Attempt, now: DateTime<Utc>) -> Result<(), StoreError> {
        let key = attempt.key();
        let limit = EventData::Limit { limit: LimitName::MaxEventsMb, value: (MAX_EVENT_BYTES >> 20).into() };
        self.store.append_if_live(key.job, key.attempt, now, vec![limit]).await?;
        tracing::info!(job.id = %key.job, "the job has reached its event quota; only its conversation is stored");
        Ok(())
    }
}
