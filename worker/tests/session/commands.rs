//! The output of `shell` and the lifetime of its processes.

use std::{
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use protocol::ReportedOutcome;
use rstest::rstest;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::orchestrator::{Step, Worker, World, calls, children, is_gone, kill, reply, tool_results, wait_for_file};

/// Runs each group of calls in one turn and returns the results by turn.
async fn run(groups: &[&[Value]]) -> Vec<Vec<String>> {
    let steps = groups.iter().map(|group| {
        let group: Vec<_> = group.iter().map(|arguments| ("shell", arguments.clone())).collect();
        calls(&group)
    });
    let world = World::new(steps.chain([reply("done")]));
    std::fs::create_dir(world.workspace().join("sub")).unwrap();
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.only_report().outcome, ReportedOutcome::Completed);
    let record = world.record();
    record.requests[1..].iter().map(|request| tool_results(&request.messages)).collect()
}

fn command(command: &str) -> Value {
    json!({"command": command})
}

/// Waits until none of these processes runs. Returns false on a timeout.
async fn all_gone(arguments: &[&str]) -> bool {
    let wait = async {
        while !arguments.iter().all(|argument| is_gone(argument)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.is_ok()
}

/// The arguments whose processes are running.
fn alive<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    arguments.iter().copied().filter(|argument| !is_gone(argument)).collect()
}

async fn stop(worker: Worker) {
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().await.0.code(), Some(0));
}

#[rstest]
#[case::interleaved("echo one; echo two >&2; echo three", "one\ntwo\nthree\n[exit 0]")]
#[case::no_final_newline("printf ü; exit 3", "ü\n[exit 3]")]
#[case::silent("true", "[exit 0]")]
#[case::killed("kill -9 $$", "[exit 137]")]
#[case::no_input("cat", "[exit 0]")]
#[case::no_environment_of_the_worker("env | grep -c '^GANTRY\\|^CARGO'", "0\n[exit 1]")]
#[case::no_stream_of_the_supervisor("find /proc/self/fd -lname 'socket:*' | wc -l", "0\n[exit 0]")]
#[case::sigterm_and_sigint_do_not_stop_the_supervisor(
    "kill -TERM $PPID; kill -INT $PPID; sleep 0.1; echo on",
    "on\n[exit 0]"
)]
#[case::first_choice_of_the_oom_killer("cat /proc/self/oom_score_adj", "1000\n[exit 0]")]
#[tokio::test]
async fn output_is_shown_as_in_a_terminal(#[case] line: &str, #[case] expected: &str) {
    assert_eq!(run(&[&[command(line)]]).await, [[expected]]);
}

#[tokio::test]
async fn the_working_directory_must_be_inside_the_workspace() {
    let group = [
        json!({"command": "basename \"$PWD\"; basename \"$(pwd -P)\"", "workdir": "sub"}),
        json!({"command": "true", "workdir": "/etc"}),
    ];
    let results = run(&[&group]).await;
    assert_eq!(results[0][0], "sub\nsub\n[exit 0]");
    assert!(results[0][1].starts_with("error (sandbox)"), "{}", results[0][1]);
}

#[tokio::test]
async fn large_output_keeps_its_head_and_tail() {
    let results = run(&[&[command("seq 1 2000000")]]).await;
    let text = &results[0][0];
    assert!(text.starts_with("1\n2\n3\n"));
    assert!(text.ends_with("1999999\n2000000\n[exit 0]"));
    assert!(text.contains("bytes dropped"));
    assert!(text.len() < 70_000);
}

/// Changes everything that a process can change about itself: signals, group, session, parent, environment and name.
/// One process also ends its main thread.
const EVASIVE_COMMAND: &str = r#"trap '' TERM
setsid sleep 7101 &
(setsid bash -c 'sleep 7102 & disown' &)
(env -i sleep 7103) &
(setsid env GANTRY_CALL=x sleep 7104 &)
(setsid bash -c '(setsid bash -c "(setsid sleep 7105 &)" &)' &)
(setsid python3 -c 'import ctypes, sys, threading, time
threading.Thread(target=lambda: time.sleep(7106)).start()
open("begun", "w")
ctypes.CDLL(None).syscall(60, 0)' 7106 &)
until [ -e begun ]; do sleep 0.01; done
sleep 7107"#;

#[tokio::test]
async fn a_timeout_kills_every_descendant_and_nothing_of_other_calls() {
    let world = World::new([
        calls(&[("shell", command("(setsid env GANTRY_CALL=y sleep 7108 &)"))]),
        calls(&[
            ("shell", json!({"command": EVASIVE_COMMAND, "timeout_seconds": 3})),
            ("shell", command("setsid sleep 7109 & sleep 7110")),
        ]),
    ]);
    let worker = world.worker(&[]);
    wait_for_file(&world.workspace().join("begun")).await;
    assert!(all_gone(&["7101", "7102", "7103", "7104", "7105", "7106", "7107"]).await, "running after the timeout");
    assert_eq!(alive(&["7108", "7109", "7110"]), ["7108", "7109", "7110"], "processes of other calls");
    stop(worker).await;
    assert_eq!(alive(&["7108", "7109", "7110"]), [] as [&str; 0], "running after the job");
}

#[tokio::test]
async fn a_timeout_reports_the_output_so_far() {
    let results = run(&[&[json!({"command": "echo begun; sleep 7120", "timeout_seconds": 1})]]).await;
    assert!(results[0][0].starts_with("error (timeout)"), "{}", results[0][0]);
    assert!(results[0][0].ends_with("output so far:\nbegun"), "{}", results[0][0]);
}

#[tokio::test]
async fn a_timeout_kills_an_endless_chain_of_forks() {
    let started_at = Instant::now();
    let endless = "import os, time\nwhile True:\n if os.fork(): os._exit(0)\n os.setsid()";
    let world = World::new([
        calls(&[(
            "shell",
            json!({"command": format!("python3 -c '{endless}' 7131 & sleep 7132"), "timeout_seconds": 2}),
        )]),
        reply("done"),
    ]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let results = tool_results(&world.record().requests[1].messages);
    assert!(results[0].starts_with("error (timeout)"), "{results:?}");
    assert_eq!(alive(&["7131", "7132"]), [] as [&str; 0]);
    assert!(started_at.elapsed() < Duration::from_secs(30), "{:?}", started_at.elapsed());
}

#[tokio::test]
async fn a_background_process_keeps_running_and_blocks_nothing() {
    let world = World::new([
        calls(&[("shell", command("sleep 7301 & echo started"))]),
        calls(&[("shell", command("(sleep 0.5; exec yes 7302) & (setsid sleep 7303 &) ; echo started too"))]),
        calls(&[(
            "shell",
            command(
                "until pgrep -fx 'yes 7302'; do sleep 0.05; done >/dev/null; pgrep -fx 'sleep 7301' >/dev/null && echo alive",
            ),
        )]),
        Step::Hang,
    ]);
    let started_at = Instant::now();
    let worker = world.worker(&[]);
    world.until("the fourth model call", |record| record.requests.len() == 4).await;
    assert!(started_at.elapsed() < Duration::from_secs(20));
    let results: Vec<_> = world.record().requests[1..].iter().map(|request| tool_results(&request.messages)).collect();
    assert_eq!(results, [["started\n[exit 0]"], ["started too\n[exit 0]"], ["alive\n[exit 0]"]]);
    let supervisors = async {
        // The supervisor of the last call is about to exit.
        while children(worker.pid()).len() > 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), supervisors)
        .await
        .expect("expected one supervisor for each call with background processes");
    stop(worker).await;
    assert_eq!(alive(&["7301", "7302", "7303"]), [] as [&str; 0]);
}

#[rstest]
#[case::by_the_command("kill -KILL $PPID; sleep 7401", "7401", "7402")]
#[case::by_a_daemon("(setsid bash -c 'sleep 0.2; kill -KILL $0; sleep 7403' $PPID &) ; sleep 7403", "7403", "7404")]
#[tokio::test]
async fn killing_the_supervisor_kills_all_processes_of_its_call_only(
    #[case] line: &str,
    #[case] own: &str,
    #[case] other: &str,
) {
    let world = World::new([
        calls(&[("shell", command(&format!("(setsid sleep {other} &)")))]),
        calls(&[("shell", command(line))]),
        Step::Hang,
    ]);
    let worker = world.worker(&[]);
    world.until("the third model call", |record| record.requests.len() == 3).await;
    let results = tool_results(&world.record().requests[2].messages);
    assert!(results[0].starts_with("error (failed)"), "{results:?}");
    assert!(results[0].contains("the supervisor was killed"), "{results:?}");
    assert!(all_gone(&[own]).await);
    assert_eq!(alive(&[other]), [other]);
    stop(worker).await;
    assert_eq!(alive(&[other]), [] as [&str; 0]);
}

#[tokio::test]
async fn a_command_that_stops_its_supervisor_times_out() {
    let stopper = "(setsid sleep 7411 &) ; kill -STOP $PPID; sleep 7411";
    let results = run(&[&[json!({"command": stopper, "timeout_seconds": 1})], &[command("echo next")]]).await;
    assert!(results[0][0].starts_with("error (timeout)"), "{}", results[0][0]);
    assert_eq!(results[1], ["next\n[exit 0]"]);
    assert_eq!(alive(&["7411"]), [] as [&str; 0]);
}

#[tokio::test]
async fn background_processes_are_killed_with_their_supervisor() {
    let world = World::new([
        calls(&[("shell", command("(setsid sleep 7421 &) ; (setsid sleep 7421 &)"))]),
        calls(&[("shell", command("(setsid sleep 7422 &)"))]),
        Step::Hang,
    ]);
    let worker = world.worker(&[]);
    world.until("the third model call", |record| record.requests.len() == 3).await;
    let mut supervisors = children(worker.pid());
    supervisors.sort_unstable();
    kill(supervisors[0], Signal::KILL);
    assert!(all_gone(&["7421"]).await);
    assert_eq!(alive(&["7422"]), ["7422"]);
    stop(worker).await;
}

#[tokio::test]
async fn a_command_that_cannot_be_executed_is_a_failed_result() {
    let world = World::new([calls(&[("shell", command("true"))]), reply("done")]);
    // An executable that is not a program.
    let bin = world.directory.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("bash"), "").unwrap();
    std::fs::set_permissions(bin.join("bash"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (status, text) = world.worker_with_path(&bin).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let results = tool_results(&world.record().requests[1].messages);
    assert!(results[0].starts_with("error (failed): the command could not be started: "), "{results:?}");
}

#[tokio::test]
async fn eight_parallel_commands_return_their_own_output() {
    let group: Vec<_> = (0..8).map(|number| command(&format!("sleep 0.3; echo {number}"))).collect();
    let results = run(&[&group]).await;
    let expected: Vec<_> = (0..8).map(|number| format!("{number}\n[exit 0]")).collect();
    assert_eq!(results, [expected]);
}
