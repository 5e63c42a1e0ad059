//! The state machine as a table: every transition in every state.

use chrono::TimeDelta;
use rstest::rstest;

use super::*;

fn now() -> DateTime<Utc> {
    "2026-11-22T12:00:00Z".parse().unwrap()
}

fn job(state: JobState) -> JobRecord {
    let open = matches!(state, JobState::InProgress | JobState::Stuck);
    JobRecord {
        id: JobId::generate(),
        rev: 7,
        user_id: "a".to_owned(),
        title: "t".to_owned(),
        prompt: "p".to_owned(),
        mode: JobMode::Worker,
        placement: Placement::Container,
        state,
        reason: None,
        message: None,
        priority: 0,
        labels: BTreeMap::new(),
        metadata: Map::new(),
        limits: Limits::default(),
        tools: None,
        image: "i".to_owned(),
        model: "m".to_owned(),
        plan: false,
        source: Source::Api,
        restarted_from: None,
        attempt: u32::from(open),
        repair_attempts: 0,
        created_at: now(),
        started_at: open.then(now),
        last_activity_at: None,
        cancel_requested_at: None,
        cancel_message: None,
        finished_at: None,
        not_before: None,
        result: None,
        token_hash: open.then(|| "h".to_owned()),
        lease_expires_at: None,
        worker_seen_at: None,
        container: None,
        prompts_closed: false,
        usage: Usage::default(),
    }
}

fn report(outcome: ReportedOutcome, reason: Option<JobReason>) -> CompleteReport {
    CompleteReport {
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
        token_hash: "h".to_owned(),
        lease_expires_at: now(),
        container: ContainerInfo::default(),
    }
}

fn lost(infrastructure: bool) -> Death {
    Death { reason: JobReason::WorkerLost, message: "gone".to_owned(), infrastructure }
}

/// The states that a verb is allowed in.
#[rstest]
#[case("start", &[JobState::Pending])]
#[case("finish", &[JobState::InProgress, JobState::Stuck])]
#[case("cancel", &[JobState::Pending, JobState::InProgress, JobState::Stuck])]
#[case("die", &[JobState::InProgress, JobState::Stuck])]
#[case("fail", &[JobState::Pending, JobState::InProgress, JobState::Stuck])]
fn a_verb_is_refused_everywhere_else(#[case] verb: &str, #[case] allowed: &[JobState]) {
    for state in JobState::ALL {
        let before = job(*state);
        let step = match verb {
            "start" => before.start(now(), start()),
            "finish" => before.finish(now(), &report(ReportedOutcome::Completed, None)),
            "cancel" => before.request_cancel(now(), None),
            "die" => before.died(now(), lost(false)),
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
    #[case] said: Option<JobReason>,
    #[case] state: JobState,
    #[case] reason: Option<JobReason>,
) {
    let Step { job, events } = job(JobState::InProgress).finish(now(), &report(outcome, said)).unwrap();
    assert_eq!((job.state, job.reason, job.rev), (state, reason, 8));
    assert_eq!((job.token_hash, job.finished_at), (None, Some(now())));
    let kinds: Vec<&str> = events.iter().map(|event| event.kind().as_str()).collect();
    assert_eq!(kinds, ["result", "state"], "the result is the last but for the final state");
}

#[test]
fn a_late_success_after_a_cancel_changes_nothing_but_what_is_kept() {
    let asked = job(JobState::InProgress).request_cancel(now(), Some("enough".to_owned())).unwrap().job;
    let late = asked.finish(now(), &report(ReportedOutcome::Completed, None)).unwrap();
    assert_eq!((late.job.state, late.job.token_hash.clone(), late.events.len()), (JobState::InProgress, None, 0));
    let gone = late.job.cancelled(now()).unwrap();
    assert_eq!((gone.job.state, gone.job.reason), (JobState::Cancelled, Some(JobReason::CancelledByUser)));
    assert_eq!(gone.job.message.as_deref(), Some("enough"));
    let result = gone.job.result.unwrap();
    assert_eq!((result.text, result.partial.unwrap().text), (None, String::new()));
}

#[test]
fn what_a_stopped_worker_tells_of_its_work_is_kept() {
    let asked = job(JobState::InProgress).request_cancel(now(), None).unwrap().job;
    let told = asked.finish(now(), &report(ReportedOutcome::Stopped, None)).unwrap().job;
    let partial = told.cancelled(now()).unwrap().job.result.unwrap().partial.unwrap();
    assert_eq!(partial.text, "the end");
}

#[test]
fn an_empty_result_is_no_result() {
    let empty = CompleteReport { text: " \n".to_owned(), ..report(ReportedOutcome::Completed, None) };
    let job = job(JobState::InProgress).finish(now(), &empty).unwrap().job;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::EmptyReply)));
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
    assert_eq!(step.job.state, JobState::Cancelled);
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
    let step = before.died(now(), lost(true)).unwrap();
    match waits_seconds {
        Some(seconds) => {
            assert_eq!(step.job.state, JobState::Pending);
            assert_eq!(step.job.not_before, Some(now() + TimeDelta::seconds(seconds)));
        }
        None => assert_eq!((step.job.state, step.job.reason), (JobState::Failed, Some(JobReason::WorkerLost))),
    }
}

#[test]
fn a_job_to_be_cancelled_whose_worker_dies_is_cancelled() {
    let asked = job(JobState::InProgress).request_cancel(now(), None).unwrap().job;
    assert_eq!(asked.died(now(), lost(true)).unwrap().job.state, JobState::Cancelled);
}

#[test]
fn the_wall_clock_runs_from_the_first_start_over_all_attempts() {
    let first = job(JobState::Pending).start(now(), start()).unwrap().job;
    let retry = first.died(now() + TimeDelta::seconds(5), lost(true)).unwrap().job;
    let second = retry.start(now() + TimeDelta::seconds(9), AttemptStart { attempt: 2, ..start() }).unwrap().job;
    assert_eq!(second.deadline(), Some(now() + TimeDelta::seconds(3600)));
    let over = second.fail(now(), JobReason::WallClock, "x".to_owned()).unwrap();
    let kinds: Vec<&str> = over.events.iter().map(|event| event.kind().as_str()).collect();
    assert_eq!(kinds, ["limit", "result", "state"]);
}
