//! Whether a failed attempt is repeated, and after how long. Pure: randomness is an argument.

use std::time::Duration;

/// The number of attempts and the waits between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetrySettings {
    pub tries: u32,
    /// The shortest wait before the second attempt.
    pub first_wait: Duration,
    /// The longest wait; a provider that asks for more is not waited for here.
    pub longest_wait: Duration,
    /// Whether a provider that stayed silent is asked again. Three times would be longer than a turn of a chat, so not where
    /// another provider can be asked.
    pub repeats_timeouts: bool,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            tries: 3,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(8),
            repeats_timeouts: true,
        }
    }
}

impl RetrySettings {
    /// The wait after this many attempts; none if there is no other. `chance` is from 0 to 1.
    pub(crate) fn wait(&self, tries_done: u32, asked: Option<Duration>, chance: f64) -> Option<Duration> {
        if tries_done >= self.tries {
            return None;
        }
        if let Some(asked) = asked {
            return (asked <= self.longest_wait).then_some(asked);
        }
        let doubled = self.first_wait.saturating_mul(1 << tries_done.saturating_sub(1).min(16));
        let spread = doubled.min(self.longest_wait).mul_f64(1.0 + chance.clamp(0.0, 1.0));
        Some(spread.min(self.longest_wait))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(1, None, 0.0, Some(500))]
    #[case(1, None, 1.0, Some(1_000))]
    #[case(2, None, 0.0, Some(1_000))]
    #[case(2, None, 0.5, Some(1_500))]
    #[case(3, None, 0.0, None)]
    #[case(1, Some(0), 0.0, Some(0))]
    #[case(1, Some(8_000), 0.0, Some(8_000))]
    #[case(1, Some(8_001), 0.0, None)]
    #[case(3, Some(1), 0.0, None)]
    fn waits(#[case] done: u32, #[case] asked: Option<u64>, #[case] chance: f64, #[case] millis: Option<u64>) {
        let wait = RetrySettings::default().wait(done, asked.map(Duration::from_millis), chance);
        assert_eq!(wait, millis.map(Duration::from_millis));
    }

    proptest! {
        #[test]
        fn a_wait_is_never_under_half_a_second_nor_over_eight(done in 1..40_u32, chance in 0.0..1.0_f64) {
            let settings = RetrySettings { tries: u32::MAX, ..RetrySettings::default() };
            let wait = settings.wait(done, None, chance).unwrap();
            prop_assert!(wait >= Duration::from_millis(500) && wait <= Duration::from_secs(8));
        }
    }
}
