//! Decides what follows from a measurement of a workspace: when to measure again, when to pause the container, and when
//! the job ends. Pure.

use std::time::Duration;

use protocol::Limits;

/// Time between two measurements of a small tree.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait, whatever the last measurement cost. A drop of the free space ends it.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Longest wait after a measurement for which the container was paused.
const MAX_WAIT_AFTER_PAUSE: Duration = Duration::from_secs(5);
/// The wait as a multiple of the last measurement's cost, so that at most a fifth of the time is spent measuring,
/// unless [`MAX_WAIT`] is reached.
const WAIT_FACTOR: u32 = 4;
/// Wait after a measurement that failed.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Longest time without a complete measurement before the container is paused for one.
const UNMEASURED_LIMIT: Duration = Duration::from_secs(1);
/// A container whose directories keep changing while others write is not paused more often.
const MIN_PAUSE_INTERVAL: Duration = Duration::from_secs(1);

/// The result of a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// Complete, and within the limit.
    Within,
    /// Complete and within the limit, but directories changed meanwhile: something may have been moved past the walk.
    Unsettled,
    /// More bytes than allowed.
    Over,
    /// More entries or deeper directories than allowed.
    OverWalkLimits,
    /// Entries disappeared during the walk.
    Moved,
    /// It timed out.
    Slow,
    /// The orchestrator may not read a directory.
    NotReadable,
    /// A system error, such as too many open files.
    Failed(String),
}

impl Finding {
    /// Why the job ends if this is found with the container paused; none if it may continue.
    pub(super) fn violation(&self, limits: &Limits) -> Option<String> {
        let disk_mb = limits.disk_mb;
        Some(match self {
            Self::Within | Self::Unsettled => return None,
            Self::Over => format!("the workspace holds more than limits.disk_mb = {disk_mb}"),
            Self::OverWalkLimits => format!(
                "the workspace holds more than limits.disk_mb = {disk_mb} allows: more than 256 files and directories for \
                 each MB, or directories nested more than 128 deep"
            ),
            Self::Moved => format!(
                "the workspace could not be measured against limits.disk_mb = {disk_mb}: its files were moved while \
                 they were counted"
            ),
            Self::Slow => {
                format!(
                    "the workspace could not be measured against limits.disk_mb = {disk_mb}: counting it took too long"
                )
            }
            Self::NotReadable => format!(
                "a directory of the workspace cannot be read by the orchestrator, which does not run as root, so \
                 limits.disk_mb = {disk_mb} cannot be enforced; the job must keep its directories readable by all users, \
                 or the operator must run the orchestrator as root"
            ),
            Self::Failed(why) => {
                format!("the workspace could not be measured against limits.disk_mb = {disk_mb}: {why}")
            }
        })
    }

    /// Whether the next measurement may have another result without any change of the workspace.
    pub(super) const fn is_transient(&self) -> bool {
        matches!(self, Self::Moved | Self::Slow | Self::Failed(_))
    }
}

/// The last measurement and its circumstances.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation<'a> {
    pub(super) finding: &'a Finding,
    /// How long it took.
    pub(super) cost: Duration,
    /// A drop of the free space triggered it.
    pub(super) was_triggered: bool,
    /// How long there has been no complete measurement.
    pub(super) unmeasured_for: Duration,
    /// Since the container was last paused.
    pub(super) since_pause: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextMeasurement {
    /// Measure again after this time, or when the free space drops.
    Wait(Duration),
    /// It was not complete: measure again after this time, with the same effort.
    Retry(Duration),
    /// Pause the container and measure again; that result decides.
    Pause,
}

/// Decides what follows from a measurement.
pub(super) fn next_measurement(seen: Situation<'_>) -> NextMeasurement {
    let was_just_paused = seen.since_pause.is_some_and(|since| since < MIN_PAUSE_INTERVAL);
    match seen.finding {
        Finding::Within => NextMeasurement::Wait(wait_after(seen.cost)),
        Finding::Unsettled if !seen.was_triggered => NextMeasurement::Wait(wait_after(seen.cost)),
        Finding::Unsettled if was_just_paused => NextMeasurement::Retry(MIN_PAUSE_INTERVAL),
        Finding::Unsettled | Finding::Over | Finding::OverWalkLimits | Finding::NotReadable => NextMeasurement::Pause,
        Finding::Moved | Finding::Slow | Finding::Failed(_) => {
            if (seen.was_triggered && !was_just_paused) || seen.unmeasured_for >= UNMEASURED_LIMIT {
                NextMeasurement::Pause
            } else {
                NextMeasurement::Retry(RETRY_DELAY)
            }
        }
    }
}

fn wait_after(cost: Duration) -> Duration {
    (cost * WAIT_FACTOR).min(MAX_WAIT).max(INTERVAL.saturating_sub(cost))
}

/// The wait after a measurement for which the container was paused, so that its job also makes progress.
pub(super) fn wait_after_pause(cost: Duration) -> Duration {
    (cost * WAIT_FACTOR).clamp(INTERVAL, MAX_WAIT_AFTER_PAUSE)
}

/// A drop of the free space by this much triggers a measurement at once.
const DROP_BYTES: u64 = 128 * 1024 * 1024;
/// The same in inodes, one for each 4 KiB.
const DROP_INODES: u64 = DROP_BYTES / 4096;

/// Detects drops of the free space.
#[derive(Debug, Default)]
pub(super) struct DropDetector {
    /// Highest free bytes and inodes since the last drop.
    highest: Option<(u64, u64)>,
}

impl DropDetector {
    /// Whether the free space has dropped by that much from its highest value since the last drop that was detected.
    pub(super) fn has_dropped(&mut self, free_bytes: u64, free_inodes: u64) -> bool {
        let (bytes, inodes) = self.highest.unwrap_or((free_bytes, free_inodes));
        let has_dropped =
            bytes.saturating_sub(free_bytes) >= DROP_BYTES || inodes.saturating_sub(free_inodes) >= DROP_INODES;
        self.highest = Some(if has_dropped {
            (free_bytes, free_inodes)
        } else {
            (bytes.max(free_bytes), inodes.max(free_inodes))
        });
        has_dropped
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn step(finding: &Finding, was_triggered: bool, unmeasured: u64, since_pause: Option<u64>) -> NextMeasurement {
        let (unmeasured_for, since_pause) = (MS(unmeasured), since_pause.map(MS));
        next_measurement(Situation { finding, cost: MS(10), was_triggered, unmeasured_for, since_pause })
    }

    #[rstest]
    #[case::within(Finding::Within, NextMeasurement::Wait(MS(990)))]
    #[case::unsettled(Finding::Unsettled, NextMeasurement::Wait(MS(990)))]
    #[case::over(Finding::Over, NextMeasurement::Pause)]
    #[case::too_deep(Finding::OverWalkLimits, NextMeasurement::Pause)]
    #[case::not_readable(Finding::NotReadable, NextMeasurement::Pause)]
    #[case::moved(Finding::Moved, NextMeasurement::Retry(RETRY_DELAY))]
    #[case::slow(Finding::Slow, NextMeasurement::Retry(RETRY_DELAY))]
    #[case::failed(Finding::Failed("x".to_owned()), NextMeasurement::Retry(RETRY_DELAY))]
    fn each_finding_has_its_next_measurement(#[case] finding: Finding, #[case] expected: NextMeasurement) {
        assert_eq!(step(&finding, false, 0, None), expected);
    }

    #[rstest]
    fn without_a_complete_measurement_for_a_second_the_container_is_paused(
        #[values(Finding::Moved, Finding::Slow, Finding::Failed(String::new()))] finding: Finding,
    ) {
        assert_eq!(step(&finding, false, 999, None), NextMeasurement::Retry(RETRY_DELAY));
        assert_eq!(step(&finding, false, 1_000, None), NextMeasurement::Pause);
        assert_eq!(step(&finding, true, 0, None), NextMeasurement::Pause, "at once when the free space dropped");
        assert_eq!(step(&finding, true, 0, Some(500)), NextMeasurement::Retry(RETRY_DELAY), "but not repeatedly");
    }

    #[test]
    fn a_changing_workspace_is_measured_paused_when_the_free_space_dropped() {
        assert_eq!(step(&Finding::Unsettled, true, 0, None), NextMeasurement::Pause);
        assert_eq!(step(&Finding::Unsettled, true, 0, Some(500)), NextMeasurement::Retry(MIN_PAUSE_INTERVAL));
        assert_eq!(step(&Finding::Within, true, 0, None), NextMeasurement::Wait(MS(990)));
    }

    #[rstest]
    #[case::nothing(0, 1_000)]
    #[case::small(10, 990)]
    #[case::large(300, 1_200)]
    #[case::huge(700, 2_000)]
    fn the_wait_grows_with_the_cost_of_a_measurement(#[case] cost: u64, #[case] wait: u64) {
        assert_eq!(wait_after(MS(cost)), MS(wait));
    }

    #[test]
    fn a_drop_is_detected_once_and_counted_from_the_highest_value() {
        const MB: u64 = 1 << 20;
        let mut detector = DropDetector::default();
        let readings =
            [(1000, false), (900, false), (872, true), (872, false), (1100, false), (973, false), (972, true)];
        for (free, dropped) in readings {
            assert_eq!(detector.has_dropped(free * MB, 1_000_000), dropped, "at {free} MB");
        }
        assert!(detector.has_dropped(972 * MB, 1_000_000 - DROP_INODES), "inodes count as well");
    }

    #[rstest]
    #[case(Finding::Within, None)]
    #[case(Finding::Over, Some("holds more than limits.disk_mb = 7"))]
    #[case(Finding::OverWalkLimits, Some("128 deep"))]
    #[case(Finding::NotReadable, Some("does not run as root"))]
    #[case(Finding::Failed("no descriptors".to_owned()), Some("no descriptors"))]
    fn a_violation_says_why_the_job_ends(#[case] finding: Finding, #[case] expected: Option<&str>) {
        let message = finding.violation(&Limits { disk_mb: 7, ..Limits::default() });
        assert_eq!(message.is_some(), expected.is_some());
        assert!(message.unwrap_or_default().contains(expected.unwrap_or_default()));
    }
}
