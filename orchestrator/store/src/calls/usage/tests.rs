//! The statements begin at an index, and a page of days knows whether something was used before it.

use protocol::{RoutineId, RunId, UsageGroup, UsageSort};
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

fn day(day: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 11, day).unwrap()
}

/// November 2026 by these groups.
fn query(user: Option<&str>, groups: &str) -> UsageQuery {
    UsageQuery {
        groups: UsageGroup::parse_list(groups).unwrap(),
        user: user.map(str::to_owned),
        since: day(1),
        until: day(30),
        sort: UsageSort::Group,
        after: None,
        limit: 50,
    }
}

async fn plan(store: &Store, mut query: QueryBuilder<Sqlite>) -> String {
    crate::tests::plan(store, query.build().sql().as_str()).await.join("\n")
}

#[tokio::test]
async fn no_statement_walks_over_the_rows_of_all_jobs_or_calls() {
    let (_directory, store) = store().await;
    let (since, until) = (NaiveDate::MIN, NaiveDate::MAX);
    for user in [None, Some("ada")] {
        let sorted = |groups, sort| UsageQuery { sort, ..query(user, groups) };
        for query in [
            sums_by_day(user, since, until),
            sums_since(user, since),
            by_group::sums(&query(user, "model")),
            by_group::sums(&sorted("user,day", UsageSort::Cost)),
            by_group::sums(&query(user, "routine,day")),
            by_group::sums(&sorted("label:team", UsageSort::Cost)),
            by_group::number_of_rows(&query(user, "label:team"), 10),
            by_job::dearest(&sorted("job", UsageSort::Cost), Some((7, protocol::JobId::nil()))),
            json::summaries(
                "token",
                &JobFilter { user: user.map(str::to_owned), limit: 50, ..JobFilter::default() },
                51,
            ),
            QueryBuilder::new(if user.is_some() { jobs::COUNT_OF_USER } else { jobs::COUNT_OF_ALL }),
            QueryBuilder::new(budget::DAY),
            by_job::newest(&query(user, "job"), None),
        ] {
            let plan = plan(&store, query).await;
            // A scan of an index has its order and none of the rows' texts.
            let is_walk = |step: &&str| {
                let is_table = step
                    .strip_prefix("SCAN ")
                    .is_some_and(|name| !name.starts_with('(') && !matches!(name, "walked" | "job_counts" | "days"));
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
    let job = grouped_job();
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
    for user in [None, Some(user.as_str())] {
        let page = store.usage_by_day(user, NaiveDate::MIN, day(24), 2).await.unwrap();
        let lines: Vec<_> = page
            .lines
            .iter()
            .map(|line| (line.day, line.input_tokens, line.cost_usd, line.llm_calls, line.tool_calls))
            .collect();
        let expected = [(Some(day(23)), 7, Some(0.000_03), 1, Some(1)), (Some(day(22)), 5, None, 2, Some(0))];
        assert_eq!((lines.as_slice(), page.next), (expected.as_slice(), None), "{user:?}");
        for (since, next) in [(NaiveDate::MIN, Some(day(23))), (day(22), Some(day(23))), (day(23), None)] {
            assert_eq!(store.usage_by_day(user, since, day(24), 1).await.unwrap().next, next, "{since}");
        }
        let models = store.usage(&query(user, "model")).await.unwrap();
        assert_eq!(
            models.iter().map(|(_, line)| (line.model.as_deref(), line.llm_calls)).collect::<Vec<_>>(),
            [(Some("m"), 2), (Some("n"), 1)]
        );
        // The same of the routine and of a label, which triggers count as well.
        for groups in ["routine,day", "label:team,day"] {
            let lines: Vec<_> = store.usage(&query(user, groups)).await.unwrap();
            let lines: Vec<_> = lines
                .iter()
                .map(|(_, line)| {
                    (line.day, line.input_tokens, line.cost_usd, line.llm_calls, line.tool_calls, line.label.as_deref())
                })
                .collect();
            let label = groups.starts_with("label").then_some("a");
            let expected = expected.map(|(day, input, cost, calls, tools)| (day, input, cost, calls, tools, label));
            assert_eq!(lines, expected, "{groups} {user:?}");
        }
        assert_eq!(store.usage(&query(user, "label:other")).await.unwrap(), []);
        assert_eq!(store.usage_since(user, day(23)).await.unwrap().input_tokens, 7);
    }
    store.close().await;
}

/// A job of a routine, with a label.
fn grouped_job() -> domain::job::JobRecord {
    let mut job = sample::job(protocol::JobState::Pending);
    job.brief_mut().labels = [("team".to_owned(), "a".to_owned())].into();
    job.brief_mut().routine = Some(domain::job::RunLink { routine: RoutineId::generate(), run: RunId::generate() });
    job
}

const CALL: &str = "INSERT INTO model_calls (work_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, \
     cache_read_tokens, cache_write_tokens, cost_micro_usd, duration_ms, tries) VALUES ($1, 1, $2, $3, 'p', $4, 1, 0, 0, 0, $5, 1, 1)";

#[tokio::test]
async fn sums_cover_the_days_of_the_period_and_go_on_after_a_position() {
    let (directory, store) = store().await;
    let mut raw = crate::tests::raw(&directory).await;
    for (user, day, model, cost) in
        [("ada", 21, "m", 1), ("ada", 22, "m", 10), ("ada", 23, "n", 40), ("bob", 22, "m", 30), ("bob", 24, "m", 1)]
    {
        let mut job = sample::job(protocol::JobState::Pending);
        job.brief_mut().user_id = user.to_owned();
        let id = job.id;
        store.create_job(job, None, None).await.unwrap();
        let at = format!("2026-11-{day}T12:00:00+00:00");
        let call = sqlx::query(CALL).bind(id).bind("c").bind(at).bind(model).bind(cost);
        call.execute(&mut raw).await.unwrap();
    }
    for (groups, sort, expected) in [
        ("user", UsageSort::Group, &["ada 50", "bob 30"][..]),
        ("user", UsageSort::Cost, &["ada 50", "bob 30"]),
        ("model", UsageSort::Cost, &["m 40", "n 40"]),
        ("day,user", UsageSort::Group, &["2026-11-23 ada 40", "2026-11-22 ada 10", "2026-11-22 bob 30"]),
        ("day,user", UsageSort::Cost, &["2026-11-23 ada 40", "2026-11-22 bob 30", "2026-11-22 ada 10"]),
        ("user,model", UsageSort::Group, &["ada m 10", "ada n 40", "bob m 30"]),
    ] {
        let mut page = UsageQuery { since: day(22), until: day(24), sort, limit: 1, ..query(None, groups) };
        let mut lines = vec![];
        while let Some((position, line)) = store.usage(&page).await.unwrap().pop() {
            let keys = position.keys.join(" ");
            lines.push(format!("{keys} {:.0}", line.cost_usd.unwrap() * 1_000_000.0));
            // As it goes to a client and back.
            page.after = Some(position.to_string().parse().unwrap());
            assert!(page.has_valid_position());
            assert!(!UsageQuery { groups: vec![UsageGroup::Job], ..page.clone() }.has_valid_position());
        }
        assert_eq!(lines, expected, "{groups} {sort}");
    }
    store.close().await;
}

#[tokio::test]
async fn the_dearest_jobs_of_a_period_are_read_in_pages() {
    let (directory, store) = store().await;
    let mut raw = crate::tests::raw(&directory).await;
    let mut ids = vec![];
    for (user, day, cost) in [("ada", 21, 90), ("ada", 22, 10), ("bob", 22, 30), ("ada", 23, 30), ("ada", 23, 0)] {
        let mut job = sample::job(protocol::JobState::Pending);
        job.brief_mut().user_id = user.to_owned();
        ids.push(job.id);
        store.create_job(job, None, None).await.unwrap();
        let set = sqlx::query("UPDATE jobs SET created_at = $2, cost_micro_usd = $3 WHERE id = $1").bind(ids.last());
        set.bind(format!("2026-11-{day}T12:00:00+00:00")).bind(cost).execute(&mut raw).await.unwrap();
    }
    for (user, expected) in [(None, &[3, 2, 1][..]), (Some("ada"), &[3, 1])] {
        let mut page =
            UsageQuery { since: day(22), until: day(24), sort: UsageSort::Cost, limit: 1, ..query(user, "job") };
        let mut found = vec![];
        while let Some((position, line)) = store.usage(&page).await.unwrap().pop() {
            found.push(ids.iter().position(|id| Some(*id) == line.job_id).unwrap());
            page.after = Some(position);
        }
        assert_eq!(found, expected, "{user:?}");
        for until in [22, 21] {
            let nothing = UsageQuery { until: day(until), after: None, ..page.clone() };
            assert_eq!(store.usage(&nothing).await.unwrap(), [], "before {until}");
        }
    }
    store.close().await;
}

/// A label may have a value for each job: the rows of a period are counted before they are summed up.
#[tokio::test]
async fn sums_by_label_over_too_many_rows_are_refused() {
    let (directory, store) = store().await;
    let mut raw = crate::tests::raw(&directory).await;
    sqlx::query(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 50001) \
         INSERT INTO daily_group_usage (dimension, day, user_id, value, model, tries) \
         SELECT 'label:id', '2026-11-22', 'ada', n, 'm', 1 FROM n",
    )
    .execute(&mut raw)
    .await
    .unwrap();
    let refused = store.usage(&query(None, "label:id")).await;
    assert!(matches!(refused, Err(StoreError::TooManyToCount { max: 50_000, .. })), "{refused:?}");
    let narrower = UsageQuery { since: day(23), ..query(None, "label:id") };
    assert_eq!(store.usage(&narrower).await.unwrap(), []);
    store.close().await;
}

/// Calls from before the table are counted once, whatever the triggers have counted since.
#[tokio::test]
async fn calls_from_before_the_sums_by_group_are_counted_by_the_migration() {
    let (directory, store) = store().await;
    let job = grouped_job();
    let (id, routine) = (job.id, job.brief.routine.unwrap().routine);
    store.create_job(job, None, None).await.unwrap();
    let mut raw = crate::tests::raw(&directory).await;
    for call in ["a", "b"] {
        let call = sqlx::query(CALL).bind(id).bind(call).bind("2026-11-22T12:00:00+00:00").bind("m").bind(10);
        call.execute(&mut raw).await.unwrap();
    }
    sqlx::query(
        "INSERT INTO tool_calls (work_id, attempt, call_id, at, tool, input) \
         VALUES ($1, 1, 't', '2026-11-22T12:00:00+00:00', 'echo', '{}')",
    )
    .bind(id)
    .execute(&mut raw)
    .await
    .unwrap();
    let counted = [
        store.usage(&query(None, "routine")).await.unwrap(),
        store.usage(&query(None, "label:team,model")).await.unwrap(),
    ];
    for statement in ["DELETE FROM daily_group_usage", "DELETE FROM data_migrations WHERE name LIKE 'usage_groups%'"] {
        sqlx::query(statement).execute(&mut raw).await.unwrap();
    }
    crate::sqlite::data_migrations::run(&mut raw).await.unwrap();
    let migrated = [
        store.usage(&query(None, "routine")).await.unwrap(),
        store.usage(&query(None, "label:team,model")).await.unwrap(),
    ];
    assert_eq!(migrated, counted);
    let line = &migrated[0][0].1;
    assert_eq!((line.routine_id, line.llm_calls, line.tool_calls), (Some(routine), 2, Some(1)));
    store.close().await;
}
