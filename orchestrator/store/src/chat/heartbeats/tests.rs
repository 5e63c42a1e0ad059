//! Tests of heartbeats and their lines on a real database.

use chrono::TimeDelta;
use protocol::{JobReason, WakeMode};

use super::*;
use domain::job::sample;

use crate::{AuditEntry, ThreadCaller, TurnError, chat::system_lines::MAX_SYSTEM_LINES};

async fn fresh() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

fn now() -> DateTime<Utc> {
    sample::now()
}

async fn wake(store: &Store, text: &str, at: DateTime<Utc>) {
    store.wake("ada", text, WakeMode::Now, &AuditEntry::by_operator("wake", at)).await.unwrap();
}

/// The only user whose heartbeat may be due.
async fn due(store: &Store) -> DueHeartbeat {
    let mut due = store.due_heartbeats(now() + TimeDelta::hours(1), 10).await.unwrap();
    assert_eq!(due.len(), 1, "{due:?}");
    due.remove(0)
}

async fn begin(store: &Store) -> StartedHeartbeat {
    let due = due(store).await;
    store.begin_heartbeat(&due.user, due.rev, now()).await.unwrap().unwrap()
}

fn texts(started: &StartedHeartbeat) -> Vec<&str> {
    started.lines.iter().map(|line| line.text.as_str()).collect()
}

#[tokio::test]
async fn the_queue_keeps_the_newest_lines_in_order() {
    let (_directory, store) = fresh().await;
    for number in 0..MAX_SYSTEM_LINES + 5 {
        wake(&store, &number.to_string(), now()).await;
    }
    let expected: Vec<String> = (5..MAX_SYSTEM_LINES + 5).map(|number| number.to_string()).collect();
    assert_eq!(texts(&begin(&store).await), expected);
    store.close().await;
}

#[tokio::test]
async fn a_decision_about_facts_that_changed_is_void() {
    let (_directory, store) = fresh().await;
    wake(&store, "one", now()).await;
    let seen = due(&store).await;
    wake(&store, "two", now()).await;
    assert_eq!(store.begin_heartbeat("ada", seen.rev, now()).await.unwrap(), None);
    let forgotten = DeferredHeartbeat { user: seen.user, rev: seen.rev, check_at: None, has_work: false };
    store.defer_heartbeats(vec![forgotten], 1_800, now()).await.unwrap();
    assert_eq!(texts(&begin(&store).await), ["one", "two"]);
    assert_eq!(store.due_heartbeats(now(), 10).await.unwrap(), [], "there is one at a time");
    store.close().await;
}

#[tokio::test]
async fn a_request_during_a_heartbeat_has_the_next_one() {
    let (_directory, store) = fresh().await;
    wake(&store, "one", now()).await;
    let first = begin(&store).await;
    let later = now() + TimeDelta::seconds(5);
    wake(&store, "two", later).await;
    let end = HeartbeatEnd::Replied(HeartbeatReply::Silent);
    assert!(store.finish_heartbeat("ada", first.turn.key, end.clone(), later).await.unwrap());
    assert!(!store.finish_heartbeat("ada", first.turn.key, end, later).await.unwrap(), "it has ended");
    let due = due(&store).await;
    assert_eq!((due.requested_at, due.since, due.has_work), (Some(later), Some(now()), true));
    assert_eq!(texts(&begin(&store).await), ["two"]);
    store.close().await;
}

#[tokio::test]
async fn a_heartbeat_that_a_process_left_in_progress_is_due_again_with_its_lines() {
    let (_directory, store) = fresh().await;
    wake(&store, "one", now()).await;
    let first = begin(&store).await;
    assert_eq!(store.close_interrupted_chat_turns(now()).await.unwrap(), 1);
    let late =
        HeartbeatEnd::Failed(TurnError { reason: JobReason::Internal, message: String::new(), drops_lines: false });
    assert!(!store.finish_heartbeat("ada", first.turn.key, late, now()).await.unwrap(), "it is fenced");
    assert_eq!(due(&store).await.requested_at, Some(now()));
    let second = begin(&store).await;
    assert_eq!((texts(&second), second.turn.key.turn), (vec!["one"], first.turn.key.turn + 1));
    store.close().await;
}

#[tokio::test]
async fn a_heartbeat_whose_thread_is_deleted_returns_its_lines() {
    let (_directory, store) = fresh().await;
    wake(&store, "one", now()).await;
    let first = begin(&store).await;
    let caller = ThreadCaller { user: "ada".to_owned(), sees_all: false };
    let entry = AuditEntry::by_operator("thread.delete", now());
    store.delete_chat_thread(&caller, &ThreadRef::Id(first.turn.key.thread), &entry).await.unwrap();
    let end = HeartbeatEnd::Replied(HeartbeatReply::Text("hello".to_owned()));
    assert!(!store.finish_heartbeat("ada", first.turn.key, end, now()).await.unwrap());
    assert_eq!(texts(&begin(&store).await), ["one"]);
    store.close().await;
}
