//! The rendered JSON against the types that define it.

use protocol::{ContainerInfo, Job, JobReason, JobResult, JobState, JobSummary, PartialResult};

use super::*;
use domain::job::{
    Activity, CancelRequest, End, Finished, JobRecord, Queued, Stage,
    sample::{self, now, running},
};

const JTI: &str = "token";
/// What JSON has to escape, and what it has not.
const AWKWARD: &str = "\"quoted\" \\ back\nline\ttab \u{1} \u{7f} ü 漢 🦀 'single' %s %d";

async fn fresh() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

/// Stores a job in its first stage and moves it to `stage`.
async fn store_job(store: &Store, job: JobRecord) -> JobRecord {
    let stage = job.stage.clone();
    let queued = JobRecord { stage: Stage::Queued(Queued::default()), ..job };
    let (id, at) = (queued.id, queued.brief.created_at);
    store.create_job(queued, None, None).await.unwrap();
    let moved = store.transition(id, at, None, move |job| Ok(job.step_to(stage))).await.unwrap();
    let crate::Transition::Applied(job) = moved else { panic!("{moved:?}") };
    *job
}

fn all_stages() -> Vec<Stage> {
    let partial = PartialResult {
        text: AWKWARD.to_owned(),
        last_actions: vec!["shell: ok".to_owned()],
        ..PartialResult::default()
    };
    let cancel = CancelRequest { at: now(), message: Some(AWKWARD.to_owned()), by_parent: false };
    let mut stages: Vec<Stage> = JobState::ALL.iter().map(|state| sample::job(*state).stage).collect();
    for stuck in [None, Some(AWKWARD.to_owned())] {
        let mut stopping = running(Activity::Stopping { cancel: cancel.clone(), stuck });
        stopping.reported = Some(partial.clone());
        stages.push(Stage::Running(stopping));
    }
    stages.push(Stage::Submitted { result: JobResult::default() });
    stages.push(Stage::Submitted {
        result: JobResult { text: Some("half".to_owned()), cut: true, ..JobResult::default() },
    });
    stages.push(Stage::Finished(Finished {
        end: End::Failed,
        at: now(),
        reason: Some(JobReason::CostBudget),
        message: Some(AWKWARD.to_owned()),
        result: Some(JobResult { text: Some(AWKWARD.to_owned()), partial: Some(partial), cut: false }),
        cancel: Some(cancel),
    }));
    stages
}

fn awkward(stage: Stage) -> JobRecord {
    let other = JobId::generate();
    let job = JobRecord { stage, ..sample::job(JobState::Pending) };
    job.with_brief(|brief| {
        brief.title = AWKWARD.to_owned();
        brief.prompt = AWKWARD.repeat(10);
        brief.labels = [("team".to_owned(), AWKWARD.to_owned())].into();
        brief.metadata =
            serde_json::from_value(serde_json::json!({"nested": {"text": AWKWARD, "n": [1, 2.5, null]}})).unwrap();
        brief.restarted_from = Some(other);
        brief.priority = -7;
        brief.effort = Some(protocol::Effort::High);
    })
}

/// Serialized as the type is, so that no member is missing, added or formatted otherwise.
fn as_written<T: serde::Serialize + serde::de::DeserializeOwned>(json: &str) -> T {
    let value: T = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    let (written, rendered): (serde_json::Value, serde_json::Value) =
        (serde_json::to_value(&value).unwrap(), serde_json::from_str(json).unwrap());
    assert_eq!(written, rendered);
    value
}

#[tokio::test]
async fn every_stage_of_a_job_is_rendered_as_its_record_is() {
    let (directory, store) = fresh().await;
    let mut stored = vec![];
    for stage in all_stages() {
        stored.push(store_job(&store, awkward(stage)).await);
    }
    let container =
        ContainerInfo { name: "gantry-job-x-1".to_owned(), exit_code: Some(137), ..ContainerInfo::default() };
    let first = stored[0].id;
    store.set_container(first, stored[0].attempt, &container).await.unwrap();
    let mut raw = crate::tests::raw(&directory).await;
    // Different values, so that two that are swapped are seen.
    let counts = sqlx::query(
        "UPDATE jobs SET attempt = 2, repair_attempts = 1, input_tokens = 12, output_tokens = 13, cache_read_tokens = 14, cache_write_tokens = 15, \
         cost_micro_usd = 1234567, llm_calls = 3, tool_calls = 4, iterations = 5 WHERE id = $1",
    );
    counts.bind(first).execute(&mut raw).await.unwrap();
    let mut expected = vec![];
    for job in &stored {
        let record = store.job(job.id).await.unwrap().unwrap();
        let TokenChecked::Valid(Some(rendered)) = store.job_json(JTI, job.id).await.unwrap() else {
            panic!("not found")
        };
        assert_eq!(rendered.user_id, record.brief.user_id);
        assert_eq!(as_written::<Job>(&rendered.json), record.to_api());
        expected.insert(0, record.to_api().summary());
    }
    let filter = JobFilter { limit: 200, ..JobFilter::default() };
    let TokenChecked::Valid(page) = store.job_summaries(JTI, &filter).await.unwrap() else { panic!("not revoked") };
    expected.sort_by_key(|job| std::cmp::Reverse(job.id));
    assert_eq!(as_written::<Vec<JobSummary>>(&format!("[{}]", page.items)), expected);
    assert_eq!(page.last, None);
    store.close().await;
}

#[tokio::test]
async fn pages_follow_each_other_without_a_gap() {
    let (_directory, store) = fresh().await;
    let mut ids = vec![];
    for _ in 0..5 {
        let job = sample::job(JobState::Pending);
        ids.insert(0, job.id);
        store.create_job(job, None, None).await.unwrap();
    }
    ids.sort_by_key(|id| std::cmp::Reverse(*id));
    let (mut seen, mut before) = (vec![], None);
    loop {
        let filter = JobFilter { limit: 2, before, ..JobFilter::default() };
        let TokenChecked::Valid(page) = store.job_summaries(JTI, &filter).await.unwrap() else { panic!("not revoked") };
        let items: Vec<JobSummary> = serde_json::from_str(&format!("[{}]", page.items)).unwrap();
        assert!(items.len() <= 2);
        seen.extend(items.iter().map(|job| job.id));
        before = page.last;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen, ids);
    store.close().await;
}

#[tokio::test]
async fn nothing_is_read_with_a_revoked_token() {
    let (_directory, store) = fresh().await;
    let job = sample::job(JobState::Pending);
    let id = job.id;
    store.create_job(job, None, None).await.unwrap();
    let filter = JobFilter { limit: 2, ..JobFilter::default() };
    for jti in ["other", JTI] {
        crate::access::tokens::revoke(&store, jti, now()).await.unwrap();
        let revoked = jti == JTI;
        assert_eq!(store.job_json(JTI, id).await.unwrap() == TokenChecked::Revoked, revoked);
        assert_eq!(store.job_json(JTI, JobId::generate()).await.unwrap() == TokenChecked::Revoked, revoked);
        assert_eq!(store.job_summaries(JTI, &filter).await.unwrap() == TokenChecked::Revoked, revoked);
    }
    store.close().await;
}

#[test]
fn a_page_ends_at_its_limit_and_at_its_bytes() {
    let checked =
        "\"mode\":\"worker\",\"placement\":\"container\",\"state\":\"pending\",\"reason\":null,\"source\":\"api\"";
    let item = |n: u128, bytes: usize| format!("{n:032X}{checked},\"x\":\"{}\"}}", "x".repeat(bytes));
    let rendered = [item(3, 10), item(2, 10), item(1, 10)].join("\n");
    for (limit, last) in [(3, None), (2, Some(2)), (1, Some(3))] {
        let page = JobPage::of(&rendered, limit);
        assert_eq!(page.last, last.map(|n| JobId::from_uuid(uuid::Uuid::from_u128(n))), "{limit}");
    }
    let large = [item(3, PAGE_BYTES), item(2, 10)].join("\n");
    let page = JobPage::of(&large, 50);
    assert_eq!(page.last, Some(JobId::from_uuid(uuid::Uuid::from_u128(3))), "one job always fits");
    assert_eq!(JobPage::of("", 50), JobPage::default());
    assert_eq!(JobPage::of("no id", 50), JobPage::default());
}

#[tokio::test]
async fn an_inconsistent_row_is_left_out_of_a_page_and_is_an_error_by_itself() {
    let (directory, store) = fresh().await;
    let mut raw = crate::tests::raw(&directory).await;
    let mut bad = vec![];
    let changes =
        ["labels = '{'", "labels = '{\n'", "reason = 'from_the_future'", "state = 'elsewhere'", "container = '['"];
    for change in changes {
        let job = sample::job(JobState::Pending);
        bad.push(job.id);
        store.create_job(job, None, None).await.unwrap();
        let change = format!("UPDATE jobs SET {change} WHERE id = $1");
        let change = sqlx::query(sqlx::AssertSqlSafe(change)).bind(*bad[bad.len() - 1].as_uuid());
        change.execute(&mut raw).await.unwrap();
    }
    let good =
        sample::job(JobState::Pending).with_brief(|brief| brief.labels = [("team".to_owned(), "a".to_owned())].into());
    let id = good.id;
    store.create_job(good, None, None).await.unwrap();
    let listed = async |filter: JobFilter| {
        let TokenChecked::Valid(page) = store.job_summaries(JTI, &filter).await.unwrap() else { panic!("not revoked") };
        let items: Vec<JobSummary> = serde_json::from_str(&format!("[{}]", page.items)).unwrap();
        (items.iter().map(|job| job.id).collect::<Vec<_>>(), page.last)
    };
    assert_eq!(listed(JobFilter { limit: 50, ..JobFilter::default() }).await, (vec![id], None));
    let labels = vec![("team".to_owned(), "a".to_owned())];
    assert_eq!(listed(JobFilter { limit: 50, labels, ..JobFilter::default() }).await.0, [id]);
    // Pages of one row each reach every row.
    let (mut seen, mut before) = (vec![], None);
    for _ in 0..=changes.len() {
        let (items, last) = listed(JobFilter { limit: 1, before, ..JobFilter::default() }).await;
        seen.extend(items);
        before = last;
    }
    assert_eq!((seen, before), (vec![id], None));
    for id in bad {
        let read = store.job_json(JTI, id).await;
        assert!(matches!(read, Err(StoreError::Inconsistent { .. })), "{read:?}");
    }
    store.close().await;
}

#[tokio::test]
async fn a_search_goes_on_where_its_time_was_over_and_one_over_all_users_needs_a_result() {
    let (_directory, store) = fresh().await;
    let mut ids = vec![];
    for number in 0..5 {
        let job = sample::job(JobState::Pending).with_brief(|brief| {
            brief.title = format!("Job {number}");
            brief.labels = [("number".to_owned(), number.to_string())].into();
        });
        ids.push(job.id);
        store.create_job(job, None, None).await.unwrap();
    }
    ids.sort();
    let all = JobFilter { text: Some("jOB".to_owned()), limit: 50, ..JobFilter::default() };
    let TokenChecked::Valid(page) = store.job_summaries(JTI, &all).await.unwrap() else { panic!("not revoked") };
    assert_eq!((page.items.matches("\"id\"").count(), page.last), (5, None));
    let oldest = store.job(ids[0]).await.unwrap().unwrap().brief;
    let user = Some(oldest.user_id.clone());
    for filter in [
        JobFilter { user: user.clone(), text: Some(oldest.title.clone()), limit: 50, ..JobFilter::default() },
        JobFilter {
            user: user.clone(),
            labels: oldest.labels.clone().into_iter().collect(),
            limit: 50,
            ..JobFilter::default()
        },
    ] {
        // Each page has the time for one row.
        let (mut seen, mut pages, mut before) = (vec![], 0, None);
        loop {
            let filter = JobFilter { before, ..filter.clone() };
            let search = Search::within(user.as_deref(), 1, std::time::Duration::ZERO);
            let page = store.job_summaries_within(JTI, &filter, search).await.unwrap();
            let TokenChecked::Valid(page) = page else { panic!("not revoked") };
            let items: Vec<JobSummary> = serde_json::from_str(&format!("[{}]", page.items)).unwrap();
            seen.extend(items.iter().map(|job| job.id));
            pages += 1;
            before = page.last;
            if before.is_none() {
                break;
            }
        }
        assert_eq!((seen, pages), (vec![ids[0]], 6));
        // With time, one page has the result.
        let search = Search::within(user.as_deref(), 1, std::time::Duration::from_hours(1));
        let page = store.job_summaries_within(JTI, &filter, search).await.unwrap();
        assert!(
            matches!(page, TokenChecked::Valid(JobPage { last: None, items }) if items.contains(&ids[0].to_string()))
        );
        let of_all = JobFilter { user: None, ..filter };
        let search = Search::within(None, 2, std::time::Duration::ZERO);
        let refused = store.job_summaries_within(JTI, &of_all, search).await;
        assert!(matches!(refused, Err(StoreError::QueryTooBroad { rows: 2, .. })), "{refused:?}");
        assert!(refused.unwrap_err().to_string().contains("user="));
    }
    store.close().await;
}

#[tokio::test]
async fn states_and_parts_of_ids_are_merged_in_the_order_of_the_list() {
    let (directory, store) = fresh().await;
    let states = ["completed", "failed", "cancelled"];
    let mut raw = crate::tests::raw(&directory).await;
    let mut jobs = vec![];
    for number in 0..30_usize {
        let job = sample::job(JobState::Pending);
        jobs.push((job.id, states[number % 3]));
        store.create_job(job, None, None).await.unwrap();
        let end = sqlx::query("UPDATE jobs SET state = $2, finished_at = created_at WHERE id = $1");
        end.bind(jobs[number].0).bind(states[number % 3]).execute(&mut raw).await.unwrap();
    }
    jobs.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
    let hex = |id: JobId| id.as_uuid().simple().to_string();
    let (whole, digits) = (hex(jobs[7].0), hex(jobs[9].0));
    let parts = [None, Some(&whole[..4]), Some(&whole[28..]), Some(&digits[20..]), Some(&whole[..]), Some("ffffff")];
    for (asked, part) in
        [&states[..0], &states[..1], &states[1..]].into_iter().flat_map(|asked| parts.map(|part| (asked, part)))
    {
        let expected: Vec<JobId> = jobs
            .iter()
            .filter(|(_, state)| asked.is_empty() || asked.contains(state))
            .map(|(id, _)| *id)
            .filter(|id| part.is_none_or(|part| hex(*id).starts_with(part) || hex(*id).ends_with(part)))
            .collect();
        for user in [None, Some("a".to_owned())] {
            let (mut seen, mut before) = (vec![], None);
            loop {
                let states = asked.iter().map(|state| JobState::parse(state).unwrap()).collect();
                let id_part = part.map(str::to_owned);
                let filter =
                    JobFilter { user: user.clone(), states, id_part, before, limit: 4, ..JobFilter::default() };
                let TokenChecked::Valid(page) = store.job_summaries(JTI, &filter).await.unwrap() else {
                    panic!("revoked")
                };
                let items: Vec<JobSummary> = serde_json::from_str(&format!("[{}]", page.items)).unwrap();
                seen.extend(items.iter().map(|job| job.id));
                before = page.last;
                if before.is_none() {
                    break;
                }
            }
            assert_eq!(seen, expected, "{asked:?} {part:?} {user:?}");
        }
    }
    store.close().await;
}
