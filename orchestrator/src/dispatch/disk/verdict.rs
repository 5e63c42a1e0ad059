//! What a measure of a workspace means: pure decisions about when to look again, when to pause, and when a job ends.

use std::time::Duration;

use protocol::Limits;

/// Between two measures of a small tree (contract: sandbox, Posture).
const EVERY: Duration = Duration::from_secs(1);
/// At most, whatever the last measure cost. In between a fall of the free space brings the next one.
const LONGEST_REST: Duration = Duration::from_secs(2);
/// The same after a measure for which the container was paused.
const LONGEST_REST_AFTER_PAUSE: Duration = Duration::from_secs(5);
/// Rest as a multiple of what the last measure cost: a fifth of the time at most goes into measuring.
const REST_FACTOR: u32 = 4;
/// A measure that failed is taken again.
const RETRY: Duration = Duration::from_millis(100);
/// Without a whole measure for longer, the container is paused for one.
const UNMEASURED_LIMIT: Duration = Duration::from_secs(1);
/// A container is not paused more often only because its folders change while others write.
const PAUSE_REST: Duration = Duration::from_secs(1);

/// What a measure found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// All of it was seen, and it is within the limit.
    Within,
    /// The same, but folders changed meanwhile: something may have been moved past the measure.
    Unsettled,
    /// It holds more bytes than it may.
    Over,
    /// It has more entries than it may, or is deeper than anything walks.
    BeyondCounting,
    /// Something was not where it had been read.
    Moved,
    /// It took too long.
    Slow,
    /// The orchestrator may not look into it.
    NotReadable,
    /// The system failed, such as for want of descriptors.
    Failed(String),
}

impl Finding {
    /// Why the job ends when this holds with the container paused; none when it may go on.
    pub(super) fn violation(&self, limits: &Limits) -> Option<String> {
        let disk_mb = limits.disk_mb;
        Some(match self {
            Self::Within | Self::Unsettled => return None,
            Self::Over => format!("the workspace holds more than limits.disk_mb = {disk_mb}"),
            Self::BeyondCounting => format!(
                "the workspace holds more than limits.disk_mb = {disk_mb} allows: more than 256 files and folders for \
                 each MB, or folders more than 128 deep"
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
                "a folder of the workspace cannot be read by the orchestrator, which does not run as root, so \
                 limits.disk_mb = {disk_mb} cannot be held; the job must leave its folders readable for all, or the \
                 operator must run the orchestrator as root"
            ),
            Self::Failed(why) => {
                format!("the workspace could not be measured against limits.disk_mb = {disk_mb}: {why}")
            }
        })
    }

    /// Whether trying again may find something else.
    pub(super) const fn may_pass(&self) -> bool {
        matches!(self, Self::Moved | Self::Slow | Self::Failed(_))
    }
}

/// What was found and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation<'a> {
    /// By the last measure.
    pub(super) finding: &'a Finding,
    /// What it cost.
    pub(super) cost: Duration,
    /// It was asked for because free space fell.
    pub(super) was_triggered: bool,
    /// Since when no measure was whole.
    pub(super) unmeasured_for: Duration,
    /// Since the container was paused last.
    pub(super) since_pause: Option<Duration>,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Measure again after this time, or when free space falls.
    Rest(Duration),
    /// It was not whole: measure again soon, as thoroughly.
    Retry(Duration),
    /// Pause the container and measure again: what is found then decides.
    Pause,
}

/// Decides.
pub(super) fn next_step(seen: Situation<'_>) -> Step {
    let rests = seen.since_pause.is_some_and(|since| since < PAUSE_REST);
    match seen.finding {
        Finding::Within => Step::Rest(rest_after(seen.cost)),
        Finding::Unsettled if !seen.was_triggered => Step::Rest(rest_after(seen.cost)),
        Finding::Unsettled if rests => Step::Retry(PAUSE_REST),
        Finding::Unsettled | Finding::Over | Finding::BeyondCounting | Finding::NotReadable => Step::Pause,
        Finding::Moved | Finding::Slow | Finding::Failed(_) => {
            if (seen.was_triggered && !rests) || seen.unmeasured_for >= UNMEASURED_LIMIT {
                Step::Pause
            } else {
                Step::Retry(RETRY)
            }
        }
    }
}

fn rest_after(cost: Duration) -> Duration {
    (cost * REST_FACTOR).min(LONGEST_REST).max(EVERY.saturating_sub(cost))
}

/// After a measure for which the container was paused: it must get on with its work, too.
pub(super) fn rest_after_pause(cost: Duration) -> Duration {
    (cost * REST_FACTOR).clamp(EVERY, LONGEST_REST_AFTER_PAUSE)
}

/// Free space that fell by so much since the last look asks for a measure at once (contract: sandbox, Posture).
const FALL_BYTES: u64 = 128 * 1024 * 1024;
/// The same in files, one for each 4 KiB.
const FALL_INODES: u64 = FALL_BYTES / 4096;

/// Notices when free space falls.
#[derive(Debug, Default)]
pub(super) struct FallWatch {
    high: Option<(u64, u64)>,
}

impl FallWatch {
    /// Whether it has fallen by that much since it was last told, or since it was highest after that.
    pub(super) fn has_fallen(&mut self, free_bytes: u64, free_inodes: u64) -> bool {
        let (bytes, inodes) = self.high.unwrap_or((free_bytes, free_inodes));
        let fell = bytes.saturating_sub(free_bytes) >= FALL_BYTES || inodes.saturating_sub(free_inodes) >= FALL_INODES;
        self.high =
            Some(if fell { (free_bytes, free_inodes) } else { (bytes.max(free_bytes), inodes.max(free_inodes)) });
        fell
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn step(finding: &Finding, was_triggered: bool, unmeasured: u64, since_pause: Option<u64>) -> Step {
        let (unmeasured_for, since_pause) = (MS(unmeasured), since_pause.map(MS));
        next_step(Situation { finding, cost: MS(10), was_triggered, unmeasured_for, since_pause })
    }

    #[rstest]
    #[case::within(Finding::Within, Step::Rest(MS(990)))]
    #[case::changing(Finding::Unsettled, Step::Rest(MS(990)))]
    #[case::over(Finding::Over, Step::Pause)]
    #[case::too_deep(Finding::BeyondCounting, Step::Pause)]
    #[case::closed(Finding::NotReadable, Step::Pause)]
    #[case::moved(Finding::Moved, Step::Retry(RETRY))]
    #[case::slow(Finding::Slow, Step::Retry(RETRY))]
    #[case::failed(Finding::Failed("x".to_owned()), Step::Retry(RETRY))]
    fn what_a_measure_asks_for(#[case] finding: Finding, #[case] expected: Step) {
        assert_eq!(step(&finding, false, 0, None), expected);
    }

    #[rstest]
    fn without_a_whole_measure_for_a_second_the_container_is_paused(
        #[values(Finding::Moved, Finding::Slow, Finding::Failed(String::new()))] finding: Finding,
    ) {
        assert_eq!(step(&finding, false, 999, None), Step::Retry(RETRY));
        assert_eq!(step(&finding, false, 1_000, None), Step::Pause);
        assert_eq!(step(&finding, true, 0, None), Step::Pause, "when free space fell, at once");
        assert_eq!(step(&finding, true, 0, Some(500)), Step::Retry(RETRY), "but not again and again");
    }

    #[test]
    fn what_may_hide_something_is_looked_at_paused_when_free_space_fell() {
        assert_eq!(step(&Finding::Unsettled, true, 0, None), Step::Pause);
        assert_eq!(step(&Finding::Unsettled, true, 0, Some(500)), Step::Retry(PAUSE_REST));
        assert_eq!(step(&Finding::Within, true, 0, None), Step::Rest(MS(990)));
    }

    #[rstest]
    #[case::nothing(0, 1_000)]
    #[case::small(10, 990)]
    #[case::large(300, 1_200)]
    #[case::huge(700, 2_000)]
    fn the_more_a_measure_costs_the_longer_the_rest(#[case] cost: u64, #[case] rest: u64) {
        assert_eq!(rest_after(MS(cost)), MS(rest));
    }

    #[test]
    fn a_fall_is_told_once_and_counted_from_the_highest() {
        const MB: u64 = 1 << 20;
        let mut watch = FallWatch::default();
        let looks = [(1000, false), (900, false), (872, true), (872, false), (1100, false), (973, false), (972, true)];
        for (free, fell) in looks {
            assert_eq!(watch.has_fallen(free * MB, 1_000_000), fell, "at {free} MB");
        }
        assert!(watch.has_fallen(972 * MB, 1_000_000 - FALL_INODES), "inodes count, too");
    }

    #[rstest]
    #[case(Finding::Within, None)]
    #[case(Finding::Over, Some("holds more than limits.disk_mb = 7"))]
    #[case(Finding::BeyondCounting, Some("128 deep"))]
    #[case(Finding::NotReadable, Some("does not run as root"))]
    #[case(Finding::Failed("no descriptors".to_owned()), Some("no descriptors"))]
    fn a_job_is_told_why_it_ends(#[case] finding: Finding, #[case] told: Option<&str>) {
        let said = finding.violation(&Limits { disk_mb: 7, ..Limits::default() });
        assert_eq!(said.is_some(), told.is_some());
        assert!(said.unwrap_or_default().contains(told.unwrap_or_default()));
    }
}
