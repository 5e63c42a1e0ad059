//! Full-job runs: each is a job, begins with it and ends as it ends.

use orchestrator::engine::ReadinessReason;
use protocol::{ErrorCode, Job, JobId, JobReason, JobState, Placement, RoutineRun, RunReason, RunStatus, Source};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{
    Reply, User, World, poll,
    routines::{run_of, runs, trigger, triggered, until_run},
    script_of,
};

async fn routine(user: &User, action: Value) -> String {
    super::create(user, "nightly", action).await
}

fn job_action() -> Value {
    json!({"type": "full_job", "description": "Tidy up.", "labels": {"kind": "nightly"}})
}

/// The job of a run that has started.
async fn job_of(user: &User, run: &RoutineRun) -> JobId {
    until_run(user, run.id, RunStatus::Running).await.job_id.unwrap()
}

#[tokio::test]
async fn a_run_is_linked_to_its_job_and_ends_with_it() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = routine(&ada, job_action()).await;
    let body = json!({"payload": {"branch": "main"}});
    let run: RoutineRun = ada.post(&format!("/api/routines/{id}/trigger"), &body).await.expect(202).json();
    let job_id = job_of(&ada, &run).await;
    let job: Job = ada.job(job_id).await;
    assert_eq!((job.source, job.title.as_str()), (Source::Routine, "nightly"));
    assert_eq!(job.routine_id.map(|id| id.to_string()), Some(id.clone()));
    assert_eq!(job.run_id, Some(*run.id.as_uuid()));
    assert_eq!(job.labels.get("kind").map(String::as_str), Some("nightly"));
    assert!(job.prompt.starts_with("Tidy up.") && job.prompt.contains(r#"{"branch":"main"}"#), "{}", job.prompt);
    world.manual_worker(job_id).await.finish("Three files are old.").await;
    let ended = until_run(&ada, run.id, RunStatus::Attention).await;
    assert_eq!((ended.result_summary.as_deref(), ended.reason), (Some("Three files are old."), None));
    assert!(ended.completed_at <= ada.job(job_id).await.finished_at, "in the job's own transaction");
    let run = trigger(&ada, &id).await;
    let job_id = job_of(&ada, &run).await;
    let prompt = ada.job(job_id).await.prompt;
    assert!(prompt.contains("Three files are old."), "the last result: {prompt}");
    world.manual_worker(job_id).await.finish(" ROUTINE_OK\n").await;
    until_run(&ada, run.id, RunStatus::Ok).await;
    world.finish().await;
}

#[tokio::test]
async fn a_run_and_its_job_are_cancelled_together() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = routine(&ada, job_action()).await;
    let run = trigger(&ada, &id).await;
    let job = job_of(&ada, &run).await;
    let _worker = world.manual_worker(job).await;
    ada.post(&format!("/api/runs/{}/cancel", run.id), &json!({})).await.expect(202);
    let ended = until_run(&ada, run.id, RunStatus::Failed).await;
    assert_eq!(ended.reason, Some(RunReason::CancelledByUser), "{ended:?}");
    assert_eq!(ada.job(job).await.state, JobState::Cancelled);
    let run = trigger(&ada, &id).await;
    let job = job_of(&ada, &run).await;
    let _worker = world.manual_worker(job).await;
    ada.cancel(job).await.expect(202);
    let ended = until_run(&ada, run.id, RunStatus::Failed).await;
    assert_eq!(ended.reason, Some(RunReason::JobCancelled), "{ended:?}");
    world.engine().until_empty().await;
    world.finish().await;
}

#[tokio::test]
async fn a_job_that_fails_fails_its_run_with_the_reason() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = routine(&ada, job_action()).await;
    let run = trigger(&ada, &id).await;
    let job = job_of(&ada, &run).await;
    let worker = world.manual_worker(job).await;
    worker
        .report(json!({"outcome": "failed", "reason": "iteration_limit", "text": "too long", "message": "too long"}))
        .await
        .expect(200);
    let ended = until_run(&ada, run.id, RunStatus::Failed).await;
    assert_eq!(ended.reason, Some(RunReason::JobFailed));
    assert!(ended.message.as_deref().is_some_and(|text| text.contains("iteration_limit")), "{ended:?}");
    assert_eq!(ada.job(job).await.reason, Some(JobReason::IterationLimit));
    worker.exit(0);
    world.engine().until_empty().await;
    world.finish().await;
}

#[tokio::test]
async fn a_result_that_waits_for_a_review_keeps_its_run() {
    let world = World::new().await;
    let ada = world.user("ada");
    let mut action = job_action();
    action["review"] = json!(true);
    let id = routine(&ada, action).await;
    let run = trigger(&ada, &id).await;
    let job = job_of(&ada, &run).await;
    world.manual_worker(job).await.finish("Please look.").await;
    ada.wait_for(job, JobState::Submitted).await;
    assert_eq!(run_of(&ada, run.id).await.status, RunStatus::Running);
    ada.post(&format!("/api/jobs/{job}/accept"), &json!({})).await.expect(200);
    until_run(&ada, run.id, RunStatus::Attention).await;
    let run = trigger(&ada, &id).await;
    let job = job_of(&ada, &run).await;
    world.manual_worker(job).await.finish("And again.").await;
    ada.wait_for(job, JobState::Submitted).await;
    let ended: RoutineRun = ada.post(&format!("/api/runs/{}/cancel", run.id), &json!({})).await.expect(202).json();
    assert_eq!((ended.status, ended.reason), (RunStatus::Failed, Some(RunReason::CancelledByUser)));
    assert_eq!(ada.job(job).await.state, JobState::Submitted, "its result still waits");
    ada.post(&format!("/api/jobs/{job}/accept"), &json!({})).await.expect(200);
    world.finish().await;
}

#[tokio::test]
async fn without_a_sandbox_a_run_fails_at_once_and_the_next_one_works_again() {
    let world = World::builder().not_ready(ReadinessReason::EngineUnreachable).build().await;
    let ada = world.user("ada");
    let id = routine(&ada, job_action()).await;
    // Which says nothing about the routine.
    let patch = ada.request(Method::PATCH, &format!("/api/routines/{id}"));
    Reply::of(patch.json(&json!({"guardrails": {"disable_after_failures": 1}}))).await.expect(200);
    for _ in 0..2 {
        let failed = triggered(&ada, &id).await;
        assert_eq!(
            (failed.status, failed.reason),
            (RunStatus::Failed, Some(RunReason::SandboxUnavailable)),
            "{failed:?}"
        );
        assert_eq!((failed.job_id, ada.jobs().await.len()), (None, 0));
    }
    let notified = ada.get("/api/notifications").await.expect(200).body;
    let kinds: Vec<_> = notified["items"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, ["automation_problem"], "{notified:#}");
    world.engine().ready();
    let run = poll("the sandbox to be ready", async || {
        let run = triggered_or_started(&ada, &id).await;
        (run.reason != Some(RunReason::SandboxUnavailable)).then_some(run)
    })
    .await;
    let job = job_of(&ada, &run).await;
    world.manual_worker(job).await.finish("ROUTINE_OK").await;
    until_run(&ada, run.id, RunStatus::Ok).await;
    world.finish().await;
}

/// Fires and waits until the run has a job or has ended.
async fn triggered_or_started(user: &User, id: &str) -> RoutineRun {
    let run = trigger(user, id).await;
    poll("a job or an end", async || {
        Some(run_of(user, run.id).await).filter(|run| run.status.is_finished() || run.job_id.is_some())
    })
    .await
}

#[tokio::test]
async fn where_the_operator_disabled_the_sandbox_the_job_runs_in_the_orchestrator() {
    let rules = [json!({"reply": {"text": "Done without a container."}})];
    let world = World::builder().set("GANTRY_SANDBOX", "disabled").script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    let body = json!({"name": "dry", "trigger": {"type": "manual"}, "action": job_action()});
    let preview = ada.post("/api/routines?dry_run=true", &body).await.expect(200).body;
    assert_eq!(preview["warnings"][0]["code"], "sandbox_disabled", "{preview:#}");
    let id = routine(&ada, job_action()).await;
    let run = triggered(&ada, &id).await;
    assert_eq!((run.status, run.result_summary.as_deref()), (RunStatus::Attention, Some("Done without a container.")));
    assert_eq!(ada.job(run.job_id.unwrap()).await.placement, Placement::Host);
    world.finish().await;
}

#[tokio::test]
async fn a_job_whose_key_is_refused_pauses_the_routine() {
    let rules = [json!({"error": {"status": 401, "message": "no such key"}})];
    let world = World::builder().set("GANTRY_SANDBOX", "disabled").script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    let id = routine(&ada, job_action()).await;
    let run = triggered(&ada, &id).await;
    assert_eq!((run.status, run.reason), (RunStatus::Failed, Some(RunReason::ProviderAccount)), "{run:?}");
    let routine = ada.get(&format!("/api/routines/{id}")).await.expect(200).body;
    assert_eq!((&routine["enabled"], &routine["disabled_reason"]), (&json!(false), &json!("provider_account")));
    world.finish().await;
}

#[tokio::test]
async fn jobs_without_a_container_count_for_the_cap_of_routines() {
    let rules =
        [json!({"when": {"prompt": {"regex": "^hang"}}, "hang": true}), json!({"reply": {"text": "ROUTINE_OK"}})];
    let world = World::builder().set("GANTRY_SANDBOX", "disabled").set("GANTRY_MAX_CONCURRENT_ROUTINES", 1);
    let world = world.script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    let hanging = super::create(&ada, "hanging", json!({"type": "full_job", "description": "hang"})).await;
    let quick = super::create(&ada, "quick", json!({"type": "lightweight", "prompt": "quick"})).await;
    let first = trigger(&ada, &hanging).await;
    until_run(&ada, first.id, RunStatus::Running).await;
    let second = trigger(&ada, &quick).await;
    let third = super::create(&ada, "third", json!({"type": "lightweight", "prompt": "quick"})).await;
    assert_eq!(trigger(&ada, &third).await.status, RunStatus::Queued);
    assert_eq!(run_of(&ada, second.id).await.status, RunStatus::Queued, "one run is in progress");
    ada.post(&format!("/api/runs/{}/cancel", first.id), &json!({})).await.expect(202);
    until_run(&ada, second.id, RunStatus::Ok).await;
    poll("the third", async || Some(runs(&ada, &third).await).filter(|runs| runs[0].status == RunStatus::Ok)).await;
    world.finish().await;
}

#[tokio::test]
async fn the_timeout_of_the_guardrails_limits_the_job() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body = json!({
        "name": "limited", "trigger": {"type": "manual"}, "guardrails": {"timeout_seconds": 90},
        "action": {"type": "full_job", "description": "d", "limits": {"timeout_seconds": 600}},
    });
    let id = ada.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned();
    let run = trigger(&ada, &id).await;
    let job = job_of(&ada, &run).await;
    assert_eq!(ada.job(job).await.limits.timeout_seconds, 90);
    ada.post(&format!("/api/runs/{}/cancel", run.id), &json!({})).await.expect(202);
    ada.wait_for_end(job).await;
    world.finish().await;
}

#[tokio::test]
async fn a_definition_that_jobs_would_refuse_is_refused_and_warned_about() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body = |action: Value| json!({"name": "n", "trigger": {"type": "manual"}, "action": action});
    let action = json!({"type": "full_job", "description": "d", "limits": {"memory_mb": 99_000_000}});
    let refused = ada.post("/api/routines", &body(action)).await.problem(ErrorCode::Invalid);
    assert_eq!(refused.fields(), ["action.limits.memory_mb"]);
    let action = json!({"type": "full_job", "description": "Use routine_create to plan the next one."});
    let saved = ada.post("/api/routines?dry_run=true", &body(action)).await.expect(200).body;
    assert_eq!(saved["warnings"][0]["code"], "tool_not_allowed", "{saved:#}");
    assert_eq!(ada.get("/api/routines").await.expect(200).body["items"], json!([]), "nothing is stored");
    world.finish().await;
}
