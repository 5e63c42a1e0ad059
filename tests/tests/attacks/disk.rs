//! A hostile job against the disk that it shares with all the others.

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
use tests::install::{engine::comes_true, stack::is_tool_use};

use crate::scene::{ATTACK_SECONDS, Attackers, Ends, Scene, install, output_of};

/// A job over its limit is ended within this time after its command began.
const ENDED_WITHIN: Duration = Duration::from_secs(5);
/// The limit that is attacked.
const DISK_MB: u64 = 64;
/// Sparse: what is not written takes no room. Above the floor of free space (2 GB) by what the attacks may write.
const DISK_SIZE: &str = "12G";
const MB: u64 = 1_000_000;
/// The plain writer may write so long in the same place.
const DD_SECONDS: u64 = 2;

/// Bytes that no walk by name finds, and entries without bytes.
#[rstest]
#[case::renamed_folders("python3 files.py rename")]
#[case::unlinked_files("python3 files.py unlinked")]
#[case::empty_files("python3 files.py inodes")]
#[tokio::test(flavor = "multi_thread")]
async fn a_job_over_its_disk_limit_is_ended_in_time(#[case] command: &str) {
    let disk = Disk::mount();
    let scene = Scene::of(install(), Some(disk.path().join("workspaces"))).await;
    let allowed_mb = plain_writer_mb(&scene).await;
    let watch = scene.watch(command);
    let free = FreeSpace::watch(disk.path());
    let job = scene.hostile(command, json!({"disk_mb": DISK_MB})).await;
    let verdict = scene.measure(watch, ATTACK_SECONDS, Attackers::jobs(&[(job, Ends::DiskLimit)])).await;
    let lost_mb = free.end() / MB;
    let ended = ended_after(&scene, job).await;
    verdict.check();
    assert!(ended <= ENDED_WITHIN, "ended after {ended:?}");
    assert!(lost_mb <= allowed_mb, "{lost_mb} MB were written; dd writes {allowed_mb} MB in {DD_SECONDS} s");
    scene.stack.finish().await;
}

/// The same while a neighbour's tree is slow to walk and a third job holds as many connections as it gets.
#[tokio::test(flavor = "multi_thread")]
async fn neither_a_neighbours_tree_nor_missing_descriptors_lift_the_disk_limit() {
    let disk = Disk::mount();
    let scene = Scene::of(install(), Some(disk.path().join("workspaces"))).await;
    let allowed_mb = plain_writer_mb(&scene).await;
    let watch = scene.watch("a rename race, a deep tree and connections at once");
    let tree = scene.hostile("python3 files.py tree 190000 508 12", json!({})).await;
    let made = scene.workspace(tree).join("made");
    // It may be ended before all of it is there.
    let settled = async || made.exists() || scene.mallory.job(tree).await.state.is_finished();
    comes_true("the tree is there", Duration::from_secs(20), settled).await;
    let connections = scene.hostile(&format!("python3 flood.py connections {ATTACK_SECONDS}"), json!({})).await;
    let free = FreeSpace::watch(disk.path());
    let rename = scene.hostile("python3 files.py rename", json!({"disk_mb": DISK_MB})).await;
    let ends = [(rename, Ends::DiskLimit), (tree, Ends::CompletedOrDiskLimit), (connections, Ends::Completed)];
    let verdict = scene.measure(watch, ATTACK_SECONDS + 4, Attackers::jobs(&ends)).await;
    let lost_mb = free.end() / MB;
    let ended = ended_after(&scene, rename).await;
    verdict.check();
    assert!(ended <= ENDED_WITHIN, "ended after {ended:?}");
    assert!(lost_mb <= allowed_mb, "{lost_mb} MB were written; dd writes {allowed_mb} MB in {DD_SECONDS} s");
    scene.stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installer_of_many_small_files_is_not_stopped() {
    let disk = Disk::mount();
    let scene = Scene::of(install(), Some(disk.path().join("workspaces"))).await;
    let watch = scene.watch("100,000 small files");
    let job = scene.hostile("python3 files.py packages", json!({})).await;
    let verdict = scene.measure(watch, 2, Attackers::jobs(&[(job, Ends::Completed)])).await;
    verdict.check();
    assert!(verdict.told.iter().any(|told| told.contains(r#"{"files": 100000}"#)), "{:?}", verdict.told);
    scene.stack.finish().await;
}

/// What a plain writer writes here in [`DD_SECONDS`].
async fn plain_writer_mb(scene: &Scene) -> u64 {
    let job = scene.hostile(&format!("python3 files.py dd {DD_SECONDS}"), json!({"disk_mb": 10_000})).await;
    let ended = scene.mallory.wait_for_end(job).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let outputs = output_of(&scene.mallory.events(job).await);
    let told =
        outputs.iter().flat_map(|output| output.lines()).find_map(|line| serde_json::from_str::<Value>(line).ok());
    told.and_then(|told| told["written_mb"].as_u64()).unwrap_or_else(|| panic!("no figure in {outputs:?}"))
}

/// From a job's only command to its end, by the orchestrator's own times.
async fn ended_after(scene: &Scene, job: JobId) -> Duration {
    let events = scene.mallory.events(job).await;
    let began = events.iter().find(|event| is_tool_use(event)).map(|event| event.at);
    let is_end = |event: &&Event| matches!(event.data, EventData::State { to, .. } if to.is_finished());
    let ended = events.iter().find(is_end).map(|event| event.at);
    let (Some(began), Some(ended)) = (began, ended) else { panic!("it began and ended: {events:#?}") };
    (ended - began).to_std().unwrap_or_default()
}

/// A file system of its own, so that nobody else's files count.
struct Disk {
    mounted: PathBuf,
    // Removed with it.
    _folder: TempDir,
}

impl Disk {
    fn mount() -> Self {
        let folder = tempfile::Builder::new().prefix("ga").tempdir_in("/tmp").expect("a temporary folder");
        let (image, mounted) = (folder.path().join("image"), folder.path().join("disk"));
        std::fs::create_dir(&mounted).expect("a folder to mount on");
        let run = |program: &str, arguments: &[&str], path: &[&Path]| {
            let status = Command::new(program).args(arguments).args(path).status();
            assert!(
                status.is_ok_and(|status| status.success()),
                "{program} {arguments:?}: the attack tests are for root"
            );
        };
        run("truncate", &["--size", DISK_SIZE], &[&image]);
        // An inode for each block: the limits are the job's, never the file system's.
        run("mkfs.ext4", &["-q", "-F", "-i", "8192"], &[&image]);
        run("mount", &["-o", "loop"], &[&image, &mounted]);
        Self { mounted, _folder: folder }
    }

    fn path(&self) -> &Path {
        &self.mounted
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a container of a test that failed may still hold it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.mounted).status();
    }
}

/// The least free space from its making to its end.
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
                sleep(Duration::from_millis(10));
            }
            least
        });
        Self { stop, thread, before }
    }

    /// How much was lost at most.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.before.saturating_sub(self.thread.join().expect("no sampler panics"))
    }
}

fn free_bytes(path: &Path) -> u64 {
    let found = rustix::fs::statvfs(path).expect("the disk is mounted");
    found.f_bfree * found.f_frsize
}
