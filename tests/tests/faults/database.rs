//! The database while jobs run: locked by another process, and on a full disk.

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
    WAIT_TIMEOUT,
    install::{
        engine::wait_until,
        jobs::{is_tool_use, release},
    },
};

use crate::{engines::EngineProxy, invariants::check_invariants, setup::install};

/// Longer than a write waits for a lock.
const LOCK_DURATION: Duration = Duration::from_secs(7);

#[tokio::test]
async fn jobs_survive_a_locked_database() {
    let stack = install().start().await;
    let ada = stack.user("ada").await;
    let [working, waiting] = [ada.create_job("work 9").await, ada.create_job("gate").await];
    ada.wait_for_event(waiting, "a tool call", is_tool_use).await;
    let mut connection = SqliteConnectOptions::new().filename(stack.data("gantry.db")).connect().await.unwrap();
    connection.execute("BEGIN EXCLUSIVE").await.unwrap();
    // Reads continue. Writes wait, and are refused after a timeout.
    let locked = async {
        release(&stack, waiting);
        assert_eq!(ada.job(waiting).await.state, JobState::InProgress);
        let refused = ada.post("/api/jobs", &json!({"prompt": "work 1"})).await;
        assert!(refused.status.is_server_error(), "{refused:?}");
    };
    // The duration of the lock is the subject.
    tokio::join!(locked, tokio::time::sleep(LOCK_DURATION));
    connection.execute("COMMIT").await.unwrap();
    for id in [working, waiting] {
        let job = ada.wait_for_end(id).await;
        assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    }
    assert_eq!(ada.jobs().await.len(), 2, "refused jobs must not exist");
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_locked_database_and_a_hanging_engine_end_no_job() {
    let proxy = EngineProxy::open();
    let stack = install().set("DOCKER_HOST", &proxy.host()).set("GANTRY_MAX_PARALLEL_JOBS", "1").start().await;
    let ada = stack.user("ada").await;
    let [first, waiting] = [ada.create_job("gate").await, ada.create_job("work 1").await];
    ada.wait_for_event(first, "a tool call", is_tool_use).await;
    let mut connection = SqliteConnectOptions::new().filename(stack.data("gantry.db")).connect().await.unwrap();
    connection.execute("BEGIN EXCLUSIVE").await.unwrap();
    // Waiting jobs should get a status event, which cannot be written.
    proxy.suspend();
    // The duration of the lock is the subject.
    tokio::time::sleep(LOCK_DURATION * 3).await;
    connection.execute("COMMIT").await.unwrap();
    proxy.resume();
    release(&stack, first);
    for id in [first, waiting] {
        let job = ada.wait_for_end(id).await;
        assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    }
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_full_disk_delays_jobs_and_loses_nothing() {
    let disk = SmallDisk::mount("16m");
    let url = format!("sqlite://{}/gantry.db", disk.path().display());
    let stack = install().set("GANTRY_DATABASE_URL", &url).start().await;
    let ada = stack.user("ada").await;
    ada.create_job("work 9").await;
    let waiting = ada.create_job("gate").await;
    ada.wait_for_event(waiting, "a tool call", is_tool_use).await;
    disk.fill();
    release(&stack, waiting);
    // The first writes may still fit into allocated pages.
    let refused = async || {
        let body = json!({"prompt": format!("work 1{}", " ".repeat(50_000))});
        ada.post("/api/jobs", &body).await.status.is_server_error()
    };
    wait_until("writes to be refused", WAIT_TIMEOUT, refused).await;
    assert_eq!(ada.job(waiting).await.id, waiting, "reads must continue");
    disk.free();
    for job in ada.jobs().await {
        let job = ada.wait_for_end(job.id).await;
        assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    }
    check_invariants(&stack).await;
    stack.finish().await;
}

/// A separate file system that is small enough to be filled.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("gs").tempdir_in("/tmp").unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "gantry-faults"])
            .arg(directory.path())
            .status();
        assert!(mounted.is_ok_and(|status| status.success()), "cannot mount a tmpfs: the fault tests need root");
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    /// Fills it to the last byte.
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
