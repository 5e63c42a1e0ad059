//! The database under running jobs: locked by somebody else, and on a disk that is full.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use protocol::JobState;
use serde_json::json;
use sqlx::{ConnectOptions, Executor, sqlite::SqliteConnectOptions};
use tempfile::TempDir;
use tests::{
    PATIENCE,
    install::{
        engine::comes_true,
        stack::{go, is_tool_use},
    },
};

use crate::{after::world_after, engines::Door, ground::install};

/// Longer than a write waits for a lock.
const LOCKED_FOR: Duration = Duration::from_secs(7);

#[tokio::test]
async fn a_database_that_somebody_locks_is_waited_for() {
    let stack = install().start().await;
    let ada = stack.user("ada").await;
    let [working, waiting] = [ada.create_job("work 9").await, ada.create_job("gate").await];
    ada.wait_for_event(waiting, "a tool call", is_tool_use).await;
    let mut thief = SqliteConnectOptions::new().filename(stack.data("gantry.db")).connect().await.unwrap();
    thief.execute("BEGIN EXCLUSIVE").await.unwrap();
    // Reading goes on; what is to be written waits, and is refused when that takes too long.
    let locked = async {
        go(&stack, waiting);
        assert_eq!(ada.job(waiting).await.state, JobState::InProgress);
        let refused = ada.post("/api/jobs", &json!({"prompt": "work 1"})).await;
        assert!(refused.status.is_server_error(), "{refused:?}");
    };
    tokio::join!(locked, tokio::time::sleep(LOCKED_FOR));
    thief.execute("COMMIT").await.unwrap();
    for id in [working, waiting] {
        let job = ada.wait_for_end(id).await;
        assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    }
    assert_eq!(ada.jobs().await.len(), 2, "what was refused is not there");
    world_after(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_locked_database_under_a_hanging_engine_ends_nothing() {
    let door = Door::open();
    let stack = install().set("DOCKER_HOST", &door.host()).set("GANTRY_MAX_PARALLEL_JOBS", "1").start().await;
    let ada = stack.user("ada").await;
    let [first, waiting] = [ada.create_job("gate").await, ada.create_job("work 1").await];
    ada.wait_for_event(first, "a tool call", is_tool_use).await;
    let mut thief = SqliteConnectOptions::new().filename(stack.data("gantry.db")).connect().await.unwrap();
    thief.execute("BEGIN EXCLUSIVE").await.unwrap();
    // What waits is to be told why, which cannot be written.
    door.freeze();
    tokio::time::sleep(LOCKED_FOR * 3).await;
    thief.execute("COMMIT").await.unwrap();
    door.thaw();
    go(&stack, first);
    for id in [first, waiting] {
        let job = ada.wait_for_end(id).await;
        assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    }
    world_after(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_full_disk_holds_work_up_and_loses_nothing() {
    let disk = SmallDisk::mount("16m");
    let url = format!("sqlite://{}/gantry.db", disk.path().display());
    let stack = install().set("GANTRY_DATABASE_URL", &url).start().await;
    let ada = stack.user("ada").await;
    ada.create_job("work 9").await;
    let waiting = ada.create_job("gate").await;
    ada.wait_for_event(waiting, "a tool call", is_tool_use).await;
    disk.fill();
    go(&stack, waiting);
    // What is written first may still find room in the pages that are there.
    let refused = async || {
        let body = json!({"prompt": format!("work 1{}", " ".repeat(50_000))});
        ada.post("/api/jobs", &body).await.status.is_server_error()
    };
    comes_true("nothing more can be stored", PATIENCE, refused).await;
    assert_eq!(ada.job(waiting).await.id, waiting, "reading goes on");
    disk.free();
    for job in ada.jobs().await {
        let job = ada.wait_for_end(job.id).await;
        assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    }
    world_after(&stack).await;
    stack.finish().await;
}

/// A file system of its own, small enough to be filled.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("gs").tempdir_in("/tmp").unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "gantry-faults"])
            .arg(folder.path())
            .status();
        assert!(mounted.is_ok_and(|status| status.success()), "the ring mounts a small tmpfs: it is for root");
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    /// To the last byte.
    fn fill(&self) {
        use std::io::Write;
        let mut file = fs::File::create(self.ballast()).unwrap();
        while file.write(&[1; 4096]).is_ok_and(|written| written > 0) {}
    }

    fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}
