//! What the server can do now, and the event that tells all users when that changes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use orchestrator::{auth::Role, engine::ReadinessReason, workspace::DiskSpace};
use protocol::{AnyEventData, ErrorCode, InstanceEventData, JobState, ReadinessState, ServerStatus};
use serde_json::json;
use tests::{InstanceStream, User, World};

const GB: u64 = 1 << 30;

async fn status(user: &User) -> ServerStatus {
    serde_json::from_value(user.get("/api/status").await.expect(200).body).unwrap()
}

/// The next change of readiness of a stream that has no other events.
async fn change(stream: &mut InstanceStream) -> ReadinessState {
    let event = stream.event().await;
    assert_eq!(event.user_id, "", "it concerns all users");
    match event.data {
        AnyEventData::Instance(InstanceEventData::Readiness(state)) => state,
        other => panic!("expected a change of readiness, got {other:?}"),
    }
}

#[tokio::test]
async fn the_status_has_slots_the_queue_and_the_disk_for_every_caller_with_a_token() {
    let free = Arc::new(AtomicU64::new(50 * GB));
    let read = Arc::clone(&free);
    let space = Arc::new(move |_: &std::path::Path| {
        let free_bytes = read.load(Ordering::Relaxed);
        Ok(DiskSpace { total_bytes: 100 * GB, free_bytes, free_inodes: 1_000_000 })
    });
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).space(space).build().await;
    let ada = world.user("ada");
    let first = ada.create_job("work").await;
    let worker = world.manual_worker(first).await;
    let second = ada.create_job("work").await;
    let held = ada.create(json!({"prompt": "not yet", "hold": true})).await;
    for caller in [&ada, &world.someone("eve", Role::Viewer), &world.someone("root", Role::Admin)] {
        let found = status(caller).await;
        assert!(found.ready && found.sandbox.ready && found.model.ready, "{found:?}");
        assert_eq!((found.slots.total, found.slots.busy, found.queued), (1, 1, 1));
        let disk = found.disk.unwrap();
        assert_eq!((disk.free_bytes, disk.total_bytes), (50 * GB, 100 * GB));
        assert_eq!((found.version.as_str(), found.model.name.is_empty()), (env!("CARGO_PKG_VERSION"), false));
    }
    world.anonymous().get("/api/status").await.problem(ErrorCode::Unauthorized);
    worker.finish("done").await;
    world.manual_worker(second).await.finish("done").await;
    ada.wait_for_end(second).await;
    let mut stream = ada.instance_stream("/api/events?kind=readiness", None).await;
    free.store(GB, Ordering::Relaxed);
    let full = change(&mut stream).await;
    assert_eq!((full.ready, full.sandbox_ready, full.reason.as_deref()), (false, true, Some("disk_full")));
    assert!(!status(&ada).await.ready);
    ada.cancel(held).await.expect(202);
    ada.wait_for(held, JobState::Cancelled).await;
    world.finish().await;
}

#[tokio::test]
async fn a_change_of_readiness_is_told_once_to_all_users() {
    let mut world = World::new().await;
    let [ada, eve] = [world.user("ada"), world.someone("eve", Role::Viewer)];
    let mut streams = vec![];
    for user in [&ada, &eve, &world.someone("root", Role::Admin)] {
        streams.push(user.instance_stream("/api/events?after=0", None).await);
    }
    world.engine().not_ready(ReadinessReason::ImageMissing);
    tests::until("the failure to be seen", async || !status(&ada).await.ready).await;
    let found = status(&eve).await;
    assert_eq!(found.sandbox.reason.as_deref(), Some("image_missing"));
    assert!(found.sandbox.message.is_some_and(|message| !message.is_empty()));
    for stream in &mut streams {
        let lost = change(stream).await;
        assert_eq!((lost.ready, lost.sandbox_ready, lost.reason.as_deref()), (false, false, Some("image_missing")));
    }
    // The next process finds what it knew: there is no second event.
    world.restart().await;
    tests::until("the failure to be seen", async || !status(&world.user("ada")).await.ready).await;
    world.engine().ready();
    tests::until("the sandbox to be ready", async || status(&world.user("ada")).await.ready).await;
    let mut stream = world.user("bob").instance_stream("/api/events?after=0", None).await;
    let changes = [change(&mut stream).await, change(&mut stream).await];
    assert_eq!(changes.map(|state| state.ready), [false, true]);
    world.finish().await;
}
