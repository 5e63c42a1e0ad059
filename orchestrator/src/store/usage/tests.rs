//! The statements begin at an index, and a page of days knows whether something was used before it.

use sqlx::Execute as _;

use super::*;

async fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", folder.path().display())).await.unwrap();
    (folder, store)
}

async fn plan(store: &Store, mut query: QueryBuilder<Sqlite>) -> String {
    let explained = format!("EXPLAIN QUERY PLAN {}", query.build().sql().as_str());
    let steps: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(sqlx::AssertSqlSafe(explained)).fetch_all(&store.read).await.unwrap();
    steps.into_iter().map(|(.., step)| step).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn no_statement_walks_over_the_rows_of_all_jobs_or_calls() {
    let (_folder, store) = store().await;
    let (since, until) = (DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC);
    for user in [None, Some("ada")] {
        let filter = UsageFilter { user: user.map(str::to_owned), after: None, limit: 50 };
        for query in [
            calls_by_day(user, Period { since, until }),
            tools_by_day(user, Period { since, until }),
            calls_since(user, since),
            tools_since(user, since),
            sums_by_model(&filter),
            sums_by_job(&filter, None),
        ] {
            let plan = plan(&store, query).await;
            // A scan of an index has its order and none of the rows' texts.
            let walks =
                plan.lines().filter(|step| step.starts_with("SCAN") && !step.contains("INDEX") && *step != "SCAN r");
            let walks: Vec<&str> = walks.collect();
            assert!(walks.is_empty(), "{user:?}: {walks:?} in\n{plan}");
            assert!(user.is_none() || !plan.contains("SCAN jobs"), "{plan}");
        }
    }
    store.close().await;
}
