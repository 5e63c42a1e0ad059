//! Hostile tool calls in a real job container: they reach nothing outside, and break only their own call.

use std::fs;

use protocol::{Event, EventData, JobState};
use serde_json::{Value, json};
use tests::User;

use crate::{
    jobs::{WAIT_FOR_RELEASE, command_job, is_tool_use, release, tool_result},
    stack::{API_KEY, JWT_SECRET, Stack},
};

const ATTACK: &str = include_str!("attack.py");
/// The errors of a denied system call.
const REFUSED: [&str; 3] = ["EPERM", "ENOSYS", "EACCES"];

#[tokio::test]
async fn an_attacker_in_the_container_finds_no_escape_and_no_secret() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let victim = ada.create(command_job(WAIT_FOR_RELEASE)).await;
    ada.wait_for_event(victim, "a tool call", is_tool_use).await;
    let found = attack(&stack, &ada, victim).await;
    release(&stack, victim);
    assert_eq!(ada.wait_for_end(victim).await.state, JobState::Completed, "the other job must not be affected");

    assert_eq!((&found["interfaces"], &found["routes"]), (&json!(["lo"]), &json!(0)));
    for way in ["tcp4", "tcp6", "metadata", "gateway"] {
        let nowhere = ["ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT"];
        assert!(nowhere.contains(&found[way].as_str().unwrap()), "{way}: {}", found[way]);
    }
    assert_eq!(found["dns"], "no name");
    for way in ["packet", "raw", "alg", "vsock", "udp", "udp socket", "mptcp"] {
        let refused = ["EPERM", "EACCES", "EAFNOSUPPORT"];
        assert!(refused.contains(&found[way].as_str().unwrap()), "{way}: {}", found[way]);
    }
    let calls = [
        ["mount", "unshare user", "unshare net", "unshare mount", "chroot"],
        ["ptrace", "process_vm_readv", "bpf", "keyctl", "add_key"],
        ["io_uring", "userfaultfd", "unshare net", "open_by_handle", "kexec"],
        ["aio", "mq_open", "semget", "msgget", "perf"],
        ["name_to_handle_at", "memfd_secret", "unshare user", "bpf", "keyctl"],
    ];
    for call in calls.as_flattened() {
        assert!(REFUSED.contains(&found[*call].as_str().unwrap()), "{call}: {}", found[*call]);
    }
    assert_eq!(found["fallocate falls back"], 100_000, "space must be allocated by writing");
    let writes = ["/x", "/etc/x", "/usr/local/bin/gantry-worker", "/run/gantry/x", "/run/gantry/token"];
    let kernel = ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/fs/cgroup/cgroup.procs"];
    for path in writes.into_iter().chain(kernel) {
        let found = &found[format!("write {path}")];
        // Not every kernel has the last three.
        assert!(["EROFS", "EACCES", "EPERM", "ENOENT"].contains(&found.as_str().unwrap()), "{path}: {found}");
    }
    assert!(["ENOENT", "EROFS"].contains(&found["replace socket"].as_str().unwrap()), "{}", found["replace socket"]);
    for what in ["remove socket", "device", "execute in /tmp"] {
        assert!(["EROFS", "EACCES", "EPERM"].contains(&found[what].as_str().unwrap()), "{what}: {}", found[what]);
    }
    assert_eq!((&found["root is read-only"], &found["run directory is read-only"]), (&json!(true), &json!(true)));
    assert_eq!(found["run directory"], json!(["worker.sock"]), "the token must be removed when the session is opened");
    assert_eq!(found["engine sockets"], json!([]));
    assert_eq!(found["sockets"], json!(["/run/gantry/worker.sock"]), "no other socket may be visible");
    assert_eq!(found["risen"], json!([]), "no setuid file");
    assert_eq!(found["secrets"], json!([]), "no secret in files, environments and command lines");
    assert!(found["searched processes"].as_u64() > Some(0));
    let none = "0000000000000000";
    let powerless = json!({"CapEff": none, "CapPrm": none, "CapInh": none, "CapBnd": none, "CapAmb": none,
        "NoNewPrivs": "1", "Seccomp": "2"});
    assert_eq!(found["status"], powerless);
    assert_eq!(found["ids"], json!([10001, 10001, 10001, 10001, [10001]]));
    let asked = json!({"own job": 401, "own job, no token": 401, "own job, cut token": 401, "other job": 401,
        "other job's prompts": 401, "public jobs": 404, "public job": 404, "readiness": 404, "document": 404});
    assert_eq!(found["ask"], asked);
    stack.finish().await;
}

#[tokio::test]
async fn the_search_for_secrets_would_find_one() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let backwards: String = API_KEY.chars().rev().collect();
    let command = format!("python3 attack.py {0},{0} {backwards}", protocol::JobId::nil());
    let body = json!({"prompt": format!("run: {command}"),
        "files": [{"path": "attack.py", "content": ATTACK}, {"path": "left.txt", "content": format!("key={API_KEY}")}]});
    let id = ada.create(body).await;
    let (_, success, output) = tool_result(&ada, id).await;
    assert!(success, "{output}");
    assert_eq!(report(&output)["secrets"], json!(["/workspace/left.txt"]));
    stack.finish().await;
}

#[tokio::test]
async fn resource_exhaustion_affects_only_its_own_call() {
    let stack = Stack::builder()
        .set("GANTRY_MAX_PARALLEL_JOBS", "3")
        .set("GANTRY_MAX_PARALLEL_JOBS_PER_USER", "3")
        .start()
        .await;
    let ada = stack.user("ada").await;
    let limits = json!({"memory_mb": 256, "pids": 64, "cpus": 1.0});
    let bear = async |command: &str| {
        let id = ada.create(json!({"prompt": format!("bear: {command}"), "limits": limits})).await;
        let job = ada.wait_for_end(id).await;
        let events = ada.events(id).await;
        assert_eq!((job.state, job.reason), (JobState::Completed, None), "{events:#?}");
        let results = results(&events);
        assert_eq!(results[1], (true, "the job continues\n[exit 0]".to_owned()));
        (results[0].clone(), limits_of(&events))
    };
    let forks = async {
        let ((success, output), limits) = bear("bomb() { bomb | bomb & }; bomb; sleep 1").await;
        assert!(!success, "{output}");
        assert_eq!(limits, [("pids".to_owned(), json!(64))]);
        assert!(output.contains("64 processes"), "{output}");
    };
    let hog = async {
        let ((success, output), limits) = bear("python3 -c \"print(len(b'x' * 10**9))\"").await;
        assert!(!success, "{output}");
        assert_eq!(limits, [("memory".to_owned(), json!(256))]);
        assert!(output.contains("memory limit of 256 MB"), "{output}");
    };
    let flood = async {
        let ((success, output), limits) = bear("head -c 100000000 /dev/zero | tr '\\0' x; echo; echo the end").await;
        assert!(success && limits.is_empty(), "{limits:?}");
        assert!(output.len() < 70_000, "64 KB are kept: {}", output.len());
        assert!(output.ends_with("the end\n[exit 0]"), "head and tail are kept");
    };
    tokio::join!(forks, hog, flood);
    stack.finish().await;
}

/// Seven commands that start no processes, beside one that takes all processes while they run.
const BOMB_AMONG_OTHERS: &str = r"
model: e2e-1
rules:
  - when: { turn: 1 }
    reply: { tool_calls: [{ name: shell, arguments: { command: 'sleep 7501 & echo left' } }] }
  - when: { turn: 2 }
    reply:
      tool_calls:
        - { name: shell, arguments: { command: 'touch 1; echo fine; exec sleep 5' } }
        - { name: shell, arguments: { command: 'touch 2; echo fine; exec sleep 5' } }
        - { name: shell, arguments: { command: 'touch 3; echo fine; exec sleep 5' } }
        - { name: shell, arguments: { command: 'touch 4; echo fine; exec sleep 5' } }
        - { name: shell, arguments: { command: 'until [ -e 1 -a -e 2 -a -e 3 -a -e 4 -a -e 5 -a -e 6 -a -e 7 ]; do sleep 0.1; done; bomb() { bomb | bomb & }; bomb; sleep 1' } }
        - { name: shell, arguments: { command: 'touch 5; echo fine; exec sleep 5' } }
        - { name: shell, arguments: { command: 'touch 6; echo fine; exec sleep 5' } }
        - { name: shell, arguments: { command: 'touch 7; echo fine; exec sleep 5' } }
  - when: { turn: 3 }
    reply: { tool_calls: [{ name: shell, arguments: { command: 'pgrep -x sleep >/dev/null && echo still there' } }] }
  - reply: { text: Done. }
";

#[tokio::test]
async fn a_fork_bomb_fails_only_its_own_call() {
    let stack = Stack::builder().script(BOMB_AMONG_OTHERS).start().await;
    let ada = stack.user("ada").await;
    let limits = json!({"memory_mb": 256, "pids": 64, "cpus": 1.0});
    let id = ada.create(json!({"prompt": "go", "limits": limits})).await;
    let job = ada.wait_for_end(id).await;
    let events = ada.events(id).await;
    assert_eq!((job.state, job.reason), (JobState::Completed, None), "{events:#?}");
    let mut results = results(&events);
    assert_eq!(results.remove(0), (true, "left\n[exit 0]".to_owned()));
    assert_eq!(
        results.pop().unwrap(),
        (true, "still there\n[exit 0]".to_owned()),
        "background processes of other calls must keep running"
    );
    let (fine, bomb): (Vec<_>, Vec<_>) = results.into_iter().partition(|(_, output)| output.starts_with("fine"));
    assert_eq!((fine.len(), bomb.len()), (7, 1), "{fine:?} {bomb:?}");
    for (success, output) in fine {
        assert!(success && output.ends_with("[exit 0]") && !output.contains("killed"), "{output}");
    }
    assert!(!bomb[0].0 && bomb[0].1.contains("all processes of this call were killed"), "{}", bomb[0].1);
    assert_eq!(limits_of(&events), [("pids".to_owned(), json!(64))]);
    stack.finish().await;
}

/// Runs the attack as a job, with another job on the same host, and returns its report.
async fn attack(stack: &Stack, ada: &User, other: protocol::JobId) -> Value {
    let backwards = [API_KEY, JWT_SECRET].map(|secret| secret.chars().rev().collect::<String>()).join(" ");
    // The job's own id is known only once the job exists, so it is passed in a file.
    let command =
        format!("until [ -e go ]; do sleep 0.05; done; python3 attack.py $(cat go),{other} {backwards}; echo ended");
    let id = ada
        .create(json!({"prompt": format!("run: {command}"), "files": [{"path": "attack.py", "content": ATTACK}]}))
        .await;
    let file = stack.data("run").join(format!("gantry-job-{id}-1")).join("token");
    // The token file exists from before the container's start until the worker's first call.
    let token = tests::within("the worker's token", async {
        loop {
            match fs::read_to_string(&file) {
                Ok(token) => return token,
                // Shorter than the interval of `tests::poll`: the file exists for some 20 ms after the start.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(2)).await,
            }
        }
    })
    .await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    let workspace = stack.workspace(id);
    fs::write(workspace.join("stolen"), token.trim()).unwrap();
    fs::write(workspace.join("going"), id.to_string()).unwrap();
    fs::rename(workspace.join("going"), workspace.join("go")).unwrap();
    let (_, success, output) = tool_result(ada, id).await;
    assert!(success, "{output}");
    report(&output)
}

/// The attacker's single line of JSON.
fn report(output: &str) -> Value {
    let line = output.lines().find(|line| line.starts_with('{'));
    let line = line.unwrap_or_else(|| panic!("no report in: {output}"));
    serde_json::from_str(line).unwrap()
}

fn results(events: &[Event]) -> Vec<(bool, String)> {
    let of = |event: &Event| match &event.data {
        EventData::ToolResult { success, output, .. } => Some((*success, output.clone())),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

fn limits_of(events: &[Event]) -> Vec<(String, Value)> {
    let of = |event: &Event| match &event.data {
        EventData::Limit { limit, value } => Some((limit.to_string(), value.clone())),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}
