//! Runs that wait and runs that end, on a real database.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use chrono::{DateTime, TimeDelta, Utc};
use domain::{
    job::{JobRecord, Queued, RunLink, Stage, sample},
    routine::{
        attempt::{AttemptEnd, AttemptResult},
        problem::AutomationProblem,
    },
};
use protocol::{
    DeliveryVerdict, JobId, JobState, Notification, NotificationKind, RoutineActionKind, RoutineId, RunId, RunReason,
};
use rstest::rstest;
use sqlx::{AssertSqlSafe, Connection as _, Sqlite, SqliteConnection, query::Query, sqlite::SqliteArguments};
use uuid::Uuid;

use super::runs::startable::{ABANDONED, EARLIEST, STARTABLE};
use crate::{
    CreateOutcome, MAX_PENDING_PER_USER, NotificationFilter, QueueFull, RefusedDelivery, Store,
    tests::{fresh, raw},
};

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

fn routine(n: u32) -> RoutineId {
    RoutineId::from_uuid(Uuid::from_u128(u128::from(n)))
}

fn run(n: u32) -> RunId {
    RunId::from_uuid(Uuid::from_u128(1_000_000 + u128::from(n)))
}

/// Stores routines 0 to `count` of `users` users by turns, without runs.
async fn routines(db: &mut SqliteConnection, (count, users): (u32, u32), action: &str) {
    let kind = serde_json::from_str::<serde_json::Value>(action).unwrap()["type"].as_str().unwrap().to_owned();
    sqlx::query(
        "WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < $1 - 1) \
         INSERT INTO routines (id, user_id, name, enabled, trigger_type, trigger, action_type, action, guardrails, notify, \
         session, wake_mode, deliver, post_to_main, persist_payload, created_at, updated_at) \
         SELECT unhex(printf('%032x', n)), 'user' || (n % $2), 'r' || n, TRUE, 'manual', '{\"type\":\"manual\"}', $3, $4, \
         '{\"max_concurrent\":1}', '{}', 'isolated', 'next_heartbeat', FALSE, FALSE, FALSE, $5, $5 FROM n",
    )
    .bind(count)
    .bind(users)
    .bind(kind)
    .bind(action)
    .bind(now())
    .execute(db)
    .await
    .unwrap();
}

/// Stores runs `from` to `from + count`, each of the routine with its number modulo `routines`.
async fn runs(db: &mut SqliteConnection, (from, count, routines): (u32, u32, u32), status: &str) {
    sqlx::query(
        "WITH RECURSIVE n (n) AS (SELECT $1 UNION ALL SELECT n + 1 FROM n WHERE n < $1 + $2 - 1) \
         INSERT INTO routine_runs (id, routine_id, user_id, routine_name, identity, kind, trigger_type, trigger_detail, \
         routine_rev, status, created_at) SELECT unhex(printf('%032x', 1000000 + n)), r.id, r.user_id, r.name, 'i' || n, \
         r.action_type, 'manual', '{}', 1, $4, $5 FROM n CROSS JOIN routines AS r ON r.id = unhex(printf('%032x', n % $3))",
    )
    .bind(from)
    .bind(count)
    .bind(routines)
    .bind(status)
    .bind(now())
    .execute(db)
    .await
    .unwrap();
}

const LIGHTWEIGHT: &str = r#"{"type":"lightweight","prompt":"p"}"#;
const LINE: &str = r#"{"type":"system_event_text","text":"l"}"#;
const FULL_JOB: &str = r#"{"type":"full_job","description":"d"}"#;

async fn startable(store: &Store, max: usize) -> Vec<RunId> {
    let ids = store.startable(RoutineActionKind::Lightweight, max, now()).await.unwrap();
    ids.into_iter().map(RunId::from_uuid).collect()
}

/// Instructions of the database's machine that a statement takes.
async fn work(db: &mut SqliteConnection, statement: Query<'_, Sqlite, SqliteArguments>) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    db.lock_handle().await.unwrap().set_progress_handler(1, move || {
        counter.fetch_add(1, Ordering::Relaxed);
        true
    });
    statement.fetch_all(&mut *db).await.unwrap();
    db.lock_handle().await.unwrap().remove_progress_handler();
    count.load(Ordering::Relaxed)
}

#[tokio::test]
async fn the_work_of_starting_does_not_grow_with_the_queue() {
    let mut works = vec![];
    for queued in [500, 50_000] {
        let (directory, store) = fresh().await;
        let mut db = raw(&directory).await;
        routines(&mut db, (queued, 20), LIGHTWEIGHT).await;
        runs(&mut db, (0, queued, queued), "queued").await;
        runs(&mut db, (queued, queued, queued), "ok").await;
        works.push([
            work(&mut db, sqlx::query(STARTABLE).bind("lightweight").bind(now()).bind(10)).await,
            work(&mut db, sqlx::query(EARLIEST).bind(now())).await,
            work(&mut db, sqlx::query(ABANDONED).bind("[]").bind(100)).await,
        ]);
        assert_eq!(startable(&store, 10).await.len(), 10);
        db.close().await.unwrap();
        store.close().await;
    }
    for (few, many) in works[0].iter().zip(&works[1]) {
        assert!(*many < 20_000 && *many < few * 3 / 2, "{works:?}");
    }
}

#[rstest]
#[case(STARTABLE)]
#[case(EARLIEST)]
#[case(ABANDONED)]
#[tokio::test]
async fn queues_are_read_from_their_indexes(#[case] statement: &'static str) {
    let (directory, store) = fresh().await;
    let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")))
        .fetch_all(&mut raw(&directory).await)
        .await
        .unwrap();
    for (.., step) in plan {
        // All runs in progress are read, and no other rows from the first to the last.
        let scanned = step.strip_prefix("SCAN ").and_then(|rest| rest.split(' ').next());
        let is_table =
            scanned.is_some_and(|name| ["routine_runs", "q", "s", "live", "last", "r", "jobs"].contains(&name));
        assert!(!is_table || step.contains("routine_runs_running"), "{step}");
    }
    store.close().await;
}

#[tokio::test]
async fn users_take_turns_and_busy_routines_wait() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    // Routines 0, 2 and 4 are of user0, 1, 3 and 5 of user1.
    routines(&mut db, (6, 2), LIGHTWEIGHT).await;
    // Routine 0 is busy and has a backlog; routine 2 has one without being busy.
    runs(&mut db, (0, 1, 6), "running").await;
    for n in [6, 12, 18, 2, 8, 14, 1, 3] {
        runs(&mut db, (n, 1, 6), "queued").await;
    }
    // No user has started a run. Each user has half of the number, and one more.
    assert_eq!(startable(&store, 1).await, [run(2)]);
    assert_eq!(startable(&store, 4).await, [run(1), run(2), run(3)]);
    sqlx::query("UPDATE routines SET guardrails = '{\"max_concurrent\":2}'").execute(&mut db).await.unwrap();
    assert_eq!(startable(&store, 6).await, [run(1), run(2), run(3), run(6), run(8)]);
    // The one whose last run started earlier is first; one that waits for its next attempt does not start yet.
    sqlx::query("UPDATE routine_runs SET status = 'running', attempt_started_at = $1 WHERE id = $2")
        .bind(now())
        .bind(run(1))
        .execute(&mut db)
        .await
        .unwrap();
    sqlx::query("UPDATE routine_runs SET not_before = $1 WHERE id = $2")
        .bind(now() + TimeDelta::seconds(1))
        .bind(run(3))
        .execute(&mut db)
        .await
        .unwrap();
    assert_eq!(startable(&store, 1).await, [run(2)]);
    assert_eq!(startable(&store, 6).await, [run(2), run(6), run(8)]);
    let earliest = |at| store.earliest_queued(at);
    assert_eq!(earliest(now()).await.unwrap(), Some(now()));
    sqlx::query("UPDATE routine_runs SET status = 'ok' WHERE id <> $1").bind(run(3)).execute(&mut db).await.unwrap();
    assert_eq!(earliest(now()).await.unwrap(), Some(now() + TimeDelta::seconds(1)));
    sqlx::query("DELETE FROM routine_runs").execute(&mut db).await.unwrap();
    assert_eq!(earliest(now()).await.unwrap(), None);
    store.close().await;
}

#[tokio::test]
async fn a_run_that_posts_a_line_uses_up_no_turn_of_those_that_ask_a_model() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    routines(&mut db, (2, 2), LIGHTWEIGHT).await;
    runs(&mut db, (0, 2, 2), "queued").await;
    // user0 has posted a line just now; user1 has asked a model before that.
    runs(&mut db, (2, 2, 2), "ok").await;
    let started = "UPDATE routine_runs SET kind = $1, attempt_started_at = $2 WHERE id = $3";
    for (kind, ago, n) in [("system_event_text", 0, 2), ("lightweight", 10, 3)] {
        let at = now() - TimeDelta::seconds(ago);
        sqlx::query(started).bind(kind).bind(at).bind(run(n)).execute(&mut db).await.unwrap();
    }
    assert_eq!(startable(&store, 1).await, [run(0)]);
    store.close().await;
}

#[tokio::test]
async fn lines_that_are_posted_together_are_counted_and_told_each() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    // Routines 0 and 2 are of user0, 1 of user1. Two runs of routine 0 are posted together.
    routines(&mut db, (3, 2), LINE).await;
    sqlx::query("UPDATE routines SET guardrails = '{\"max_concurrent\":2}'").execute(&mut db).await.unwrap();
    for n in [0, 1, 2, 3] {
        runs(&mut db, (n, 1, 3), "queued").await;
    }
    // One more line of user0 fits, so the two last ones push others out. Runs are posted in the order of their ids.
    let waiting = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 99) \
                   INSERT INTO system_lines (user_id, text, origin, wake, depth, created_at) \
                   SELECT 'user0', 'old ' || n, 'owner', 'next_heartbeat', 0, $1 FROM n";
    sqlx::query(waiting).bind(now()).execute(&mut db).await.unwrap();
    assert_eq!(store.post_lines(10, now()).await.unwrap(), 4);
    let lines: Vec<(String, i64, String)> =
        sqlx::query_as("SELECT user_id, COUNT(*), MIN(text) FROM system_lines GROUP BY user_id")
            .fetch_all(&mut db)
            .await
            .unwrap();
    assert_eq!(lines, [("user0".to_owned(), 100, "l".to_owned()), ("user1".to_owned(), 1, "l".to_owned())]);
    let counted: Vec<(i64, String, bool)> =
        sqlx::query_as("SELECT run_count, last_status, verified FROM routines ORDER BY id")
            .fetch_all(&mut db)
            .await
            .unwrap();
    assert_eq!(counted, [2, 1, 1].map(|runs| (runs, "ok".to_owned(), true)));
    let notified: Vec<Option<RoutineId>> = notifications(&store).await.iter().map(|one| one.routine_id).collect();
    let expected: HashSet<_> = [Some(routine(0)), Some(routine(2))].into();
    assert_eq!((notified.len(), notified.into_iter().collect::<HashSet<_>>()), (2, expected));
    store.close().await;
}

#[tokio::test]
async fn runs_in_progress_that_nobody_works_on_are_found() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    routines(&mut db, (300, 1), LIGHTWEIGHT).await;
    runs(&mut db, (0, 300, 300), "running").await;
    runs(&mut db, (300, 300, 300), "ok").await;
    assert_eq!(store.abandoned_runs(&[], 100).await.unwrap().len(), 100);
    let working_on: Vec<RunId> = (0..299).map(run).collect();
    let abandoned = store.abandoned_runs(&working_on, 100).await.unwrap();
    assert_eq!(abandoned.iter().map(|one| one.run).collect::<Vec<_>>(), [run(299)]);
    store.close().await;
}

#[tokio::test]
async fn a_run_whose_job_finds_the_queue_full_has_started_once() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    let job = |user: &str, run| {
        let job = sample::job(JobState::Pending).with_brief(|brief| {
            brief.user_id = user.to_owned();
            brief.created_at = now();
            brief.routine = run;
        });
        JobRecord { stage: Stage::Queued(Queued::default()), id: JobId::generate(), ..job }
    };
    assert_eq!(store.create_job(job("user0", None), None, None).await.unwrap(), CreateOutcome::Created);
    let columns: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_table_info('jobs') WHERE name <> 'id'")
        .fetch_all(&mut db)
        .await
        .unwrap();
    let columns = columns.join(", ");
    let copy = format!(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {}) \
         INSERT INTO jobs (id, {columns}) SELECT randomblob(16), {columns} FROM jobs, n",
        MAX_PENDING_PER_USER - 1
    );
    sqlx::query(AssertSqlSafe(copy)).execute(&mut db).await.unwrap();
    routines(&mut db, (1, 1), FULL_JOB).await;
    runs(&mut db, (0, 1, 1), "queued").await;
    let attempt = store.startable_jobs(10, now()).await.unwrap().remove(0);
    let link = RunLink { routine: routine(0), run: run(0) };
    let refused = store.create_run_job(attempt, job("user0", Some(link))).await.unwrap();
    assert_eq!(refused, CreateOutcome::QueueFull(QueueFull::User));
    // A moment later.
    let later = now() + TimeDelta::milliseconds(3);
    let end = AttemptEnd::infrastructure(RunReason::LimitReached, "full".to_owned());
    store.fail_queued(run(0), end, later).await.unwrap();
    let ended = store.routine_run(run(0)).await.unwrap().unwrap();
    assert_eq!((ended.started_at, ended.reason), (Some(later), Some(RunReason::LimitReached)));
    let counts: (i64, i64, bool) = sqlx::query_as("SELECT run_count, consecutive_failures, enabled FROM routines")
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(counts, (1, 0, true));
    store.close().await;
}

/// Changes when another connection has written.
async fn data_version(db: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("PRAGMA data_version").fetch_one(db).await.unwrap()
}

async fn notifications(store: &Store) -> Vec<Notification> {
    let filter = NotificationFilter { user: "user0".to_owned(), limit: 50, ..NotificationFilter::default() };
    store.notifications(&filter).await.unwrap().into_iter().filter_map(|(_, one)| one).collect()
}

#[tokio::test]
async fn the_owner_is_told_of_problems_once_for_each_routine_and_day() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    routines(&mut db, (2, 1), LIGHTWEIGHT).await;
    let report = |n, problem, at| store.report_automation_problem(routine(n), problem, at);
    let condition = AutomationProblem::ComparisonFailed { message: "no such field".to_owned() };
    report(0, condition.clone(), now()).await.unwrap();
    let notified = notifications(&store).await;
    assert_eq!(
        (notified[0].kind, notified[0].title.as_str()),
        (NotificationKind::AutomationProblem, "Automation problem: r0")
    );
    assert!(notified[0].text.contains("no such field"), "{notified:?}");
    // 2027-01-15 08:00 in UTC, and later that day.
    let before = data_version(&mut db).await;
    for hours in [0, 1, 15] {
        report(0, AutomationProblem::NotCompared, now() + TimeDelta::hours(hours)).await.unwrap();
    }
    assert_eq!(data_version(&mut db).await, before, "nothing is written");
    assert_eq!(notifications(&store).await.len(), 1);
    report(1, AutomationProblem::LinesDropped, now()).await.unwrap();
    report(0, AutomationProblem::NotCompared, now() + TimeDelta::hours(16)).await.unwrap();
    assert_eq!(notifications(&store).await.len(), 3);
    // The routine is gone.
    report(7, condition, now()).await.unwrap();
    assert_eq!(notifications(&store).await.len(), 3);
    store.close().await;
}

#[tokio::test]
async fn failures_of_the_infrastructure_leave_the_routine_as_it_is() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    routines(&mut db, (1, 1), LIGHTWEIGHT).await;
    for n in 0..15 {
        runs(&mut db, (n, 1, 1), "running").await;
        let end = AttemptEnd::failed(RunReason::OrchestratorRestart, "m".to_owned());
        store.end_run(run(n), 1, AttemptResult::unused(end), now()).await.unwrap().unwrap();
    }
    let counts: (i64, bool) =
        sqlx::query_as("SELECT consecutive_failures, enabled FROM routines").fetch_one(&mut db).await.unwrap();
    assert_eq!(counts, (0, true));
    let notified = notifications(&store).await;
    assert_eq!(notified.iter().map(|one| one.kind).collect::<Vec<_>>(), [NotificationKind::AutomationProblem]);
    store.close().await;
}

#[tokio::test]
async fn a_run_that_cannot_be_read_fails_and_the_others_start() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    routines(&mut db, (4, 1), LIGHTWEIGHT).await;
    runs(&mut db, (0, 4, 4), "queued").await;
    for (n, change) in [(1, "trigger_detail = '{'"), (2, "due_at = 'never'"), (3, "cost_usd = 'free'")] {
        let change = format!("UPDATE routine_runs SET {change} WHERE id = $1");
        sqlx::query(AssertSqlSafe(change)).bind(run(n)).execute(&mut db).await.unwrap();
    }
    let started = store.start_runs_of(RoutineActionKind::Lightweight, 10, now()).await.unwrap();
    assert_eq!(started.iter().map(|attempt| attempt.run).collect::<Vec<_>>(), [run(0)]);
    let statuses: Vec<(String, Option<String>)> =
        sqlx::query_as("SELECT status, reason FROM routine_runs ORDER BY id").fetch_all(&mut db).await.unwrap();
    let failed = ("failed".to_owned(), Some("internal".to_owned()));
    assert_eq!(statuses, [("running".to_owned(), None), failed.clone(), failed.clone(), failed]);
    assert!(store.start_runs_of(RoutineActionKind::Lightweight, 10, now()).await.unwrap().is_empty());
    store.close().await;
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_stops_no_other() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    routines(&mut db, (4, 1), LIGHTWEIGHT).await;
    sqlx::query("UPDATE routines SET next_fire_at = $1").bind(now()).execute(&mut db).await.unwrap();
    for (n, change) in [(1, "trigger = '{'"), (2, "created_at = 'never'"), (3, "rev = 'many'")] {
        let change = format!("UPDATE routines SET {change} WHERE id = $1");
        sqlx::query(AssertSqlSafe(change)).bind(routine(n)).execute(&mut db).await.unwrap();
    }
    let mut due = store.due_routines(10, now()).await.unwrap();
    assert_eq!(due.routines.iter().map(|due| due.id).collect::<Vec<_>>(), [routine(0)]);
    due.unreadable.sort();
    assert_eq!(due.unreadable, [routine(1), routine(2), routine(3)]);
    store.close().await;
}

#[tokio::test]
async fn a_flood_of_unsigned_deliveries_pushes_no_other_out_of_the_log() {
    let (directory, store) = fresh().await;
    let mut db = raw(&directory).await;
    routines(&mut db, (1, 1), LIGHTWEIGHT).await;
    let log = async |verdict: DeliveryVerdict, number: usize| {
        for _ in 0..number {
            let refused = RefusedDelivery { routine: routine(0), display_id: "d".to_owned(), verdict, status: 200 };
            store.log_delivery(refused, now()).await.unwrap();
        }
    };
    log(DeliveryVerdict::NotMatched, 201).await;
    log(DeliveryVerdict::Unauthorized, 150).await;
    log(DeliveryVerdict::TooLarge, 150).await;
    let logged = store.webhook_deliveries(routine(0), None, 1_000).await.unwrap();
    let of = |verdict| logged.iter().filter(|(_, one)| one.as_ref().unwrap().verdict == verdict).count();
    let counts = [DeliveryVerdict::NotMatched, DeliveryVerdict::Unauthorized, DeliveryVerdict::TooLarge].map(of);
    assert_eq!(counts, [200, 50, 150]);
    db.close().await.unwrap();
    store.close().await;
}
