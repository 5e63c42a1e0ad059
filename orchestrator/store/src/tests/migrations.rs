//! Migrations of a database that has rows in every table: no row is lost, and each is read back.

use protocol::{RunId, RunStatus, ThreadId, ToolErrorKind, UsageLine};
use sqlx::sqlite::SqlitePool;

use super::*;

/// As the first version wrote them.
const ROWS: &[&str] = &[
    "INSERT INTO jobs (id, rev, user_id, title, prompt, mode, placement, state, priority, labels, metadata, limits, image, \
     model, plan, source, attempt, repair_attempts, created_at, started_at, last_activity_at, finished_at, result_text, \
     container, prompts_closed, input_tokens, last_seq) VALUES (x'0193b1f05b6e7c3a9b1e2f4d5a6b7c8d', 5, 'ada', 't', 'p', \
     'worker', 'container', 'completed', 0, '{\"team\":\"a\"}', '{}', '{\"timeout_seconds\":3600,\"max_iterations\":50,\
     \"max_tool_calls\":500,\"max_tokens\":0,\"max_cost_usd\":0.0,\"max_children\":0,\"memory_mb\":2048,\"cpus\":1.0,\
     \"pids\":256,\"disk_mb\":1024}', 'i', 'm', FALSE, 'api', 1, 0, '2026-11-22T12:00:00+00:00', \
     '2026-11-22T12:00:01+00:00', '2026-11-22T12:00:02+00:00', '2026-11-22T12:00:03+00:00', 'done', NULL, FALSE, 7, 2)",
    "INSERT INTO events (job_id, seq, attempt, at, kind, data) VALUES \
     (x'0193b1f05b6e7c3a9b1e2f4d5a6b7c8d', 1, 0, '2026-11-22T12:00:00+00:00', 'state', '{\"from\":null,\"to\":\"pending\"}'), \
     (x'0193b1f05b6e7c3a9b1e2f4d5a6b7c8d', 2, 1, '2026-11-22T12:00:00+00:00', 'message', '{\"role\":\"user\",\"content\":\"p\"}')",
    "INSERT INTO prompts (id, job_id, content, mode, done, created_at) VALUES (x'01', x'0193b1f05b6e7c3a9b1e2f4d5a6b7c8d', \
     'c', 'steer', FALSE, '2026-11-22T12:00:00+00:00')",
    "INSERT INTO llm_calls (job_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, cache_read_tokens, \
     cache_write_tokens, duration_ms, tries) VALUES (x'0193b1f05b6e7c3a9b1e2f4d5a6b7c8d', 1, 'c1', \
     '2026-11-22T12:00:00+00:00', 'p', 'm', 7, 1, 0, 0, 5, 1)",
    "INSERT INTO job_actions (job_id, attempt, call_id, at, tool, input) VALUES (x'0193b1f05b6e7c3a9b1e2f4d5a6b7c8d', 1, 't1', \
     '2026-11-22T12:00:00+00:00', 'echo', '{}')",
    "INSERT INTO idempotency_keys (user_id, key, digest, created_at, status, body) VALUES ('ada', 'k', 'd', \
     '2026-11-22T12:00:00+00:00', 201, '{}')",
    "INSERT INTO tokens (jti, user_id, role, created_at, expires_at) VALUES ('j', 'ada', 'user', \
     '2026-11-22T12:00:00+00:00', '2027-11-22T12:00:00+00:00')",
    "INSERT INTO notifications (id, user_id, job_id, content, created_at) VALUES (x'02', 'ada', \
     x'0193b1f05b6e7c3a9b1e2f4d5a6b7c8d', 'n', '2026-11-22T12:00:00+00:00')",
    "INSERT INTO instance (id) VALUES (x'0193b1f05b6e7c3a9b1e2f4d5a6b7c8d')",
];

async fn tables(pool: &SqlitePool) -> Vec<String> {
    let names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE '_sqlx_%' \
                 ORDER BY name";
    sqlx::query_scalar(names).fetch_all(pool).await.unwrap()
}

#[tokio::test]
async fn a_store_of_the_first_version_comes_up_to_date_with_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/gantry.db", directory.path().display());
    let options = SqliteConnectOptions::from_str(&url).unwrap().create_if_missing(true);
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let versions: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
    MIGRATIONS.run_to(versions[0], &pool).await.unwrap();
    for statement in ROWS {
        sqlx::query(*statement).execute(&pool).await.unwrap();
    }
    let full = tables(&pool).await.len();
    assert_eq!(full, ROWS.len(), "every table of the first version has a row");
    // Each step on its own, as an install goes that takes every release.
    for version in &versions[1..] {
        MIGRATIONS.run_to(*version, &pool).await.unwrap();
    }
    let broken: Vec<(String, Option<i64>, String, i64)> =
        sqlx::query_as("PRAGMA foreign_key_check").fetch_all(&pool).await.unwrap();
    assert_eq!(broken, []);
    pool.close().await;
    let store = Store::open(&url).await.unwrap();
    let id: JobId = "0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c8d".parse().unwrap();
    let job = store.job(id).await.unwrap().unwrap();
    assert_eq!((job.state(), job.rev, job.usage.input_tokens, job.brief.depth), (JobState::Completed, 5, 7, 0));
    assert_eq!(job.result().and_then(|result| result.text).as_deref(), Some("done"));
    assert_eq!(store.events(id, 0, 10, None).await.unwrap().items.len(), 2);
    assert_eq!(store.events(id, 0, 10, Some(EventKind::Message)).await.unwrap().items.len(), 1);
    assert_eq!(store.model_calls(id, None, 10).await.unwrap().len(), 1);
    assert_eq!(store.tool_calls(id, None, 10).await.unwrap().len(), 1);
    assert_eq!(store.instance_id().await.unwrap().to_string(), id.to_string());
    assert_eq!(store.reserved().await.unwrap(), (0, 0));
    store.close().await;
}

/// What earlier versions said in texts is in columns, of rows that are still to be worked on.
#[tokio::test]
async fn facts_that_were_texts_are_read_from_rows_of_earlier_versions() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/gantry.db", directory.path().display());
    let options = SqliteConnectOptions::from_str(&url).unwrap().create_if_missing(true);
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    MIGRATIONS.run_to(1, &pool).await.unwrap();
    let id = |n: u8| format!("0193b1f05b6e7c3a9b1e2f4d5a6b7c{n:02x}");
    for (n, state) in [(1, "pending"), (2, "pending"), (3, "in_progress"), (4, "failed"), (5, "failed")] {
        let row = ROWS[0].replace(&id(0x8d), &id(n)).replace("'completed'", &format!("'{state}'"));
        sqlx::query(sqlx::AssertSqlSafe(row)).execute(&pool).await.unwrap();
    }
    MIGRATIONS.run_to(360, &pool).await.unwrap();
    let note = "\n\n[Note: an earlier attempt at this task ended as failed with reason internal. And so on.]";
    for statement in [
        format!("UPDATE jobs SET message = 'waiting: the engine does not answer' WHERE id = x'{}'", id(1)),
        format!("UPDATE jobs SET message = 'adjusted' WHERE id = x'{}'", id(2)),
        format!(
            "INSERT INTO llm_calls (job_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, \
             cache_read_tokens, cache_write_tokens, duration_ms, tries, is_open, error) VALUES \
             (x'{0}', 1, 'c1', '2026-11-22T12:00:00+00:00', 'p', 'm', 7, 1, 0, 0, 5, 1, FALSE, 'auth: no key'), \
             (x'{0}', 1, 'c2', '2026-11-22T12:00:01+00:00', 'p', 'm', 7, 1, 0, 0, 5, 1, FALSE, 'rate limited: slow down')",
            id(3)
        ),
        format!("UPDATE jobs SET restarted_from = id WHERE id = x'{}'", id(4)),
        format!("UPDATE job_texts SET prompt = 'the task{note}' WHERE job_id IN (x'{}', x'{}')", id(4), id(5)),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
    }
    pool.close().await;
    let store = Store::open(&url).await.unwrap();
    store.explain_pending(Some("waiting: the disk is full")).await.unwrap();
    let job = async |n| store.job(JobId::from_uuid(uuid::Uuid::parse_str(&id(n)).unwrap())).await.unwrap().unwrap();
    assert_eq!(job(1).await.message(), Some("waiting: the disk is full"));
    assert_eq!(job(2).await.message(), Some("adjusted"));
    let last: Option<String> = sqlx::query_scalar("SELECT last_call_error FROM jobs WHERE state = 'in_progress'")
        .fetch_one(&mut raw(&directory).await)
        .await
        .unwrap();
    assert_eq!(last.as_deref(), Some("rate_limited"));
    let restarted = job(4).await.brief;
    assert_eq!((restarted.prompt.as_str(), restarted.note.as_deref()), ("the task", Some(note)));
    // One that was never restarted may say so in its prompt.
    let quoted = job(5).await.brief;
    assert_eq!((&quoted.prompt, &quoted.note), (&format!("the task{note}"), &None));
    store.close().await;
}

#[tokio::test]
async fn a_database_that_is_opened_as_it_is_keeps_its_schema() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/gantry.db", directory.path().display());
    assert!(Store::open_existing(&url).await.is_err(), "none is made");
    let options = SqliteConnectOptions::from_str(&url).unwrap().create_if_missing(true);
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    MIGRATIONS.run_to(1, &pool).await.unwrap();
    let older = Store::open_existing(&url).await.map(drop);
    assert!(matches!(older, Err(StoreError::Schema { is_newer: false })), "{older:?}");
    let applied: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM _sqlx_migrations").fetch_one(&pool).await.unwrap();
    assert_eq!(applied, 1);
    pool.close().await;
    Store::open(&url).await.unwrap().close().await;
    Store::open_existing(&url).await.unwrap().close().await;
}

/// Before schedules had a zone in every case.
const BEFORE_ZONES: i64 = 493;

#[tokio::test]
async fn a_schedule_without_a_zone_is_stored_as_one_in_utc() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/gantry.db", directory.path().display());
    let options = SqliteConnectOptions::from_str(&url).unwrap().create_if_missing(true);
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    MIGRATIONS.run_to(BEFORE_ZONES, &pool).await.unwrap();
    let rows = "INSERT INTO routines (id, user_id, name, enabled, trigger_type, trigger, action_type, action, guardrails, notify, \
                session, wake_mode, deliver, post_to_main, persist_payload, next_fire_at, created_at, updated_at) \
                SELECT unhex(printf('%032x', column1)), 'ada', 'r' || column1, 1, column2, column3, 'lightweight', \
                '{\"type\":\"lightweight\",\"prompt\":\"p\"}', '{}', '{}', 'isolated', 'now', 0, 0, 0, \
                '2027-11-22T09:00:00+00:00', '2026-11-22T12:00:00+00:00', '2026-11-22T12:00:00+00:00' FROM (VALUES \
                (1, 'cron', '{\"type\":\"cron\",\"schedule\":\"0 9 * * *\"}'), \
                (2, 'cron', '{\"type\":\"cron\",\"schedule\":\"0 9 * * *\",\"timezone\":\"Europe/Oslo\"}'), \
                (3, 'every', '{\"type\":\"every\",\"every_seconds\":60}'), (4, 'cron', 'broken'))";
    sqlx::query(rows).execute(&pool).await.unwrap();
    pool.close().await;
    let store = Store::open(&url).await.unwrap();
    let stored: Vec<(String, String)> =
        sqlx::query_as("SELECT trigger, next_fire_at FROM routines ORDER BY id").fetch_all(&store.read).await.unwrap();
    let triggers: Vec<&str> = stored.iter().map(|(trigger, _)| trigger.as_str()).collect();
    assert_eq!(
        triggers,
        [
            r#"{"type":"cron","schedule":"0 9 * * *","timezone":"UTC"}"#,
            r#"{"type":"cron","schedule":"0 9 * * *","timezone":"Europe/Oslo"}"#,
            r#"{"type":"every","every_seconds":60}"#,
            "broken"
        ]
    );
    assert!(stored.iter().all(|(_, next)| next == "2027-11-22T09:00:00+00:00"), "{stored:?}");
    store.close().await;
}

/// Before `accepted` and `firings` had the rows of the tables that had them.
const BEFORE_ACCEPTED: i64 = 360;

/// The time of a row, so many seconds before now.
macro_rules! ago {
    ($seconds:literal) => {
        concat!("strftime('%Y-%m-%dT%H:%M:00.000+00:00', 'now', '-", $seconds, " seconds')")
    };
}

const ACCEPTED_ROWS: &[&str] = &[
    concat!(
        "INSERT INTO idempotency_keys (user_id, key, digest, created_at, status, body) VALUES \
         ('ada', 'job', 'd', ",
        ago!(600),
        ", 201, '{\"id\":\"0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c8d\"}'), ('ada', 'gone', 'd', ",
        ago!(600),
        ", 410, '')"
    ),
    "INSERT INTO routines (id, user_id, name, enabled, trigger_type, trigger, action_type, action, guardrails, notify, session, \
     wake_mode, deliver, post_to_main, persist_payload, created_at, updated_at) VALUES (x'0193b1f05b6e7c3a9b1e2f4d5a6b7c01', \
     'ada', 'r', 1, 'webhook', '{}', 'lightweight', '{}', '{\"dedup_window_seconds\":3600}', '{}', 'isolated', 'now', 0, 0, 0, \
     '2026-11-22T12:00:00+00:00', '2026-11-22T12:00:00+00:00')",
    concat!(
        "INSERT INTO webhook_deliveries (id, routine_id, received_at, delivery_id, id_digest, body_digest, verdict, status, \
         run_id) VALUES (x'0d', x'0193b1f05b6e7c3a9b1e2f4d5a6b7c01', ",
        ago!(600),
        ", 'd', x'aabb', x'ccdd', 'accepted', 202, x'0193b1f05b6e7c3a9b1e2f4d5a6b7c11')"
    ),
    concat!(
        "INSERT INTO routine_runs (id, routine_id, user_id, routine_name, identity, kind, trigger_type, trigger_detail, \
         payload_digest, routine_rev, status, reason, missed_from, missed_to, missed_count, created_at, completed_at) \
         SELECT unhex('0193b1f05b6e7c3a9b1e2f4d5a6b7c' || r.column1), x'0193b1f05b6e7c3a9b1e2f4d5a6b7c01', 'ada', 'r', \
         r.column2, 'lightweight', 'event', '{}', r.column3, 1, r.column4, r.column5, t, t, r.column6, t, \
         CASE WHEN r.column7 THEN t ELSE '2027-11-22T12:00:00+00:00' END FROM (VALUES \
         ('11', 'message:k', x'ee', 'ok', NULL, NULL, FALSE), ('12', 'message:j', x'ff', 'skipped', 'cooldown', NULL, TRUE), \
         ('13', '13', NULL, 'skipped', 'cooldown', NULL, TRUE), ('14', '14', NULL, 'skipped', 'routine_changed', NULL, FALSE), \
         ('15', 'missed:1', NULL, 'missed', 'late', 7, TRUE)) AS r, (SELECT ",
        ago!(600),
        " AS t)"
    ),
    concat!(
        "INSERT INTO routine_runs (id, routine_id, user_id, routine_name, identity, kind, trigger_type, trigger_detail, \
         routine_rev, status, created_at) VALUES (x'0193b1f05b6e7c3a9b1e2f4d5a6b7c21', x'0193b1f05b6e7c3a9b1e2f4d5a6b7c02', \
         'ada', 's', 'message:k', 'lightweight', 'event', '{}', 1, 'queued', ",
        ago!(600),
        ")"
    ),
];

#[tokio::test]
async fn accepted_requests_and_stopped_firings_are_known_after_the_migration() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/gantry.db", directory.path().display());
    let options = SqliteConnectOptions::from_str(&url).unwrap().create_if_missing(true);
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    MIGRATIONS.run_to(BEFORE_ACCEPTED, &pool).await.unwrap();
    for statement in ACCEPTED_ROWS {
        sqlx::query(*statement).execute(&pool).await.unwrap();
    }
    pool.close().await;
    let store = Store::open(&url).await.unwrap();
    let now = base::clock::Clock::system().now();
    let known = async |key: &str, digest: &str| {
        let key = IdempotencyKey { user: "ada".to_owned(), key: key.to_owned(), digest: digest.to_owned() };
        store.idempotency(&key, now).await.unwrap()
    };
    assert!(matches!(known("job", "d").await, Some(Lookup::Replayed { status: 201, .. })));
    assert_eq!(known("job", "other").await, Some(Lookup::KeyMismatch));
    assert_eq!(known("gone", "d").await, Some(Lookup::JobDeleted));
    let run_ids = r#"["0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c11","0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c21"]"#;
    let receipt = |key: &str, run_ids: &str| {
        Some(Lookup::Replayed { status: 202, body: format!(r#"{{"id":"{key}","run_ids":{run_ids}}}"#) })
    };
    assert_eq!(known("k", "any").await, receipt("k", run_ids));
    assert_eq!(known("j", "any").await, receipt("j", "[]"), "it was stopped");
    let keys: Vec<(String, bool)> = sqlx::query_as(
        "SELECT key, until > $1 FROM accepted WHERE scope LIKE '%:0193b1f05b6e7c3a9b1e2f4d5a6b7c01' ORDER BY key",
    )
    .bind(now + chrono::TimeDelta::minutes(40))
    .fetch_all(&store.read)
    .await
    .unwrap();
    let expected = ["body:ccdd", "ee", "id:aabb"].map(|key| (key.to_owned(), true));
    assert_eq!(keys, expected);
    let (runs, _) = store.runs(&RunFilter { limit: 10, ..RunFilter::default() }).await.unwrap();
    let runs: Vec<_> = runs.iter().map(|run| (run.status, run.skipped_count, run.missed_count)).collect();
    let expected = [
        (RunStatus::Queued, None, None),
        (RunStatus::Missed, None, Some(7)),
        (RunStatus::Skipped, None, None),
        (RunStatus::Skipped, Some(2), None),
        (RunStatus::Ok, None, None),
    ];
    assert_eq!(runs, expected);
    store.close().await;
}

/// Calls of a job, a thread, a deleted thread and a run, as the version before one table had them; some are open. The
/// rows of the thread come after a gap, as those of a table from which rows were deleted.
const CALLS: &[&str] = &[
    "UPDATE llm_calls SET cost_micro_usd = 20, finish_reason = 'stop', answer = '{\"content\":\"of the job\",\"tool_calls\":[],\
     \"reasoning\":null,\"finish_reason\":\"stop\",\"usage\":{\"input_tokens\":7,\"output_tokens\":1,\"cache_read_tokens\":0,\
     \"cache_write_tokens\":0}}'",
    "INSERT INTO chat_threads (id, user_id, turn, state, created_at, updated_at) VALUES (x'01900000000070008000000000000001', \
     'ada', 2, 'processing', '2026-11-22T12:00:00+00:00', '2026-11-22T12:00:00+00:00')",
    "INSERT INTO routine_runs (id, routine_id, user_id, routine_name, identity, kind, trigger_type, trigger_detail, routine_rev, \
     status, created_at, tokens_used, cost_usd) VALUES (x'01900000000070008000000000000002', x'03', 'ada', 'r', 'i', \
     'lightweight', 'manual', '', 1, 'running', '2026-11-22T12:00:00+00:00', 100, 0.0001)",
    "INSERT INTO thread_calls (rowid, thread_id, turn, call_id, user_id, at, provider, model, input_tokens, output_tokens, \
     cost_micro_usd, request_digest, is_open, estimated_tokens, estimated_micro_usd, reserved_tokens, reserved_micro_usd, \
     reserved_day, finish_reason, answer) VALUES \
     (9000, x'01900000000070008000000000000001', 1, 'c1', 'ada', '2026-11-22T13:00:00+00:00', 'p', 'm', 10, 2, 5, 'd', FALSE, 0, 0, \
     0, 0, NULL, 'stop', '{\"content\":\"of the thread\",\"tool_calls\":[],\"reasoning\":null,\"finish_reason\":\"stop\",\"usage\":\
     {\"input_tokens\":10,\"output_tokens\":2,\"cache_read_tokens\":0,\"cache_write_tokens\":0}}'), \
     (9001, x'01900000000070008000000000000001', 2, 'c1', 'ada', '2026-11-23T13:00:00+00:00', 'p', 'other', 0, 0, 0, 'd', TRUE, 40, 4, \
     90, 9, '2026-11-23', NULL, NULL), \
     (9002, x'01900000000070008000000000000002', 1, 'c1', 'ada', '2026-11-22T14:00:00+00:00', 'p', 'm', 300, 30, 300, 'd', FALSE, 0, 0, \
     0, 0, NULL, 'stop', NULL), \
     (9003, x'01900000000070008000000000000009', 1, 'c1', 'bob', '2026-11-22T15:00:00+00:00', 'p', 'm', 1000, 0, NULL, 'd', FALSE, 0, 0, \
     0, 0, NULL, 'stop', NULL)",
    "INSERT INTO user_days (user_id, day, tokens, micro_usd, reserved_tokens, reserved_micro_usd) VALUES \
     ('ada', '2026-11-23', 1, 1, 90, 9)",
    "INSERT INTO thread_actions (thread_id, turn, call_id, user_id, at, tool, input, success, output, duration_ms, reply, \
     request_digest, cost_micro_usd) VALUES \
     (x'01900000000070008000000000000001', 1, 't1', 'ada', '2026-11-22T13:00:01+00:00', 'echo', '{\"a\":1}', FALSE, 'o', 3, \
     '{\"success\":false,\"output\":null,\"truncated\":false,\"duration_ms\":3,\"error\":{\"kind\":\"timeout\",\"message\":\"m\"}}', 'd', 7), \
     (x'01900000000070008000000000000001', 2, 't1', 'ada', '2026-11-23T13:00:01+00:00', 'echo', '{}', NULL, NULL, NULL, NULL, 'd', NULL), \
     (x'01900000000070008000000000000002', 1, 't1', 'ada', '2026-11-22T14:00:01+00:00', 'echo', '{}', TRUE, 'o', 3, \
     '{\"success\":true,\"output\":1,\"truncated\":false,\"duration_ms\":3,\"error\":null}', 'd', NULL)",
];

#[tokio::test]
async fn calls_read_the_same_after_those_of_all_work_share_tables() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/gantry.db", directory.path().display());
    let options = SqliteConnectOptions::from_str(&url).unwrap().create_if_missing(true);
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    MIGRATIONS.run_to(1, &pool).await.unwrap();
    for statement in ROWS {
        sqlx::query(*statement).execute(&pool).await.unwrap();
    }
    MIGRATIONS.run_to(360, &pool).await.unwrap();
    for statement in CALLS {
        sqlx::query(*statement).execute(&pool).await.unwrap();
    }
    let bytes = "SELECT SUM(bytes) FROM chat_threads";
    let bytes_before: i64 = sqlx::query_scalar(bytes).fetch_one(&pool).await.unwrap();
    pool.close().await;
    let store = Store::open(&url).await.unwrap();
    let mut raw = raw(&directory).await;
    assert_eq!(sqlx::query_scalar::<_, i64>(bytes).fetch_one(&mut raw).await.unwrap(), bytes_before);
    let check: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut raw).await.unwrap();
    assert_eq!(check, "ok");
    let left = "SELECT COUNT(*) FROM sqlite_schema WHERE name IN ('llm_calls', 'job_actions', 'thread_calls', 'thread_actions') \
                OR tbl_name IN ('model_calls', 'tool_calls') AND sql LIKE '%REFERENCES%'";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&mut raw).await.unwrap(), 0);

    let job: JobId = "0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c8d".parse().unwrap();
    let thread: ThreadId = "01900000-0000-7000-8000-000000000001".parse().unwrap();
    let run: RunId = "01900000-0000-7000-8000-000000000002".parse().unwrap();
    let [(_, call)] = store.model_calls(job, None, 10).await.unwrap().try_into().unwrap();
    let call = call.unwrap();
    assert_eq!((call.usage.input_tokens, call.cost_usd, call.attempt), (7, Some(0.000_02), 1));
    assert_eq!(store.tool_calls(job, None, 10).await.unwrap().len(), 1);
    let [(_, first), (_, open)] = store.thread_tool_calls(thread, None, 10).await.unwrap().try_into().unwrap();
    let (first, open) = (first.unwrap(), open.unwrap());
    assert_eq!((first.turn, first.error, first.cost_usd), (1, Some(ToolErrorKind::Timeout), Some(0.000_007)));
    assert_eq!((open.turn, open.success), (2, None));
    let [(_, of_run)] = store.tool_calls(run, None, 10).await.unwrap().try_into().unwrap();
    let of_run = of_run.unwrap();
    assert_eq!((of_run.attempt, of_run.output.as_deref()), (1, Some("o")));
    assert_eq!(store.owner_of_thread_tool_calls(thread).await.unwrap().as_deref(), Some("ada"));
    let answers = store.chat_turn_answers(thread).await.unwrap();
    assert_eq!(answers.iter().map(|answer| answer.content.as_str()).collect::<Vec<_>>(), ["of the thread"]);
    assert_eq!(store.run_usage(run).await.unwrap(), RunUsage { tokens: 230, cost_usd: Some(0.000_2) });

    let usage = |user: Option<&'static str>| {
        let store = &store;
        async move {
            let page =
                store.usage_by_day(user, chrono::NaiveDate::MIN, "2026-11-24".parse().unwrap(), 3).await.unwrap();
            let line = |line: UsageLine| (line.input_tokens, line.cost_usd, line.llm_calls, line.tool_calls.unwrap());
            page.lines.into_iter().map(line).collect::<Vec<_>>()
        }
    };
    let second_day = (0, Some(0.0), 1, 1);
    assert_eq!(usage(Some("ada")).await, [second_day, (317, Some(0.000_325), 3, 3)]);
    assert_eq!(usage(None).await, [second_day, (1317, None, 4, 3)]);

    // Each call once, whether the migration counted it or a trigger, when it was moved.
    let groups = "SELECT dimension, value, SUM(input_tokens), SUM(tries), SUM(tool_calls) FROM daily_group_usage \
                  GROUP BY dimension, value ORDER BY 1, 2";
    let groups: Vec<(String, String, i64, i64, i64)> = sqlx::query_as(groups).fetch_all(&mut raw).await.unwrap();
    let expected = [("label:team", "a", 7, 1, 1), ("routine", "03", 300, 1, 1)];
    assert_eq!(
        groups,
        expected.map(|(name, value, input, tries, tools)| (name.into(), value.into(), input, tries, tools))
    );

    let now = "2026-11-23T14:00:00Z".parse().unwrap();
    assert_eq!(store.close_abandoned_calls(now).await.unwrap(), 1);
    assert_eq!(store.close_interrupted_tool_calls().await.unwrap(), 1);
    let day = "SELECT tokens, micro_usd, reserved_tokens, reserved_micro_usd FROM user_days WHERE user_id = 'ada' AND day = '2026-11-23'";
    let day: (i64, i64, i64, i64) = sqlx::query_as(day).fetch_one(&mut raw).await.unwrap();
    assert_eq!(day, (41, 5, 0, 0));
    store.close().await;
}
