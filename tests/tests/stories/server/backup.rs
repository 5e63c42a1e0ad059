//! Online backups of the database, and a server that runs from one.

use orchestrator::store::backup;
use protocol::JobState;
use tests::World;

#[tokio::test]
async fn a_backup_of_a_running_server_is_a_complete_database() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    let done = ada.create_job("first").await;
    world.manual_worker(done).await.finish("one").await;
    ada.wait_for(done, JobState::Completed).await;
    let running = ada.create_job("second").await;
    let worker = world.manual_worker(running).await;
    worker.record_message(1, "half-way").await.expect(200);
    let copy = world.directory().join("copy.db");
    let size = backup(&world.config().database_url, &copy).await.expect("a copy");
    assert!(size > 0);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&copy).unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "the copy must be readable only by its owner");
    worker.record_message(2, "not in the copy").await.expect(200);
    world.stop().await;
    for old in ["gantry.db", "gantry.db-wal", "gantry.db-shm"] {
        // The WAL files are removed by a clean stop.
        let _ = std::fs::remove_file(world.config().data_dir.join(old));
    }
    std::fs::rename(&copy, world.config().data_dir.join("gantry.db")).unwrap();
    world.start().await;
    let ada = world.user("ada");
    assert_eq!(ada.job(done).await.result.and_then(|result| result.text).as_deref(), Some("one"));
    // The job's worker is still running and sends again what the copy does not contain.
    let worker = world.manual_worker(running).await;
    worker.record_message(2, "not in the copy").await.expect(200);
    worker.finish("two").await;
    ada.wait_for(running, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn a_failed_backup_leaves_no_file() {
    let world = World::new().await;
    let directory = world.directory().join("empty");
    std::fs::create_dir(&directory).unwrap();
    backup("sqlite:///nowhere/gantry.db", &directory.join("copy.db")).await.expect_err("no database");
    backup(&world.config().database_url, &directory.join("no/such/directory.db")).await.expect_err("no directory");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    world.finish().await;
}
