//! Guardrails: what becomes of firings that a routine does not want, and of runs that fail.

use std::time::Duration;

use orchestrator::clock::ManualClock;
use protocol::{BudgetUse, DisabledReason, ErrorCode, Notification, Page, Routine, RoutineRun, RunReason, RunStatus};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{
    User, World, poll,
    routines::{run_of, runs, trigger, triggered, until_run},
    script_of, until,
};

async fn guarded(user: &User, guardrails: Value) -> String {
    let action = json!({"type": "lightweight", "prompt": "Check."});
    let body = json!({"name": "guarded", "trigger": {"type": "manual"}, "action": action, "guardrails": guardrails});
    user.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned()
}

async fn routine(user: &User, id: &str) -> Routine {
    user.get(&format!("/api/routines/{id}")).await.expect(200).json()
}

/// What the routine has used of its budget, the same alone and in a list.
async fn used(user: &User, id: &str) -> Option<BudgetUse> {
    let page: Page<Routine> = user.get("/api/routines").await.expect(200).json();
    let listed = page.items.into_iter().find(|routine| routine.id.to_string() == id).unwrap();
    let shown = routine(user, id).await.budget_used;
    assert_eq!(listed.budget_used, shown);
    shown
}

async fn notifications(user: &User) -> Vec<Notification> {
    let page: Page<Notification> = user.get("/api/notifications?limit=200").await.expect(200).json();
    page.items
}

fn kinds(notifications: &[Notification]) -> Vec<&'static str> {
    notifications.iter().map(|one| one.kind.as_str()).collect()
}

/// Fires and expects a refusal. The run that is recorded for it.
async fn refused(user: &User, id: &str, code: ErrorCode) -> RoutineRun {
    user.post(&format!("/api/routines/{id}/trigger"), &json!({})).await.problem(code);
    runs(user, id).await.remove(0)
}

fn hanging() -> String {
    script_of(&[json!({"hang": true})])
}

#[tokio::test]
async fn a_busy_routine_skips_the_next_firing() {
    let world = World::builder().script(hanging()).build().await;
    let ada = world.user("ada");
    let id = guarded(&ada, json!({})).await;
    let first = trigger(&ada, &id).await;
    until_run(&ada, first.id, RunStatus::Running).await;
    let skipped = refused(&ada, &id, ErrorCode::RoutineBusy).await;
    assert_eq!((skipped.status, skipped.reason), (RunStatus::Skipped, Some(RunReason::Overlap)));
    let cancelled: RoutineRun =
        ada.post(&format!("/api/runs/{}/cancel", first.id), &json!({})).await.expect(202).json();
    assert_eq!((cancelled.status, cancelled.reason), (RunStatus::Failed, Some(RunReason::CancelledByUser)));
    ada.post(&format!("/api/runs/{}/cancel", first.id), &json!({})).await.problem(ErrorCode::RunFinished);
    let now = routine(&ada, &id).await;
    assert_eq!((now.consecutive_failures, notifications(&ada).await.len()), (0, 0), "a person has cancelled it");
    world.finish().await;
}

#[tokio::test]
async fn one_firing_waits_and_starts_when_the_run_before_it_ends() {
    let world = World::builder().script(hanging()).build().await;
    let ada = world.user("ada");
    let id = guarded(&ada, json!({"overlap": "queue_one"})).await;
    let first = trigger(&ada, &id).await;
    until_run(&ada, first.id, RunStatus::Running).await;
    let second = trigger(&ada, &id).await;
    assert_eq!(run_of(&ada, second.id).await.status, RunStatus::Queued);
    let third = refused(&ada, &id, ErrorCode::RoutineBusy).await;
    assert_eq!(third.status, RunStatus::Skipped);
    ada.post(&format!("/api/runs/{}/cancel", first.id), &json!({})).await.expect(202);
    until_run(&ada, second.id, RunStatus::Running).await;
    ada.post(&format!("/api/routines/{id}/disable"), &json!({})).await.expect(200);
    assert_eq!(run_of(&ada, second.id).await.status, RunStatus::Running, "it goes on");
    ada.post(&format!("/api/runs/{}/cancel", second.id), &json!({})).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn a_later_firing_replaces_the_run_in_progress() {
    let world = World::builder().script(hanging()).build().await;
    let ada = world.user("ada");
    let id = guarded(&ada, json!({"overlap": "cancel_previous"})).await;
    let first = trigger(&ada, &id).await;
    until_run(&ada, first.id, RunStatus::Running).await;
    let second = trigger(&ada, &id).await;
    let replaced = run_of(&ada, first.id).await;
    assert_eq!((replaced.status, replaced.reason), (RunStatus::Failed, Some(RunReason::CancelledByOverlap)));
    until_run(&ada, second.id, RunStatus::Running).await;
    ada.post(&format!("/api/runs/{}/cancel", second.id), &json!({})).await.expect(202);
    assert_eq!(notifications(&ada).await, [], "nothing has failed");
    world.finish().await;
}

#[tokio::test]
async fn waiting_runs_of_a_routine_that_is_disabled_end() {
    let world = World::builder().script(hanging()).build().await;
    let ada = world.user("ada");
    let id = guarded(&ada, json!({"overlap": "queue_one"})).await;
    let first = trigger(&ada, &id).await;
    until_run(&ada, first.id, RunStatus::Running).await;
    let second = trigger(&ada, &id).await;
    ada.post(&format!("/api/routines/{id}/toggle"), &json!({})).await.expect(200);
    let ended = run_of(&ada, second.id).await;
    assert_eq!((ended.status, ended.reason), (RunStatus::Skipped, Some(RunReason::RoutineChanged)));
    ada.post(&format!("/api/routines/{id}/trigger"), &json!({})).await.problem(ErrorCode::RoutineDisabled);
    ada.post(&format!("/api/runs/{}/cancel", first.id), &json!({})).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn a_failed_run_is_tried_again_after_a_while_as_the_same_run() {
    let clock = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let rules = [
        json!({"times": 2, "error": {"status": 400, "message": "broken"}}),
        json!({"reply": {"text": "It works again."}}),
    ];
    let world = World::builder().clock(&clock).script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    let id = guarded(&ada, json!({"retry": {"max_attempts": 2, "backoff_seconds": 10}})).await;
    let run = trigger(&ada, &id).await;
    let waiting = poll("the second attempt to be planned", async || {
        Some(run_of(&ada, run.id).await).filter(|run| run.attempt == 2)
    })
    .await;
    assert_eq!((waiting.status, waiting.reason), (RunStatus::Queued, Some(RunReason::LlmError)), "{waiting:?}");
    assert!(waiting.not_before.is_some_and(|at| at > waiting.created_at));
    let failed = poll("the end of the second attempt", async || {
        clock.advance(Duration::from_secs(11));
        Some(run_of(&ada, run.id).await).filter(|run| run.status == RunStatus::Failed)
    })
    .await;
    assert_eq!(failed.attempt, 2);
    let run = trigger(&ada, &id).await;
    let ended = until_run(&ada, run.id, RunStatus::Attention).await;
    assert_eq!(ended.result_summary.as_deref(), Some("It works again."));
    let now = routine(&ada, &id).await;
    assert_eq!((now.run_count, now.state.as_deref()), (2, Some("It works again.")));
    world.finish().await;
}

#[tokio::test]
async fn failures_in_a_row_notify_once_and_disable_the_routine_once() {
    let rules = [
        json!({"times": 2, "error": {"status": 400, "message": "broken"}}),
        json!({"times": 1, "reply": {"text": "ROUTINE_OK"}}),
        json!({"error": {"status": 400, "message": "broken"}}),
    ];
    let world = World::builder().script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    let id = guarded(&ada, json!({"disable_after_failures": 3})).await;
    for _ in 0..2 {
        assert_eq!(triggered(&ada, &id).await.status, RunStatus::Failed);
    }
    assert_eq!(kinds(&notifications(&ada).await), ["run_failed"], "the second failure is no news");
    assert_eq!(routine(&ada, &id).await.consecutive_failures, 2);
    assert_eq!(triggered(&ada, &id).await.status, RunStatus::Ok);
    assert_eq!(routine(&ada, &id).await.consecutive_failures, 0);
    for _ in 0..3 {
        triggered(&ada, &id).await;
    }
    assert_eq!(kinds(&notifications(&ada).await), ["routine_disabled", "run_failed", "run_failed"]);
    let now = routine(&ada, &id).await;
    assert_eq!((now.enabled, now.disabled_reason), (false, Some(DisabledReason::Failures)));
    world.finish().await;
}

#[rstest]
#[case::outage(json!({"error": {"status": 503, "message": "down"}}), RunReason::LlmError)]
#[case::rate_limit(json!({"rate_limit": {"retry_after_seconds": 86_400}}), RunReason::RateLimited)]
#[tokio::test]
async fn a_provider_that_does_not_answer_disables_no_routine(#[case] rule: Value, #[case] reason: RunReason) {
    let world = World::builder().script(script_of(&[rule])).set("GANTRY_LLM_OUTAGE_PATIENCE_SECONDS", 1).build().await;
    let ada = world.user("ada");
    let id = guarded(&ada, json!({"disable_after_failures": 1})).await;
    let run = triggered(&ada, &id).await;
    assert_eq!((run.status, run.reason), (RunStatus::Failed, Some(reason)), "{run:?}");
    let now = routine(&ada, &id).await;
    assert_eq!((now.enabled, now.consecutive_failures, now.run_count), (true, 0, 1));
    let notified = notifications(&ada).await;
    assert_eq!(kinds(&notified), ["automation_problem"]);
    assert!(notified[0].text.contains(reason.as_str()), "{notified:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_spent_budget_stops_firings_until_the_next_period_and_notifies_once() {
    let clock = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let rules = [json!({"reply": {"text": "ROUTINE_OK"}})];
    let world = World::builder().clock(&clock).script(script_of(&rules)).build().await;
    let mut ada = world.user("ada");
    for (per, days) in [("day", 1), ("week", 7), ("month", 31)] {
        let body = json!({"name": per, "trigger": {"type": "manual"}, "action": {"type": "lightweight", "prompt": "p"},
            "guardrails": {"budget": {"max_tokens": 1, "per": per}}});
        let id = ada.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned();
        assert_eq!(used(&ada, &id).await.map(|used| used.tokens), Some(0));
        let run = triggered(&ada, &id).await;
        assert_eq!(run.status, RunStatus::Ok);
        let first = used(&ada, &id).await.unwrap();
        assert!(first.tokens == run.tokens_used && first.tokens > 0, "{per}: {first:?}");
        for _ in 0..2 {
            let skipped = refused(&ada, &id, ErrorCode::RoutineSkipped).await;
            assert_eq!((skipped.status, skipped.reason), (RunStatus::Skipped, Some(RunReason::Budget)), "{per}");
        }
        let spent = notifications(&ada).await.into_iter().filter(|one| one.kind.as_str() == "budget_spent");
        assert_eq!(spent.filter(|one| one.title.contains(per)).count(), 1, "{per}");
        clock.advance(Duration::from_hours(24 * days));
        ada = world.user("ada");
        // The period has passed, and nothing has run in this one.
        let next = used(&ada, &id).await.unwrap();
        assert!(next.tokens == 0 && next.since > first.since, "{per}: {next:?}");
        assert_eq!(triggered(&ada, &id).await.status, RunStatus::Ok, "{per}");
        assert_eq!(used(&ada, &id).await.unwrap().tokens, first.tokens, "{per}");
    }
    let unlimited = guarded(&ada, json!({})).await;
    assert_eq!(used(&ada, &unlimited).await, None);
    world.finish().await;
}

#[tokio::test]
async fn a_queued_run_does_not_start_once_the_budget_is_spent() {
    let slow =
        json!({"reply": {"text": "ROUTINE_OK", "delay_ms": 300, "usage": {"input_tokens": 5, "output_tokens": 5}}});
    let world = World::builder().script(script_of(&[slow])).build().await;
    let ada = world.user("ada");
    let id = guarded(&ada, json!({"overlap": "queue_one", "budget": {"max_tokens": 1}})).await;
    let first = trigger(&ada, &id).await;
    let second = trigger(&ada, &id).await;
    until_run(&ada, first.id, RunStatus::Ok).await;
    let ended = until_run(&ada, second.id, RunStatus::Skipped).await;
    assert_eq!((ended.reason, ended.started_at), (Some(RunReason::Budget), None));
    world.finish().await;
}

#[tokio::test]
async fn a_run_is_not_tried_again_once_the_budget_is_spent() {
    let empty = json!({"reply": {"text": " ", "usage": {"input_tokens": 5, "output_tokens": 5}}});
    let world = World::builder().script(script_of(&[empty])).build().await;
    let ada = world.user("ada");
    let guardrails =
        json!({"retry": {"max_attempts": 5, "backoff_seconds": 0}, "budget": {"max_tokens": 1, "per": "week"}});
    let id = guarded(&ada, guardrails).await;
    let run = triggered(&ada, &id).await;
    assert_eq!((run.status, run.attempt), (RunStatus::Failed, 1), "{run:?}");
    world.finish().await;
}

#[tokio::test]
async fn too_many_runs_in_a_minute_disable_the_routine_with_one_notice() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body = json!({"name": "loud", "trigger": {"type": "manual"}, "action": {"type": "system_event_text", "text": "t"},
        "guardrails": {"max_concurrent": 100}});
    let id = ada.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned();
    for _ in 0..60 {
        trigger(&ada, &id).await;
    }
    until("the runs to end", async || runs(&ada, &id).await.iter().all(|run| run.status.is_finished())).await;
    let skipped = refused(&ada, &id, ErrorCode::RoutineSkipped).await;
    assert_eq!(skipped.reason, Some(RunReason::FireRate));
    let now = routine(&ada, &id).await;
    assert_eq!(now.disabled_reason, Some(DisabledReason::FireRate));
    assert_eq!(kinds(&notifications(&ada).await), ["routine_disabled"]);
    world.finish().await;
}

#[tokio::test]
async fn many_queued_runs_that_start_within_a_minute_disable_the_routine() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body = json!({"name": "burst", "trigger": {"type": "event", "pattern": "."}, "action": {"type": "system_event_text", "text": "t"},
        "guardrails": {"max_concurrent": 100, "cooldown_seconds": 0}});
    let id = ada.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned();
    let message = json!({"content": "hello"});
    futures_util::future::join_all((0..80).map(|_| ada.post("/api/messages", &message))).await;
    until("the routine to be disabled", async || !routine(&ada, &id).await.enabled).await;
    assert_eq!(routine(&ada, &id).await.disabled_reason, Some(DisabledReason::FireRate));
    let notified = "each run has two lines, and more than 100 wait";
    let mut sent = kinds(&notifications(&ada).await);
    sent.sort_unstable();
    assert_eq!(sent, ["automation_problem", "routine_disabled"], "{notified}");
    until("the runs to end", async || runs(&ada, &id).await.iter().all(|run| run.status.is_finished())).await;
    world.finish().await;
}

#[rstest]
#[case::last_run(json!({"max_runs": 2}), DisabledReason::MaxRuns)]
#[tokio::test]
async fn a_routine_with_a_number_of_runs_is_done_after_them(#[case] guardrails: Value, #[case] reason: DisabledReason) {
    let rules = [json!({"reply": {"text": "ROUTINE_OK"}})];
    let world = World::builder().script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    let id = guarded(&ada, guardrails).await;
    for _ in 0..2 {
        assert_eq!(triggered(&ada, &id).await.status, RunStatus::Ok);
    }
    let now = routine(&ada, &id).await;
    assert_eq!((now.enabled, now.disabled_reason, now.run_count), (false, Some(reason), 2));
    assert_eq!(notifications(&ada).await, [], "its end was expected");
    world.finish().await;
}

#[tokio::test]
async fn runs_of_many_routines_wait_for_room_and_none_is_skipped() {
    let rules = [json!({"reply": {"text": "ROUTINE_OK"}})];
    let world = World::builder().script(script_of(&rules)).set("GANTRY_MAX_CONCURRENT_ROUTINES", 2).build().await;
    let ada = world.user("ada");
    let mut ids = vec![];
    for number in 0..8 {
        let action = json!({"type": "lightweight", "prompt": "Check."});
        ids.push(super::create(&ada, &format!("one-{number}"), action).await);
    }
    for id in &ids {
        trigger(&ada, id).await;
    }
    for id in &ids {
        let ended = poll("its end", async || runs(&ada, id).await.pop().filter(|run| run.status.is_finished())).await;
        assert_eq!(ended.status, RunStatus::Ok);
    }
    world.finish().await;
}

#[rstest]
#[case::digest_only(false, None)]
#[case::kept(true, Some(json!({"secret": "of the sender"})))]
#[tokio::test]
async fn a_payload_is_kept_only_if_the_routine_asks_for_it(#[case] persist: bool, #[case] kept: Option<Value>) {
    let rules = [json!({"reply": {"text": "ROUTINE_OK"}})];
    let world = World::builder().script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    let body = json!({"name": "n", "trigger": {"type": "manual"}, "action": {"type": "lightweight", "prompt": "p"},
        "persist_payload": persist});
    let id = ada.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned();
    let body = json!({"payload": {"secret": "of the sender"}, "wait_seconds": 60});
    let run: RoutineRun = ada.post(&format!("/api/routines/{id}/trigger"), &body).await.expect(200).json();
    let shown = run_of(&ada, run.id).await;
    assert_eq!(shown.trigger_detail.get("payload").cloned(), kept);
    assert_eq!(shown.trigger_detail["payload_sha256"].as_str().map(str::len), Some(64));
    world.finish().await;
}
