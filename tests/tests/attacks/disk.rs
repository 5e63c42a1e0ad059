//! A hostile job against the shared disk.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::Duration,
};

use protocol::{Event, EventData, JobId, JobState};
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::install::{engine::wait_until, jobs::is_tool_use};

use crate::scenario::{ATTACK_SECONDS, Attackers, ExpectedEnd, Scenario, install, output_of};

/// A job over its limit is ended within this time after its command started.
const MAX_END_DELAY: Duration = Duration::from_secs(5);
/// The limit that is attacked.
const DISK_MB: u64 = 64;
/// Sparse. Above the minimum free space (2 GB) by what the attacks may write.
const DISK_SIZE: &str = "12G";
/// Interval between two samples of the free space.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
const MB: u64 = 1_000_000;
/// How long the plain writer may write in the same place.
const DD_SECONDS: u64 = 2;

/// Bytes that are not reachable by name, and entries without bytes.
#[rstest]
#[case::renamed_directories("python3 files.py rename")]
#[case::unlinked_files("python3 files.py unlinked")]
#[case::empty_files("python3 files.py inodes")]
#[tokio::test(flavor = "multi_thread")]
async fn a_job_over_its_disk_limit_is_stopped_in_time(#[case] command: &str) {
    let disk = Disk::mount();
    let scenario = Scenario::of(install(), Some(disk.path().join("workspaces"))).await;
    let allowed_mb = plain_writer_mb(&scenario).await;
    let watch = scenario.watch(command);
    let free = FreeSpace::watch(disk.path());
    let job = scenario.hostile(command, json!({"disk_mb": DISK_MB})).await;
    let verdict = scenario.measure(watch, ATTACK_SECONDS, Attackers::jobs(&[(job, ExpectedEnd::DiskLimit)])).await;
    let lost_mb = free.end() / MB;
    let ended = ended_after(&scenario, job).await;
    verdict.check();
    assert!(ended <= MAX_END_DELAY, "ended after {ended:?}");
    assert!(lost_mb <= allowed_mb, "{lost_mb} MB were written; dd writes {allowed_mb} MB in {DD_SECONDS} s");
    scenario.stack.finish().await;
}

/// The same while a neighbour's tree is slow to walk and a third job holds as many connections as possible.
#[tokio::test(flavor = "multi_thread")]
async fn the_disk_limit_holds_despite_deep_trees_and_missing_descriptors() {
    let disk = Disk::mount();
    let scenario = Scenario::of(install(), Some(disk.path().join("workspaces"))).await;
    let allowed_mb = plain_writer_mb(&scenario).await;
    let watch = scenario.watch("a rename race, a deep tree and connections at once");
    let tree = scenario.hostile("python3 files.py tree 190000 508 12", json!({})).await;
    let made = scenario.workspace(tree).join("made");
    // The job may be ended before all of it exists.
    let settled = async || made.exists() || scenario.mallory.job(tree).await.state.is_finished();
    wait_until("the tree to exist", Duration::from_secs(20), settled).await;
    let connections = scenario.hostile(&format!("python3 flood.py connections {ATTACK_SECONDS}"), json!({})).await;
    let free = FreeSpace::watch(disk.path());
    let rename = scenario.hostile("python3 files.py rename", json!({"disk_mb": DISK_MB})).await;
    let ends = [
        (rename, ExpectedEnd::DiskLimit),
        (tree, ExpectedEnd::CompletedOrDiskLimit),
        (connections, ExpectedEnd::Completed),
    ];
    let verdict = scenario.measure(watch, ATTACK_SECONDS + 4, Attackers::jobs(&ends)).await;
    let lost_mb = free.end() / MB;
    let ended = ended_after(&scenario, rename).await;
    verdict.check();
    assert!(ended <= MAX_END_DELAY, "ended after {ended:?}");
    assert!(lost_mb <= allowed_mb, "{lost_mb} MB were written; dd writes {allowed_mb} MB in {DD_SECONDS} s");
    scenario.stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_many_small_files_within_the_limit_is_not_stopped() {
    let disk = Disk::mount();
    let scenario = Scenario::of(install(), Some(disk.path().join("workspaces"))).await;
    let watch = scenario.watch("100,000 small files");
    let job = scenario.hostile("python3 files.py packages", json!({})).await;
    let verdict = scenario.measure(watch, 2, Attackers::jobs(&[(job, ExpectedEnd::Completed)])).await;
    verdict.check();
    assert!(verdict.reports.iter().any(|reports| reports.contains(r#"{"files": 100000}"#)), "{:?}", verdict.reports);
    scenario.stack.finish().await;
}

/// The bytes that a plain writer writes here in [`DD_SECONDS`].
async fn plain_writer_mb(scenario: &Scenario) -> u64 {
    let job = scenario.hostile(&format!("python3 files.py dd {DD_SECONDS}"), json!({"disk_mb": 10_000})).await;
    let ended = scenario.mallory.wait_for_end(job).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let outputs = output_of(&scenario.mallory.events(job).await);
    let reports =
        outputs.iter().flat_map(|output| output.lines()).find_map(|line| serde_json::from_str::<Value>(line).ok());
    reports.and_then(|reports| reports["written_mb"].as_u64()).unwrap_or_else(|| panic!("no figure in {outputs:?}"))
}

/// From a job's only command to its end, by the orchestrator's timestamps.
async fn ended_after(scenario: &Scenario, job: JobId) -> Duration {
    let events = scenario.mallory.events(job).await;
    let began = events.iter().find(|event| is_tool_use(event)).map(|event| event.at);
    let is_end = |event: &&Event| matches!(event.data, EventData::State { to, .. } if to.is_finished());
    let ended = events.iter().find(is_end).map(|event| event.at);
    let (Some(began), Some(ended)) = (began, ended) else { panic!("the job did not start or end: {events:#?}") };
    (ended - began).to_std().unwrap_or_default()
}

/// A separate file system, so that other files do not count.
struct Disk {
    mounted: PathBuf,
    // Removed with it.
    _directory: TempDir,
}

impl Disk {
    fn mount() -> Self {
        let directory = tempfile::Builder::new().prefix("ga").tempdir_in("/tmp").expect("a temporary directory");
        let (image, mounted) = (directory.path().join("image"), directory.path().join("disk"));
        std::fs::create_dir(&mounted).expect("a directory to mount on");
        let run = |program: &str, arguments: &[&str], path: &[&Path]| {
            let status = Command::new(program).args(arguments).args(path).status();
            assert!(
                status.is_ok_and(|status| status.success()),
                "{program} {arguments:?}: the attack tests are for root"
            );
        };
        run("truncate", &["--size", DISK_SIZE], &[&image]);
        // One inode per block: the job's limits must apply, not the file system's.
        run("mkfs.ext4", &["-q", "-F", "-i", "8192"], &[&image]);
        run("mount", &["-o", "loop"], &[&image, &mounted]);
        Self { mounted, _directory: directory }
    }

    fn path(&self) -> &Path {
        &self.mounted
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Unmounted lazily: a container of a failed test may still use it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.mounted).status();
    }
}

/// The minimum of free space from creation to [`Self::end`].
struct FreeSpace {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
    before: u64,
}

impl FreeSpace {
    fn watch(path: &Path) -> Self {
        let (stop, path) = (Arc::new(AtomicBool::new(false)), path.to_owned());
        let (stopped, before) = (Arc::clone(&stop), free_bytes(&path));
        let thread = spawn(move || {
            let mut least = before;
            while !stopped.load(Ordering::Relaxed) {
                least = least.min(free_bytes(&path));
                sleep(SAMPLE_INTERVAL);
            }
            least
        });
        Self { stop, thread, before }
    }

    /// The maximum decrease of free space.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.before.saturating_sub(self.thread.join().expect("a sampler panicked"))
    }
}

fn free_bytes(path: &Path) -> u64 {
    let found = rustix::fs::statvfs(path).expect("the disk is mounted");
    found.f_bfree * found.f_frsize
}
