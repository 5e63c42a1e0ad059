//! Lists of jobs by what created them, how they ended and when, and their numbers by hour.

use std::collections::BTreeMap;

use orchestrator::auth::Role;
use protocol::{CreateJob, JobHistogram, JobId, JobSummary, Page, RunStatus};
use reqwest::Method;
use serde_json::json;
use tests::{
    Reply, User, World,
    routines::{trigger, until_run},
};

async fn listed(user: &User, query: &str) -> Vec<JobId> {
    let page: Page<JobSummary> = user.get(&format!("/api/jobs?{query}")).await.expect(200).json();
    page.items.into_iter().map(|job| job.id).collect()
}

/// The numbers of all hours together.
async fn counted(user: &User, query: &str) -> BTreeMap<String, u64> {
    let histogram: JobHistogram = user.get(&format!("/api/jobs/histogram?{query}")).await.expect(200).json();
    assert!(histogram.items.is_sorted_by(|a, b| a.hour < b.hour));
    let mut states = BTreeMap::new();
    for (state, jobs) in histogram.items.into_iter().flat_map(|hour| hour.states) {
        *states.entry(state).or_default() += jobs;
    }
    states
}

fn numbers(states: &[(&str, u64)]) -> BTreeMap<String, u64> {
    states.iter().map(|(state, jobs)| ((*state).to_owned(), *jobs)).collect()
}

#[tokio::test]
async fn jobs_are_found_by_creator_model_reason_routine_and_time_and_counted_by_hour() {
    let world = World::builder().set("GANTRY_LLM_MODELS", "large,small").build().await;
    let (ada, eve, root) = (world.user("ada"), world.user("eve"), world.someone("root", Role::Admin));
    let of_eve = eve.create(json!({"prompt": "work", "hold": true})).await;
    let small = ada.create(json!({"prompt": "work", "hold": true, "model": "small"})).await;
    let large = ada.create(json!({"prompt": "work", "hold": true, "model": "large"})).await;
    for (user, job) in [(&eve, of_eve), (&ada, small), (&ada, large)] {
        user.cancel(job).await.expect(202);
    }
    let of_tool = world.submit("ada", CreateJob { prompt: "work".to_owned(), ..CreateJob::default() }).await.unwrap();
    world.manual_worker(of_tool).await.finish("Done.").await;
    ada.wait_for_end(of_tool).await;
    let action = json!({"type": "full_job", "description": "Tidy up."});
    let body = json!({"name": "tidy", "trigger": {"type": "manual"}, "action": action});
    let routine = ada.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned();
    let run = trigger(&ada, &routine).await;
    let of_run = until_run(&ada, run.id, RunStatus::Running).await.job_id.unwrap();
    world.manual_worker(of_run).await.finish("ROUTINE_OK").await;
    until_run(&ada, run.id, RunStatus::Ok).await;

    let at = async |id: JobId| ada.job(id).await.created_at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
    let (at_large, at_run) = (at(large).await, at(of_run).await);
    for (query, expected) in [
        ("source=tool".to_owned(), vec![of_tool]),
        ("source=api".to_owned(), vec![large, small]),
        ("model=small".to_owned(), vec![small]),
        ("reason=cancelled_by_user".to_owned(), vec![large, small]),
        ("reason=cancelled_by_user&model=large&state=cancelled".to_owned(), vec![large]),
        ("reason=llm_error".to_owned(), vec![]),
        (format!("routine_id={routine}"), vec![of_run]),
        (format!("routine_id={routine}&state=failed"), vec![]),
        (format!("run_id={}&source=routine", run.id), vec![of_run]),
        (format!("since={at_large}"), vec![of_run, of_tool, large]),
        (format!("since={at_large}&until={at_run}&limit=1"), vec![of_tool]),
        (format!("until={at_large}&state=cancelled"), vec![small]),
    ] {
        assert_eq!(listed(&ada, &query).await, expected, "{query}");
        assert_eq!(listed(&root, &format!("{query}&user=ada")).await, expected, "{query}");
        let expected: Vec<JobId> = listed(&root, &query).await.into_iter().filter(|id| *id != of_eve).collect();
        assert_eq!(listed(&ada, &query).await, expected, "{query}");
    }
    assert_eq!(listed(&eve, &format!("routine_id={routine}")).await, vec![]);
    assert_eq!(listed(&eve, "reason=cancelled_by_user").await, vec![of_eve]);

    assert_eq!(counted(&ada, "").await, numbers(&[("cancelled", 2), ("completed", 2)]));
    assert_eq!(counted(&ada, "state=completed,failed").await, numbers(&[("completed", 2)]));
    assert_eq!(counted(&ada, "until=2026-01-09T00:00:00Z&since=2026-01-01T00:00:00Z").await, numbers(&[]));
    assert_eq!(counted(&root, "").await, numbers(&[("cancelled", 3), ("completed", 2)]));
    assert_eq!(counted(&root, "user=eve").await, numbers(&[("cancelled", 1)]));
    eve.get("/api/jobs/histogram?user=ada").await.expect(403);
    world.finish().await;
}

#[tokio::test]
async fn a_filter_that_makes_no_sense_is_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    for (path, field) in [
        ("/api/jobs?source=mail", "source"),
        ("/api/jobs?reason=tired", "reason"),
        ("/api/jobs?since=yesterday", "since"),
        ("/api/jobs?routine_id=tidy", "routine_id"),
        ("/api/jobs?model=%00", "model"),
        ("/api/runs?reason=tired", "reason"),
        ("/api/jobs/histogram?state=tired", "state"),
        ("/api/jobs/histogram?since=2026-01-01T00:00:00Z&until=2026-01-09T00:00:01Z", "since"),
        ("/api/runs/histogram?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "since"),
        ("/api/routines/upcoming?limit=0", "limit"),
    ] {
        let refused = Reply::of(ada.request(Method::GET, path)).await.expect(422);
        assert_eq!(refused.body["errors"][0]["field"], field, "{path}: {:#}", refused.body);
    }
    world.finish().await;
}
