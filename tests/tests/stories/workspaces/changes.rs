//! What a job has changed in its workspace.

use std::{fs, time::Duration};

use orchestrator::clock::ManualClock;
use protocol::{ErrorCode, FileChangeKind, FileChanges, JobId, JobState};
use reqwest::Method;
use serde_json::json;
use tests::{Reply, User, World};

async fn changes(user: &User, id: JobId) -> FileChanges {
    user.get(&format!("/api/jobs/{id}/changes")).await.expect(200).json()
}

/// Path and kind of each change.
fn listed(changes: &FileChanges) -> Vec<(&str, FileChangeKind)> {
    assert!(!changes.truncated);
    changes.items.iter().map(|item| (item.path.as_str(), item.change)).collect()
}

#[tokio::test]
async fn changes_are_shown_while_a_job_runs_after_a_restart_and_until_its_files_go() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let mut world = World::builder().clock(&time).set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let files = json!([{"path": "src/a.txt", "content": "one\n"}, {"path": "gone.txt", "content": "x\n"}]);
    let first = ada.create_job("first").await;
    let running = world.manual_worker(first).await;
    let id = ada.create(json!({"prompt": "work", "files": files})).await;
    assert_eq!(listed(&changes(&ada, id).await), [], "it has not started");
    running.finish("done").await;
    let worker = world.manual_worker(id).await;
    assert_eq!(listed(&changes(&ada, id).await), [], "its input is no change");

    let workspace = world.workspace(id);
    fs::write(workspace.join("src/a.txt"), "one\ntwo\n").unwrap();
    fs::write(workspace.join("new.bin"), [0, 1]).unwrap();
    fs::remove_file(workspace.join("gone.txt")).unwrap();
    let shown = changes(&ada, id).await;
    let expected = [
        ("gone.txt", FileChangeKind::Deleted),
        ("new.bin", FileChangeKind::Added),
        ("src/a.txt", FileChangeKind::Modified),
    ];
    assert_eq!(listed(&shown), expected);
    let modified = serde_json::to_value(&shown.items[2]).unwrap();
    let diff = "--- a/src/a.txt\n+++ b/src/a.txt\n@@ -1 +1,2 @@\n one\n+two\n";
    let whole = json!({"path": "src/a.txt", "change": "modified", "size_bytes": 8, "previous_size_bytes": 4, "diff": diff,
        "diff_omitted": null});
    assert_eq!(modified, whole);
    let added = serde_json::to_value(&shown.items[1]).unwrap();
    assert_eq!([&added["diff"], &added["diff_omitted"]], [&json!(null), &json!("binary")]);
    bob.get(&format!("/api/jobs/{id}/changes")).await.problem(ErrorCode::NotFound);

    world.restart().await;
    let ada = world.user("ada");
    assert_eq!(changes(&ada, id).await, shown);
    drop(worker);
    world.manual_worker(id).await.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    assert_eq!(changes(&ada, id).await, shown);
    time.advance(Duration::from_hours(8 * 24));
    world.restart().await;
    world.user("ada").get(&format!("/api/jobs/{id}/changes")).await.problem(ErrorCode::WorkspaceGone);
    tests::within("the sweep", async {
        let left = || fs::read_dir(&world.config().workspace_dir).unwrap().flatten().count();
        while left() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.finish().await;
}

#[tokio::test]
async fn a_restarted_job_is_compared_with_the_files_that_it_was_given() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    fs::write(world.workspace(id).join("draft"), "1\n").unwrap();
    worker.report(json!({"outcome": "failed", "reason": "llm_error", "text": ""})).await.expect(200);
    worker.exit(0);
    ada.wait_for(id, JobState::Failed).await;
    assert_eq!(listed(&changes(&ada, id).await), [("draft", FileChangeKind::Added)]);
    let again = ada.post(&format!("/api/jobs/{id}/restart"), &json!({})).await.expect(201).json::<protocol::Job>().id;
    let worker = world.manual_worker(again).await;
    assert_eq!(listed(&changes(&ada, again).await), []);
    fs::write(world.workspace(again).join("draft"), "2\n").unwrap();
    assert_eq!(listed(&changes(&ada, again).await), [("draft", FileChangeKind::Modified)]);
    worker.finish("done").await;
    ada.wait_for(again, JobState::Completed).await;
    world.finish().await;
}

/// The answer to a request with the tag of an earlier one.
async fn again(user: &User, path: &str, tag: &str) -> Reply {
    Reply::of(user.request(Method::GET, path).header("If-None-Match", tag)).await
}

#[tokio::test]
async fn changes_that_a_client_has_are_not_sent_again() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let path = format!("/api/jobs/{id}/changes");
    let tag = async || ada.get(&path).await.expect(200).header("etag").unwrap().to_owned();
    let empty = tag().await;
    again(&ada, &path, &empty).await.expect(304);
    fs::write(world.workspace(id).join("a"), "1\n").unwrap();
    let reply = again(&ada, &path, &empty).await.expect(200);
    let one = reply.header("etag").unwrap().to_owned();
    assert_eq!(
        (listed(&reply.json()), again(&ada, &path, &one).await.status.as_u16()),
        (vec![("a", FileChangeKind::Added)], 304)
    );
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    again(&ada, &path, &one).await.expect(304);

    time.advance(Duration::from_mins(6));
    let settled = tag().await;
    // Such a tag is answered without a look at the files: only an operator can change them now.
    fs::write(world.workspace(id).join("b"), "2\n").unwrap();
    again(&ada, &path, &settled).await.expect(304);
    assert_eq!(again(&ada, &path, &one).await.expect(200).json::<FileChanges>().items.len(), 2);
    world.user("bob").get(&path).await.problem(ErrorCode::NotFound);
    let refused = again(&world.user("bob"), &path, &settled).await;
    refused.problem(ErrorCode::NotFound);
    time.advance(Duration::from_hours(8 * 24));
    again(&world.user("ada"), &path, &settled).await.problem(ErrorCode::WorkspaceGone);
    world.finish().await;
}

#[tokio::test]
async fn the_changes_of_a_directory_are_read_alone_and_what_is_left_out_is_counted() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let workspace = world.workspace(id);
    fs::create_dir_all(workspace.join("z/sub")).unwrap();
    for number in 0..1_001 {
        fs::write(workspace.join(format!("f{number:04}")), "").unwrap();
    }
    fs::write(workspace.join("z/sub/last"), "1\n").unwrap();
    let all = changes(&ada, id).await;
    assert_eq!((all.items.len(), all.truncated, all.left_out), (1_000, true, 2));
    for within in ["z", "z/", "z/sub", "z%2fsub%2flast"] {
        let part: FileChanges = ada.get(&format!("/api/jobs/{id}/changes?path={within}")).await.expect(200).json();
        assert_eq!((listed(&part), part.left_out), (vec![("z/sub/last", FileChangeKind::Added)], 0), "{within}");
    }
    let nothing: FileChanges = ada.get(&format!("/api/jobs/{id}/changes?path=f")).await.expect(200).json();
    assert_eq!(listed(&nothing), [], "a directory, not the beginning of a name");
    for invalid in ["..", "%2fetc", "a%00"] {
        ada.get(&format!("/api/jobs/{id}/changes?path={invalid}")).await.problem(ErrorCode::Invalid);
    }
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}
