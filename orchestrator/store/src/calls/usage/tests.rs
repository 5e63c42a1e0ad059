//! The statements begin at an index, and a page of days knows whether something was used before it.

use sqlx::Execute as _;

use super::{super::budget, *};
use crate::{
    JobFilter,
    jobs::{self, json},
};
use domain::job::sample;

async fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

async fn plan(store: &Store, mut query: QueryBuilder<Sqlite>) -> String {
    crate::tests::plan(store, query.build().sql().as_str()).await.join("\n")
}

#[tokio::test]
async fn no_statement_walks_over_the_rows_of_all_jobs_or_calls() {
    let (_directory, store) = store().await;
    let (since, until) = (NaiveDate::MIN, NaiveDate::MAX);
    for user in [None, Some("ada")] {
        let filter = UsageFilter { user: user.map(str::to_owned), after: None, limit: 50 };
        for query in [
            sums_by_day(user, since, until),
            sums_since(user, since),
            sums_by_model(&filter, since),
            json::summaries(
                "token",
                &JobFilter { user: user.map(str::to_owned), limit: 50, ..JobFilter::default() },
                51,
            ),
            QueryBuilder::new(if user.is_some() { jobs::COUNT_OF_USER } else { jobs::COUNT_OF_ALL }),
            QueryBuilder::new(budget::DAY),
            sums_by_job(&filter, None),
        ] {
            let plan = plan(&store, query).await;
            // A scan of an index has its order and none of the rows' texts.
            let is_walk = |step: &&str| {
                let is_table = step
                    .strip_prefix("SCAN ")
                    .is_some_and(|name| !name.starts_with('(') && !matches!(name, "walked" | "job_counts"));
                is_table && !step.contains("INDEX") && *step != "SCAN CONSTANT ROW"
            };
            let walks: Vec<&str> = plan.lines().filter(is_walk).collect();
            assert!(walks.is_empty(), "{user:?}: {walks:?} in\n{plan}");
            assert!(user.is_none() || !plan.contains("SCAN jobs"), "{plan}");
        }
    }
    store.close().await;
}

/// The usage is what a sum over all calls is, whatever has become of them.
#[tokio::test]
async fn each_change_of_a_call_is_counted_on_its_day() {
    let (directory, store) = store().await;
    let job = sample::job(protocol::JobState::Pending);
    let (id, user) = (job.id, job.brief.user_id.clone());
    store.create_job(job, None, None).await.unwrap();
    let mut raw = crate::tests::raw(&directory).await;
    let mut run = async |statement: &str| {
        sqlx::query(sqlx::AssertSqlSafe(statement.to_owned())).bind(id).execute(&mut raw).await.unwrap();
    };
    let insert = "INSERT INTO model_calls (work_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, \
                  cache_read_tokens, cache_write_tokens, cost_micro_usd, duration_ms, tries, is_open) VALUES";
    // One that ends on the next day with another model, one without a price, and one that never began.
    run(&format!("{insert} ($1, 1, 'a', '2026-11-22T23:59:59+00:00', 'p', 'm', 0, 0, 0, 0, 0, 0, 1, TRUE)")).await;
    run(&format!("{insert} ($1, 1, 'b', '2026-11-22T12:00:00+00:00', 'p', 'm', 5, 1, 0, 0, NULL, 0, 2, FALSE)")).await;
    run(&format!("{insert} ($1, 1, 'c', '2026-11-23T12:00:00+00:00', 'p', 'm', 0, 0, 0, 0, 0, 0, 1, TRUE)")).await;
    run("UPDATE model_calls SET is_open = FALSE, at = '2026-11-23T00:00:01+00:00', model = 'n', input_tokens = 7, \
         cost_micro_usd = 30 WHERE call_id = 'a' AND work_id = $1")
    .await;
    run("DELETE FROM model_calls WHERE call_id = 'c' AND work_id = $1").await;
    run("INSERT INTO tool_calls (work_id, attempt, call_id, at, tool, input) \
         VALUES ($1, 1, 't', '2026-11-22T12:00:00+00:00', 'echo', '{}')")
    .await;
    run("UPDATE tool_calls SET at = '2026-11-23T00:00:00+00:00' WHERE work_id = $1").await;
    // Records that are deleted stay counted.
    run("DELETE FROM model_calls WHERE call_id = 'b' AND work_id = $1").await;
    run("DELETE FROM tool_calls WHERE work_id = $1").await;
    let day = |day| NaiveDate::from_ymd_opt(2026, 11, day).unwrap();
    for user in [None, Some(user.as_str())] {
        let page = store.usage_by_day(user, day(24), 2).await.unwrap();
        let lines: Vec<_> = page
            .lines
            .iter()
            .map(|line| (line.day, line.input_tokens, line.cost_usd, line.llm_calls, line.tool_calls))
            .collect();
        let expected = [(Some(day(23)), 7, Some(0.000_03), 1, Some(1)), (Some(day(22)), 5, None, 2, Some(0))];
        assert_eq!((lines.as_slice(), page.next), (expected.as_slice(), None), "{user:?}");
        assert_eq!(store.usage_by_day(user, day(24), 1).await.unwrap().next, Some(day(23)));
        let filter = UsageFilter { user: user.map(str::to_owned), after: None, limit: 50 };
        let models = store.usage_by_model(&filter, day(1)).await.unwrap();
        assert_eq!(
            models.iter().map(|(model, line)| (model.as_str(), line.llm_calls)).collect::<Vec<_>>(),
            [("m", 2), ("n", 1)]
        );
        assert_eq!(store.usage_since(user, day(23)).await.unwrap().input_tokens, 7);
    }
    store.close().await;
}

#[tokio::test]
async fn sums_by_model_cover_the_calls_since_a_day() {
    let (directory, store) = store().await;
    let job = sample::job(protocol::JobState::Pending);
    let (id, now) = (job.id, job.brief.created_at);
    store.create_job(job, None, None).await.unwrap();
    let first = first_day_of_model_sums(now.date_naive());
    let mut raw = crate::tests::raw(&directory).await;
    let midnight = first.and_time(chrono::NaiveTime::MIN).and_utc();
    for at in [midnight - chrono::TimeDelta::seconds(1), midnight, now] {
        sqlx::query(
            "INSERT INTO model_calls (work_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, \
             cache_read_tokens, cache_write_tokens, duration_ms, tries) VALUES ($1, 1, $2, $2, 'p', 'm', 1, 0, 0, 0, 1, 1)",
        )
        .bind(id)
        .bind(at)
        .execute(&mut raw)
        .await
        .unwrap();
    }
    for user in [None, Some("a")] {
        let filter = UsageFilter { user: user.map(str::to_owned), after: None, limit: 50 };
        let lines = store.usage_by_model(&filter, first).await.unwrap();
        let calls: Vec<u64> = lines.iter().map(|(_, line)| line.llm_calls).collect();
        assert_eq!(calls, [2], "{user:?}");
    }
    store.close().await;
}
