//! The plan as a table of cases, and what must hold of every plan.

use proptest::prelude::*;
use protocol::{ContainerInfo, ContainerName};
use rstest::rstest;

use super::*;
use crate::domain::job::{
    Queued,
    sample::{self, now},
};

const START_TIMEOUT: Duration = Duration::from_secs(40);
const LEASE: Duration = Duration::from_secs(30);
const STUCK_AFTER: Duration = Duration::from_mins(5);

fn job(user: &str, state: JobState, attempt: u32) -> JobRecord {
    let begun = attempt > 0;
    let mut job = sample::job(state).with_brief(|brief| brief.user_id = user.to_owned());
    let name = ContainerName::job(job.id, attempt).to_string();
    if let Stage::Running(running) = &mut job.stage {
        running.worker_seen_at = begun.then(now);
    }
    JobRecord {
        attempt,
        started_at: begun.then(now),
        last_activity_at: Some(now()),
        container: begun.then(|| ContainerInfo { name, ..ContainerInfo::default() }),
        ..job
    }
}

/// A pending job, after `attempt` attempts.
fn queued(attempt: u32, queued: Queued) -> JobRecord {
    JobRecord { stage: Stage::Queued(queued), ..job("a", JobState::Pending, attempt) }
}

/// A running job that is to be cancelled.
fn stopping(job: JobRecord) -> JobRecord {
    job.request_cancel(now(), None).unwrap().job
}

fn container_of(job: &JobRecord, attempt: u32, status: ContainerStatus) -> ContainerView {
    ContainerView {
        name: ContainerName::job(job.id, attempt).to_string(),
        id: "abc".to_owned(),
        job_id: Some(job.id),
        attempt,
        role: Some(ContainerRole::Job),
        status,
    }
}

/// Facts that can be told in one line and changed.
struct Scene {
    now: DateTime<Utc>,
    may_start: bool,
    disabled: bool,
    unreadable: HashSet<JobId>,
    jobs: Vec<JobRecord>,
    containers: Option<Vec<ContainerView>>,
    ended: HashMap<JobId, DateTime<Utc>>,
    folders: Vec<String>,
    served: HashSet<String>,
    busy: HashSet<Subject>,
    overfull: HashSet<JobId>,
    liveness: HashMap<JobId, Liveness>,
    at_tools: HashSet<JobId>,
    orphaned: HashSet<JobId>,
    spent: HashMap<String, Spent>,
    max_parallel: usize,
    max_per_user: usize,
}

impl Scene {
    fn of(jobs: Vec<JobRecord>, containers: Vec<ContainerView>) -> Self {
        let served = containers.iter().map(|container| container.name.clone()).collect();
        Self {
            now: now(),
            may_start: true,
            disabled: false,
            unreadable: HashSet::new(),
            jobs,
            containers: Some(containers),
            ended: HashMap::new(),
            folders: vec![],
            served,
            busy: HashSet::new(),
            overfull: HashSet::new(),
            liveness: HashMap::new(),
            at_tools: HashSet::new(),
            orphaned: HashSet::new(),
            spent: HashMap::new(),
            max_parallel: 5,
            max_per_user: 5,
        }
    }

    fn plan(&self) -> Plan {
        plan(&Facts {
            now: self.now,
            may_start: self.may_start,
            disabled: self.disabled,
            unreadable: &self.unreadable,
            jobs: &self.jobs,
            containers: self.containers.as_deref(),
            ended: &self.ended,
            folders: &self.folders,
            served: &self.served,
            busy: &self.busy,
            overfull: &self.overfull,
            liveness: &self.liveness,
            at_tools: &self.at_tools,
            orphaned: &self.orphaned,
            spent: &self.spent,
            limits: PlanLimits {
                max_parallel: self.max_parallel,
                max_parallel_per_user: self.max_per_user,
                start_timeout: START_TIMEOUT,
                lease: LEASE,
                stuck_after: STUCK_AFTER,
                max_repairs: 3,
            },
        })
    }

    fn actions(&self) -> Vec<Action> {
        self.plan().actions
    }
}

const RUNNING: ContainerStatus = ContainerStatus::Running;

const fn exit(code: i64, oom_killed: bool) -> ContainerStatus {
    ContainerStatus::Exited { code, oom_killed }
}

#[test]
fn a_pending_job_starts() {
    let one = job("a", JobState::Pending, 0);
    assert_eq!(Scene::of(vec![one.clone()], vec![]).actions(), [Action::Start { job: one.id }]);
}

#[test]
fn a_held_job_does_not_start() {
    let held = queued(0, Queued { held: true, ..Queued::default() });
    assert_eq!(Scene::of(vec![held], vec![]).plan(), Plan::default());
}

#[test]
fn a_pending_job_waits_while_nothing_may_start() {
    let mut scene = Scene::of(vec![job("a", JobState::Pending, 0)], vec![]);
    scene.may_start = false;
    assert_eq!(scene.actions(), []);
}

#[test]
fn with_the_sandbox_disabled_nothing_starts_and_what_runs_goes_on() {
    let (waiting, retried) = (job("a", JobState::Pending, 0), job("a", JobState::Pending, 1));
    let held = queued(0, Queued { held: true, ..Queued::default() });
    let (runs, made, stuck) =
        (job("a", JobState::InProgress, 1), job("a", JobState::InProgress, 1), job("a", JobState::Stuck, 1));
    let stuck = JobRecord { repair_attempts: 1, ..stuck };
    let ended = job("a", JobState::InProgress, 1);
    let containers = vec![
        container_of(&runs, 1, RUNNING),
        container_of(&made, 1, ContainerStatus::Created),
        container_of(&stuck, 1, RUNNING),
        container_of(&ended, 1, exit(1, false)),
    ];
    let jobs = [&waiting, &retried, &held, &runs, &made, &stuck, &ended].map(JobRecord::clone).to_vec();
    let mut scene = Scene::of(jobs, containers);
    (scene.may_start, scene.disabled) = (false, true);
    let settled = |job: &JobRecord, death| Action::Settle { job: job.id, death };
    assert_eq!(
        scene.actions(),
        [
            settled(&made, unavailable()),
            settled(&stuck, unavailable()),
            settled(&ended, exited(1, false)),
            Action::FailUnavailable { job: waiting.id },
            Action::FailUnavailable { job: retried.id },
        ]
    );
}

#[test]
fn with_the_sandbox_disabled_a_running_job_is_cancelled_and_expires() {
    let cancelled = stopping(job("a", JobState::InProgress, 1));
    let late = job("a", JobState::InProgress, 1);
    let containers = vec![container_of(&cancelled, 1, RUNNING), container_of(&late, 1, RUNNING)];
    let mut scene = Scene::of(vec![cancelled.clone(), late.clone()], containers);
    (scene.may_start, scene.disabled) = (false, true);
    let over = Duration::from_secs(late.brief.limits.timeout_seconds);
    scene.liveness.insert(late.id, Liveness { job_age: over, ..Liveness::default() });
    assert_eq!(scene.actions(), [Action::Cancel { job: cancelled.id }, Action::Expire { job: late.id }]);
}

#[test]
fn a_new_attempt_of_a_stuck_job_waits_for_the_sandbox() {
    let stuck = JobRecord { repair_attempts: 1, ..job("a", JobState::Stuck, 1) };
    let mut scene = Scene::of(vec![stuck.clone()], vec![container_of(&stuck, 1, RUNNING)]);
    assert_eq!(scene.actions(), [Action::StartAgain { job: stuck.id }]);
    scene.may_start = false;
    assert_eq!(scene.actions(), []);
}

#[test]
fn a_job_whose_row_makes_no_sense_keeps_its_container_and_its_folder() {
    let (bad, good) = (job("a", JobState::InProgress, 1), job("a", JobState::Pending, 0));
    let mut scene = Scene::of(vec![good.clone()], vec![container_of(&bad, 1, RUNNING)]);
    scene.folders.push(format!("gantry-job-{}-2", bad.id));
    scene.unreadable.insert(bad.id);
    assert_eq!(scene.actions(), [Action::Start { job: good.id }]);
    scene.unreadable.clear();
    assert_eq!(scene.actions().len(), 3, "of no job, both would go");
}

#[rstest]
#[case::its_container_is_ended(5, RUNNING, 0)]
#[case::the_engine_does_not_say(5, ContainerStatus::Unknown, 0)]
#[case::its_worker_has_just_reported(0, RUNNING, 1)]
#[case::its_container_has_ended(5, exit(0, false), 1)]
fn a_slot_is_free_when_its_container_is_gone(
    #[case] seconds_since_end: i64,
    #[case] status: ContainerStatus,
    #[case] starts: usize,
) {
    let (ended, next) = (job("a", JobState::Failed, 1), job("b", JobState::Pending, 0));
    let mut scene = Scene::of(vec![next.clone()], vec![container_of(&ended, 1, status)]);
    scene.max_parallel = 1;
    scene.ended.insert(ended.id, now() - TimeDelta::seconds(seconds_since_end));
    let begun = scene.actions().iter().filter(|action| matches!(action, Action::Start { .. })).count();
    assert_eq!(begun, starts);
}

#[test]
fn a_slot_is_not_free_while_its_job_is_being_ended() {
    let (ended, next) = (job("a", JobState::Failed, 1), job("b", JobState::Pending, 0));
    let mut scene = Scene::of(vec![next], vec![container_of(&ended, 1, RUNNING)]);
    scene.max_parallel = 1;
    scene.ended.insert(ended.id, now());
    scene.busy.insert(Subject::Job(ended.id));
    assert_eq!(scene.actions(), []);
}

#[test]
fn priority_goes_before_age_and_age_before_nothing() {
    let old = job("a", JobState::Pending, 0);
    let young = job("a", JobState::Pending, 0);
    let urgent = job("a", JobState::Pending, 0).with_brief(|brief| brief.priority = 1);
    let mut scene = Scene::of(vec![young.clone(), old.clone(), urgent.clone()], vec![]);
    scene.max_parallel = 2;
    assert_eq!(scene.actions(), [Action::Start { job: urgent.id }, Action::Start { job: old.id }]);
}

#[test]
fn running_stuck_and_starting_jobs_hold_slots() {
    let running = job("a", JobState::InProgress, 1);
    let stuck = job("a", JobState::Stuck, 1);
    let starting = job("a", JobState::Pending, 0);
    let waiting = job("b", JobState::Pending, 0);
    let containers = vec![container_of(&running, 1, RUNNING), container_of(&stuck, 1, RUNNING)];
    let mut scene = Scene::of(vec![running, stuck.clone(), starting.clone(), waiting.clone()], containers);
    scene.busy.extend([Subject::Job(starting.id), Subject::Job(stuck.id)]);
    scene.max_parallel = 3;
    assert_eq!(scene.actions(), []);
    scene.max_parallel = 4;
    assert_eq!(scene.actions(), [Action::Start { job: waiting.id }]);
}

#[test]
fn one_user_cannot_take_every_slot() {
    let first = job("a", JobState::Pending, 0);
    let second = job("a", JobState::Pending, 0);
    let other = job("b", JobState::Pending, 0);
    let mut scene = Scene::of(vec![first.clone(), second, other.clone()], vec![]);
    scene.max_per_user = 1;
    assert_eq!(scene.actions(), [Action::Start { job: first.id }, Action::Start { job: other.id }]);
}

#[test]
fn a_user_whose_day_is_spent_begins_nothing() {
    let (mine, other) = (job("a", JobState::Pending, 0), job("b", JobState::Pending, 0));
    let mut scene = Scene::of(vec![mine.clone(), other.clone()], vec![]);
    let spent = Spent { whose: crate::domain::budget::Whose::Day, cost: false, limit: 10 };
    scene.spent.insert("a".to_owned(), spent);
    assert_eq!(scene.actions(), [Action::Refuse { job: mine.id, spent }, Action::Start { job: other.id }]);
}

#[test]
fn backoff_is_waited_for_and_looked_at_again() {
    let rested = queued(1, Queued { not_before: Some(now() + TimeDelta::seconds(2)), ..Queued::default() });
    let plan = Scene::of(vec![rested], vec![]).plan();
    assert_eq!(plan, Plan { actions: vec![], look_again_in: Some(Duration::from_secs(2)) });
}

#[test]
fn no_retry_starts_beside_the_old_container() {
    let retry = job("a", JobState::Pending, 1);
    let old = container_of(&retry, 1, RUNNING);
    let scene = Scene::of(vec![retry.clone()], vec![old.clone()]);
    assert_eq!(scene.actions(), [Action::Remove { container: old.name }]);
    let mut blind = Scene::of(vec![retry], vec![]);
    blind.containers = None;
    assert_eq!(blind.actions(), []);
}

#[rstest]
#[case::ran_out_of_memory(exit(137, true), JobReason::OomKilled, false)]
#[case::killed_from_outside(exit(137, false), JobReason::WorkerCrashed, false)]
#[case::a_child_ran_out_of_memory(exit(0, true), JobReason::WorkerLost, true)]
#[case::crashed_after_a_childs_oom(exit(1, true), JobReason::WorkerCrashed, false)]
#[case::crashed(exit(3, false), JobReason::WorkerCrashed, false)]
#[case::left_without_a_word(exit(0, false), JobReason::WorkerLost, true)]
fn an_exit_is_settled_with_its_reason(
    #[case] status: ContainerStatus,
    #[case] reason: JobReason,
    #[case] infrastructure: bool,
) {
    let lost = job("a", JobState::InProgress, 1);
    let scene = Scene::of(vec![lost.clone()], vec![container_of(&lost, 1, status)]);
    let actions = scene.actions();
    let [Action::Settle { job, death }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((*job, death.reason, death.infrastructure), (lost.id, reason, infrastructure));
}

#[test]
fn a_vanished_container_is_a_lost_worker_unless_the_engine_cannot_say() {
    let lost = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![lost.clone()], vec![]);
    assert_eq!(scene.actions(), [Action::Settle { job: lost.id, death: vanished() }]);
    scene.containers = None;
    assert_eq!(scene.actions(), []);
}

#[rstest]
#[case::silent(JobState::InProgress, Liveness { since_contact: LEASE, ..Liveness::default() })]
#[case::idle(JobState::InProgress, Liveness { since_progress: STUCK_AFTER, ..Liveness::default() })]
#[case::stuck(JobState::Stuck, Liveness { since_contact: LEASE, ..Liveness::default() })]
fn a_container_that_the_engine_has_no_answer_about_is_left_alone(#[case] state: JobState, #[case] liveness: Liveness) {
    let hangs = job("a", state, 1);
    let mut scene = Scene::of(vec![hangs.clone()], vec![container_of(&hangs, 1, ContainerStatus::Unknown)]);
    scene.liveness.insert(hangs.id, liveness);
    assert_eq!(scene.actions(), []);
    scene.jobs[0] = stopping(hangs.clone());
    assert_eq!(
        scene.actions(),
        [Action::Cancel { job: hangs.id }],
        "what it asks of the engine is confirmed or not done"
    );
}

#[rstest]
#[case(JobState::InProgress, false)]
#[case(JobState::Stuck, false)]
#[case(JobState::InProgress, true)]
fn an_overtaken_container_goes_before_anything_else_happens_to_its_job(#[case] state: JobState, #[case] cancel: bool) {
    let overtaken = job("a", state, 2);
    let overtaken = if cancel { stopping(overtaken) } else { overtaken };
    for status in [RUNNING, ContainerStatus::Unknown] {
        let old = container_of(&overtaken, 1, status);
        let name = old.name.clone();
        assert_eq!(Scene::of(vec![overtaken.clone()], vec![old]).actions(), [Action::Remove { container: name }]);
    }
}

#[test]
fn a_container_that_was_only_created_or_is_not_served_is_resumed() {
    let cut = job("a", JobState::InProgress, 1);
    let scene = Scene::of(vec![cut.clone()], vec![container_of(&cut, 1, ContainerStatus::Created)]);
    assert_eq!(scene.actions(), [Action::Resume { job: cut.id }]);
    let mut adopted = Scene::of(vec![cut.clone()], vec![container_of(&cut, 1, RUNNING)]);
    adopted.served.clear();
    assert_eq!(adopted.actions(), [Action::Resume { job: cut.id }]);
}

#[test]
fn a_worker_that_never_calls_is_given_up_after_the_start_timeout() {
    let mut silent = job("a", JobState::InProgress, 1);
    silent.running_mut().worker_seen_at = None;
    let mut scene = Scene::of(vec![silent.clone()], vec![container_of(&silent, 1, RUNNING)]);
    assert_eq!(scene.plan().look_again_in, Some(START_TIMEOUT));
    assert_eq!(scene.actions(), []);
    scene.liveness.insert(silent.id, Liveness { attempt_age: START_TIMEOUT, ..Liveness::default() });
    let actions = scene.actions();
    let [Action::Settle { death, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(death.reason, JobReason::StartTimeout);
}

#[test]
fn a_cancel_wins_over_everything_but_needs_the_engine() {
    let doomed = stopping(job("a", JobState::InProgress, 1));
    let mut scene = Scene::of(vec![doomed.clone()], vec![container_of(&doomed, 1, exit(1, false))]);
    assert_eq!(scene.actions(), [Action::Cancel { job: doomed.id }]);
    scene.containers = None;
    assert_eq!(scene.actions(), []);
}

#[test]
fn the_wall_clock_ends_a_job() {
    let long = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![long.clone()], vec![container_of(&long, 1, RUNNING)]);
    let almost = Duration::from_secs(3599);
    scene.liveness.insert(long.id, Liveness { job_age: almost, ..Liveness::default() });
    assert_eq!(scene.plan(), Plan { actions: vec![], look_again_in: Some(Duration::from_secs(1)) });
    scene.now = now() + TimeDelta::hours(2);
    assert_eq!(scene.actions(), [], "a step of the clock ends nothing");
    scene.liveness.insert(long.id, Liveness { job_age: Duration::from_hours(1), ..Liveness::default() });
    assert_eq!(scene.actions(), [Action::Expire { job: long.id }]);
}

const fn liveness(silent_seconds: u64, idle_seconds: u64) -> Liveness {
    Liveness {
        since_contact: Duration::from_secs(silent_seconds),
        since_progress: Duration::from_secs(idle_seconds),
        attempt_age: Duration::from_mins(50),
        job_age: Duration::from_mins(50),
    }
}

#[rstest]
#[case::works(liveness(0, 0), false, None)]
#[case::thinks(liveness(29, 299), false, None)]
#[case::silent(liveness(30, 0), false, Some("its worker runs but has not called for 30 s"))]
#[case::idle(liveness(3, 300), false, Some("nothing has happened for 300 s"))]
#[case::waits_for_its_tool(liveness(3, 4_000), true, None)]
#[case::silent_at_its_tool(liveness(31, 4_000), true, Some("its worker runs but has not called for 31 s"))]
fn stuck_is_judged_by_activity_never_by_age(
    #[case] liveness: Liveness,
    #[case] at_tool: bool,
    #[case] stuck: Option<&str>,
) {
    let live = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![live.clone()], vec![container_of(&live, 1, RUNNING)]);
    scene.liveness.insert(live.id, liveness);
    scene.at_tools.extend(at_tool.then_some(live.id));
    let expected: Vec<Action> =
        stuck.map(|message| Action::Stick { job: live.id, message: message.to_owned() }).into_iter().collect();
    assert_eq!(scene.actions(), expected);
}

#[rstest]
#[case::hears(0, Some(RUNNING), liveness(1, 300), "nudge")]
#[case::nudged_before(1, Some(RUNNING), liveness(1, 300), "again")]
#[case::deaf(0, Some(RUNNING), liveness(30, 300), "again")]
#[case::dead(0, Some(exit(1, false)), liveness(1, 300), "again")]
#[case::gone(0, None, liveness(1, 300), "again")]
#[case::the_last_repair(2, Some(RUNNING), liveness(1, 300), "again")]
#[case::repaired_enough(3, Some(RUNNING), liveness(1, 300), "fail")]
#[case::repaired_enough_and_gone(3, None, liveness(1, 300), "fail")]
fn a_stuck_job_is_asked_then_started_again_then_given_up(
    #[case] repair_attempts: u32,
    #[case] status: Option<ContainerStatus>,
    #[case] liveness: Liveness,
    #[case] expected: &str,
) {
    let stuck = JobRecord { repair_attempts, ..job("a", JobState::Stuck, 1) };
    let mut scene = Scene::of(vec![stuck.clone()], status.map(|s| container_of(&stuck, 1, s)).into_iter().collect());
    scene.liveness.insert(stuck.id, liveness);
    let actions = scene.actions();
    match (expected, actions.as_slice()) {
        ("nudge", [Action::Nudge { job }]) | ("again", [Action::StartAgain { job }]) => assert_eq!(*job, stuck.id),
        ("fail", [Action::Settle { death, .. }]) => assert_eq!(death.reason, JobReason::Stuck),
        _ => panic!("{expected}: {actions:?}"),
    }
}

#[test]
fn a_clock_that_steps_back_keeps_no_retry_waiting() {
    let rested = queued(1, Queued { not_before: Some(now() + TimeDelta::hours(1)), ..Queued::default() });
    assert_eq!(Scene::of(vec![rested.clone()], vec![]).actions(), [Action::Start { job: rested.id }]);
}

#[rstest]
#[case(JobState::Pending, 0)]
#[case(JobState::InProgress, 1)]
fn a_child_goes_with_its_parent(#[case] state: JobState, #[case] attempt: u32) {
    let child = job("a", state, attempt);
    let mut scene = Scene::of(vec![child.clone()], vec![]);
    scene.may_start = false;
    scene.orphaned.insert(child.id);
    assert_eq!(scene.actions(), [Action::Orphan { job: child.id }]);
}

#[test]
fn a_full_workspace_evicts_its_job() {
    let full = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![full.clone()], vec![container_of(&full, 1, RUNNING)]);
    scene.overfull.insert(full.id);
    assert_eq!(scene.actions(), [Action::Evict { job: full.id }]);
}

#[test]
fn a_worker_that_has_reported_gets_a_moment_to_leave() {
    let done = job("a", JobState::Completed, 1);
    let container = container_of(&done, 1, RUNNING);
    let mut scene = Scene::of(vec![], vec![container.clone()]);
    scene.ended.insert(done.id, now());
    assert_eq!(scene.plan(), Plan { actions: vec![], look_again_in: POLITE.to_std().ok() });
    scene.now = now() + POLITE;
    assert_eq!(scene.actions(), [Action::Remove { container: container.name.clone() }]);
    let mut left = Scene::of(vec![], vec![container_of(&done, 1, exit(0, false))]);
    left.ended.insert(done.id, now());
    assert_eq!(left.actions(), [Action::Remove { container: container.name }]);
}

#[test]
fn a_clock_that_steps_back_keeps_no_container_alive() {
    let done = job("a", JobState::Completed, 1);
    let mut scene = Scene::of(vec![], vec![container_of(&done, 1, RUNNING)]);
    scene.ended.insert(done.id, now() + TimeDelta::hours(1));
    assert_eq!(scene.actions().len(), 1);
}

#[test]
fn strays_go_and_probes_stay() {
    let unknown = container_of(&job("a", JobState::Failed, 1), 1, RUNNING);
    let current = job("a", JobState::InProgress, 2);
    let fenced = container_of(&current, 1, RUNNING);
    let own = container_of(&current, 2, RUNNING);
    let probe = ContainerView { role: Some(ContainerRole::Probe), job_id: None, ..unknown.clone() };
    let scene = Scene::of(vec![current], vec![unknown.clone(), fenced.clone(), own, probe]);
    assert_eq!(
        scene.actions(),
        [Action::Remove { container: unknown.name }, Action::Remove { container: fenced.name }]
    );
}

#[test]
fn folders_without_a_container_are_swept_unless_a_start_is_under_way() {
    let mut scene = Scene::of(vec![], vec![]);
    scene.folders = vec!["gantry-job-x-1".to_owned()];
    assert_eq!(scene.actions(), [Action::Sweep { folder: "gantry-job-x-1".to_owned() }]);
    scene.busy.insert(Subject::Job(JobId::generate()));
    assert_eq!(scene.actions(), []);
    scene.busy.clear();
    scene.containers = None;
    assert_eq!(scene.actions(), []);
}

#[test]
fn what_is_at_work_is_left_alone() {
    let pending = job("a", JobState::Pending, 0);
    let lost = job("a", JobState::InProgress, 1);
    let mut scene = Scene::of(vec![pending.clone(), lost.clone()], vec![]);
    scene.busy.extend([Subject::Job(pending.id), Subject::Job(lost.id)]);
    assert_eq!(scene.actions(), []);
}

prop_compose! {
    fn any_job()(user in "[ab]", state in 0..3usize, attempt in 0..3u32, cancel: bool, priority in -2..2i32) -> JobRecord {
        let state = [JobState::Pending, JobState::InProgress, JobState::Stuck][state];
        let attempt = if state == JobState::Pending { attempt } else { attempt + 1 };
        let mut job = job(&user, state, attempt);
        job.brief_mut().priority = priority;
        if cancel && job.is_running() { stopping(job) } else { job }
    }
}

fn any_status() -> impl Strategy<Value = ContainerStatus> {
    prop_oneof![
        Just(ContainerStatus::Created),
        Just(RUNNING),
        Just(ContainerStatus::Unknown),
        (0..200i64, any::<bool>()).prop_map(|(code, oom)| exit(code, oom)),
    ]
}

proptest! {
    #[test]
    fn no_plan_overfills_the_slots_or_decides_twice_on_one_subject(
        jobs in prop::collection::vec(any_job(), 0..12),
        with in prop::collection::vec((0..12usize, 0..4u32, any_status()), 0..12),
        busy in prop::collection::vec(0..12usize, 0..4),
        max_parallel in 0..6usize,
        max_per_user in 0..4usize,
    ) {
        let mut names = HashSet::new();
        let containers = with.iter()
            .filter_map(|(index, attempt, status)| jobs.get(*index).map(|job| container_of(job, *attempt, *status)))
            .filter(|container| names.insert(container.name.clone()))
            .collect();
        let mut scene = Scene::of(jobs, containers);
        scene.busy = busy.iter().filter_map(|index| scene.jobs.get(*index)).map(|job| Subject::Job(job.id)).collect();
        (scene.max_parallel, scene.max_per_user) = (max_parallel, max_per_user);
        let actions = scene.actions();
        let subjects: HashSet<Subject> = actions.iter().map(Action::subject).collect();
        prop_assert_eq!(subjects.len(), actions.len());
        prop_assert!(subjects.is_disjoint(&scene.busy));
        let holding = scene.jobs.iter()
            .filter(|job| job.state() != JobState::Pending || scene.busy.contains(&Subject::Job(job.id))).count();
        let starts = actions.iter().filter(|action| matches!(action, Action::Start { .. })).count();
        prop_assert!(starts == 0 || holding + starts <= max_parallel);
        for action in &actions {
            if let Action::Start { job } = action {
                let job = scene.jobs.iter().find(|one| one.id == *job).unwrap();
                prop_assert!(!job.is_stopping() && job.state() == JobState::Pending);
            }
        }
    }
}
