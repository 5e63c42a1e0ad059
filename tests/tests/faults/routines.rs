//! Routines while the process is killed, stopped or suspended and its clock is stepped: each firing has one run, each
//! time of a schedule one outcome, and nothing is left running.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit as _, Mac as _};
use protocol::{EventReceipt, JobState, Routine, RoutineRun, RunReason, RunStatus};
use reqwest::Method;
use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::Sha256;
use tests::{
    User,
    install::stack::{Builder, Stack},
    routines::{firings, runs},
};

use crate::{
    invariants::check_invariants,
    schedule::{TOLERANCE, ask, check_times, create, ended_runs, line, stop, wait_for_time},
    setup::{Rng, install, restart_without_failpoint, send, wait_for_failpoint},
};

/// Distance of the times of a routine. The shortest that is allowed by default is a minute.
const PERIOD: TimeDelta = TimeDelta::seconds(2);
const SCRIPT: &str = r"
model: routines-1
rules:
  - when: { prompt: { regex: 'slow' } }
    reply: { text: ROUTINE_OK, delay_ms: 300 }
  - reply: { text: ROUTINE_OK }
";

/// An install without a sandbox.
fn hosted() -> Builder {
    install().script(SCRIPT).set("GANTRY_SANDBOX", "disabled").set("GANTRY_ROUTINE_MIN_INTERVAL_SECONDS", "1")
}

fn every_period() -> Value {
    json!({"type": "every", "every_seconds": PERIOD.num_seconds()})
}

#[expect(clippy::disallowed_methods, reason = "the clock of the machine, which the process has too")]
fn now() -> DateTime<Utc> {
    Utc::now()
}

/// Ends a test: the routines have no run in progress.
async fn finish(stack: Stack, user: &User) {
    tests::until("all runs to end", async || {
        let page = user.get("/api/runs?limit=200").await.expect(200).body;
        page["items"].as_array().is_some_and(|runs| runs.iter().all(|run| !run["completed_at"].is_null()))
    })
    .await;
    check_invariants(&stack).await;
    stack.finish().await;
}

/// A run whose process died is not repeated, since its tools may have had effects.
#[rstest]
#[case("routine.before_claim:2", None)]
#[case("routine.after_claim:2", None)]
#[case("routine.after_start:2", Some(RunReason::OrchestratorRestart))]
#[case("routine.before_end:2", Some(RunReason::OrchestratorRestart))]
#[case("routine.after_end:2", None)]
#[tokio::test]
async fn each_time_has_one_run_around_a_kill_at(#[case] point: &str, #[case] reason: Option<RunReason>) {
    let mut stack = hosted().set("GANTRY_FAILPOINT", point).start_unchecked().await;
    let ada = stack.user("ada").await;
    let routine = create(&ada, "often", every_period(), ask("look"), json!({})).await;
    wait_for_failpoint(&mut stack).await;
    let killed = now();
    restart_without_failpoint(&mut stack).await;
    let back = now();
    wait_for_time(&ada, &routine, back).await;
    let runs = stop(&ada, &routine).await;
    let outcomes = check_times(&routine, PERIOD, &runs, &[(killed - PERIOD, back)]);
    let failed: Vec<_> = outcomes.values().filter(|(status, _)| *status != RunStatus::Ok).collect();
    let expected = reason.map(|reason| (RunStatus::Failed, Some(reason)));
    assert_eq!(failed, expected.iter().collect::<Vec<_>>(), "{runs:#?}");
    finish(stack, &ada).await;
}

/// The sender, which has no answer, sends it again.
#[rstest]
#[case("routine.before_fire", RunStatus::Ok)]
#[case("routine.after_fire", RunStatus::Ok)]
#[case("routine.after_start", RunStatus::Failed)]
#[tokio::test]
async fn an_event_fires_one_run_around_a_kill_at(#[case] point: &str, #[case] status: RunStatus) {
    let mut stack = hosted().set("GANTRY_FAILPOINT", point).start_unchecked().await;
    let ada = stack.user("ada").await;
    let trigger = json!({"type": "event", "pattern": "."});
    let routine = create(&ada, "answer", trigger, ask("answer it"), json!({})).await;
    // The process may die before it answers.
    post_message(&ada, "m1").await;
    wait_for_failpoint(&mut stack).await;
    restart_without_failpoint(&mut stack).await;
    let receipt = post_message(&ada, "m1").await.expect("nothing kills it now");
    let runs = ended_runs(&ada, &routine, 1).await;
    assert_eq!((runs.len(), runs[0].status), (1, status), "{runs:#?}");
    assert_eq!(receipt.run_ids, [runs[0].id]);
    finish(stack, &ada).await;
}

#[rstest]
#[case("routine.before_fire", false)]
#[case("routine.after_fire", true)]
#[tokio::test]
async fn a_delivery_of_a_webhook_fires_one_run_around_a_kill_at(#[case] point: &str, #[case] is_recorded: bool) {
    let mut stack = hosted().set("GANTRY_FAILPOINT", point).start_unchecked().await;
    let ada = stack.user("ada").await;
    let trigger = json!({"type": "webhook", "path": "pushes", "secret": WEBHOOK_SECRET});
    let guardrails = json!({"cooldown_seconds": 0, "max_concurrent": 10});
    let routine = create(&ada, "pushes", trigger, ask("look"), guardrails).await;
    let sender = stack.anonymous();
    // The process dies while it works on one of many.
    join_all((0..20).map(|_| deliver(&sender, "d1"))).await;
    wait_for_failpoint(&mut stack).await;
    restart_without_failpoint(&mut stack).await;
    let again = join_all((0..100).map(|_| deliver(&sender, "d1"))).await;
    let status = |wanted| again.iter().flatten().filter(|(status, _)| *status == wanted).count();
    let fired = usize::from(!is_recorded);
    assert_eq!((status(202), status(200)), (fired, 100 - fired), "{again:?}");
    let runs = ended_runs(&ada, &routine, 1).await;
    assert_eq!((runs.len(), runs[0].status), (1, RunStatus::Ok), "{runs:#?}");
    assert!(again.iter().flatten().all(|(_, body)| body["run_id"] == json!(runs[0].id)), "{again:?}");
    finish(stack, &ada).await;
}

/// Each condition computes for as long as it may.
#[tokio::test]
async fn a_stop_does_not_wait_for_conditions() {
    let mut stack = hosted().start_unchecked().await;
    let ada = stack.user("ada").await;
    let condition = vec!["payload.a.matches('a[ab]{3500}[^ab]')"; 40].join(" || ");
    for number in 0..20 {
        let trigger = json!({"type": "system_event", "source": "ci", "event_type": "slow", "where": condition});
        create(&ada, &format!("slow {number}"), trigger, ask("look"), json!({})).await;
    }
    let event = json!({"source": "ci", "event_type": "slow", "payload": {"a": "ab".repeat(32 * 1024)}});
    let before = Process::of(&stack).ticks();
    let stop = async {
        let process = Process::of(&stack);
        tests::until("the conditions to be computed", async || process.ticks() > before + 50).await;
        let asked = Instant::now();
        stack.stop().await;
        asked.elapsed()
    };
    let (answer, took) = tokio::join!(send(ada.request(Method::POST, "/api/system-events").json(&event)), stop);
    assert!(took < STOP_TIME_LIMIT, "{took:?}");
    assert!(answer.is_none_or(|(status, _)| status == 503), "it was not compared with all routines");
    stack.restart().await;
    finish(stack, &ada).await;
}

/// After this time `docker stop` kills.
const STOP_TIME_LIMIT: Duration = Duration::from_secs(10);

const WEBHOOK_SECRET: &str = "a secret of the sender";

/// Delivers a body as GitHub does; `None` if the process dies meanwhile.
async fn deliver(sender: &User, id: &str) -> Option<(u16, Value)> {
    let mut mac = Hmac::<Sha256>::new_from_slice(WEBHOOK_SECRET.as_bytes()).expect("any length is a key");
    mac.update(b"{}");
    let digest: Vec<String> = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let request = sender.request(Method::POST, "/api/webhooks/pushes").header("Content-Type", "application/json");
    let request = request.header("X-GitHub-Event", "push").header("X-GitHub-Delivery", id);
    send(request.header("X-Hub-Signature-256", format!("sha256={}", digest.concat())).body("{}")).await
}

/// Posts a message with this id; `None` if the process dies meanwhile.
async fn post_message(user: &User, id: &str) -> Option<EventReceipt> {
    let request = user.request(Method::POST, "/api/messages").header("Idempotency-Key", id);
    let (status, body) = send(request.json(&json!({"content": "hello"}))).await?;
    assert_eq!(status, 202, "{body:#}");
    serde_json::from_value(body).ok()
}

/// The run and its job are made in one transaction, and end in one.
#[rstest]
#[case("create.before_row")]
#[case("create.after_row")]
#[case("start.after_row")]
#[case("start.after_start")]
#[case("complete.before_commit")]
#[case("complete.after_commit")]
#[tokio::test]
async fn a_run_and_its_job_survive_a_kill_at(#[case] point: &str) {
    let mut stack = install().set("GANTRY_FAILPOINT", point).start().await;
    let ada = stack.user("ada").await;
    let action = json!({"type": "full_job", "description": "work 2"});
    let routine = create(&ada, "nightly", json!({"type": "manual"}), action, json!({})).await;
    let _ = send(ada.request(Method::POST, &format!("/api/routines/{}/trigger", routine.id)).json(&json!({}))).await;
    wait_for_failpoint(&mut stack).await;
    restart_without_failpoint(&mut stack).await;
    let runs = ended_runs(&ada, &routine, 1).await;
    let [run] = &runs[..] else { panic!("one firing, one run: {runs:#?}") };
    let job = ada.job(run.job_id.expect("a job")).await;
    assert_eq!((job.state, run.status, run.reason), (JobState::Completed, RunStatus::Attention, None), "{run:#?}");
    assert_eq!(run.completed_at, job.finished_at);
    assert_eq!(ada.jobs().await.len(), 1);
    assert_eq!(fs::read_to_string(stack.workspace(job.id).join("effects")).unwrap(), "1\n2\n");
    finish(stack, &ada).await;
}

#[tokio::test]
async fn kills_at_any_time_lose_and_repeat_no_time() {
    let mut stack = hosted().start_unchecked().await;
    let ada = stack.user("ada").await;
    let asking = create(&ada, "asking", every_period(), ask("look"), json!({})).await;
    let telling = create(&ada, "telling", every_period(), line(), json!({})).await;
    let (mut random, mut gaps) = (Rng(12), vec![]);
    for _ in 0..6 {
        random.sleep_up_to(Duration::from_secs(4)).await;
        let killed = now();
        stack.kill();
        stack.restart().await;
        gaps.push((killed - PERIOD, now()));
    }
    for (routine, failures) in [(&asking, 6), (&telling, 0)] {
        wait_for_time(&ada, routine, now()).await;
        let runs = stop(&ada, routine).await;
        let outcomes = check_times(routine, PERIOD, &runs, &gaps);
        let failed: Vec<_> = outcomes.values().filter(|(status, _)| *status != RunStatus::Ok).collect();
        let is_restart = |reason: Option<RunReason>| reason == Some(RunReason::OrchestratorRestart);
        assert!(failed.len() <= failures && failed.iter().all(|(_, reason)| is_restart(*reason)), "{runs:#?}");
    }
    finish(stack, &ada).await;
}

#[tokio::test]
async fn a_process_that_is_stopped_for_a_minute_accounts_for_each_time() {
    let stack = hosted().start_unchecked().await;
    let ada = stack.user("ada").await;
    let routine = create(&ada, "often", every_period(), line(), json!({})).await;
    ended_runs(&ada, &routine, 1).await;
    let process = Process::of(&stack);
    let stopped = now();
    process.stop();
    tokio::time::sleep(Duration::from_secs(65)).await;
    process.resume();
    let back = now();
    wait_for_time(&ada, &routine, back).await;
    let runs = stop(&ada, &routine).await;
    let outcomes = check_times(&routine, PERIOD, &runs, &[(stopped - PERIOD, back)]);
    // Times that are over a minute late were missed. The others run one after the other; while they do, further ones
    // are skipped.
    for (time, (status, reason)) in &outcomes {
        let expected = match (*time < back - TimeDelta::minutes(1), *time < back) {
            (true, _) if *time > stopped => *status == RunStatus::Missed,
            (_, true) => *status == RunStatus::Ok,
            _ => *status == RunStatus::Ok || *reason == Some(RunReason::Overlap),
        };
        let is_close = (back - TimeDelta::minutes(1) - *time).abs() < TOLERANCE || (*time - stopped).abs() < TOLERANCE;
        assert!(expected || is_close, "{time} is {status} {reason:?}");
    }
    assert!(outcomes.values().any(|(status, _)| *status == RunStatus::Missed));
    finish(stack, &ada).await;
}

#[tokio::test]
async fn a_clock_that_is_stepped_two_hours_both_ways_repeats_and_loses_no_time() {
    let step = TimeDelta::hours(2);
    let clock = SteppedClock::new();
    let stack = clock.set(hosted()).start_unchecked().await;
    let ada = stack.user("ada").await;
    let routine = create(&ada, "often", every_period(), line(), json!({})).await;
    ended_runs(&ada, &routine, 2).await;
    let stepped = now();
    clock.step_to(step);
    let gap = (stepped - PERIOD, now() + step);
    // Tokens expire while the clock is ahead.
    let ada = stack.user("ada").await;
    wait_for_time(&ada, &routine, gap.1 + PERIOD).await;
    let before = runs(&ada, routine.id).await.len();
    clock.step_to(TimeDelta::zero());
    let ada = stack.user("ada").await;
    // Time passes: another routine fires at its times.
    let other = create(&ada, "other", every_period(), line(), json!({})).await;
    let others = ended_runs(&ada, &other, 2).await;
    assert!(others.iter().all(|run| run.status == RunStatus::Ok), "{others:#?}");
    let after = runs(&ada, routine.id).await;
    // One more time may have passed before the step.
    assert!(after.len() <= before + 1, "a time that has an outcome fires again: {after:#?}");
    stop(&ada, &other).await;
    clock.step_to(step);
    let ada = stack.user("ada").await;
    let ahead = now() + step;
    wait_for_time(&ada, &routine, ahead).await;
    let runs = stop(&ada, &routine).await;
    let outcomes = check_times(&routine, PERIOD, &runs, &[gap, (gap.1, ahead)]);
    let missed: u64 = runs.iter().filter_map(|run| run.missed_count).sum();
    assert!((3_500..=3_600).contains(&missed) && outcomes.len() > 3_600, "{missed} were missed: {runs:#?}");
    finish(stack, &ada).await;
}

#[rstest]
#[case("once", RunStatus::Ok)]
#[case("none", RunStatus::Missed)]
#[tokio::test]
async fn a_daily_time_that_passes_while_the_machine_is_suspended_for_eight_hours(
    #[case] catch_up: &str,
    #[case] status: RunStatus,
) {
    let night = TimeDelta::hours(8);
    let clock = SteppedClock::new();
    let stack = clock.set(hosted()).start_unchecked().await;
    let ada = stack.user("ada").await;
    let due = now() + night / 2;
    let trigger = json!({"type": "cron", "schedule": due.format("%M %H * * *").to_string()});
    let routine = create(&ada, "daily", trigger, line(), json!({"catch_up": catch_up})).await;
    let process = Process::of(&stack);
    process.stop();
    clock.step_to(night);
    process.resume();
    let ada = stack.user("ada").await;
    let runs = ended_runs(&ada, &routine, 1).await;
    let [run] = &runs[..] else { panic!("one time has passed: {runs:#?}") };
    assert_eq!((run.status, run.due_at.or(run.missed_from)), (status, routine.next_fire_at), "{run:#?}");
    assert!(run.created_at <= now() + night, "it is noticed within a second");
    let routine: Routine = ada.get(&format!("/api/routines/{}", routine.id)).await.expect(200).json();
    assert_eq!(routine.next_fire_at, run.due_at.or(run.missed_from).map(|due| due + TimeDelta::days(1)));
    finish(stack, &ada).await;
}

/// What is done to routines at the moment at which they fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Nothing,
    Rename,
    Retime,
    Disable,
    Delete,
}

#[tokio::test]
async fn changes_at_the_moment_of_a_firing_repeat_nothing_and_leave_nothing_running() {
    let stack = hosted().start_unchecked().await;
    let ada = stack.user("ada").await;
    let due = now() + TimeDelta::seconds(6);
    let changes = [Change::Nothing, Change::Rename, Change::Retime, Change::Disable, Change::Delete];
    let mut routines = vec![];
    for number in 0..60 {
        let change = changes[number % changes.len()];
        let trigger = json!({"type": "at", "at": due});
        let name = format!("{change:?} {number}");
        routines.push((change, create(&ada, &name, trigger, ask("look"), json!({})).await));
    }
    // The schedule has whole seconds.
    let due = routines[0].1.next_fire_at.expect("a time");
    let later = due + TimeDelta::seconds(4);
    let requests = routines.iter().enumerate().map(async |(number, (change, routine))| {
        // Around the time itself: from 150 ms before to 150 ms after it.
        let at = due + TimeDelta::milliseconds(i64::try_from(number).unwrap() * 5 - 150);
        tokio::time::sleep((at - now()).to_std().unwrap_or_default()).await;
        let path = format!("/api/routines/{}", routine.id);
        let merge = |body: Value| ada.request(Method::PATCH, &path).json(&body);
        let request = match change {
            Change::Nothing => return,
            Change::Rename => merge(json!({"name": format!("renamed {number}")})),
            Change::Retime => merge(json!({"trigger": {"type": "at", "at": later}, "enabled": true})),
            Change::Disable => ada.request(Method::POST, &format!("{path}/disable")).json(&json!({})),
            Change::Delete => ada.request(Method::DELETE, &path),
        };
        let (status, body) = send_any(request).await;
        assert!(status == 200 || status == 204, "{status}: {body}");
    });
    join_all(requests).await;
    tests::until("the runs of the later time", async || {
        let runs = all_runs(&ada).await;
        let has_run = |routine: &Routine, time| runs.iter().any(|run| is_of(run, routine, time));
        routines.iter().all(|(change, routine)| match change {
            Change::Nothing | Change::Rename => has_run(routine, due),
            Change::Retime => has_run(routine, later),
            Change::Disable | Change::Delete => true,
        }) && runs.iter().all(|run| run.status.is_finished())
    })
    .await;
    let runs = all_runs(&ada).await;
    for (change, routine) in &routines {
        let of = |time| runs.iter().filter(|run| is_of(run, routine, time)).collect::<Vec<_>>();
        let (first, second) = (of(due), of(later));
        let expected = match change {
            Change::Nothing | Change::Rename => first.len() == 1 && second.is_empty(),
            Change::Retime => first.len() <= 1 && second.len() == 1,
            Change::Disable | Change::Delete => first.len() <= 1 && second.is_empty(),
        };
        // A run that waited for its start when the routine was changed has ended with that reason.
        let good = |run: &&RoutineRun| run.status == RunStatus::Ok || run.reason == Some(RunReason::RoutineChanged);
        assert!(expected && first.iter().chain(&second).all(good), "{change:?}: {first:#?} {second:#?}");
    }
    finish(stack, &ada).await;
}

fn is_of(run: &RoutineRun, routine: &Routine, time: DateTime<Utc>) -> bool {
    run.routine_id == routine.id && run.due_at == Some(time)
}

async fn send_any(request: reqwest::RequestBuilder) -> (u16, String) {
    let response = tests::within("a response", request.send()).await.expect("a response");
    (response.status().as_u16(), response.text().await.unwrap_or_default())
}

async fn all_runs(user: &User) -> Vec<RoutineRun> {
    let page = user.get("/api/runs?limit=200").await.expect(200);
    serde_json::from_value(page.body["items"].clone()).expect("runs")
}

#[rstest]
#[case("skip")]
#[case("queue_one")]
#[case("cancel_previous")]
#[tokio::test]
async fn of_many_messages_at_once_one_run_is_in_progress_at_a_time(#[case] overlap: &str) {
    const MESSAGES: usize = 40;
    let stack = hosted().start_unchecked().await;
    let ada = stack.user("ada").await;
    let guardrails = json!({"cooldown_seconds": 0, "max_concurrent": 1, "overlap": overlap});
    let routine = create(&ada, "answer", json!({"type": "event", "pattern": "."}), ask("slow"), guardrails).await;
    let ids: Vec<String> = (0..MESSAGES).map(|number| format!("m{number}")).collect();
    join_all(ids.iter().map(|id| post_message(&ada, id))).await;
    let runs = ended_runs(&ada, &routine, MESSAGES).await;
    assert_eq!(firings(&runs), MESSAGES as u64, "one firing, one outcome");
    let mut busy: Vec<_> = runs.iter().filter_map(|run| Some((run.started_at?, run.completed_at?))).collect();
    busy.sort_unstable();
    assert!(busy.windows(2).all(|two| two[0].1 <= two[1].0), "two at once: {busy:#?}");
    let count = |status, reason| {
        let with = runs.iter().filter(|run| (run.status, run.reason) == (status, reason));
        with.map(|run| run.skipped_count.unwrap_or(1)).sum::<u64>()
    };
    let (ok, skipped) = (count(RunStatus::Ok, None), count(RunStatus::Skipped, Some(RunReason::Overlap)));
    let replaced = count(RunStatus::Failed, Some(RunReason::CancelledByOverlap));
    assert!(ok >= 1 && ok + skipped + replaced == MESSAGES as u64, "{runs:#?}");
    assert_eq!((replaced > 0, skipped > 0), (overlap == "cancel_previous", overlap != "cancel_previous"), "{runs:#?}");
    finish(stack, &ada).await;
}

/// The process of an install, which can be stopped and resumed.
struct Process(Pid);

impl Process {
    fn of(stack: &Stack) -> Self {
        let id = i32::try_from(stack.pid()).expect("a process id");
        Self(Pid::from_raw(id).expect("a process id"))
    }

    /// Processor time in user space, in hundredths of a second.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero())).expect("it runs");
        let (_, fields) = stat.rsplit_once(") ").expect("the name of the program");
        fields.split(' ').nth(11).and_then(|ticks| ticks.parse().ok()).expect("a number")
    }

    fn stop(&self) {
        kill_process(self.0, Signal::STOP).expect("it runs");
    }

    fn resume(&self) {
        kill_process(self.0, Signal::CONT).expect("it runs");
    }
}

impl Drop for Process {
    /// A stopped process could not end.
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A wall clock that a test steps while the process runs; its monotonic time goes on, as it does when a real clock is
/// stepped.
struct SteppedClock {
    directory: tempfile::TempDir,
}

impl SteppedClock {
    fn new() -> Self {
        let clock = Self { directory: tempfile::tempdir().expect("a directory") };
        clock.step_to(TimeDelta::zero());
        clock
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("offset")
    }

    /// Sets how far the process is ahead of the machine.
    fn step_to(&self, offset: TimeDelta) {
        let next = self.directory.path().join("next");
        fs::write(&next, format!("+{}s", offset.num_seconds())).expect("a file can be written");
        fs::rename(next, self.file()).expect("a file can be renamed");
    }

    /// Has a process use it.
    fn set(&self, builder: Builder) -> Builder {
        let library = fs::read_dir("/usr/lib")
            .expect("libraries")
            .filter_map(|entry| Some(entry.ok()?.path().join("faketime/libfaketimeMT.so.1")))
            .find(|path| path.is_file())
            .expect("libfaketime is missing; tests/run.sh --only faults installs it");
        builder
            .set("LD_PRELOAD", &library.display().to_string())
            .set("FAKETIME_TIMESTAMP_FILE", &self.file().display().to_string())
            .set("FAKETIME_NO_CACHE", "1")
            .set("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .set("NO_FAKE_STAT", "1")
    }
}
