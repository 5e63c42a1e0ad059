//! Searches of a hostile workspace: bounded and killable, and the worker is not affected.

use std::{
    fs,
    time::{Duration, Instant},
};

use protocol::ReportedOutcome;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::orchestrator::{Step, World, calls, is_gone, kill, reply, tool_results, wait_for_file};

/// Maximum resident memory of the worker process.
const MAX_WORKER_KIB: u64 = 40 * 1024;

fn results(world: &World, request: usize) -> Vec<String> {
    tool_results(&world.record().requests[request].messages)
}

/// The peak resident memory of a process.
fn peak_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A search that takes minutes: a long line, and an expression whose automaton needs 2^300 states.
fn slow_grep(world: &World) -> (&'static str, Value) {
    let mut state = 1_u32;
    let text: Vec<u8> = (0..12 << 20)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 31 == 0 { b'a' } else { b'b' }
        })
        .collect();
    fs::write(world.workspace().join("slow"), text).unwrap();
    ("grep", json!({"pattern": "a.{300}[c-z]", "path": "slow"}))
}

#[tokio::test]
async fn hostile_ignore_files_neither_hang_nor_exhaust_memory() {
    let glob = || ("glob", json!({"pattern": "*.txt"}));
    let world = World::new([
        calls(&[glob(), glob(), ("shell", json!({"command": "sleep 7601", "timeout_seconds": 1}))]),
        calls(&[("read_file", json!({"path": "a.txt"}))]),
        Step::Hang,
    ]);
    let at = |name: &str| world.workspace().join(name);
    fs::write(at("a.txt"), "hello").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at(".gitignore"), 0o600.into()).unwrap();
    for (directory, name) in
        [("sparse", ".gitignore"), ("many", ".ignore"), ("linked", ".gitignore"), ("excluded", "x")]
    {
        fs::create_dir(at(directory)).unwrap();
        fs::write(at(directory).join("b.txt"), "").unwrap();
        match directory {
            "sparse" => fs::File::create(at(directory).join(name)).unwrap().set_len(1 << 30).unwrap(),
            "many" => {
                let patterns: Vec<_> = (0..1_000_000).map(|number| format!("*{number}?[ab]*")).collect();
                fs::write(at(directory).join(name), patterns.join("\n")).unwrap();
            }
            "linked" => std::os::unix::fs::symlink("/dev/zero", at(directory).join(name)).unwrap(),
            _ => {
                fs::create_dir_all(at(directory).join(".git/info")).unwrap();
                rustix::fs::mkfifoat(rustix::fs::CWD, at(directory).join(".git/info/exclude"), 0o600.into()).unwrap();
            }
        }
    }
    let worker = world.worker(&[]);
    world.until("the third model call", |record| record.requests.len() == 3).await;
    let shown = results(&world, 1);
    for glob in &shown[..2] {
        assert!(glob.starts_with("a.txt\nexcluded/b.txt\nlinked/b.txt\nmany/b.txt\nsparse/b.txt\n[…"), "{glob}");
        assert!(glob.contains("some ignore rules were not applied"), "{glob}");
    }
    assert!(shown[2].contains("timed out after 1 s"), "{}", shown[2]);
    assert!(is_gone("7601"));
    assert_eq!(results(&world, 2), ["hello"]);
    assert!(peak_kib(worker.pid()) < MAX_WORKER_KIB, "{} KiB", peak_kib(worker.pid()));
}

#[tokio::test]
async fn a_killed_search_is_a_failed_result_and_the_job_continues() {
    let world = World::new([]);
    world.record().script.extend([calls(&[slow_grep(&world)]), reply("done")]);
    let worker = world.worker(&[]);
    kill(worker.search().await, Signal::KILL);
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let shown = results(&world, 1);
    assert!(shown[0].contains("killed by signal 9"), "{shown:?}");
    assert_eq!(world.only_report().outcome, ReportedOutcome::Completed);
}

#[tokio::test]
async fn a_search_is_killed_when_the_job_ends() {
    let world = World::new([]);
    world.record().script.push_back(calls(&[slow_grep(&world)]));
    let worker = world.worker(&[]);
    let search = worker.search().await;
    // A stopped process is killed too.
    kill(search, Signal::STOP);
    let stopped_at = Instant::now();
    worker.signal(Signal::TERM);
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(stopped_at.elapsed() < Duration::from_secs(3), "{:?}", stopped_at.elapsed());
    assert_eq!(world.only_report().outcome, ReportedOutcome::Stopped);
    assert!(!fs::exists(format!("/proc/{search}")).unwrap());
}

#[tokio::test]
async fn running_searches_delay_neither_timeouts_nor_other_tools() {
    let world = World::new([]);
    let slow = slow_grep(&world);
    let mut group = vec![slow; 6];
    group.push((
        "shell",
        json!({"command": "(sleep 7611; touch late) & touch begun; sleep 7612", "timeout_seconds": 1}),
    ));
    group.push(("read_file", json!({"path": "small"})));
    fs::write(world.workspace().join("small"), "hello").unwrap();
    world.record().script.push_back(calls(&group));
    let worker = world.worker(&[]);
    wait_for_file(&world.workspace().join("begun")).await;
    let ended = tokio::time::timeout(Duration::from_secs(10), async {
        while !(is_gone("7611") && is_gone("7612")) {
            tokio::task::yield_now().await;
        }
    });
    ended.await.expect("the timed-out command was not killed while searches ran");
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().await.0.code(), Some(0));
}

/// The tree is deeper than the descriptor limit and longer than `PATH_MAX`.
#[tokio::test]
async fn a_search_stops_at_the_maximum_depth() {
    let world = World::new([calls(&[("glob", json!({"pattern": "*.txt"}))]), reply("done")]);
    let script = "import os\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d')\nopen('deep.txt', 'w')";
    let made =
        std::process::Command::new("python3").args(["-c", script]).current_dir(world.workspace()).status().unwrap();
    assert!(made.success());
    fs::write(world.workspace().join("top.txt"), "").unwrap();
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(results(&world, 1), ["top.txt\n[… there may be more matches; use a narrower search]"]);
    let removed = std::process::Command::new("rm").arg("-rf").arg(world.workspace()).status().unwrap();
    assert!(removed.success());
}
