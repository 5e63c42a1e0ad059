//! Tests of retention: bounded steps, the limit on the size of the records, and deletions that were cut off.

use chrono::DateTime;
use domain::{ExpectedVersion, job::sample, memory::MemoryPath};
use protocol::{JobId, JobReason, JobState, MemoryAuthor, UserId};
use sqlx::AssertSqlSafe;
use tempfile::TempDir;

use super::{super::tests::raw, *};
use crate::{
    AuditEntry, AuditFilter, JobDeletion, MemoryText, MemoryWrite,
    access::tokens::{self, TokenRow},
};

const KEEP: RetentionLimits = RetentionLimits { days: 3650, audit_days: 3650, max_mb: 0 };

async fn fresh() -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

async fn run(directory: &TempDir, statement: String) {
    sqlx::query(AssertSqlSafe(statement)).execute(&mut raw(directory).await).await.unwrap();
}

async fn number(directory: &TempDir, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(&mut raw(directory).await).await.unwrap()
}

/// A job that has ended at a time, with this many events before its result, of this many bytes each.
async fn ended(directory: &TempDir, store: &Store, at: DateTime<Utc>, events: u32, bytes: u32) -> JobId {
    let job = sample::job(JobState::Pending);
    let id = job.id;
    store.create_job(job, None, None).await.unwrap();
    let entry = AuditEntry::by_operator("job.cancel", at);
    let fail = move |job: domain::job::JobRecord| job.fail(at, JobReason::Internal, String::new());
    store.transition(id, at, Some(&entry), fail).await.unwrap();
    let hex = id.as_uuid().simple();
    run(
        directory,
        format!(
            "UPDATE events SET seq = seq + 1000000 WHERE job_id = x'{hex}'; WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL \
             SELECT n + 1 FROM n WHERE n < {events}) INSERT INTO events (job_id, seq, attempt, at, kind, data) \
             SELECT x'{hex}', n, 1, '2026-01-01T00:00:00Z', 'log', printf('%.*c', {bytes}, 'x') FROM n"
        ),
    )
    .await;
    id
}

#[tokio::test]
async fn a_job_with_many_records_takes_several_steps_and_is_marked_with_the_last() {
    let (directory, store) = fresh().await;
    let now = sample::now();
    ended(&directory, &store, now, 2_500, 10).await;
    let later = now + TimeDelta::days(1);
    let trimmed = async || number(&directory, "SELECT COUNT(*) FROM jobs WHERE trimmed_at IS NOT NULL").await;
    assert_eq!(store.trim_jobs(later, later).await.unwrap(), ROWS_PER_STEP);
    assert_eq!(store.trim_jobs(later, later).await.unwrap(), ROWS_PER_STEP);
    assert_eq!(trimmed().await, 0);
    let rest = store.trim(&RetentionLimits { days: 0, ..KEEP }, later).await;
    // The job itself counts.
    assert_eq!((rest.rows_of("jobs"), trimmed().await), (501 + 1, 1), "{rest:?}");
    assert_eq!(number(&directory, "SELECT COUNT(*) FROM events").await, 2, "the result and the final state");
    store.close().await;
}

#[tokio::test]
async fn a_part_that_fails_does_not_keep_the_others_from_their_work() {
    let (directory, store) = fresh().await;
    ended(&directory, &store, sample::now(), 2, 10).await;
    store.execute("ALTER TABLE accepted RENAME TO hidden").await.unwrap();
    let trimmed = store.trim(&RetentionLimits { days: 0, ..KEEP }, sample::now() + TimeDelta::days(1)).await;
    assert_eq!(trimmed.errors.iter().map(|(part, _)| *part).collect::<Vec<_>>(), ["accepted"]);
    assert!(trimmed.rows_of("jobs") > 0, "{trimmed:?}");
    let none = store.trim_within(&RetentionLimits { days: 0, ..KEEP }, sample::now(), Duration::ZERO).await;
    assert!(none.rows.is_empty() && none.errors.is_empty(), "the time is up: {none:?}");
    store.close().await;
}

#[tokio::test]
async fn expired_tokens_are_forgotten_but_not_that_a_foreign_one_is_revoked() {
    let (_directory, store) = fresh().await;
    let now = sample::now();
    for (jti, days) in [("valid", 1), ("expired", -1), ("long ago", -31)] {
        let token = TokenRow {
            jti: jti.to_owned(),
            user_id: "ada".to_owned(),
            role: "user".to_owned(),
            created_at: now - TimeDelta::days(60),
            expires_at: now + TimeDelta::days(days),
            revoked_at: None,
        };
        tokens::insert(&store, &token).await.unwrap();
    }
    tokens::revoke(&store, "foreign", now - TimeDelta::days(400)).await.unwrap();
    assert_eq!(store.trim(&KEEP, now).await.rows_of("tokens"), 1);
    let mut kept: Vec<String> = tokens::list(&store).await.unwrap().into_iter().map(|token| token.jti).collect();
    kept.sort();
    assert_eq!(kept, ["expired", "foreign", "valid"]);
    store.close().await;
}

async fn remember(store: &Store, path: &str) {
    let write = MemoryWrite {
        user: "bob".to_owned(),
        path: MemoryPath::parse(path).unwrap(),
        text: MemoryText::Replace("word ".repeat(100_000)),
        author: MemoryAuthor::User(UserId("bob".to_owned())),
        expected: None::<ExpectedVersion>,
        audit: AuditEntry::by_operator("memory.write", sample::now()),
    };
    store.write_memory(write).await.unwrap();
}

#[tokio::test]
async fn documents_of_users_displace_no_record() {
    let (directory, store) = fresh().await;
    let now = sample::now();
    ended(&directory, &store, now, 20, 1_000).await;
    for n in 0..4 {
        remember(&store, &format!("{n}.md")).await;
    }
    let small = RetentionLimits { max_mb: 1, ..KEEP };
    assert!(store.used_bytes().await.unwrap() > 2 * 1024 * 1024);
    let trimmed = store.trim(&small, now + TimeDelta::days(40)).await;
    assert!(trimmed.rows.is_empty() && trimmed.excess_bytes.is_none() && trimmed.errors.is_empty(), "{trimmed:?}");
    store.close().await;
}

#[tokio::test]
async fn records_over_the_limit_go_except_those_of_the_last_day_and_the_audit_of_the_last_month() {
    let (directory, store) = fresh().await;
    let now = sample::now();
    let old = ended(&directory, &store, now - TimeDelta::days(2), 100, 20_000).await;
    ended(&directory, &store, now, 100, 20_000).await;
    let small = RetentionLimits { max_mb: 3, ..KEEP };
    let trimmed = store.trim(&small, now).await;
    assert!(trimmed.rows_of("jobs") > 0 && trimmed.rows_of("audit") == 0, "{trimmed:?}");
    assert!(trimmed.excess_bytes.is_none() && store.retention_excess().await.unwrap().is_none(), "{trimmed:?}");
    assert_eq!(store.events(old, 0, 1_000, None).await.unwrap().items.len(), 2);

    let smaller = RetentionLimits { max_mb: 1, ..KEEP };
    let trimmed = store.trim(&smaller, now).await;
    assert!(trimmed.rows_of("jobs") == 0 && trimmed.excess_bytes.is_some(), "{trimmed:?}");
    assert_eq!(store.retention_excess().await.unwrap(), trimmed.excess_bytes);
    let trimmed = store.trim(&smaller, now + TimeDelta::days(2)).await;
    assert!(trimmed.rows_of("jobs") > 0 && trimmed.excess_bytes.is_none(), "{trimmed:?}");
    assert_eq!(store.retention_excess().await.unwrap(), None);
    assert_eq!(store.audit(&AuditFilter { limit: 10, ..AuditFilter::default() }).await.unwrap().len(), 2);
    store.close().await;
}

#[tokio::test]
async fn a_deletion_that_was_cut_off_is_finished_and_counts_each_call_once() {
    let (directory, store) = fresh().await;
    let now = sample::now();
    let job = ended(&directory, &store, now, 1_500, 10).await;
    let hex = job.as_uuid().simple();
    run(
        &directory,
        format!(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1500) \
             INSERT INTO model_calls (work_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, \
             cache_read_tokens, cache_write_tokens, cost_micro_usd, duration_ms, tries) \
             SELECT x'{hex}', 1, n, '2026-01-01T00:00:00Z', 'p', 'm', 2, 0, 0, 0, 3, 1, 1 FROM n"
        ),
    )
    .await;
    let used = "SELECT SUM(input_tokens) FROM daily_usage";
    let entry = AuditEntry::by_operator("job.delete", now);
    let mut steps = Box::pin(store.delete_job(job, entry.clone()));
    // Dropped after the mark and a few steps.
    while number(&directory, "SELECT COUNT(*) FROM events").await > 1_000 {
        let _ = futures_util::poll!(&mut steps);
        tokio::task::yield_now().await;
    }
    drop(steps);
    assert_eq!(number(&directory, used).await, 3_000);
    let marked = store.deleted_jobs(None).await.unwrap();
    assert_eq!(marked.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [job]);
    store.finish_deletion(job).await.unwrap();
    assert_eq!(number(&directory, used).await, 3_000);
    assert_eq!(number(&directory, "SELECT (SELECT COUNT(*) FROM events) + (SELECT COUNT(*) FROM jobs)").await, 0);
    assert_eq!(store.delete_job(job, entry).await.unwrap(), JobDeletion::Missing);
    store.close().await;
}
