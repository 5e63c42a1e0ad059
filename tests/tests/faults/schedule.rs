//! A routine that fires at a fixed interval, and the check that each of its times has exactly the outcome that it
//! should have.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{Routine, RoutineRun, RunReason, RunStatus};
use serde_json::{Value, json};
use tests::{
    User,
    routines::{firings, runs},
};

/// How long after its time a run is recorded at the latest, while the process runs. Long, because a busy machine is no
/// failure.
pub(crate) const TOLERANCE: TimeDelta = TimeDelta::seconds(10);

/// Creates a routine. Returns it with its id and its next time.
pub(crate) async fn create(user: &User, name: &str, trigger: Value, action: Value, guardrails: Value) -> Routine {
    let body = json!({"name": name, "trigger": trigger, "action": action, "guardrails": guardrails});
    user.post("/api/routines", &body).await.expect(201).json()
}

/// A run that is one model call.
pub(crate) fn ask(prompt: &str) -> Value {
    json!({"type": "lightweight", "prompt": prompt})
}

/// A run that ends with its start, in one transaction.
pub(crate) fn line() -> Value {
    json!({"type": "system_event_text", "text": "It is time."})
}

/// Waits until a number of runs has ended, and none is queued or running. Returns all, newest first.
pub(crate) async fn ended_runs(user: &User, routine: &Routine, number: usize) -> Vec<RoutineRun> {
    tests::poll(&format!("{number} runs of {} to end", routine.name), async || {
        let runs = runs(user, routine.id).await;
        let has_all = firings(&runs) >= number as u64;
        (has_all && runs.iter().all(|run| run.status.is_finished())).then_some(runs)
    })
    .await
}

/// Waits until the run of a time at or after `time` has succeeded. Runs of earlier times that had to wait have ended
/// then.
pub(crate) async fn wait_for_time(user: &User, routine: &Routine, time: DateTime<Utc>) {
    tests::until(&format!("the run of {time}"), async || {
        runs(user, routine.id).await.iter().any(|run| run.due_at >= Some(time) && run.status.is_success())
    })
    .await;
}

/// Disables a routine and waits for the end of its runs. Returns them, the oldest first.
pub(crate) async fn stop(user: &User, routine: &Routine) -> Vec<RoutineRun> {
    user.post(&format!("/api/routines/{}/disable", routine.id), &json!({})).await.expect(200);
    let mut runs = ended_runs(user, routine, 0).await;
    runs.reverse();
    runs
}

/// Asserts that each time from the first one to that of the last run has one outcome: a run that was recorded in its
/// window, or a place in a row of missed times. `gaps`: when the process did not run, by its own clock; the window of a
/// time in a gap opens with the end of the gap. Returns the outcomes.
pub(crate) fn check_times(
    routine: &Routine,
    period: TimeDelta,
    runs: &[RoutineRun],
    gaps: &[(DateTime<Utc>, DateTime<Utc>)],
) -> BTreeMap<DateTime<Utc>, (RunStatus, Option<RunReason>)> {
    let mut outcomes = BTreeMap::new();
    for run in runs {
        let times = match (run.due_at, run.missed_from, run.missed_to) {
            (_, Some(from), Some(to)) => {
                let times: Vec<_> = std::iter::successors(Some(from), |time| Some(*time + period))
                    .take_while(|time| *time <= to)
                    .collect();
                assert_eq!(run.missed_count, Some(times.len() as u64), "{run:#?}");
                times
            }
            (Some(due), None, None) => {
                let up = gaps.iter().find(|(from, to)| *from <= due && due < *to).map_or(due, |(_, to)| *to);
                let is_in_window = due <= run.created_at && run.created_at <= up + TOLERANCE;
                assert!(is_in_window, "the window of {due} opens at {up}: {run:#?}");
                // Times that are skipped within a minute are counted.
                let number = run.skipped_count.unwrap_or(1).try_into().expect("a small number");
                std::iter::successors(Some(due), |time| Some(*time + period)).take(number).collect()
            }
            _ => panic!("it has no time: {run:#?}"),
        };
        for time in times {
            let before = outcomes.insert(time, (run.status, run.reason));
            assert_eq!(before, None, "{time} has two outcomes: {runs:#?}");
        }
    }
    let first = routine.next_fire_at.expect("it has a schedule");
    let last = *outcomes.keys().next_back().expect("it has fired");
    let expected: Vec<_> =
        std::iter::successors(Some(first), |time| Some(*time + period)).take_while(|time| *time <= last).collect();
    let found: Vec<_> = outcomes.keys().copied().collect();
    let without: Vec<_> = expected.iter().filter(|time| !found.contains(time)).collect();
    let beside: Vec<_> = found.iter().filter(|time| !expected.contains(time)).collect();
    assert!(
        without.is_empty() && beside.is_empty(),
        "without an outcome: {without:?}; not in the schedule: {beside:?}"
    );
    outcomes
}
