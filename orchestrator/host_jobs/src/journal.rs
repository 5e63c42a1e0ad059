//! The journal of a loop in this process: each event is stored when it is recorded, by the way of workers' events.
//!
//! Owns the numbers of the events. Never drops one: if it cannot be stored, the loop ends.

use std::{sync::Arc, time::Duration};

use agent::{Journal, JournalError, shortened_event};
use base::clock::Clock;
use dispatch::{Attempt, EventIngestion, IngestError};
use protocol::{AgentEvent, WorkerEvent};
use store::Appended;
use tokio_util::sync::CancellationToken;

/// Delay before an event is stored again after the database was busy.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The journal of one attempt.
pub(super) struct HostJournal {
    ingestion: EventIngestion,
    attempt: Arc<Attempt>,
    clock: Clock,
    /// Cancelled when the loop is to stop: a busy database is no longer waited for.
    stop: CancellationToken,
    /// The number of the last stored event. Held while an event is stored, so that they are stored in order.
    last_seq: tokio::sync::Mutex<u64>,
}

impl HostJournal {
    pub(super) fn new(ingestion: EventIngestion, attempt: Arc<Attempt>, clock: Clock, stop: CancellationToken) -> Self {
        Self { ingestion, attempt, clock, stop, last_seq: tokio::sync::Mutex::new(0) }
    }

    /// Stores an event. A write whose outcome is not known is repeated with its number, which is stored once.
    async fn store(&self, event: &WorkerEvent, bytes: usize) -> Result<(), JournalError> {
        let failure = loop {
            let error = match self.try_store(event, bytes).await {
                Ok(Appended::Stored { .. }) => return Ok(()),
                Ok(Appended::Fenced) => return Err(JournalError::Closed),
                Ok(Appended::Gap { expected }) => break format!("event {expected} of the attempt is missing"),
                Err(error) => error,
            };
            if !error.is_transient() || self.stop.is_cancelled() {
                break error.to_string();
            }
            tracing::warn!(error = &error as &dyn std::error::Error, "an event could not be stored; retrying");
            tokio::select! {
                () = tokio::time::sleep(RETRY_DELAY) => {}
                () = self.stop.cancelled() => {}
            }
        };
        tracing::error!(job.id = %self.attempt.key().job, failure, "the events of a job cannot be stored");
        Err(if self.stop.is_cancelled() { JournalError::Closed } else { JournalError::Failed(failure) })
    }

    async fn try_store(&self, event: &WorkerEvent, bytes: usize) -> Result<Appended, IngestError> {
        let now = self.clock.now();
        let appended = self.ingestion.append(&self.attempt, now, vec![event.clone()], bytes).await?;
        if matches!(appended, Appended::Stored { .. }) {
            self.ingestion.record_progress(&self.attempt, now).await?;
        }
        Ok(appended)
    }
}

impl Journal for HostJournal {
    async fn record(&self, event: AgentEvent) -> Result<(), JournalError> {
        let (data, bytes) = shortened_event(event);
        let mut last_seq = self.last_seq.lock().await;
        let event = WorkerEvent { client_seq: *last_seq + 1, data };
        self.store(&event, bytes).await?;
        *last_seq = event.client_seq;
        Ok(())
    }
}
