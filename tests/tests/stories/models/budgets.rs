//! Budgets: calls that exceed a budget are refused, reservations are released, and the agent is warned in time.

use std::time::Duration;

use orchestrator::{
    clock::ManualClock,
    config::{Config, ModelPrice, UnpricedModels},
};
use protocol::{ErrorCode, EventData, JobReason, JobState, MessageRole};
use serde_json::{Value, json};
use tests::{World, script_of};

use crate::models::upstream::{Answer, Upstream};

/// Each answer uses 300 input and 100 output tokens.
fn token_script() -> String {
    let usage = json!({"input_tokens": 300, "output_tokens": 100});
    script_of(&[
        json!({"when": {"last_message": "short"}, "reply": {"text": "ok", "usage": usage}}),
        json!({"reply": {"text": "so far", "usage": usage, "tool_calls": [{"name": "time", "arguments": {}}]}}),
    ])
}

#[tokio::test]
async fn a_token_budget_ends_the_job_with_a_partial_result() {
    let world = World::builder().processes().script(token_script()).build().await;
    let ada = world.user("ada");
    // With one tool: tool definitions count towards the estimate of a call.
    let id = ada.create(json!({"prompt": "work", "tools": ["time"], "limits": {"max_tokens": 2500}})).await;
    let job = ada.wait_for(id, JobState::Failed).await;
    assert_eq!((job.reason, job.limits.max_tokens), (Some(JobReason::TokenBudget), 2500));
    assert!(job.message.is_some_and(|message| message.contains("budget")));
    let used = job.usage.input_tokens + job.usage.output_tokens;
    assert!((2000..=2900).contains(&used), "{used}");
    assert_eq!(job.result.and_then(|result| result.partial).map(|partial| partial.text).as_deref(), Some("so far"));
    let reported: Vec<String> = ada
        .events(id)
        .await
        .into_iter()
        .filter_map(|event| match event.data {
            EventData::Message { role: MessageRole::System, content } => Some(content),
            _ => None,
        })
        .collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("2000 of 2500 (max_tokens)"), "{reported:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_cost_budget_ends_the_job() {
    // gpt-4o: 300 input and 100 output tokens cost 1 750 micro-dollars.
    let world = World::builder().processes().script(token_script()).set("GANTRY_LLM_MODEL", "gpt-4o").build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "tools": ["time"], "limits": {"max_cost_usd": 0.006}})).await;
    let job = ada.wait_for(id, JobState::Failed).await;
    assert_eq!(job.reason, Some(JobReason::CostBudget));
    assert!(job.usage.cost_usd.is_some_and(|cost| (0.004..0.008).contains(&cost)), "{:?}", job.usage);
    world.finish().await;
}

#[tokio::test]
async fn an_operators_ceiling_limits_jobs_without_a_budget() {
    let world = World::builder().script(token_script()).set("GANTRY_LIMITS_MAX_TOKENS", 500).build().await;
    let ada = world.user("ada");
    let over = ada.post("/api/jobs", &json!({"prompt": "work", "limits": {"max_tokens": 501}})).await;
    assert_eq!(over.problem(ErrorCode::Invalid).fields(), ["limits.max_tokens"]);
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.complete_llm("c1", "short").await;
    worker.complete_llm("c2", "short").await;
    worker.ask("c3", "short").await.problem(ErrorCode::TokenBudget);
    worker.finish("done").await;
    assert_eq!(ada.wait_for_end(id).await.limits.max_tokens, 500);
    world.finish().await;
}

#[tokio::test]
async fn concurrent_calls_do_not_exceed_the_budget() {
    let script = script_of(&[
        json!({"reply": {"text": "x", "delay_ms": 300, "usage": {"input_tokens": 10, "output_tokens": 90}}}),
    ]);
    let world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"max_tokens": 1000}})).await;
    let worker = world.manual_worker(id).await;
    let ask = |n: usize| {
        let worker = worker.clone();
        async move {
            let body = json!({"call_id": format!("c{n}"), "max_tokens": 90, "messages": [{"role": "user", "content": "x".repeat(24)}]});
            // A socket accepts 16 requests in flight; the others are retried.
            tests::poll("the call to be accepted", async || {
                let status = worker.post("llm/complete", &body).await.status.as_u16();
                (status != 429).then_some(status)
            })
            .await
        }
    };
    let answers = futures_util::future::join_all((0..50).map(ask)).await;
    let answered = answers.iter().filter(|status| **status == 200).count();
    assert_eq!((answered, answers.iter().filter(|status| **status == 403).count()), (10, 40));
    worker.finish("done").await;
    let used = ada.wait_for_end(id).await.usage;
    assert_eq!(used.input_tokens + used.output_tokens, 1000);
    world.finish().await;
}

#[tokio::test]
async fn reservations_of_a_dead_process_are_released() {
    let script = script_of(&[
        json!({"when": {"last_message": "slow"}, "reply": {"text": "late", "delay_ms": 60_000}}),
        json!({"reply": {"text": "ok", "usage": {"input_tokens": 10, "output_tokens": 10}}}),
    ]);
    let mut world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"max_tokens": 1000}})).await;
    let worker = world.manual_worker(id).await;
    let mut asking = tokio::task::JoinSet::new();
    asking.spawn({
        let worker = worker.clone();
        async move { worker.ask("c1", "slow").await }
    });
    let store = world.store().await;
    tests::within("the call to be in flight", async {
        while store.reserved().await.unwrap() == (0, 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    store.close().await;
    world.restart().await;
    drop(asking);
    let worker = world.manual_worker(id).await;
    worker.complete_llm("c2", "quick").await;
    worker.finish("done").await;
    world.user("ada").wait_for(id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn a_daily_budget_is_reset_the_next_day() {
    let time = ManualClock::at("2026-11-22T23:00:00Z".parse().unwrap());
    let world =
        World::builder().clock(&time).script(token_script()).set("GANTRY_USER_DAY_MAX_TOKENS", 400).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let first = ada.create_job("one").await;
    let worker = world.manual_worker(first).await;
    worker.complete_llm("c1", "short").await;
    let refused = worker.ask("c2", "short").await.problem(ErrorCode::TokenBudget);
    assert!(refused.body["detail"].as_str().unwrap().contains("a day"));
    worker.finish("done").await;
    let late = ada.create_job("two").await;
    let late = ada.wait_for(late, JobState::Failed).await;
    assert_eq!((late.reason, late.attempt), (Some(JobReason::TokenBudget), 0));
    let others = bob.create_job("three").await;
    world.manual_worker(others).await.finish("done").await;
    bob.wait_for(others, JobState::Completed).await;
    time.advance(Duration::from_hours(2));
    let ada = world.user("ada");
    let next = ada.create_job("four").await;
    let worker = world.manual_worker(next).await;
    worker.complete_llm("c1", "short").await;
    worker.finish("done").await;
    ada.wait_for(next, JobState::Completed).await;
    world.finish().await;
}

/// A provider whose model is in no price list.
async fn unpriced() -> Upstream {
    Upstream::start(|_| (Answer::Text("ok".to_owned()), json!({"prompt_tokens": 10, "completion_tokens": 1}))).await
}

fn name_a_price(config: &mut Config) {
    let price = ModelPrice {
        input_usd_per_million_tokens: 1.0,
        output_usd_per_million_tokens: 2.0,
        cache_read_usd_per_million_tokens: None,
        cache_write_usd_per_million_tokens: None,
    };
    config.llm.prices.insert("small-model".to_owned(), price);
}

#[tokio::test]
async fn a_cost_limit_on_a_model_without_a_price_is_refused() {
    let upstream = unpriced().await;
    let limited = json!({"prompt": "work", "limits": {"max_cost_usd": 1.0}});
    for setting in [None, Some("GANTRY_LIMITS_MAX_COST_USD"), Some("GANTRY_USER_DAY_MAX_COST_USD")] {
        let builder = upstream.world();
        let builder = if let Some(name) = setting { builder.set(name, 5) } else { builder };
        let mut world = builder.build().await;
        let ada = world.user("ada");
        let refused = ada.post("/api/jobs", &limited).await.problem(ErrorCode::UnpricedModel);
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("small-model") && detail.contains("llm.prices"), "{detail}");
        let plain = ada.post("/api/jobs", &json!({"prompt": "work"})).await;
        if setting.is_some() {
            plain.problem(ErrorCode::UnpricedModel);
            assert!(ada.jobs().await.is_empty(), "nothing is stored");
        } else {
            let id = plain.expect(201).json::<protocol::Job>().id;
            world.manual_worker(id).await.finish("done").await;
        }
        world.restart_with(name_a_price).await;
        let ada = world.user("ada");
        let id = ada.create(limited.clone()).await;
        world.manual_worker(id).await.finish("done").await;
        world.finish().await;
    }
}

/// Wherever a cost is shown, one that is not known is null and not 0.
#[tokio::test]
async fn the_cost_of_calls_without_a_price_is_null() {
    let upstream = unpriced().await;
    let mut world = upstream.world().build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    world.manual_worker(id).await.complete_llm("c1", "hi").await;
    world.restart_with(name_a_price).await;
    let ada = world.user("ada");
    let worker = world.manual_worker(id).await;
    worker.complete_llm("c2", "hi").await;
    worker.finish("done").await;
    let priced = ada.create_job("work").await;
    world.manual_worker(priced).await.finish("done").await;

    let costs = async |path: String, pointer: &str| -> Vec<Value> {
        let body = ada.get(&path).await.expect(200).body;
        let items = body["items"].as_array().cloned().unwrap_or_else(|| vec![body]);
        items.iter().map(|item| item.pointer(pointer).cloned().expect(pointer)).collect()
    };
    let known = json!(0.000_012);
    assert_eq!(costs(format!("/api/jobs/{id}/llm-calls"), "/cost_usd").await, [Value::Null, known.clone()]);
    let events = costs(format!("/api/jobs/{id}/events?kind=llm_call"), "/data/cost_usd").await;
    assert_eq!(events, [Value::Null, known]);
    assert_eq!(costs(format!("/api/jobs/{id}"), "/usage/cost_usd").await, [Value::Null]);
    assert_eq!(costs("/api/jobs".to_owned(), "/usage/cost_usd").await, [json!(0.0), Value::Null]);
    assert_eq!(costs("/api/usage?by=job".to_owned(), "/cost_usd").await, [json!(0.0), Value::Null]);
    for sum in ["/api/usage?by=day", "/api/usage?by=model"] {
        assert_eq!(costs(sum.to_owned(), "/cost_usd").await, [Value::Null], "{sum}");
    }
    assert_eq!(costs("/api/jobs/summary".to_owned(), "/usage_today/cost_usd").await, [Value::Null]);
    world.finish().await;
}

#[tokio::test]
async fn a_removed_price_blocks_queued_jobs_and_ends_running_ones() {
    let upstream = unpriced().await;
    let mut world = upstream.world().build().await;
    world.restart_with(name_a_price).await;
    let ada = world.user("ada");
    let limits = json!({"max_cost_usd": 1.0});
    let held = ada.create(json!({"prompt": "later", "hold": true, "limits": limits})).await;
    let failed = ada.create(json!({"prompt": "fails", "limits": limits})).await;
    let worker = world.manual_worker(failed).await;
    worker.report(json!({"outcome": "failed", "reason": "internal", "text": ""})).await.expect(200);
    worker.exit(0);
    ada.wait_for(failed, JobState::Failed).await;
    let running = ada.create(json!({"prompt": "work", "limits": limits})).await;
    world.manual_worker(running).await.complete_llm("c1", "hi").await;

    world.restart_with(|config| config.llm.prices.clear()).await;

    let ada = world.user("ada");
    ada.post(&format!("/api/jobs/{held}/start"), &json!({})).await.problem(ErrorCode::UnpricedModel);
    ada.post(&format!("/api/jobs/{failed}/restart"), &json!({})).await.problem(ErrorCode::UnpricedModel);
    let worker = world.manual_worker(running).await;
    worker.ask("c2", "hi").await.problem(ErrorCode::CostBudget);
    assert_eq!(worker.complete_llm("c1", "hi").await.content, "ok", "a recorded answer needs no price");

    world.restart_with(|config| config.llm.unpriced = UnpricedModels::Allow).await;
    let ada = world.user("ada");
    let worker = world.manual_worker(running).await;
    worker.complete_llm("c2", "hi").await;
    worker.finish("done").await;
    ada.post(&format!("/api/jobs/{held}/start"), &json!({})).await.expect(202);
    let worker = world.manual_worker(held).await;
    worker.complete_llm("c1", "hi").await;
    worker.finish("done").await;
    let is_warning = |event: &protocol::Event| matches!(&event.data, EventData::Status { message, .. } if message.contains("max_cost_usd is not enforced"));
    assert!(ada.events(held).await.iter().any(is_warning));
    ada.wait_for(held, JobState::Completed).await;
    world.finish().await;
}
