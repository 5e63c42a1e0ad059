//! Disk limits: job quotas, the free space that the server keeps, and the size of uploads.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use orchestrator::workspace::{DiskSpace, ReadDiskSpace};
use protocol::{ErrorCode, JobReason, JobState};
use reqwest::{Body, Method};
use serde_json::json;
use sqlx::Connection as _;
use tests::{Reply, World};
use tokio::sync::mpsc;

const BYTES: &str = "application/octet-stream";
const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;

/// A file system of 100 GB whose free space the test sets. The minimum free space is 5 GB.
fn space(free: &Arc<AtomicU64>) -> ReadDiskSpace {
    let free = Arc::clone(free);
    Arc::new(move |_| {
        let free_bytes = free.load(Ordering::Relaxed);
        Ok(DiskSpace { total_bytes: 100 * GB, free_bytes, free_inodes: 1_000_000 })
    })
}

/// A workspace in which files are created and removed continuously until it is dropped, as in a build. A workspace
/// counts as settled if nothing changes for 25 ms, so there are several threads: on a busy machine a single one may not
/// be scheduled for that long.
struct ChangingFiles {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl ChangingFiles {
    const THREADS: usize = 4;

    fn start(workspace: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let change = |thread: usize| {
            let (stopped, workspace) = (Arc::clone(&stop), workspace.to_owned());
            move || {
                for n in 0_u64.. {
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    let file = workspace.join(format!("f{thread}-{}", n % 100));
                    fs::write(&file, "x").unwrap();
                    fs::remove_file(&file).unwrap();
                }
            }
        };
        let threads = (0..Self::THREADS).map(|thread| std::thread::spawn(change(thread))).collect();
        Self { stop, threads }
    }
}

impl Drop for ChangingFiles {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.threads.drain(..).filter_map(|thread| thread.join().err()).count();
        assert!(failed == 0 || std::thread::panicking(), "the files cannot be changed");
    }
}

/// A tree whose top directory is renamed continuously until it is dropped.
struct RenamedTree(Arc<AtomicBool>);

impl RenamedTree {
    fn start(workspace: &Path, depth: usize, bytes: usize) -> Self {
        let deep = workspace.join("a").join("d/".repeat(depth));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("big"), vec![1; bytes]).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, a, b) = (Arc::clone(&stop), workspace.join("a"), workspace.join("b"));
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                fs::rename(&a, &b).unwrap();
                fs::rename(&b, &a).unwrap();
            }
        });
        Self(stop)
    }
}

impl Drop for RenamedTree {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn low_disk_space_blocks_starts_and_uploads_until_space_is_freed() {
    let free = Arc::new(AtomicU64::new(50 * GB));
    let world = World::builder().space(space(&free)).build().await;
    let ada = world.user("ada");
    let held = ada.create(json!({"prompt": "wait", "hold": true, "files": [{"path": "x", "content": "x"}]})).await;
    free.store(5 * GB - 1, Ordering::Relaxed);

    let waiting = ada.create_job("work").await;
    let is_reported =
        async || ada.job(waiting).await.message.is_some_and(|message| message.contains("waiting: the server's disk"));
    tests::until("the job to report why it waits", is_reported).await;
    assert!(world.engine().requested_starts().is_empty());
    let disk = ada.get("/readyz").await.expect(503).body["disk"].clone();
    assert_eq!(disk["status"], "failed");
    assert!(disk["detail"].as_str().is_some_and(|detail| detail.contains("MB free")), "{disk}");
    for path in ["files/y", "archive"] {
        let refused = ada.put(&format!("/api/jobs/{held}/{path}"), BYTES, "y").await;
        let detail = refused.problem(ErrorCode::InsufficientStorage).body["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("MB free"), "{detail}");
    }
    let files = json!({"prompt": "work", "files": [{"path": "x", "content": "x"}]});
    ada.post("/api/jobs", &files).await.problem(ErrorCode::InsufficientStorage);
    let workspaces = fs::read_dir(&world.config().workspace_dir).unwrap().flatten();
    let left: Vec<_> = workspaces.map(|entry| entry.file_name()).filter(|name| name != ".staging").collect();
    assert_eq!(left, [held.to_string().as_str()], "refused uploads must leave no files");

    free.store(50 * GB, Ordering::Relaxed);
    assert_eq!(ada.get("/readyz").await.expect(200).body["disk"], json!({"status": "ok"}));
    world.manual_worker(waiting).await.finish("done").await;
    assert_eq!(ada.wait_for(waiting, JobState::Completed).await.message, None);
    ada.put(&format!("/api/jobs/{held}/files/y"), BYTES, "y").await.expect(201);
    ada.cancel(held).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn a_job_that_reports_success_over_its_disk_limit_fails() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"disk_mb": 1}})).await;
    let worker = world.manual_worker(id).await;
    worker.record_message(1, "half of it").await.expect(200);
    for part in 0..3 {
        fs::write(world.workspace(id).join(format!("part-{part}")), vec![1; 500_000]).unwrap();
    }
    // Before the sweep can have measured it.
    worker.report(json!({"outcome": "completed", "text": "done", "iterations": 1})).await.expect(401);
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::DiskLimit)));
    assert!(job.message.is_some_and(|message| message.contains("limits.disk_mb = 1")));
    world.engine().until_removed(id).await;
    world.finish().await;
}

#[tokio::test]
async fn a_job_that_keeps_renaming_its_tree_is_still_stopped_at_its_limit() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"disk_mb": 1}})).await;
    let _worker = world.manual_worker(id).await;
    let _flipping = RenamedTree::start(&world.workspace(id), 100, 3_000_000);
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::DiskLimit)), "{job:#?}");
    world.finish().await;
}

#[tokio::test]
async fn falling_free_space_triggers_a_measurement_that_may_pause_the_job() {
    let free = Arc::new(AtomicU64::new(50 * GB));
    let world = World::builder().space(space(&free)).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"disk_mb": 100}})).await;
    let worker = world.manual_worker(id).await;
    let busy = ChangingFiles::start(&world.workspace(id));
    let paused = async {
        while world.engine().count_pauses() == 0 {
            free.fetch_sub(200 * MB, Ordering::Relaxed);
            // The rate at which free space falls is the subject.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tests::within("the job to be paused", paused).await;
    drop(busy);
    world.engine().until("the job to be resumed", |all| all.iter().all(|one| !one.is_paused).then_some(())).await;
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn a_container_is_unpaused_although_its_worker_disconnects() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let engine = world.engine();
    engine.hold_pauses(true);
    let busy = ChangingFiles::start(&world.workspace(id));
    let report = json!({"outcome": "completed", "text": "done"});
    tokio::select! {
        reply = worker.report(report.clone()) => panic!("accepted without a measurement: {}", reply.body),
        () = engine.until("the job to be paused", |all| all.iter().any(|one| one.is_paused).then_some(())) => {}
    }
    drop(busy);
    engine.hold_pauses(false);
    engine.until("the job to be resumed", |all| all.iter().all(|one| !one.is_paused).then_some(())).await;
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn a_tree_of_a_hundred_thousand_files_within_the_limit_is_not_stopped() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"disk_mb": 1024}})).await;
    let worker = world.manual_worker(id).await;
    let workspace = world.workspace(id);
    let mut created = tokio::task::spawn_blocking(move || {
        for module in 0..1_000 {
            let directory = workspace.join(format!("node_modules/{module}/lib"));
            fs::create_dir_all(&directory).unwrap();
            for file in 0..100 {
                fs::write(directory.join(format!("{file}.js")), "").unwrap();
            }
        }
    });
    // On a busy machine this takes longer than a worker may be silent.
    loop {
        match tokio::time::timeout(Duration::from_secs(1), &mut created).await {
            Ok(created) => break created.unwrap(),
            Err(_) => {
                worker.status().await;
            }
        }
    }
    worker.finish("installed").await;
    let job = ada.wait_for_end(id).await;
    assert_eq!(job.state, JobState::Completed, "{job:#?}");
    world.finish().await;
}

#[tokio::test]
async fn a_job_accepts_one_upload_at_a_time() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "wait", "hold": true, "limits": {"disk_mb": 8}})).await;
    let at = |name: &str| format!("/api/jobs/{id}/files/{name}");
    let (chunks, arriving) = mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let body = Body::wrap_stream(futures_util::stream::unfold(arriving, async |mut arriving| {
        arriving.recv().await.map(|chunk| (chunk, arriving))
    }));
    let slow = tokio::task::JoinSet::from_iter([Reply::of(ada.request(Method::PUT, &at("slow")).body(body))]);
    chunks.send(Ok(vec![1; 1000])).await.unwrap();
    let staging = world.config().workspace_dir.join(".staging");
    tests::until("the first upload to start", async || fs::read_dir(&staging).map_or(0, Iterator::count) > 0).await;
    let refused = ada.put(&at("quick"), BYTES, "x").await.problem(ErrorCode::Conflict);
    assert!(refused.body["detail"].as_str().unwrap().contains("another upload"));
    assert!(refused.header("retry-after").is_some());
    ada.put(&format!("/api/jobs/{id}/archive"), "application/x-tar", "x").await.problem(ErrorCode::Conflict);
    // Meanwhile, another job of the same user accepts an upload.
    let other = ada.create(json!({"prompt": "wait", "hold": true})).await;
    ada.put(&format!("/api/jobs/{other}/files/x"), BYTES, "x").await.expect(201);
    // The client disconnects during the upload; then the next upload is accepted.
    drop((slow, chunks));
    let accepted = async || ada.put(&at("quick"), BYTES, "x").await.status != 409;
    tests::until("the next upload to be accepted", accepted).await;
    assert_eq!(ada.bytes(&at("quick")).await, b"x");
    for job in [id, other] {
        ada.cancel(job).await.expect(202);
    }
    world.finish().await;
}

#[tokio::test]
async fn a_client_that_disconnects_during_a_restart_leaves_no_orphaned_workspace() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    fs::write(world.workspace(id).join("file"), "content").unwrap();
    worker.exit(3);
    ada.wait_for(id, JobState::Failed).await;
    // With the database locked, the restart copies the files and then waits for its row.
    let mut database = world.database().await;
    let lock = database.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let (path, body) = (format!("/api/jobs/{id}/restart"), json!({}));
    let is_copied = || {
        let workspaces = fs::read_dir(&world.config().workspace_dir).unwrap().flatten();
        workspaces.filter(|workspace| workspace.path().join("file").exists()).count() == 2
    };
    tokio::select! {
        reply = ada.post(&path, &body) => panic!("the restart finished: {}", reply.body),
        () = tests::until("the files to be copied", async || is_copied()) => {}
    }
    lock.rollback().await.unwrap();
    let restarted = async || ada.jobs().await.into_iter().map(|job| job.id).find(|job| *job != id);
    let next = tests::poll("the restarted job", restarted).await;
    assert_eq!(fs::read_to_string(world.workspace(next).join("file")).unwrap(), "content");
    world.manual_worker(next).await.finish("done").await;
    ada.wait_for(next, JobState::Completed).await;
    let all = fs::read_dir(&world.config().workspace_dir).unwrap().flatten();
    // The files of the restarted job are its baseline.
    let all: Vec<_> = all.filter(|entry| entry.path().extension().is_none_or(|ext| ext != "baseline")).collect();
    assert_eq!(all.len(), 2, "expected two workspaces and no provisional one: {all:?}");
    world.finish().await;
}

#[tokio::test]
async fn paths_that_are_too_deep_are_refused_on_upload() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "wait", "hold": true})).await;
    let at = |depth: usize| format!("/api/jobs/{id}/files/{}x", "d/".repeat(depth));
    ada.put(&at(127), BYTES, "x").await.expect(201);
    ada.put(&at(128), BYTES, "x").await.problem(ErrorCode::Invalid);
    let files = json!([{"path": format!("{}x", "d/".repeat(128)), "content": "x"}]);
    ada.post("/api/jobs", &json!({"prompt": "work", "files": files})).await.problem(ErrorCode::Invalid);
    let archive = ada.bytes(&format!("/api/jobs/{id}/archive")).await;
    assert!(archive.len() > 127 * 512);
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn archive_downloads_are_limited_and_end_with_their_clients() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "wait", "hold": true, "limits": {"disk_mb": 256}})).await;
    fs::write(world.workspace(id).join("big"), vec![1; 60 << 20]).unwrap_or_else(|_| {
        fs::create_dir_all(world.workspace(id)).unwrap();
        fs::write(world.workspace(id).join("big"), vec![1; 60 << 20]).unwrap();
    });
    let archive = format!("/api/jobs/{id}/archive");
    let mut readers = vec![];
    for _ in 0..4 {
        let mut stream = ada.request(Method::GET, &archive).send().await.unwrap().bytes_stream();
        stream.next().await.unwrap().unwrap();
        readers.push(stream);
    }
    let fifth = ada.request(Method::GET, &archive).send();
    tokio::pin!(fifth);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), &mut fifth).await.is_err(),
        "one user may read four archives concurrently"
    );
    readers.pop();
    let fifth = tests::within("the fifth archive", fifth).await.unwrap();
    assert_eq!(fifth.status(), 200);
    drop((fifth, readers));
    ada.cancel(id).await.expect(202);
    world.finish().await;
}
