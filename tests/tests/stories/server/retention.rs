//! Retention: what the database keeps of finished jobs, and what readers get for data that was removed.

use std::time::Duration;

use orchestrator::{clock::ManualClock, store::RetentionLimits};
use protocol::{EventData, JobState};
use serde_json::json;
use tests::{StreamMessage, World};

#[tokio::test]
async fn old_records_are_removed_and_results_are_kept() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let mut world = World::builder().clock(&time).set("GANTRY_RECORD_RETENTION_DAYS", 1).build().await;
    let ada = world.user("ada");
    let old = ada.create_job("old").await;
    let worker = world.manual_worker(old).await;
    worker.complete_llm("c1", "hi").await;
    worker.record_message(1, "much").await.expect(200);
    worker.finish("the result").await;
    let whole = ada.wait_for(old, JobState::Completed).await;
    time.advance(Duration::from_hours(20));
    let ada = world.user("ada");
    let young = ada.create_job("young").await;
    world.manual_worker(young).await.finish("done").await;
    ada.wait_for(young, JobState::Completed).await;
    time.advance(Duration::from_hours(5));
    let printed = [old, young].map(|id| world.config().data_dir.join(format!("logs/gantry-job-{id}-1.log")));
    for file in &printed {
        std::fs::write(file, "printed").unwrap();
    }
    // The sweep runs at startup and every hour.
    world.restart().await;
    let ada = world.user("ada");
    tests::within("the sweep", async {
        while ada.events(old).await.len() > 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(ada.job(old).await, whole, "the job itself stays");
    let kept = ada.events(old).await;
    assert!(matches!(kept[0].data, EventData::Result { .. }) && kept[0].seq > 2);
    let calls = ada.get(&format!("/api/jobs/{old}/llm-calls")).await.expect(200);
    assert_eq!(calls.body["items"], json!([]));
    let mut stream = ada.stream(old, None).await;
    let Some(StreamMessage::Resync(reported)) = stream.next().await else { panic!("expected a resync") };
    assert_eq!(reported, json!({"seq": kept[0].seq}));
    let (rest, state, _) = stream.rest().await;
    assert_eq!((rest, state), (kept, JobState::Completed));
    assert!(ada.events(young).await.len() > 2, "records of recent jobs must be complete");
    tests::within("the old container log to be removed", async {
        while printed[0].exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(printed[1].exists());
    world.finish().await;
}

#[tokio::test]
async fn a_database_over_its_size_limit_loses_the_oldest_records_first() {
    let world = World::builder().set("GANTRY_RECORD_RETENTION_DAYS", 1).build().await;
    let ada = world.user("ada");
    let mut ids = vec![];
    for _ in 0..3 {
        let id = ada.create_job("work").await;
        let worker = world.manual_worker(id).await;
        for seq in 1..=8 {
            worker.record_message(seq, &"x".repeat(200_000)).await.expect(200);
        }
        worker.finish("done").await;
        ada.wait_for(id, JobState::Completed).await;
        ids.push(id);
    }
    let store = world.store().await;
    let large = store.used_bytes().await.unwrap();
    assert!(large > 4_000_000, "{large}");
    // What is younger than a day stays.
    let now = world.clock().now() + chrono::TimeDelta::days(2);
    let trimmed = store.trim(&RetentionLimits { days: 3650, audit_days: 3650, max_mb: 3 }, now).await;
    assert!(trimmed.rows_of("jobs") > 0 && trimmed.rows_of("audit") == 0, "{trimmed:?}");
    assert!(store.used_bytes().await.unwrap() <= 3 * 1024 * 1024);
    let trimmed = store.trim(&RetentionLimits { days: 3650, audit_days: 3650, max_mb: 0 }, now).await;
    assert!(trimmed.rows.is_empty(), "no limit, nothing old: {trimmed:?}");
    let trimmed = store.trim(&RetentionLimits { days: 3650, audit_days: 0, max_mb: 0 }, now).await;
    assert!(trimmed.rows_of("audit") >= 3, "expected audit entries of three jobs: {trimmed:?}");
    store.close().await;
    assert_eq!(ada.events(ids[0]).await.len(), 2, "the oldest went");
    world.finish().await;
}
