//! `status` events of a job or a chat whose model call has no answer for longer than usual.
//!
//! Owns when they are sent and what they say. They are no progress of the job: one whose provider is silent for too
//! long still becomes stuck. A failure to write one is logged and affects nothing else.

use std::{convert::Infallible, time::Duration};

use agent::{Delta, DeltaSink};
use protocol::{EventData, Execution, JobId, WorkId};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::Meter;
use crate::{CallPhase, ErrorKind};

/// Time without an answer before the first event.
const FIRST_AFTER: Duration = Duration::from_secs(10);
/// Time between two events while nothing changes.
const INTERVAL: Duration = Duration::from_secs(30);
/// Time between any two events of a call.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

impl Meter {
    /// Reports a wait until this is dropped: in the events of a job, else to the reader of the answer's deltas.
    pub(super) async fn report_wait(
        &self,
        Execution { work, attempt }: Execution,
        deltas: &DeltaSink,
        mut phase: watch::Receiver<CallPhase>,
    ) -> Infallible {
        let began = Instant::now();
        let mut schedule = Schedule::new(began);
        loop {
            tokio::select! {
                changed = phase.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                    if matches!(*phase.borrow_and_update(), CallPhase::Retrying { .. }) {
                        schedule.retries(Instant::now());
                    }
                }
                () = sleep_until(schedule.due) => {
                    let now = Instant::now();
                    let message = message(&phase.borrow(), now - began, now);
                    match work {
                        WorkId::Job(job) => self.append_status(job, attempt, message).await,
                        WorkId::Thread(_) | WorkId::Run(_) => deltas.send(Delta::Waiting(message)).await,
                    }
                    schedule.reported(now);
                }
            }
        }
    }

    async fn append_status(&self, job: JobId, attempt: u32, message: String) {
        let status = EventData::Status { message, iteration: 0 };
        if let Err(error) = self.store.append_if_live(job, attempt, self.clock.now(), vec![status]).await {
            tracing::warn!(job.id = %job, error = &error as &dyn std::error::Error, "a wait is not reported");
        }
    }
}

/// When the next event is due.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    last: Option<Instant>,
    due: Instant,
}

impl Schedule {
    fn new(began: Instant) -> Self {
        Self { last: None, due: began + FIRST_AFTER }
    }

    /// An attempt failed, and another one follows: that is reported at once, unless there was an event just before.
    fn retries(&mut self, now: Instant) {
        let earliest = self.last.map_or(now, |last| last + MIN_INTERVAL).max(now);
        self.due = self.due.min(earliest);
    }

    fn reported(&mut self, now: Instant) {
        *self = Self { last: Some(now), due: now + INTERVAL };
    }
}

fn message(phase: &CallPhase, waited: Duration, now: Instant) -> String {
    match phase {
        CallPhase::Asking { attempt, of } => {
            format!("waiting for the model: attempt {attempt} of {of}, no answer for {} s", waited.as_secs())
        }
        CallPhase::Retrying { attempt, of, at, cause } => {
            let seconds = at.saturating_duration_since(now).as_millis().div_ceil(1_000);
            format!("waiting for the model: attempt {attempt} of {of}, next try in {seconds} s: {}", phrase(*cause))
        }
    }
}

/// Why an attempt failed, in words.
fn phrase(cause: ErrorKind) -> &'static str {
    match cause {
        ErrorKind::Timeout => "no answer in time",
        ErrorKind::Connect => "the connection failed",
        ErrorKind::Server => "server error",
        ErrorKind::StreamInterrupted => "the answer broke off",
        ErrorKind::InvalidResponse => "the answer is not valid",
        other => other.as_phrase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_provider_is_reported_after_ten_seconds_and_then_seldom() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut schedule = Schedule::new(began);
        let mut seen = vec![];
        for _ in 0..4 {
            let due = schedule.due;
            seen.push((due - began).as_secs());
            schedule.reported(due);
        }
        assert_eq!(seen, [10, 40, 70, 100]);
        // A retry is reported at once, but not within ten seconds of another event.
        schedule.retries(after(103));
        assert_eq!(schedule.due, after(110));
        schedule.reported(after(110));
        schedule.retries(after(125));
        assert_eq!(schedule.due, after(125));
        let mut quick = Schedule::new(began);
        quick.retries(after(1));
        assert_eq!(quick.due, after(1));
    }

    #[test]
    fn a_message_says_what_is_waited_for() {
        let now = Instant::now();
        let asking = CallPhase::Asking { attempt: 1, of: 3 };
        assert_eq!(
            message(&asking, Duration::from_secs(40), now),
            "waiting for the model: attempt 1 of 3, no answer for 40 s"
        );
        let at = now + Duration::from_millis(7_200);
        let retrying = CallPhase::Retrying { attempt: 2, of: 3, at, cause: ErrorKind::RateLimited };
        assert_eq!(
            message(&retrying, Duration::ZERO, now),
            "waiting for the model: attempt 2 of 3, next try in 8 s: rate limited"
        );
    }
}
