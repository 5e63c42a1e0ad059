//! Limits on what the workers of one job may send and call, over all its attempts.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::{activity::JobClock, egress_meter::EgressQuota, event_quota::EventQuota, rate_limiter::RateLimiter};
use base::rate_limit::Rate;
use llm::metering::CallLimiter;

/// Events: a burst of several model turns with everything they print; 500 a second, which is far above what a model can
/// cause and far below what the store can write.
const EVENTS: Rate = Rate { burst: 5_000, per_hour: 500 * 3_600 };
/// Their size in KiB: a burst of about 300 outputs of 100 kB, the size they are cut at; then 256 KiB a second.
const EVENT_KIB: Rate = Rate { burst: 32 * 1024, per_hour: 256 * 3_600 };
/// Failed calls: five a second, and a burst of ten, since the calls of a reply run in parallel.
const FAILED_CALLS: Rate = Rate { burst: 10, per_hour: 5 * 3_600 };

/// Connections to other hosts at once: more than a package manager opens.
const MAX_TUNNELS: usize = 64;
/// Names that the egress proxy looks up at once for a job: one that asks for slow ones leaves most threads to others.
const MAX_LOOK_UPS: usize = 8;

/// The limits of one job. Attempts of the same job share them.
#[derive(Debug)]
pub struct JobLimits {
    pub(super) clock: JobClock,
    events: RateLimiter,
    event_kib: RateLimiter,
    /// Total bytes of events.
    pub event_quota: EventQuota,
    /// Bytes of connections to other hosts.
    pub egress_quota: EgressQuota,
    pub failed_model_calls: RateLimiter,
    pub failed_tool_calls: RateLimiter,
    /// Limits connections to other hosts.
    pub tunnels: Arc<Semaphore>,
    /// Limits the names that are being looked up.
    pub look_ups: Arc<Semaphore>,
    /// Limits model calls in flight.
    pub model_calls: CallLimiter,
}

impl JobLimits {
    pub(super) fn new(clock: JobClock, now: Duration) -> Self {
        Self {
            clock,
            events: RateLimiter::new(EVENTS, now),
            event_kib: RateLimiter::new(EVENT_KIB, now),
            event_quota: EventQuota::default(),
            egress_quota: EgressQuota::default(),
            failed_model_calls: RateLimiter::new(FAILED_CALLS, now),
            failed_tool_calls: RateLimiter::new(FAILED_CALLS, now),
            tunnels: Arc::new(Semaphore::new(MAX_TUNNELS)),
            look_ups: Arc::new(Semaphore::new(MAX_LOOK_UPS)),
            model_calls: CallLimiter::default(),
        }
    }

    /// Takes tokens for `events` of `bytes` in all, or returns how long to wait.
    pub fn take_events(&self, events: usize, bytes: usize, now: Duration) -> Result<(), Duration> {
        // Not returned to the first bucket if the second one is empty: the sender sends too much.
        self.events.take(events as u64, now)?;
        self.event_kib.take(bytes.div_ceil(1024) as u64, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_calls_a_second_may_fail_after_a_burst_of_ten() {
        let limiter = RateLimiter::new(FAILED_CALLS, Duration::ZERO);
        let failing = |seconds: u64| {
            let now = Duration::from_secs(seconds);
            (0..1_000).take_while(|_| limiter.check(now).is_ok() && limiter.take(1, now).is_ok()).count()
        };
        assert_eq!((failing(0), failing(1), failing(2), failing(60)), (10, 5, 5, 10));
        assert!(limiter.check(Duration::from_mins(1)).is_err());
    }
}
