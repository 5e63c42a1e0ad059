//! Tests of the store through its interface, on a real database.

mod migrations;

use std::{fs, os::unix::fs::PermissionsExt as _};

use protocol::{
    AgentEvent, CompleteReport, EventData, EventKind, JobId, JobState, PromptId, PromptMode, PromptRequest,
    ReportedOutcome,
};

use super::*;
use domain::job::{AttemptStart, JobRecord, Queued, Stage, WorkerStart, sample};

#[tokio::test]
async fn the_write_after_a_transaction_that_the_database_ended_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    // As SQLite does when the disk is full.
    let failed = store.write(transaction!(|tx| {
        sqlx::query("ROLLBACK").execute(&mut tx.db).await?;
        Ok(())
    }));
    failed.await.unwrap_err();
    store.instance_id().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn a_full_disk_is_told_from_a_busy_database() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    let failed = store.write(transaction!(|tx| {
        sqlx::query("PRAGMA max_page_count = 1").execute(&mut tx.db).await?;
        sqlx::query("CREATE TABLE filler AS SELECT zeroblob(1000000)").execute(&mut tx.db).await?;
        Ok(())
    }));
    let error = failed.await.unwrap_err();
    assert!(error.is_full() && error.is_transient(), "{error:?}");
    assert!(!StoreError::Busy.is_full());
    store.close().await;
}

#[tokio::test]
async fn running_jobs_are_listed_without_an_inconsistent_row() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    let mut ids = vec![];
    for state in [JobState::InProgress, JobState::Stuck, JobState::InProgress, JobState::Pending] {
        let job = domain::job::sample::job(state);
        ids.push(job.id);
        store.create_job(job, None, None).await.unwrap();
        sqlx::query("UPDATE jobs SET state = $1 WHERE id = $2")
            .bind(state.as_str())
            .bind(ids.last().unwrap())
            .execute(&mut raw(&directory).await)
            .await
            .unwrap();
    }
    sqlx::query("UPDATE jobs SET limits = '{' WHERE id = $1")
        .bind(ids[2])
        .execute(&mut raw(&directory).await)
        .await
        .unwrap();
    let running = store.running().await.unwrap();
    let mut seen: Vec<JobId> = running.iter().map(|job| job.id).collect();
    seen.sort();
    assert_eq!(seen, ids[..2]);
    store.close().await;
}

/// A connection beside the store's own.
pub(super) async fn raw(directory: &tempfile::TempDir) -> SqliteConnection {
    options(&format!("sqlite://{}/gantry.db", directory.path().display())).unwrap().connect().await.unwrap()
}

/// The steps in which the database runs a statement.
pub(super) async fn plan(store: &Store, statement: &str) -> Vec<String> {
    let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
    let steps: Vec<(i64, i64, i64, String)> = sqlx::query_as(explain).fetch_all(&store.read).await.unwrap();
    steps.into_iter().map(|(.., step)| step).collect()
}

/// The steps of a statement that walk over a whole table or index, except those that are named: of partial indexes,
/// which have only what there is to do, and of what the statement has selected before.
pub(super) async fn walks(store: &Store, statement: &str, allowed: &[&str]) -> Vec<String> {
    let is_walk = |step: &String| step.starts_with("SCAN") && !allowed.iter().any(|part| step.contains(part));
    plan(store, statement).await.into_iter().filter(is_walk).collect()
}

/// A new database.
pub(super) async fn fresh() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

#[tokio::test]
async fn a_command_beside_the_server_analyses_no_table() {
    let (directory, store) = fresh().await;
    store.create_job(sample::job(JobState::Pending), None, None).await.unwrap();
    let analysed = "SELECT COUNT(DISTINCT tbl) FROM sqlite_stat1";
    let url = format!("sqlite://{}/gantry.db", directory.path().display());
    for command in [Store::open_existing(&url).await.unwrap(), Store::open(&url).await.unwrap()] {
        tokens::revoke(&command, "j1", sample::now()).await.unwrap();
        command.close().await;
        sqlx::query(analysed).execute(&mut raw(&directory).await).await.expect_err("there are no statistics");
    }
    store.close().await;
}

#[tokio::test]
async fn a_closed_store_leaves_nothing_in_the_write_ahead_log() {
    let (directory, store) = fresh().await;
    let log = directory.path().join("gantry.db-wal");
    store.create_job(sample::job(JobState::Pending), None, None).await.unwrap();
    store.ping().await.unwrap();
    assert!(fs::metadata(&log).unwrap().len() > 0);
    store.sync_to_disk().await.unwrap();
    assert_eq!(fs::metadata(&log).unwrap().len(), 0);
    store.instance_id().await.unwrap();
    // An open read keeps its connection, and so the log's file.
    let reader = store.read.acquire().await.unwrap();
    store.close().await;
    let (moved, all): (i64, i64) = {
        let mut connection = raw(&directory).await;
        let row: (i64, i64, i64) = sqlx::query_as("PRAGMA wal_checkpoint").fetch_one(&mut connection).await.unwrap();
        (row.2, row.1)
    };
    assert_eq!(moved, all);
    drop(reader);
    let (directory, store) = fresh().await;
    store.instance_id().await.unwrap();
    store.ping().await.unwrap();
    store.close().await;
    assert!(!directory.path().join("gantry.db-wal").exists());
}

#[tokio::test]
async fn a_full_queue_of_one_user_refuses_that_user_only() {
    let (directory, store) = fresh().await;
    let job = |user: &str| sample::job(JobState::Pending).with_brief(|brief| user.clone_into(&mut brief.user_id));
    let held = |user: &str| {
        let stage = Stage::Queued(Queued { held: true, ..Queued::default() });
        JobRecord { stage, ..job(user) }
    };
    assert_eq!(store.create_job(job("ada"), None, None).await.unwrap(), CreateOutcome::Created);
    let columns: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_table_info('jobs') WHERE name <> 'id'")
        .fetch_all(&store.read)
        .await
        .unwrap();
    let columns = columns.join(", ");
    let copy = format!(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {}) \
         INSERT INTO jobs (id, {columns}) SELECT randomblob(16), {columns} FROM jobs, n",
        MAX_PENDING_PER_USER - 1
    );
    sqlx::query(sqlx::AssertSqlSafe(copy)).execute(&mut raw(&directory).await).await.unwrap();
    assert_eq!(store.create_job(job("ada"), None, None).await.unwrap(), CreateOutcome::QueueFull(QueueFull::User));
    assert_eq!(
        store.create_job(held("ada"), None, None).await.unwrap(),
        CreateOutcome::Created,
        "held jobs are not queued"
    );
    assert_eq!(store.create_job(job("bob"), None, None).await.unwrap(), CreateOutcome::Created);
    sqlx::query("UPDATE jobs SET state = 'cancelled' WHERE id = (SELECT id FROM jobs WHERE user_id = 'ada' LIMIT 1)")
        .execute(&mut raw(&directory).await)
        .await
        .unwrap();
    assert_eq!(
        store.create_job(job("ada"), None, None).await.unwrap(),
        CreateOutcome::Created,
        "one that is over makes room"
    );
    // The dispatcher's read of such a queue, and what the lists ask for, begin at indexes.
    for (statement, index) in [
        ("SELECT COUNT(*) FROM jobs WHERE user_id = 'ada' AND state = 'pending'", "jobs_by_user_state"),
        (
            "SELECT id, ROW_NUMBER() OVER (PARTITION BY user_id, placement ORDER BY priority DESC, id) AS place FROM jobs \
             WHERE state = 'pending' AND held = FALSE",
            "COVERING INDEX jobs_queue",
        ),
    ] {
        let plan = plan(&store, statement).await;
        assert!(plan.iter().any(|step| step.contains(index)), "{plan:?}");
    }
    store.close().await;
}

#[tokio::test]
async fn the_control_plane_reads_while_public_requests_hold_every_connection_of_theirs() {
    let (_directory, store) = fresh().await;
    let mut held = vec![];
    for _ in 0..PUBLIC_READERS {
        held.push(store.read.acquire().await.unwrap());
    }
    let answered = tokio::time::timeout(Duration::from_secs(5), store.control().job(JobId::generate())).await;
    assert_eq!(answered.expect("it does not wait").unwrap(), None);
    drop(held);
    store.close().await;
}

#[tokio::test]
async fn connections_that_have_read_close_cleanly() {
    let (_directory, store) = fresh().await;
    store.ping().await.unwrap();
    store.read.close().await.expect("nothing is written by a reader");
    store.close().await;
}

#[tokio::test]
async fn an_idempotency_key_that_is_over_is_used_again_before_the_sweep_takes_it() {
    let (_directory, store) = fresh().await;
    let job = sample::job(JobState::Pending);
    let now = job.brief.created_at;
    let key = || Some(IdempotencyKey { user: "a".to_owned(), key: "k".to_owned(), digest: "d".to_owned() });
    assert_eq!(store.create_job(job.clone(), key(), None).await.unwrap(), CreateOutcome::Created);
    assert!(matches!(
        store.create_job(job.clone(), key(), None).await.unwrap(),
        CreateOutcome::Known(Lookup::Replayed { .. })
    ));
    let later = JobRecord { id: JobId::generate(), ..job }
        .with_brief(|brief| brief.created_at = now + chrono::TimeDelta::days(2));
    assert_eq!(store.create_job(later.clone(), key(), None).await.unwrap(), CreateOutcome::Created);
    assert!(matches!(
        store.create_job(later, key(), None).await.unwrap(),
        CreateOutcome::Known(Lookup::Replayed { .. })
    ));
    store.close().await;
}

#[tokio::test]
async fn a_conversation_is_read_without_its_noise_and_from_its_end() {
    let (directory, store) = fresh().await;
    let job = JobRecord { attempt: 1, ..sample::job(JobState::InProgress) };
    let (id, now) = (job.id, job.brief.created_at);
    store.create_job(job, None, None).await.unwrap();
    sqlx::query("UPDATE jobs SET attempt = 1").execute(&mut raw(&directory).await).await.unwrap();
    let message = |n: u64| AgentEvent::Message { role: protocol::MessageRole::Assistant, content: format!("{n:100}") };
    let log = AgentEvent::Log { stream: protocol::LogStream::Stdout, text: "x".repeat(1_000), call_id: None };
    let prompt = AgentEvent::Message { role: protocol::MessageRole::User, content: "do it".to_owned() };
    let of_conversation = |n| if n == 1 { prompt.clone() } else { message(n) };
    let events: Vec<_> = (1..=10).flat_map(|n| [of_conversation(n), log.clone()]).collect();
    let sent: Vec<_> =
        (1..).zip(events).map(|(client_seq, data)| BatchEvent { client_seq, data: vec![data] }).collect();
    let stored = store.append_worker_events(id, 1, now, sent).await.unwrap();
    let Appended::Stored { last_client_seq: 20, added_bytes } = stored else { panic!("{stored:?}") };
    let whole: Vec<(u32, EventData)> = (1..=10).map(|n| (1, of_conversation(n).into())).collect();
    let conversation = async |max_bytes| store.conversation(&store.read, id, (i64::MAX, max_bytes)).await.unwrap();
    assert_eq!(conversation(usize::MAX).await, (whole.clone(), false));
    assert_eq!(conversation(3 * 150).await, ([&whole[..1], &whole[7..]].concat(), true));
    let before = store.event_bytes(id).await.unwrap();
    assert!(added_bytes > 11_000 && before >= added_bytes, "{added_bytes} of {before}");

    // Over its quota, a job's numbers go on and its log is left out: only what is stored counts, once.
    let more = vec![
        BatchEvent { client_seq: 20, data: vec![log] },
        BatchEvent { client_seq: 21, data: Vec::new() },
        BatchEvent { client_seq: 22, data: vec![message(11)] },
        BatchEvent { client_seq: 23, data: Vec::new() },
    ];
    let mut added = vec![];
    for _ in 0..2 {
        let stored = store.append_worker_events(id, 1, now, more.clone()).await.unwrap();
        let Appended::Stored { last_client_seq: 23, added_bytes } = stored else { panic!("{stored:?}") };
        added.push(added_bytes);
    }
    assert_eq!(added, [store.event_bytes(id).await.unwrap() - before, 0]);
    let page = store.events(id, 20, 10, None).await.unwrap();
    let kinds: Vec<_> = page.items.iter().map(|event| (event.seq, event.kind)).collect();
    assert_eq!(kinds, [(21, EventKind::Log), (22, EventKind::Message)]);
    store.close().await;
}

#[tokio::test]
async fn a_prompt_with_an_older_id_is_not_acknowledged_unseen() {
    let (directory, store) = fresh().await;
    let job = sample::job(JobState::Pending);
    let (id, now) = (job.id, job.brief.created_at);
    store.create_job(job, None, None).await.unwrap();
    let mut receipts = vec![];
    for content in ["first", "second"] {
        let request = PromptRequest { content: content.to_owned(), mode: PromptMode::Steer, done: false };
        let stored = store.add_prompt(id, now, &request, None, None).await.unwrap();
        let Prompted::Stored(receipt) = stored else { panic!("{stored:?}") };
        receipts.push(receipt.prompt_id);
    }
    // As after a restart with the clock set back.
    sqlx::query("UPDATE prompts SET id = x'00000000000070008000000000000001' WHERE content = 'second'")
        .execute(&mut raw(&directory).await)
        .await
        .unwrap();
    let next = store.next_prompt(id, Some(receipts[0]), now).await.unwrap().unwrap();
    assert_eq!(next.content, "second");
    assert_eq!(store.next_prompt(id, Some(next.prompt_id), now).await.unwrap(), None);
    store.close().await;
}

#[tokio::test]
async fn a_nudge_holds_up_no_report_and_reaches_no_new_attempt() {
    let (directory, store) = fresh().await;
    let report = CompleteReport {
        cut: false,
        outcome: ReportedOutcome::Completed,
        reason: None,
        message: None,
        text: "done".to_owned(),
        partial: None,
        iterations: 1,
    };
    let mut ids = vec![];
    for _ in 0..2 {
        let job = sample::job(JobState::Pending);
        let now = job.brief.created_at;
        ids.push(job.id);
        store.create_job(job, None, None).await.unwrap();
        let stuck = "UPDATE jobs SET state = 'stuck', attempt = 1 WHERE state = 'pending'";
        sqlx::query(stuck).execute(&mut raw(&directory).await).await.unwrap();
        store.nudge(*ids.last().unwrap(), now, "go on").await.unwrap().unwrap();
    }
    let now = sample::now();
    assert_eq!(store.next_prompt(ids[0], Some(PromptId::nil()), now).await.unwrap().unwrap().content, "go on");
    let done = store.complete(ids[0], 1, now, &report).await.unwrap();
    assert!(matches!(done, Reported::Decided(Transition::Applied(_))), "{done:?}");
    store.transition(ids[1], now, None, |job| job.mark_stuck("silent".to_owned())).await.unwrap();
    let start = AttemptStart {
        attempt: 2,
        worker: Some(WorkerStart {
            token_hash: "h".to_owned(),
            lease_expires_at: now,
            container: protocol::ContainerInfo::default(),
        }),
    };
    let again = store.transition(ids[1], now, None, move |job| job.start_again(now, start)).await.unwrap();
    assert!(matches!(again, Transition::Applied(_)), "{again:?}");
    assert_eq!(store.next_prompt(ids[1], Some(PromptId::nil()), now).await.unwrap(), None);
    store.close().await;
}

#[tokio::test]
async fn the_tools_of_an_attempt_are_stored_once() {
    let (_directory, store) = fresh().await;
    let (job, now) = (sample::job(JobState::Pending), sample::now());
    let id = job.id;
    store.create_job(job, None, None).await.unwrap();
    let start = move |attempt| {
        let container = protocol::ContainerInfo::default();
        AttemptStart {
            attempt,
            worker: Some(WorkerStart { token_hash: "h".to_owned(), lease_expires_at: now, container }),
        }
    };
    let (first, later) = (vec!["srv__one".to_owned()], vec!["srv__one".to_owned(), "srv__two".to_owned()]);
    store.transition(id, now, None, move |job| job.start(now, start(1))).await.unwrap();
    assert_eq!(store.attempt_tools(id, 1).await.unwrap(), None);
    assert_eq!(store.set_attempt_tools(id, 1, &first).await.unwrap(), first);
    assert_eq!(store.set_attempt_tools(id, 1, &later).await.unwrap(), first);
    store.transition(id, now, None, |job| job.mark_stuck("silent".to_owned())).await.unwrap();
    assert_eq!(store.attempt_tools(id, 1).await.unwrap(), Some(first));
    store.transition(id, now, None, move |job| job.start_again(now, start(2))).await.unwrap();
    assert_eq!(store.attempt_tools(id, 2).await.unwrap(), None);
    assert_eq!(store.set_attempt_tools(id, 1, &later).await.unwrap(), [""; 0], "an attempt that is over");
    assert_eq!(store.set_attempt_tools(id, 2, &later).await.unwrap(), later);
    store.close().await;
}

#[tokio::test]
async fn a_backup_is_never_written_through_a_file_that_is_there() {
    let (directory, store) = fresh().await;
    let (target, other) = (directory.path().join("copy.db"), directory.path().join("other"));
    fs::write(&other, "precious").unwrap();
    std::os::unix::fs::symlink(&other, directory.path().join(".copy.db.partial")).unwrap();
    backup(&format!("sqlite://{}/gantry.db", directory.path().display()), &target).await.unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    assert!(fs::symlink_metadata(&target).unwrap().is_file());
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    store.close().await;
}

#[tokio::test]
async fn rows_with_an_unknown_state_or_reason_stop_no_count() {
    let (directory, store) = fresh().await;
    for change in ["rev = 1", "state = 'elsewhere'", "state = 'failed', reason = 'from_the_future'"] {
        let job = sample::job(JobState::Pending);
        let id = job.id;
        store.create_job(job, None, None).await.unwrap();
        let change = format!("UPDATE jobs SET {change} WHERE id = $1");
        let change = sqlx::query(sqlx::AssertSqlSafe(change)).bind(id);
        change.execute(&mut raw(&directory).await).await.unwrap();
    }
    for user in [None, Some("a")] {
        let states = store.summary(user, sample::now().date_naive()).await.unwrap().states;
        assert_eq!((states.pending, states.failed), (1, 1), "{user:?}");
    }
    let metrics = Metrics::default().render(&store.counts().await.unwrap());
    for line in [
        "gantry_jobs{state=\"pending\"} 1",
        "gantry_jobs{state=\"unknown\"} 1",
        "state=\"failed\",reason=\"unknown\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    store.close().await;
}

#[tokio::test]
async fn totals_of_past_days_are_deleted_with_the_calls_of_their_time() {
    let (directory, store) = fresh().await;
    let now = sample::now();
    let day = |ago: i64| calls::budget::day_of(now - chrono::TimeDelta::days(ago));
    for ago in [0, 1, 2, 3, 400] {
        sqlx::query("INSERT INTO user_days (user_id, day, tokens) VALUES ('ada', $1, 7)")
            .bind(day(ago))
            .execute(&mut raw(&directory).await)
            .await
            .unwrap();
    }
    let mut limits = RetentionLimits { days: 2, audit_days: 2, max_mb: 0 };
    let days = || sqlx::query_scalar::<_, String>("SELECT day FROM user_days ORDER BY day DESC").fetch_all(&store.read);
    store.trim(&limits, now).await;
    assert_eq!(days().await.unwrap(), [0, 1, 2, 3].map(day));
    limits.days = 0;
    store.trim(&limits, now).await;
    assert_eq!(days().await.unwrap(), [0, 1].map(day), "calls may still be settled on these");
    store.close().await;
}
