//! Holding a job back in pending until somebody starts it.

use protocol::JobState;

use super::{JobRecord, Refused, Step};

impl JobRecord {
    /// What a held job's message says.
    pub const HELD: &str = "held: it waits until it is started (POST /api/jobs/{id}/start)";

    /// Lets a held job take its place in the queue.
    pub fn release(mut self) -> Result<Step, Refused> {
        if self.state != JobState::Pending || !self.held || self.cancel_requested_at.is_some() {
            return Err(self.refuse("be started"));
        }
        self.held = false;
        self.message = None;
        Ok(Step { job: self.touched(), events: vec![] })
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use protocol::JobState;

    use crate::domain::job::{JobRecord, sample::job};

    #[test]
    fn a_held_job_is_released_once_and_never_after_it_was_cancelled() {
        let now = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        let held = JobRecord { held: true, ..job(JobState::Pending) };
        let released = held.clone().release().unwrap().job;
        assert!(!released.held && released.rev == held.rev + 1);
        assert_eq!(released.release().unwrap_err().verb, "be started");
        let cancelled = held.request_cancel(now, None).unwrap().job;
        assert!(cancelled.release().is_err());
    }
}
