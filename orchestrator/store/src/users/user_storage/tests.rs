//! Tests of the account of what users store: it is what the rows add up to, and it stops what would add to it.

use domain::{
    ExpectedVersion,
    job::{JobRecord, sample},
    memory::MemoryPath,
};
use protocol::{CompleteReport, EventData, JobState, MemoryAuthor, PromptRequest, UserId};
use serde_json::json;
use sqlx::AssertSqlSafe;
use tempfile::TempDir;

use super::*;
use crate::{
    AuditEntry, MemoryDeletion, MemoryText, MemoryWrite, MemoryWriteOutcome, Prompted, RetentionLimits, Transition,
    sqlite::data_migrations, tests::raw,
};
use telemetry::metrics::Metrics;

async fn limited(max_bytes: u64) -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/gantry.db", directory.path().display());
    let (limit, metrics) = (UserStorageLimit(max_bytes), Metrics::default());
    let store = Store::open_observed(&url, limit, metrics, std::sync::Arc::new(|_| {})).await.unwrap();
    (directory, store)
}

/// What the rows add up to, by kind.
const RECOUNT: [(&str, &str); 5] = [
    ("memory", "SELECT SUM(octet_length(content)) FROM memory_versions"),
    (
        "jobs",
        "SELECT SUM(octet_length(prompt) + octet_length(metadata) + IFNULL(octet_length(result_text), 0) \
         + IFNULL(octet_length(result_partial), 0)) + (SELECT IFNULL(SUM(octet_length(content)), 0) FROM prompts) \
         FROM job_texts",
    ),
    (
        "routines",
        "SELECT SUM(IFNULL(octet_length(description), 0) + octet_length(trigger) + octet_length(action) + octet_length(notify) \
         + IFNULL(octet_length(state), 0)) FROM routines",
    ),
    (
        "runs",
        "SELECT (SELECT SUM(octet_length(trigger_detail) + IFNULL(octet_length(message), 0) \
         + IFNULL(octet_length(result_summary), 0) + IFNULL(octet_length(result), 0)) FROM routine_runs) \
         + (SELECT IFNULL(SUM(octet_length(input) + IFNULL(octet_length(reasoning), 0) + IFNULL(octet_length(output), 0) \
         + IFNULL(octet_length(reply), 0)), 0) \
         FROM tool_calls WHERE kind = 'run') + (SELECT IFNULL(SUM(octet_length(messages)), 0) FROM run_conversations)",
    ),
    ("payloads", "SELECT SUM(octet_length(payload)) FROM routine_runs"),
];

/// Checks the account against the rows, all of which are ada's, and returns its size.
async fn checked(directory: &TempDir) -> i64 {
    let (mut connection, mut all) = (raw(directory).await, 0);
    for (kind, query) in RECOUNT {
        let sum: Option<i64> = sqlx::query_scalar(query).fetch_one(&mut connection).await.unwrap();
        let counted: Option<i64> =
            sqlx::query_scalar("SELECT bytes FROM user_bytes WHERE user_id = 'ada' AND kind = $1")
                .bind(kind)
                .fetch_optional(&mut connection)
                .await
                .unwrap();
        assert_eq!(counted.unwrap_or_default(), sum.unwrap_or_default(), "{kind}");
        all += counted.unwrap_or_default();
    }
    all
}

fn write(path: &str, text: &str) -> MemoryWrite {
    MemoryWrite {
        user: "ada".to_owned(),
        path: MemoryPath::parse(path).unwrap(),
        text: MemoryText::Replace(text.to_owned()),
        author: MemoryAuthor::User(UserId("ada".to_owned())),
        expected: None::<ExpectedVersion>,
        audit: AuditEntry::by_operator("memory.write", sample::now()),
    }
}

fn job(prompt: &str) -> JobRecord {
    sample::job(JobState::Pending).with_brief(|brief| {
        "ada".clone_into(&mut brief.user_id);
        prompt.clone_into(&mut brief.prompt);
    })
}

async fn prompt(store: &Store, job: &JobRecord, text: &str) -> Result<Prompted, StoreError> {
    let request: PromptRequest = serde_json::from_value(json!({"content": text})).unwrap();
    store.add_prompt(job.id, sample::now(), &request, None, None).await
}

/// Ends a job with a text.
async fn finish(store: &Store, job: &JobRecord, text: &str) {
    let report: CompleteReport = serde_json::from_value(json!({"outcome": "completed", "text": text})).unwrap();
    let now = sample::now();
    let ended = store.transition(job.id, now, None, move |job| {
        let mut running = sample::job(JobState::InProgress);
        (running.id, running.rev, running.brief) = (job.id, job.rev, job.brief);
        running.finish(now, &report)
    });
    assert!(matches!(ended.await.unwrap(), Transition::Applied(_)));
}

const RUN: &str = "INSERT INTO routine_runs (id, routine_id, user_id, routine_name, identity, kind, trigger_type, trigger_detail, \
     payload, routine_rev, status, created_at) \
     VALUES (x'01', x'02', 'ada', 'r', 'i', 'lightweight', 'event', '{\"a\":1}', 'sent: é', 1, 'queued', '2026')";
const CALL: &str = "INSERT INTO tool_calls (work_id, kind, attempt, call_id, user_id, at, tool, input, reasoning) \
     VALUES (x'01', 'run', 1, 'c', 'ada', '2026', 'memory_read', '{\"path\":\"é\"}', 'why: é')";
const ROUTINE: &str = "INSERT INTO routines (id, user_id, name, enabled, trigger_type, trigger, action_type, action, guardrails, notify, \
     session, wake_mode, deliver, post_to_main, persist_payload, created_at, updated_at) \
     VALUES (x'02', 'ada', 'r', TRUE, 'event', '{}', 'lightweight', '{\"prompt\":\"p\"}', '{}', '{}', 's', 'now', 0, 0, 0, '2026', '2026')";

async fn run(directory: &TempDir, statement: &'static str) {
    sqlx::query(AssertSqlSafe(statement)).execute(&mut raw(directory).await).await.unwrap();
}

#[tokio::test]
async fn the_account_is_what_the_rows_add_up_to() {
    let (directory, store) = limited(0).await;
    for text in ["one", "two ä", ""] {
        store.write_memory(write("a.md", text)).await.unwrap();
    }
    let job = job("a prompt");
    store.create_job(job.clone(), None, None).await.unwrap();
    prompt(&store, &job, "and ä").await.unwrap();
    finish(&store, &job, "the result").await;
    run(&directory, ROUTINE).await;
    run(&directory, RUN).await;
    run(&directory, CALL).await;
    run(&directory, "INSERT INTO run_conversations (run_id, user_id, messages) VALUES (x'01', 'ada', '[\"é\"]')").await;
    run(&directory, "UPDATE tool_calls SET input = '{}', output = 'the text', reply = '{\"success\":true}'").await;
    run(&directory, "UPDATE routines SET state = 'kept', action = '{}'").await;
    run(
        &directory,
        "UPDATE routine_runs SET message = 'm', result_summary = 'long', result = 'longer', payload = NULL",
    )
    .await;
    let all = checked(&directory).await;
    let shown = store.user_storage("ada").await.unwrap();
    assert_eq!((shown.bytes.cast_signed(), shown.max_bytes), (all, None));
    assert!(shown.kinds.is_sorted_by(|a, b| a.bytes >= b.bytes) && shown.kinds.len() == 4, "{shown:?}");
    assert_eq!(store.user_storage("bob").await.unwrap().bytes, 0);

    // As in a database of an earlier version, which has no conversations.
    run(&directory, "DELETE FROM run_conversations").await;
    let all = checked(&directory).await;
    run(&directory, "DELETE FROM user_bytes WHERE kind NOT IN ('memory', 'chats')").await;
    run(&directory, "DELETE FROM data_migrations WHERE name LIKE 'user_bytes%'").await;
    data_migrations::run(&mut raw(&directory).await).await.unwrap();
    assert_eq!(checked(&directory).await, all);

    let deletion = MemoryDeletion {
        user: "ada".to_owned(),
        path: MemoryPath::parse("a.md").unwrap(),
        expected: None,
        audit: AuditEntry::by_operator("memory.delete", sample::now()),
    };
    store.delete_memory(deletion).await.unwrap();
    store.delete_job(job.id, AuditEntry::by_operator("job.delete", sample::now())).await.unwrap();
    run(&directory, "DELETE FROM routines").await;
    run(&directory, "DELETE FROM routine_runs").await;
    run(&directory, "DELETE FROM tool_calls").await;
    assert_eq!(checked(&directory).await, 0);
    store.close().await;
}

#[tokio::test]
async fn a_full_account_stops_what_would_add_to_it_and_not_what_is_at_work() {
    let (directory, store) = limited(100).await;
    let job = job(&"p".repeat(90));
    store.create_job(job.clone(), None, None).await.unwrap();
    assert!(matches!(store.write_memory(write("a.md", "short")).await, Ok(MemoryWriteOutcome::Stored { .. })));
    assert!(matches!(prompt(&store, &job, "123456789").await, Ok(Prompted::Stored(_))));
    let refused = prompt(&store, &job, "more").await;
    assert!(matches!(refused, Err(StoreError::UserStorageFull(_))), "{refused:?}");
    finish(&store, &job, &"r".repeat(50)).await;
    let error = store.write_memory(write("b.md", "more")).await.unwrap_err();
    assert_eq!(error.to_string(), "your data takes 156 of 100 bytes (jobs: 151, memory: 5); delete some");
    let next = self::job("more");
    assert!(matches!(store.create_job(next, None, None).await, Err(StoreError::UserStorageFull(_))));
    assert!(matches!(store.ensure_user_storage("ada").await, Err(StoreError::UserStorageFull(_))));
    store.ensure_user_storage("bob").await.unwrap();
    store.delete_job(job.id, AuditEntry::by_operator("job.delete", sample::now())).await.unwrap();
    store.write_memory(write("b.md", "more")).await.unwrap();
    checked(&directory).await;
    store.close().await;
}

#[tokio::test]
async fn of_the_texts_of_a_job_the_beginnings_are_kept() {
    let (directory, store) = limited(0).await;
    let (long, short) = (job(&"ä".repeat(2_000)), job("short"));
    for (job, text) in [(&long, "r".repeat(3_000)), (&short, "done".to_owned())] {
        store.create_job(job.clone(), None, None).await.unwrap();
        finish(&store, job, &text).await;
    }
    let limits = RetentionLimits { days: 1, audit_days: 1, max_mb: 0 };
    let trimmed = store.trim(&limits, sample::now() + chrono::TimeDelta::days(2)).await;
    assert!(trimmed.errors.is_empty() && trimmed.rows_of("jobs") > 0, "{trimmed:?}");
    let kept = store.job(long.id).await.unwrap().unwrap();
    assert_eq!(kept.brief.prompt, format!("{}…", "ä".repeat(1_000)));
    let result = format!("{}…", "r".repeat(1_000));
    assert_eq!(kept.result().unwrap().text.as_deref(), Some(result.as_str()));
    let events = store.events(long.id, 0, 10, None).await.unwrap().items;
    let Ok(EventData::Result { text, .. }) = events[0].parse() else { panic!("{events:?}") };
    assert_eq!(text, result);
    let kept = store.job(short.id).await.unwrap().unwrap();
    assert_eq!((kept.brief.prompt.as_str(), kept.result().unwrap().text.as_deref()), ("short", Some("done")));
    assert!(store.has_cut_texts(long.id).await.unwrap());
    checked(&directory).await;
    store.close().await;
}
