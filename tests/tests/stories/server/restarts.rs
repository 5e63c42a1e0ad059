//! Restarts of the orchestrator while jobs run: with other settings, with invalid rows, with containers that were never
//! started, and with missing directories.

use std::path::PathBuf;

use orchestrator::config::{Config, SandboxMode};
use protocol::{ErrorCode, JobId, JobReason, JobState};
use rstest::rstest;
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor as _};
use tests::World;

fn disable(config: &mut Config) {
    config.sandbox.mode = SandboxMode::Disabled;
}

#[tokio::test]
async fn running_jobs_complete_with_the_sandbox_disabled() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    let (finishes, is_cancelled, vanishes) =
        (ada.create_job("a").await, ada.create_job("b").await, ada.create_job("c").await);
    for job in [finishes, is_cancelled, vanishes] {
        world.manual_worker(job).await.complete_llm("c1", "hi").await;
    }
    let held = ada.create(json!({"prompt": "d", "hold": true})).await;

    world.restart_with(disable).await;
    let ada = world.user("ada");

    let ready = world.anonymous().get("/readyz").await.expect(200);
    assert_eq!(ready.body["sandbox"]["reason"], "disabled_by_config");
    assert_eq!(ready.body["sandbox"]["jobs_left"], 3);
    ada.post("/api/jobs", &json!({"prompt": "new"})).await.problem(ErrorCode::SandboxUnavailable);
    ada.cancel(is_cancelled).await;
    ada.wait_for(is_cancelled, JobState::Cancelled).await;
    world.engine().until_removed(is_cancelled).await;
    world.engine().remove_container(vanishes);
    assert_eq!(ada.wait_for(vanishes, JobState::Failed).await.reason, Some(JobReason::WorkerLost));
    world.manual_worker(finishes).await.finish("done").await;
    ada.wait_for(finishes, JobState::Completed).await;
    ada.cancel(held).await;

    let ready = world.anonymous().get("/readyz").await.expect(200);
    assert_eq!(ready.body["sandbox"]["jobs_left"], 0);
    assert_eq!(world.engine().requested_starts().len(), 3, "nothing may be started");
    world.finish().await;
}

#[tokio::test]
async fn pending_jobs_fail_with_the_sandbox_disabled() {
    let mut world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let ada = world.user("ada");
    let first = ada.create_job("a").await;
    world.manual_worker(first).await;
    let waits = ada.create_job("b").await;

    world.restart_with(disable).await;
    let ada = world.user("ada");

    let job = ada.wait_for(waits, JobState::Failed).await;
    assert_eq!((job.reason, job.attempt), (Some(JobReason::SandboxUnavailable), 0));
    assert_eq!(job.message.as_deref(), Some("the sandbox is disabled by the operator"));
    world.manual_worker(first).await.finish("done").await;
    ada.wait_for(first, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn an_invalid_row_affects_no_other_job() {
    let world = World::builder().set("GANTRY_METRICS_BIND", "127.0.0.1:0").build().await;
    let ada = world.user("ada");
    let bad = ada.create_job("a").await;
    let worker = world.manual_worker(bad).await;
    set(&world, bad, "limits = '{'").await;

    let (finishes, is_cancelled) = (ada.create_job("b").await, ada.create_job("c").await);
    world.manual_worker(finishes).await.finish("done").await;
    ada.wait_for(finishes, JobState::Completed).await;
    world.manual_worker(is_cancelled).await;
    ada.cancel(is_cancelled).await;
    ada.wait_for(is_cancelled, JobState::Cancelled).await;
    world.until_metric("gantry_inconsistent_rows_total{table=\"jobs\"}", 1.0).await;
    assert!(
        world.engine().containers().iter().any(|container| container.spec.job_id == bad),
        "the job must not be changed"
    );

    let limits = serde_json::to_string(&protocol::Limits::default()).unwrap();
    set(&world, bad, &format!("limits = '{limits}'")).await;
    worker.finish("done").await;
    ada.wait_for(bad, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn a_database_that_is_restored_beneath_is_acted_on() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (ended, runs) = (ada.create_job("a").await, ada.create_job("b").await);
    world.manual_worker(ended).await;
    let worker = world.manual_worker(runs).await;
    set(&world, ended, "state = 'failed', reason = 'internal', finished_at = created_at, token_hash = NULL").await;
    world.engine().until_removed(ended).await;
    worker.finish("done").await;
    ada.wait_for(runs, JobState::Completed).await;
    // Its events are not those of a job that has failed.
    let delete = ada.request(reqwest::Method::DELETE, &format!("/api/jobs/{ended}"));
    assert_eq!(tests::Reply::of(delete).await.status, 204);
    world.finish().await;
}

async fn set(world: &World, job: JobId, what: &str) {
    let mut database = world.database().await;
    let hex = job.as_uuid().simple();
    let statement = format!("UPDATE jobs SET {what} WHERE hex(id) = upper('{hex}')");
    let changed = database.execute(AssertSqlSafe(statement)).await.unwrap();
    assert_eq!(changed.rows_affected(), 1);
}

#[tokio::test]
async fn a_container_that_was_never_started_is_recreated_in_the_same_attempt() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    world.manual_worker(id).await;
    world.stop().await;
    world.engine().never_started(id);

    world.start().await;

    let ada = world.user("ada");
    world.manual_worker(id).await.finish("done").await;
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!(job.attempt, 1, "the attempt number must not change");
    assert_eq!(world.engine().requested_starts(), [format!("gantry-job-{id}-1"), format!("gantry-job-{id}-1")]);
    world.finish().await;
}

#[tokio::test]
async fn a_container_without_its_run_directory_is_replaced() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    world.manual_worker(id).await.complete_llm("c1", "hi").await;
    world.stop().await;
    std::fs::remove_dir_all(world.config().run_dir.join(format!("gantry-job-{id}-1"))).unwrap();

    world.start().await;

    let ada = world.user("ada");
    let job = ada.wait_for(id, JobState::Failed).await;
    assert_eq!(job.reason, Some(JobReason::WorkerLost));
    assert!(job.message.is_some_and(|message| message.contains("run directory is gone")));
    world.finish().await;
}

#[rstest]
#[case::run_directory(|config: &Config| config.run_dir.clone(), "the run directory cannot be created")]
#[case::workspace(|config: &Config| config.workspace_dir.clone(), "the workspace cannot be created")]
#[tokio::test]
async fn a_directory_that_cannot_be_created_is_reported_and_retried(
    #[case] directory: fn(&Config) -> PathBuf,
    #[case] reason: &str,
) {
    let world = World::new().await;
    let ada = world.user("ada");
    let parent = directory(world.config());
    let _none_yet = std::fs::remove_dir_all(&parent);
    // A file takes the directory's place, so creating a directory in it fails.
    std::fs::write(&parent, "").unwrap();
    let id = ada.create_job("work").await;
    let reported = |event: &protocol::Event| match &event.data {
        protocol::EventData::State { message: Some(message), .. } => message.contains(reason),
        _ => false,
    };
    ada.wait_for_event(id, "what went wrong", reported).await;
    std::fs::remove_file(&parent).unwrap();

    world.manual_worker(id).await.finish("done").await;

    assert!(ada.wait_for(id, JobState::Completed).await.attempt > 1);
    world.finish().await;
}
