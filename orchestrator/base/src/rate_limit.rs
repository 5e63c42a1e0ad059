//! Token buckets: a burst and a sustained rate. Pure; the caller passes the time.

mod tool_rates;

use std::time::Duration;

pub use tool_rates::{ToolRateLimits, ToolRates};

/// Fixed-point scale of a token: one token an hour refills a whole unit each millisecond (ms in an hour).
const TOKEN_SCALE: u64 = 3_600_000;

/// A rate: a burst, and what refills in an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens of a full bucket.
    pub burst: u32,
    /// Sustained rate, in tokens an hour.
    pub per_hour: u32,
}

/// A token bucket.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    /// The tokens that are left, in units of `1 / TOKEN_SCALE` token.
    left: u64,
    refilled_at: Duration,
}

impl Bucket {
    pub const fn full(rate: Rate, now: Duration) -> Self {
        Self { left: rate.burst as u64 * TOKEN_SCALE, refilled_at: now }
    }

    /// Takes `tokens`, or returns how long to wait for them. More than the burst are never available.
    pub fn take(&mut self, rate: Rate, tokens: u64, now: Duration) -> Result<(), Duration> {
        let wait = self.wait(rate, tokens, now);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.left -= tokens * TOKEN_SCALE;
        Ok(())
    }

    /// How long until this many tokens are available. Takes none.
    pub fn wait(&mut self, rate: Rate, tokens: u64, now: Duration) -> Duration {
        let passed = u64::try_from(now.saturating_sub(self.refilled_at).as_millis()).unwrap_or(u64::MAX);
        let made = passed.saturating_mul(u64::from(rate.per_hour));
        self.left = self.left.saturating_add(made).min(u64::from(rate.burst) * TOKEN_SCALE);
        // The rest below a millisecond counts at the next refill.
        self.refilled_at += Duration::from_millis(passed);
        let missing = tokens.saturating_mul(TOKEN_SCALE).saturating_sub(self.left);
        Duration::from_millis(missing.div_ceil(u64::from(rate.per_hour).max(1)))
    }

    /// Gives one token back.
    pub fn give_back(&mut self, rate: Rate) {
        self.left = self.left.saturating_add(TOKEN_SCALE).min(u64::from(rate.burst) * TOKEN_SCALE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_attempts_do_not_lengthen_the_wait() {
        let rate = Rate { burst: 1, per_hour: 3_600 };
        let mut bucket = Bucket::full(rate, Duration::ZERO);
        bucket.take(rate, 1, Duration::ZERO).unwrap();
        let asked = (1..10_000).find(|asked| bucket.take(rate, 1, Duration::from_micros(asked * 300)).is_ok());
        assert_eq!(asked, Some(3_334), "a second in steps of 0.3 ms");
    }
}
