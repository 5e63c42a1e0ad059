//! The state machine as a table: every transition in every state.

use chrono::TimeDelta;
use protocol::{CompleteReport, ReportedOutcome};
use rstest::rstest;

use super::{
    sample::{job, now},
    *,
};

fn report(outcome: ReportedOutcome, reason: Option<JobReason>) -> CompleteReport {
    CompleteReport {
        cut: false,
        outcome,
        reason,
        message: Some("why".to_owned()),
        text: "the end".to_owned(),
        partial: None,
        iterations: 3,
    }
}

fn start() -> AttemptStart {
    AttemptStart {
        attempt: 1,
        worker: Some(WorkerStart {
            token_hash: "h".to_owned(),
            lease_expires_at: now(),
            container: ContainerInfo::default(),
        }),
    }
}

#[test]
fn an_attempt_without_a_worker_accepts_no_token_and_fails_with_its_process() {
    let started = job(JobState::Pending).start(now(), AttemptStart { attempt: 1, worker: None }).unwrap().job;
    assert_eq!((started.state(), started.token_hash(), &started.container), (JobState::InProgress, None, &None));
    let lost = started.clone().attempt_failed(now(), AttemptFailure::orchestrator_restart()).unwrap().job;
    assert_eq!((lost.state(), lost.reason()), (JobState::Failed, Some(JobReason::OrchestratorRestart)));
    let stopping = started.request_cancel(now(), None).unwrap().job;
    let cancelled = stopping.attempt_failed(now(), AttemptFailure::orchestrator_restart()).unwrap().job;
    assert_eq!(cancelled.state(), JobState::Cancelled);
}

fn lost(is_retryable: bool) -> AttemptFailure {
    AttemptFailure { reason: JobReason::WorkerLost, message: "gone".to_owned(), is_retryable }
}

/// The states that a verb is allowed in.
#[rstest]
#[case("start", &[JobState::Pending])]
#[case("finish", &[JobState::InProgress, JobState::Stuck])]
#[case("cancel", &[JobState::Pending, JobState::InProgress, JobState::Stuck])]
#[case("attempt_failed", &[JobState::InProgress, JobState::Stuck])]
#[case("fail", &[JobState::Pending, JobState::InProgress, JobState::Stuck])]
#[case("mark_stuck", &[JobState::InProgress])]
#[case("nudge", &[JobState::Stuck])]
#[case("start again", &[JobState::Stuck])]
#[case("revive", &[JobState::Stuck])]
#[case("accept", &[JobState::Submitted])]
#[case("reject", &[JobState::Submitted])]
fn a_verb_is_refused_everywhere_else(#[case] verb: &str, #[case] allowed: &[JobState]) {
    for state in JobState::ALL {
        let before = job(*state);
        let step = match verb {
            "start" => before.start(now(), start()),
            "finish" => before.finish(now(), &report(ReportedOutcome::Completed, None)),
            "cancel" => before.request_cancel(now(), None),
            "attempt_failed" => before.attempt_failed(now(), lost(false)),
            "mark_stuck" => before.mark_stuck("silent".to_owned()),
            "nudge" => before.nudge(),
            "start again" => before.start_again(now(), start()),
            "revive" => before.revive(),
            "accept" => before.accept(now()),
            "reject" => before.reject(now(), "no".to_owned()),
            _ => before.fail(now(), JobReason::Internal, "x".to_owned()),
        };
        assert_eq!(step.is_ok(), allowed.contains(state), "{verb} in {state}");
    }
}

#[rstest]
#[case(ReportedOutcome::Completed, None, JobState::Completed, None)]
#[case(ReportedOutcome::Failed, Some(JobReason::LlmError), JobState::Failed, Some(JobReason::LlmError))]
#[case(ReportedOutcome::Limit, Some(JobReason::IterationLimit), JobState::Failed, Some(JobReason::IterationLimit))]
#[case(ReportedOutcome::Stopped, None, JobState::Failed, Some(JobReason::WorkerCrashed))]
#[case(ReportedOutcome::Unknown, None, JobState::Failed, Some(JobReason::Internal))]
fn a_report_ends_the_job(
    #[case] outcome: ReportedOutcome,
    #[case] reported: Option<JobReason>,
    #[case] state: JobState,
    #[case] reason: Option<JobReason>,
) {
    let Step { job, events, needs_partial } =
        job(JobState::InProgress).finish(now(), &report(outcome, reported)).unwrap();
    assert_eq!((job.state(), job.reason(), job.rev, needs_partial), (state, reason, 8, false));
    assert_eq!((job.token_hash(), job.finished_at()), (None, Some(now())));
    let kinds: Vec<&str> = events.iter().map(|event| event.kind().as_str()).collect();
    assert_eq!(kinds, ["result", "state"], "the result is the last but for the final state");
}

#[test]
fn a_late_success_after_a_cancel_changes_only_the_partial_result() {
    let asked = job(JobState::InProgress).request_cancel(now(), Some("enough".to_owned())).unwrap().job;
    let late = asked.finish(now(), &report(ReportedOutcome::Completed, None)).unwrap();
    assert_eq!((late.job.state(), late.job.token_hash(), late.events.len()), (JobState::InProgress, None, 0));
    let gone = late.job.finish_cancel(now()).unwrap();
    assert!(gone.needs_partial, "what is recorded of the work becomes its result");
    assert_eq!((gone.job.state(), gone.job.reason()), (JobState::Cancelled, Some(JobReason::CancelledByUser)));
    assert_eq!(gone.job.message(), Some("enough"));
    let result = gone.job.result().unwrap();
    assert_eq!((result.text, result.partial.unwrap().text), (None, String::new()));
}

#[test]
fn the_report_of_a_stopped_worker_is_kept() {
    let asked = job(JobState::InProgress).request_cancel(now(), None).unwrap().job;
    let finished = asked.finish(now(), &report(ReportedOutcome::Stopped, None)).unwrap().job;
    let cancelled = finished.finish_cancel(now()).unwrap();
    assert!(!cancelled.needs_partial, "the worker's own account is better than what is recorded");
    assert_eq!(cancelled.job.result().unwrap().partial.unwrap().text, "the end");
}

#[test]
fn an_empty_result_is_no_result() {
    let empty = CompleteReport { text: " \n".to_owned(), ..report(ReportedOutcome::Completed, None) };
    let job = job(JobState::InProgress).finish(now(), &empty).unwrap().job;
    assert_eq!((job.state(), job.reason()), (JobState::Failed, Some(JobReason::EmptyReply)));
}

#[test]
fn asking_twice_to_cancel_writes_once() {
    let once = job(JobState::InProgress).request_cancel(now(), None).unwrap().job;
    let again = once.clone().request_cancel(now() + TimeDelta::seconds(1), None).unwrap();
    assert_eq!((again.job, again.events.len()), (once, 0));
}

#[test]
fn a_pending_job_is_cancelled_at_once() {
    let step = job(JobState::Pending).request_cancel(now(), None).unwrap();
    assert_eq!((step.job.state(), step.needs_partial), (JobState::Cancelled, false));
}

#[rstest]
#[case::first(1, 0, Some(1))]
#[case::second(2, 0, Some(2))]
#[case::third_was_the_last(3, 0, None)]
#[case::not_after_a_model_call(1, 1, None)]
fn infrastructure_is_forgiven_until_something_may_have_been_done(
    #[case] attempt: u32,
    #[case] llm_calls: u64,
    #[case] waits_seconds: Option<i64>,
) {
    let mut before = job(JobState::InProgress);
    before.attempt = attempt;
    before.usage.llm_calls = llm_calls;
    let step = before.attempt_failed(now(), lost(true)).unwrap();
    match waits_seconds {
        Some(seconds) => {
            let Stage::Queued(queued) = step.job.stage else { panic!("{step:?}") };
            assert_eq!(queued.not_before, Some(now() + TimeDelta::seconds(seconds)));
        }
        None => assert_eq!((step.job.state(), step.job.reason()), (JobState::Failed, Some(JobReason::WorkerLost))),
    }
}

#[test]
fn a_job_to_be_cancelled_whose_worker_dies_is_cancelled() {
    let asked = job(JobState::InProgress).request_cancel(now(), None).unwrap().job;
    assert_eq!(asked.attempt_failed(now(), lost(true)).unwrap().job.state(), JobState::Cancelled);
}

fn state_changes(step: &Step) -> Vec<(Option<JobState>, JobState)> {
    let states = step.events.iter().filter_map(|event| match event {
        EventData::State { from, to, .. } => Some((*from, *to)),
        _ => None,
    });
    states.collect()
}

#[test]
fn a_reviewed_result_is_submitted_in_the_step_that_completes_it() {
    let reviewed = job(JobState::InProgress).with_brief(|brief| brief.review = true);
    let step = reviewed.finish(now(), &report(ReportedOutcome::Completed, None)).unwrap();
    let (done, submitted) = (JobState::Completed, JobState::Submitted);
    assert_eq!(state_changes(&step), [(Some(JobState::InProgress), done), (Some(done), submitted)]);
    assert_eq!((step.events[0].kind().as_str(), step.job.token_hash(), step.job.finished_at()), ("result", None, None));
    let accepted = step.job.clone().accept(now()).unwrap().job;
    assert_eq!((accepted.state(), accepted.finished_at()), (JobState::Accepted, Some(now())));
    let rejected = step.job.reject(now(), "not it".to_owned()).unwrap().job;
    assert_eq!((rejected.state(), rejected.reason()), (JobState::Failed, Some(JobReason::Rejected)));
    assert_eq!(rejected.result().unwrap().text.as_deref(), Some("the end"), "what was made stays");
}

#[test]
fn a_reviewed_job_that_fails_is_not_submitted() {
    let reviewed = job(JobState::InProgress).with_brief(|brief| brief.review = true);
    let step = reviewed.finish(now(), &report(ReportedOutcome::Failed, Some(JobReason::LlmError))).unwrap();
    assert_eq!(step.job.state(), JobState::Failed);
}

#[test]
fn a_stuck_job_is_completed_by_its_worker() {
    let stuck = job(JobState::InProgress).mark_stuck("silent".to_owned()).unwrap().job;
    assert_eq!((stuck.state(), stuck.reason()), (JobState::Stuck, Some(JobReason::Stuck)));
    let done = stuck.finish(now(), &report(ReportedOutcome::Completed, None)).unwrap().job;
    assert_eq!((done.state(), done.reason()), (JobState::Completed, None));
}

#[test]
fn a_new_attempt_at_a_stuck_job_may_be_lost_again_before_its_first_model_call() {
    let mut stuck = job(JobState::Stuck);
    stuck.usage.llm_calls = 4;
    let again = stuck.start_again(now(), AttemptStart { attempt: 2, ..start() }).unwrap().job;
    let before = again.running().unwrap().calls_before_attempt;
    assert_eq!((again.state(), again.repair_attempts, before), (JobState::InProgress, 1, 4));
    assert_eq!(again.clone().attempt_failed(now(), lost(true)).unwrap().job.state(), JobState::Pending);
    let mut worked = again;
    worked.usage.llm_calls = 5;
    assert_eq!(worked.attempt_failed(now(), lost(true)).unwrap().job.state(), JobState::Failed);
}

#[test]
fn a_child_is_cancelled_by_its_parent_unless_a_person_was_first() {
    let child = job(JobState::InProgress).cancel_with_parent(now()).unwrap().job;
    assert_eq!(child.finish_cancel(now()).unwrap().job.reason(), Some(JobReason::CancelledByParent));
    let by_person = job(JobState::InProgress).request_cancel(now(), None).unwrap().job;
    let both = by_person.cancel_with_parent(now()).unwrap().job;
    assert_eq!(both.finish_cancel(now()).unwrap().job.reason(), Some(JobReason::CancelledByUser));
}

const fn tree(max_children: u32, count: u32) -> Descendants {
    Descendants { max_children, count }
}

#[rstest]
#[case::at_work(JobState::InProgress, 0, vec![tree(2, 1)], None)]
#[case::waits(JobState::Pending, 0, vec![tree(2, 1)], Some(ChildRefused::NotRunning(JobState::Pending)))]
#[case::has_ended(JobState::Completed, 0, vec![tree(2, 1)], Some(ChildRefused::NotRunning(JobState::Completed)))]
#[case::has_enough(JobState::InProgress, 0, vec![tree(2, 2)], Some(ChildRefused::LimitReached(2)))]
#[case::may_have_none(JobState::InProgress, 0, vec![tree(0, 0)], Some(ChildRefused::LimitReached(0)))]
#[case::never_more_than_ten(JobState::InProgress, 0, vec![tree(50, 10)], Some(ChildRefused::LimitReached(10)))]
#[case::a_grandchild_makes_one_more(JobState::InProgress, 2, vec![tree(1, 0), tree(3, 1), tree(4, 2)], None)]
#[case::the_tree_above_is_full(JobState::InProgress, 1, vec![tree(9, 1), tree(3, 3)], Some(ChildRefused::LimitReached(3)))]
#[case::too_deep(JobState::InProgress, 3, vec![tree(1, 0)], Some(ChildRefused::TooDeep))]
fn a_job_has_children_within_bounds(
    #[case] state: JobState,
    #[case] depth: u32,
    #[case] trees: Vec<Descendants>,
    #[case] refused: Option<ChildRefused>,
) {
    let parent = job(state).with_brief(|brief| brief.depth = depth);
    assert_eq!(parent.check_child(&trees).err(), refused);
}

#[test]
fn a_job_that_is_being_cancelled_has_no_more_children() {
    let stopping = job(JobState::InProgress).request_cancel(now(), None).unwrap().job;
    assert_eq!(stopping.check_child(&[tree(2, 0)]), Err(ChildRefused::NotRunning(JobState::InProgress)));
}

#[rstest]
#[case::what_is_left(0, vec![tree(5, 2)], 2)]
#[case::the_last_child_has_none(0, vec![tree(1, 0)], 0)]
#[case::the_smallest_of_all_trees(1, vec![tree(9, 0), tree(4, 1)], 2)]
#[case::the_deepest_child_has_none(2, vec![tree(9, 0), tree(9, 0), tree(9, 0)], 0)]
fn a_child_may_have_as_many_children_as_are_left(
    #[case] depth: u32,
    #[case] trees: Vec<Descendants>,
    #[case] expected: u32,
) {
    let parent = job(JobState::InProgress).with_brief(|brief| brief.depth = depth);
    assert_eq!(parent.max_children_of_child(&trees), expected);
}

#[test]
fn a_recorded_account_becomes_the_result_and_its_event() {
    let step = job(JobState::InProgress).fail(now(), JobReason::WallClock, "late".to_owned()).unwrap();
    assert!(step.needs_partial);
    let recorded = PartialResult { text: "so far".to_owned(), ..PartialResult::default() };
    let step = step.with_partial(recorded.clone());
    assert_eq!(step.job.result().unwrap().partial, Some(recorded.clone()));
    let kinds: Vec<&str> = step.events.iter().map(|event| event.kind().as_str()).collect();
    assert_eq!(kinds, ["limit", "result", "state"]);
    let expected =
        EventData::Result { outcome: ReportedOutcome::Limit, text: "so far".to_owned(), partial: Some(recorded) };
    assert_eq!(step.events[1], expected);
}

#[test]
fn a_stuck_job_that_is_cancelled_is_shown_as_stuck_until_it_is_gone() {
    let asked = job(JobState::Stuck).request_cancel(now(), None).unwrap().job;
    assert_eq!((asked.state(), asked.is_stopping(), asked.message()), (JobState::Stuck, true, Some("silent")));
    let revived = asked.revive().unwrap().job;
    assert_eq!((revived.state(), revived.is_stopping()), (JobState::InProgress, true));
    assert_eq!(revived.finish_cancel(now()).unwrap().job.state(), JobState::Cancelled);
}
