//! The disk limit on the real engine, against jobs that hide what they write.

use std::time::Duration;

use orchestrator::workspace::FreeSpace;
use protocol::{JobReason, JobState};
use serde_json::json;

use crate::{
    jobs::{command_job, is_tool_use},
    stack::Stack,
};

const MB: u64 = 1 << 20;
/// Upper bound for ending a job over its limit, on an idle machine.
const ENDED_WITHIN: Duration = Duration::from_secs(5);
/// Multiplies the bound on a busy machine, on which the test must not fail because of the load.
const BUSY_MACHINE_FACTOR: u32 = 4;

/// Writes in a directory 100 levels deep whose top another process renames continuously.
const RENAME_RACE: &str = r#"
import os, time
deep = "a/" + "d/" * 100
os.makedirs(deep)
directory = os.open(deep, os.O_RDONLY)
if os.fork() == 0:
    while True:
        os.rename("a", "b")
        os.rename("b", "a")
block = b"x" * (1 << 20)
for n in range(4000):
    fd = os.open(str(n // 40), os.O_WRONLY | os.O_CREAT | os.O_APPEND, dir_fd=directory)
    os.write(fd, block)
    os.close(fd)
time.sleep(600)
"#;

/// Writes to files without names.
const UNLINKED: &str = r#"
import os, time
block = b"x" * (1 << 20)
fds = []
for n in range(100):
    fd = os.open(f"u{n}", os.O_WRONLY | os.O_CREAT)
    os.unlink(f"u{n}")
    fds.append(fd)
    for _ in range(40):
        os.write(fd, block)
time.sleep(600)
"#;

/// Creates empty files until it is stopped.
const INODES: &str = r#"
import os, time
for directory in range(1000):
    os.mkdir(f"i{directory}")
    for n in range(1000):
        os.close(os.open(f"i{directory}/{n}", os.O_WRONLY | os.O_CREAT))
time.sleep(600)
"#;

/// Tens of thousands of directories, each nearly as deep as is allowed.
const NESTED: &str = r#"
import os, time
os.makedirs("n/" * 120)
os.chdir("n/" * 120)
for n in range(20000):
    os.mkdir(str(n))
open("/workspace/made", "w").close()
time.sleep(600)
"#;

fn python(program: &str) -> String {
    format!("python3 -c '{}'", program.replace('\'', "\""))
}

/// Asserts that the job ends at a limit of 64 MB, in time from the start of the attack.
#[expect(clippy::print_stdout, reason = "prints the measured time")]
async fn ends(program: &str, within: Option<Duration>) {
    let disk_mb = 64;
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let mut body = command_job(&python(program));
    body["limits"] = json!({"disk_mb": disk_mb, "cpus": 1});
    let space = FreeSpace::new(stack.data("."), Some(0));
    let before = space.read().unwrap().free_bytes;
    let id = ada.create(body).await;
    ada.wait_for_event(id, "the attack", is_tool_use).await;
    let started_at = tokio::time::Instant::now();
    let job = ada.wait_for_end(id).await;
    let took = started_at.elapsed();
    let lost = before.saturating_sub(space.read().unwrap().free_bytes) / MB;
    println!("{disk_mb} MB: ended after {took:?}, {lost} MB of free space gone: {:?}", job.message);
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::DiskLimit)), "{job:#?}");
    assert!(within.is_none_or(|within| took < within * BUSY_MACHINE_FACTOR), "{took:?}");
    stack.wait_for_removal(id, Duration::from_secs(10)).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_job_that_keeps_renaming_directories_is_stopped_at_its_limit() {
    ends(RENAME_RACE, Some(ENDED_WITHIN)).await;
}

#[tokio::test]
async fn a_job_that_writes_to_unlinked_files_is_stopped_at_its_limit() {
    ends(UNLINKED, Some(ENDED_WITHIN)).await;
}

#[tokio::test]
async fn a_job_that_creates_empty_files_is_stopped_at_its_limit() {
    ends(INODES, None).await;
}

#[tokio::test]
#[expect(clippy::print_stdout, reason = "prints the measured time")]
async fn a_job_with_a_deep_tree_delays_no_other_job() {
    let stack = Stack::start().await;
    let (ada, bob) = (stack.user("ada").await, stack.user("bob").await);
    let mut body = command_job(&python(NESTED));
    body["limits"] = json!({"disk_mb": 1024});
    let neighbour = ada.create(body).await;
    tests::until("the neighbour's tree", async || stack.workspace(neighbour).join("made").exists()).await;
    let mut body = command_job("for n in $(seq 4000); do head -c 1M /dev/zero > part-$n; done; sleep 600");
    body["limits"] = json!({"disk_mb": 64});
    let id = bob.create(body).await;
    bob.wait_for_event(id, "the flood", is_tool_use).await;
    let started_at = tokio::time::Instant::now();
    let job = bob.wait_for_end(id).await;
    let took = started_at.elapsed();
    println!("with a deep tree on the same host: ended after {took:?}");
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::DiskLimit)), "{job:#?}");
    assert!(took < ENDED_WITHIN * BUSY_MACHINE_FACTOR, "{took:?}");
    ada.cancel(neighbour).await.expect(202);
    ada.wait_for_end(neighbour).await;
    stack.finish().await;
}
