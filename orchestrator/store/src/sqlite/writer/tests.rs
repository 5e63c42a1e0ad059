//! The writer: groups, failures within them, withdrawal, closing.

use std::time::Duration;

use protocol::{AgentEvent, EventKind, JobId, JobState, MessageRole};
use sqlx::{ConnectOptions as _, Connection as _, sqlite::SqliteConnection};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::*;
use domain::job::sample;

async fn store() -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&url(&directory)).await.unwrap();
    (directory, store)
}

fn url(directory: &TempDir) -> String {
    format!("sqlite://{}/gantry.db", directory.path().display())
}

/// Another process's connection.
async fn other(directory: &TempDir) -> SqliteConnection {
    options(&url(directory)).unwrap().connect().await.unwrap()
}

pub(crate) async fn run(connection: &mut SqliteConnection, statement: &'static str) {
    sqlx::query(statement).execute(connection).await.unwrap();
}

/// Inserts a token and then, perhaps, fails.
async fn insert_token(store: Store, jti: String, failure: Option<StoreError>) -> Result<(), StoreError> {
    store
        .write(transaction!(|tx| {
            sqlx::query(
                "INSERT INTO tokens (jti, user_id, role, created_at, expires_at) VALUES ($1, 'u', 'r', '', '')",
            )
            .bind(jti)
            .execute(&mut tx.db)
            .await?;
            failure.map_or(Ok(()), Err)
        }))
        .await
}

async fn tokens(store: &Store) -> Vec<String> {
    sqlx::query_scalar("SELECT jti FROM tokens ORDER BY jti").fetch_all(&store.read).await.unwrap()
}

/// Occupies the writer until the lock is released, so that what comes meanwhile is one group.
pub(crate) async fn occupied(store: &Store, directory: &TempDir) -> (SqliteConnection, tokio::task::JoinHandle<()>) {
    let mut lock = other(directory).await;
    run(&mut lock, "BEGIN IMMEDIATE").await;
    let waits = store.clone();
    #[expect(clippy::disallowed_methods, reason = "the test waits for it")]
    let first = tokio::spawn(async move {
        // SQLite waits for the lock within this write.
        waits.instance_id().await.unwrap();
    });
    // Taken out of the queue, so at work.
    while !store.writer.is_busy() {
        tokio::task::yield_now().await;
    }
    (lock, first)
}

#[tokio::test]
async fn a_write_that_fails_in_a_group_fails_no_other_and_leaves_nothing() {
    let (directory, store) = store().await;
    let (mut lock, first) = occupied(&store, &directory).await;
    let mut writes = JoinSet::new();
    for n in 0..20 {
        let failure = (n % 3 == 1).then_some(StoreError::WriterFailed);
        let write = insert_token(store.clone(), format!("{n:02}"), failure);
        writes.spawn(async move { (n, write.await.is_ok()) });
    }
    // One with a statement that SQLite rejects, and one that panics.
    let rejected = insert_token(store.clone(), "03".to_owned(), None);
    writes.spawn(async move { (1, rejected.await.is_ok()) });
    let panics = store.clone();
    writes.spawn(async move {
        let failed = panics
            .write(transaction!(|tx| {
                run(&mut tx.db, "DELETE FROM tokens").await;
                assert!(tx.db.is_in_transaction(), "panics: sqlx does not count this transaction");
                Ok(())
            }))
            .await;
        (1, failed.is_ok())
    });
    while store.writer.waiting() < 22 {
        tokio::task::yield_now().await;
    }
    run(&mut lock, "COMMIT").await;
    first.await.unwrap();
    while let Some(written) = writes.join_next().await {
        let (n, is_written) = written.unwrap();
        assert_eq!(is_written, n % 3 != 1, "{n}");
    }
    let wanted: Vec<String> = (0..20).filter(|n| n % 3 != 1).map(|n| format!("{n:02}")).collect();
    assert_eq!(tokens(&store).await, wanted);
    store.close().await;
}

#[tokio::test]
async fn a_dropped_caller_withdraws_its_write() {
    let (directory, store) = store().await;
    let (mut lock, first) = occupied(&store, &directory).await;
    let mut gone = Box::pin(insert_token(store.clone(), "gone".to_owned(), None));
    assert!(futures_util::poll!(&mut gone).is_pending());
    assert_eq!(store.writer.waiting(), 1);
    drop(gone);
    assert_eq!(store.writer.waiting(), 0);
    run(&mut lock, "COMMIT").await;
    first.await.unwrap();
    insert_token(store.clone(), "stays".to_owned(), None).await.unwrap();
    assert_eq!(tokens(&store).await, ["stays"]);
    store.close().await;
}

#[tokio::test]
async fn a_write_that_has_begun_is_committed_even_if_its_caller_is_dropped() {
    let (directory, store) = store().await;
    let mut lock = other(&directory).await;
    run(&mut lock, "BEGIN IMMEDIATE").await;
    let mut gone = Box::pin(insert_token(store.clone(), "whole".to_owned(), None));
    assert!(futures_util::poll!(&mut gone).is_pending());
    while !store.writer.is_busy() {
        tokio::task::yield_now().await;
    }
    drop(gone);
    run(&mut lock, "COMMIT").await;
    store.close().await;
    let left: Vec<String> = sqlx::query_scalar("SELECT jti FROM tokens").fetch_all(&mut lock).await.unwrap();
    assert_eq!(left, ["whole"]);
}

#[tokio::test]
async fn a_locked_database_is_a_transient_error_and_the_next_write_succeeds() {
    let (directory, store) = store().await;
    let mut lock = other(&directory).await;
    run(&mut lock, "BEGIN IMMEDIATE").await;
    let error = insert_token(store.clone(), "a".to_owned(), None).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    run(&mut lock, "COMMIT").await;
    insert_token(store.clone(), "a".to_owned(), None).await.unwrap();
    lock.close().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn closing_writes_what_is_queued_and_refuses_the_rest() {
    let (directory, store) = store().await;
    let (mut lock, first) = occupied(&store, &directory).await;
    let mut queued = Box::pin(insert_token(store.clone(), "queued".to_owned(), None));
    assert!(futures_util::poll!(&mut queued).is_pending());
    let mut closing = Box::pin(store.close());
    assert!(futures_util::poll!(&mut closing).is_pending());
    let refused = insert_token(store.clone(), "late".to_owned(), None).await;
    assert!(matches!(refused, Err(StoreError::Closed)));
    run(&mut lock, "COMMIT").await;
    tokio::join!(closing, async { queued.await.unwrap() });
    first.await.unwrap();
    store.writer_ended().await;
    let left: Vec<String> = sqlx::query_scalar("SELECT jti FROM tokens").fetch_all(&mut lock).await.unwrap();
    assert_eq!(left, ["queued"]);
}

fn batch(events: &[AgentEvent]) -> Vec<BatchEvent> {
    (1..).zip(events).map(|(client_seq, data)| BatchEvent { client_seq, data: vec![data.clone()] }).collect()
}

#[tokio::test]
async fn a_flood_of_batches_delays_a_write_by_one_group_and_a_bad_batch_fails_alone() {
    let (directory, store) = store().await;
    let mut jobs: Vec<JobId> = vec![];
    for _ in 0..3 {
        let job = sample::job(JobState::InProgress);
        jobs.push(job.id);
        store.create_job(job, None, None).await.unwrap();
    }
    run(&mut other(&directory).await, "UPDATE jobs SET state = 'in_progress', attempt = 1").await;
    // An event of the second job is there already under the number that its batch gets.
    let there = "INSERT INTO events (job_id, seq, attempt, at, kind, data) SELECT $1, 2, 1, '', 'log', '{}'";
    sqlx::query(there).bind(jobs[1]).execute(&mut other(&directory).await).await.unwrap();
    let (mut lock, first) = occupied(&store, &directory).await;
    let message = AgentEvent::Message { role: MessageRole::Assistant, content: "x".repeat(100) };
    let now = chrono::DateTime::from_timestamp(1_700_000_000, 0).unwrap();
    let large = vec![message; 1_000];
    let mut appends: Vec<_> =
        jobs.iter().map(|job| Box::pin(store.append_worker_events(*job, 1, now, batch(&large)))).collect();
    for append in &mut appends {
        assert!(futures_util::poll!(append).is_pending());
    }
    let third = *jobs[2].as_uuid();
    let mut control = Box::pin(store.write(transaction!(|tx| {
        let last_seq = sqlx::query_scalar("SELECT last_seq FROM jobs WHERE id = $1").bind(third);
        Ok(last_seq.fetch_one(&mut tx.db).await?)
    })));
    assert!(futures_util::poll!(&mut control).is_pending());
    run(&mut lock, "COMMIT").await;
    first.await.unwrap();
    let seen_by_control: i64 = control.await.unwrap();
    let mut results = vec![];
    for append in appends {
        results.push(append.await);
    }
    // 2 000 events are one group; the control write came before the third batch.
    assert_eq!(seen_by_control, 1);
    assert!(matches!(results[0], Ok(Appended::Stored { last_client_seq: 1_000, .. })), "{:?}", results[0]);
    assert!(matches!(results[1], Err(StoreError::Database(_))), "{:?}", results[1]);
    assert!(matches!(results[2], Ok(Appended::Stored { last_client_seq: 1_000, .. })), "{:?}", results[2]);
    assert_eq!(store.events(jobs[0], 1_000, 10, Some(EventKind::Message)).await.unwrap().items.len(), 1);
    assert_eq!(store.last_seq(jobs[1]).await.unwrap(), 1, "its batch is rolled back whole");
    store.close().await;
}

#[tokio::test]
async fn a_transaction_that_the_database_ended_by_itself_fails_its_group_and_no_other() {
    let (directory, store) = store().await;
    let (mut lock, first) = occupied(&store, &directory).await;
    let mut before = Box::pin(insert_token(store.clone(), "before".to_owned(), None));
    assert!(futures_util::poll!(&mut before).is_pending());
    // As SQLite does when the disk is full.
    let mut full = Box::pin(store.write(transaction!(|tx| {
        run(&mut tx.db, "ROLLBACK").await;
        sqlx::query("INSERT INTO nowhere DEFAULT VALUES").execute(&mut tx.db).await?;
        Ok(())
    })));
    assert!(futures_util::poll!(&mut full).is_pending());
    let mut after = Box::pin(insert_token(store.clone(), "after".to_owned(), None));
    assert!(futures_util::poll!(&mut after).is_pending());
    run(&mut lock, "COMMIT").await;
    first.await.unwrap();
    for failed in [before.await.unwrap_err(), full.await.unwrap_err(), after.await.unwrap_err()] {
        assert!(matches!(failed, StoreError::GroupCommit(_)), "{failed:?}");
    }
    assert_eq!(tokens(&store).await, Vec::<String>::new());
    insert_token(store.clone(), "next".to_owned(), None).await.unwrap();
    assert_eq!(tokens(&store).await, ["next"]);
    tokio::time::timeout(Duration::from_secs(5), store.close()).await.unwrap();
}

#[tokio::test]
async fn a_write_whose_savepoint_cannot_be_set_does_not_undo_the_one_before_it() {
    let (directory, store) = store().await;
    let mut tx = WriteTx::new(other(&directory).await, UserStorageLimit::default());
    run(&mut tx.db, "BEGIN IMMEDIATE").await;
    tx.set_savepoint().await.unwrap();
    // SQLite refuses to release a savepoint while another statement writes; here it is not there to be released.
    run(&mut tx.db, "RELEASE w").await;
    tx.set_savepoint().await.unwrap_err();
    run(&mut tx.db, "SAVEPOINT w").await;
    tx.roll_back_to_savepoint().await.expect_err("the savepoint is of the write before");
    run(&mut tx.db, "ROLLBACK").await;
    tx.reset();
    run(&mut tx.db, "BEGIN IMMEDIATE").await;
    tx.set_savepoint().await.unwrap();
    tx.roll_back_to_savepoint().await.expect("its own savepoint");
    store.close().await;
}

/// Ten times as many as it takes.
const MAX_WRITES: usize = 10_000;

/// Writes until the log has a length, in pages, that is asked for.
async fn write_until(store: &Store, directory: &TempDir, is_reached: impl Fn(i64) -> bool) {
    let mut connection = other(directory).await;
    for _ in 0..MAX_WRITES {
        insert_token(store.clone(), format!("{}{}", JobId::generate(), "x".repeat(20_000)), None).await.unwrap();
        let (_, length, _): (i64, i64, i64) =
            sqlx::query_as("PRAGMA wal_checkpoint(NOOP)").fetch_one(&mut connection).await.unwrap();
        if is_reached(length) {
            return connection.close().await.unwrap();
        }
    }
    panic!("the log has not come to that length");
}

#[tokio::test]
async fn the_log_starts_again_while_there_are_writes_and_after_a_reader_that_needed_it_has_ended() {
    let (directory, store) = store().await;
    // Longer than it may become, and then short: it has started again.
    write_until(&store, &directory, |length| length >= 2_000).await;
    write_until(&store, &directory, |length| length < 1_000).await;

    let mut reader = other(&directory).await;
    run(&mut reader, "BEGIN").await;
    run(&mut reader, "SELECT * FROM tokens LIMIT 1").await;
    write_until(&store, &directory, |length| length >= 10_000).await;
    run(&mut reader, "COMMIT").await;
    reader.close().await.unwrap();
    write_until(&store, &directory, |length| length < 1_000).await;
    store.close().await;
    assert!(!directory.path().join("gantry.db-wal").exists(), "no connection is left");
}
