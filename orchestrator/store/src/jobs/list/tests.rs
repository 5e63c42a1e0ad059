//! Each filter of a list of jobs, alone and beside others, and the plans of their statements.

use chrono::TimeDelta;
use protocol::JobSummary;

use super::*;
use crate::{
    Store, TokenChecked,
    jobs::json::summaries,
    tests::{fresh, plan, raw},
};
use domain::job::sample;

const STATES: [&str; 3] = ["completed", "failed", "cancelled"];
const REASONS: [Option<&str>; 3] = [None, Some("llm_error"), Some("cancelled_by_user")];

/// What is known of a job that was stored.
struct Known {
    id: JobId,
    user: &'static str,
    state: JobState,
    reason: Option<JobReason>,
    source: Source,
    model: &'static str,
    routine: Option<RoutineId>,
    run: Option<RunId>,
    at: DateTime<Utc>,
}

/// Stores 60 jobs, 20 minutes apart. Ada has those of one routine, Eve those of the other.
async fn stored(store: &Store, directory: &tempfile::TempDir) -> Vec<Known> {
    let (mut raw, mut jobs) = (raw(directory).await, vec![]);
    let (of_ada, of_eve, run) = (RoutineId::generate(), RoutineId::generate(), RunId::generate());
    let mut first = None;
    for number in 0..60_usize {
        let job = sample::job(JobState::Pending);
        let (seconds, _) = job.id.as_uuid().get_timestamp().unwrap().to_unix();
        let first = *first.get_or_insert(DateTime::from_timestamp(i64::try_from(seconds).unwrap(), 0).unwrap());
        let is_eves = number % 4 == 3;
        let routine = (number % 5 == 0).then_some(if is_eves { of_eve } else { of_ada });
        let known = Known {
            id: job.id,
            user: if is_eves { "eve" } else { "ada" },
            state: JobState::parse(STATES[number % 3]).unwrap(),
            reason: REASONS[number % 3].map(|reason| JobReason::parse(reason).unwrap()),
            source: if number % 7 == 0 { Source::Chat } else { Source::Api },
            model: if number % 2 == 0 { "large" } else { "small" },
            routine,
            run: (number == 10).then_some(run),
            at: first + TimeDelta::minutes(20) * i32::try_from(number).unwrap(),
        };
        store.create_job(job, None, None).await.unwrap();
        let change = sqlx::query(
            "UPDATE jobs SET user_id = $2, state = $3, reason = $4, source = $5, model = $6, routine_id = $7, run_id = $8, \
             created_at = $9, finished_at = $9 WHERE id = $1",
        );
        let change = change.bind(known.id).bind(known.user).bind(known.state.as_str());
        let change = change.bind(known.reason.map(JobReason::as_str)).bind(known.source.as_str()).bind(known.model);
        change.bind(known.routine).bind(known.run).bind(known.at).execute(&mut raw).await.unwrap();
        jobs.push(known);
    }
    jobs.sort_by_key(|job| std::cmp::Reverse(job.id));
    jobs
}

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// Filters, alone and beside others.
fn filters(jobs: &[Known]) -> Vec<JobFilter> {
    let base = || JobFilter { limit: 7, ..JobFilter::default() };
    let routine = jobs.iter().find(|job| job.user == "ada" && job.routine.is_some()).unwrap().routine;
    let run = jobs.iter().find(|job| job.run.is_some()).unwrap().run;
    let states = vec![JobState::Failed, JobState::Cancelled];
    let (late, early) = (Some(jobs[20].at), Some(jobs[40].at));
    vec![
        JobFilter { routine, ..base() },
        JobFilter { routine, states: states.clone(), ..base() },
        JobFilter { routine, source: Some(Source::Chat), ..base() },
        JobFilter { run, ..base() },
        JobFilter { routine, run, ..base() },
        JobFilter { run, model: Some("small".to_owned()), ..base() },
        JobFilter { reason: Some(JobReason::LlmError), ..base() },
        JobFilter { reason: Some(JobReason::LlmError), states: states.clone(), since: early, ..base() },
        JobFilter { reason: Some(JobReason::WallClock), ..base() },
        JobFilter { source: Some(Source::Chat), ..base() },
        JobFilter { source: Some(Source::Api), model: Some("small".to_owned()), until: late, ..base() },
        JobFilter { model: Some("large".to_owned()), ..base() },
        JobFilter { model: Some("other".to_owned()), ..base() },
        JobFilter { since: early, until: late, ..base() },
        JobFilter { since: early, states, ..base() },
        JobFilter { since: late, until: early, ..base() },
        JobFilter { since: Some(utc("0001-01-01T00:00:00Z")), until: Some(utc("9999-12-31T23:59:59Z")), ..base() },
    ]
}

async fn pages(store: &Store, filter: &JobFilter) -> Vec<JobId> {
    let (mut seen, mut before) = (vec![], None);
    loop {
        let filter = JobFilter { before, ..filter.clone() };
        let TokenChecked::Valid(page) = store.job_summaries("token", &filter).await.unwrap() else { panic!("revoked") };
        let items: Vec<JobSummary> = serde_json::from_str(&format!("[{}]", page.items)).unwrap();
        assert!(items.len() <= filter.limit as usize);
        seen.extend(items.iter().map(|job| job.id));
        before = page.last;
        if before.is_none() {
            return seen;
        }
    }
}

#[tokio::test]
async fn each_filter_finds_what_it_says_in_the_order_of_the_list() {
    let (directory, store) = fresh().await;
    let jobs = stored(&store, &directory).await;
    for filter in filters(&jobs) {
        for user in [None, Some("ada"), Some("eve")] {
            let filter = JobFilter { user: user.map(str::to_owned), ..filter.clone() };
            let is_found = |job: &&Known| {
                filter.user.as_deref().is_none_or(|user| user == job.user)
                    && (filter.states.is_empty() || filter.states.contains(&job.state))
                    && filter.reason.is_none_or(|reason| job.reason == Some(reason))
                    && filter.source.is_none_or(|source| job.source == source)
                    && filter.model.as_deref().is_none_or(|model| job.model == model)
                    && filter.routine.is_none_or(|routine| job.routine == Some(routine))
                    && filter.run.is_none_or(|run| job.run == Some(run))
                    && filter.since.is_none_or(|since| job.at >= since)
                    && filter.until.is_none_or(|until| job.at < until)
            };
            let expected: Vec<JobId> = jobs.iter().filter(is_found).map(|job| job.id).collect();
            assert_eq!(pages(&store, &filter).await, expected, "{filter:?}");
        }
    }
    store.close().await;
}

#[tokio::test]
async fn a_page_of_a_filter_is_read_from_its_index_in_order() {
    let (_directory, store) = fresh().await;
    let base = || JobFilter { user: Some("ada".to_owned()), limit: 50, ..JobFilter::default() };
    let routine = Some(RoutineId::generate());
    let since = Some(sample::now());
    for (filter, index) in [
        (JobFilter { routine, ..base() }, "jobs_by_routine (routine_id=? AND user_id=?)"),
        (JobFilter { routine, user: None, ..base() }, "jobs_by_routine (routine_id=? AND user_id=?)"),
        (JobFilter { reason: Some(JobReason::Stuck), ..base() }, "jobs_by_user_reason (user_id=? AND reason=?)"),
        (JobFilter { source: Some(Source::Cli), ..base() }, "jobs_by_user_source (user_id=? AND source=?)"),
        (JobFilter { model: Some("m".to_owned()), ..base() }, "jobs_by_user_model (user_id=? AND model=?)"),
        (JobFilter { since, ..base() }, "jobs_by_user (user_id=? AND id>?)"),
        (JobFilter { since, user: None, ..base() }, "sqlite_autoindex_jobs_1 (id>?)"),
        (
            JobFilter { until: since, source: Some(Source::Cli), ..base() },
            "jobs_by_user_source (user_id=? AND source=? AND id<?)",
        ),
        (
            JobFilter { since, states: vec![JobState::Failed], ..base() },
            "jobs_by_user_state (user_id=? AND state=? AND id>?)",
        ),
    ] {
        assert!(!filter.is_search(), "{filter:?}");
        let mut query = summaries("token", &filter, 51);
        let steps = plan(&store, sqlx::Execute::sql(query.build()).as_str()).await;
        assert!(steps.iter().any(|step| step.contains(index)), "{index} in {steps:#?}");
        assert!(!steps.iter().any(|step| step.contains("TEMP B-TREE")), "{filter:?}: {steps:#?}");
    }
    // The rows of two filters are searched, and so are those of all users.
    for filter in [
        JobFilter { reason: Some(JobReason::Stuck), source: Some(Source::Cli), ..base() },
        JobFilter { routine, states: vec![JobState::Failed], ..base() },
        JobFilter { model: Some("m".to_owned()), user: None, ..base() },
    ] {
        assert!(filter.is_search(), "{filter:?}");
    }
    store.close().await;
}
