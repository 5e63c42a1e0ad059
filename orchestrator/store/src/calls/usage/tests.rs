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
    let (since, until) = (DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC);
    for user in [None, Some("ada")] {
        let filter = UsageFilter { user: user.map(str::to_owned), after: None, limit: 50 };
        for query in [
            sums_by_day(user, since, until),
            sums_since(user, since),
            sums_by_model(&filter, since),
            json::summaries("token", &JobFilter { user: user.map(str::to_owned), limit: 50, ..JobFilter::default() }),
            QueryBuilder::new(if user.is_some() { jobs::COUNT_OF_USER } else { jobs::COUNT_OF_ALL }),
            QueryBuilder::new(budget::DAY),
            sums_by_job(&filter, None),
        ] {
            let plan = plan(&store, query).await;
            // A scan of an index has its order and none of the rows' texts.
            let is_walk = |step: &&str| {
                let is_table = step
                    .strip_prefix("SCAN ")
                    .is_some_and(|name| !name.starts_with('(') && !matches!(name, "r" | "calls"));
                is_table && !step.contains("INDEX") && *step != "SCAN CONSTANT ROW"
            };
            let walks: Vec<&str> = plan.lines().filter(is_walk).collect();
            assert!(walks.is_empty(), "{user:?}: {walks:?} in\n{plan}");
            assert!(user.is_none() || !plan.contains("SCAN jobs"), "{plan}");
        }
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
    for at in [midnight(first) - TimeDelta::seconds(1), midnight(first), now] {
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
