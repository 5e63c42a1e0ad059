//! Usage reports by day, job and model, limited to what the caller may see.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{ErrorCode, JobId, UsageLine};
use serde_json::json;
use tests::{User, World};

async fn usage(who: &User, query: &str) -> Vec<UsageLine> {
    let (mut lines, mut cursor) = (vec![], String::new());
    loop {
        let page = who.get(&format!("/api/usage?limit=1{query}{cursor}")).await.expect(200);
        let items: Vec<UsageLine> = serde_json::from_value(page.body["items"].clone()).unwrap();
        assert!(items.len() <= 1);
        lines.extend(items);
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return lines,
        }
    }
}

/// A job with `calls` model calls and one tool call.
async fn job(world: &World, who: &User, calls: usize) -> JobId {
    let id = who.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    for call in 0..calls {
        worker.complete_llm(&format!("c{call}"), "hello").await;
    }
    worker.tool("echo", "t1", json!({"message": "m"})).await.expect(200);
    worker
        .send(&[(1, "tool_use", json!({"call_id": "t1", "tool": "echo", "input": {"message": "m"}}))])
        .await
        .expect(200);
    worker.finish("done").await;
    who.wait_for_end(id).await;
    id
}

#[tokio::test]
async fn usage_totals_agree_for_all_groupings() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).set("GANTRY_LEASE_SECONDS", 3600).build().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let first = job(&world, &ada, 2).await;
    job(&world, &bob, 1).await;
    time.advance(Duration::from_hours(20));
    let (ada, root) =
        (ada.with_token(&world.fresh("ada", Role::User)), root.with_token(&world.fresh("root", Role::Admin)));
    let second = job(&world, &ada, 1).await;
    let days = usage(&ada, "").await;
    let shown: Vec<_> =
        days.iter().map(|line| (line.day.unwrap().to_string(), line.llm_calls, line.tool_calls)).collect();
    assert_eq!(shown, [("2026-11-23".to_owned(), 1, Some(1)), ("2026-11-22".to_owned(), 2, Some(1))]);
    let jobs = usage(&ada, "&by=job").await;
    let shown: Vec<_> =
        jobs.iter().map(|line| (line.job_id, line.user.as_deref(), line.llm_calls, line.tool_calls)).collect();
    assert_eq!(shown, [(Some(second), Some("ada"), 1, Some(1)), (Some(first), Some("ada"), 2, Some(1))]);
    let models = usage(&ada, "&by=model").await;
    assert_eq!((models.len(), models[0].llm_calls, models[0].tool_calls), (1, 3, None));
    assert_eq!(models[0].model.as_deref(), Some(ada.job(first).await.model.as_str()));
    let tokens = |lines: &[UsageLine]| {
        lines.iter().map(|line| (line.input_tokens, line.output_tokens)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    };
    assert!(tokens(&days).0 > 0);
    assert_eq!((tokens(&days), tokens(&days)), (tokens(&jobs), tokens(&models)));
    // An admin sees all users, or one.
    assert_eq!(usage(&root, "&by=job").await.len(), 3);
    assert_eq!(usage(&root, "&by=job&user=bob").await.len(), 1);
    assert_eq!(usage(&root, "&by=model").await[0].llm_calls, 4);
    world.finish().await;
}

#[tokio::test]
async fn users_see_only_their_own_usage() {
    let world = World::new().await;
    let ada = world.user("ada");
    ada.get("/api/usage?user=ada").await.expect(200);
    ada.get("/api/usage?user=bob").await.problem(ErrorCode::Forbidden);
    ada.get("/api/usage?by=hour").await.problem(ErrorCode::Invalid);
    let of_days = "MjAyNi0xMS0yMg";
    let wrong = ada.get(&format!("/api/usage?by=job&cursor={of_days}")).await.problem(ErrorCode::Invalid);
    assert_eq!(wrong.fields(), ["cursor"]);
    world.finish().await;
}
