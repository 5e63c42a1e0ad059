//! Usage reports by day, job, model, user, routine and label, limited to what the caller may see.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{ErrorCode, JobId, UsageLine};
use reqwest::Method;
use serde_json::json;
use tests::{Reply, User, World, install::program, routines::triggered};

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

/// The values of a line's groups and its model calls.
fn shown(line: &UsageLine) -> String {
    let day = line.day.map(|day| day.to_string());
    let groups =
        [day.as_ref(), line.user.as_ref(), line.routine_name.as_ref(), line.label.as_ref(), line.model.as_ref()];
    let groups: Vec<&str> = groups.into_iter().flatten().map(String::as_str).collect();
    format!("{} {}", groups.join(" "), line.llm_calls)
}

async fn labelled_job(world: &World, who: &User, team: &str) -> JobId {
    let id = who.create(json!({"prompt": "work", "labels": {"team": team, "app.kubernetes.io/name": "x"}})).await;
    let worker = world.manual_worker(id).await;
    worker.complete_llm("c", "hello").await;
    worker.finish("done").await;
    who.wait_for_end(id).await;
    id
}

#[tokio::test]
async fn usage_is_summed_up_by_user_routine_and_label_in_a_period() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).set("GANTRY_LEASE_SECONDS", 3600).build().await;
    let (mut ada, mut bob, mut root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let red = labelled_job(&world, &ada, "red").await;
    labelled_job(&world, &bob, "blue").await;
    time.advance(Duration::from_hours(24));
    ada = ada.with_token(&world.fresh("ada", Role::User));
    bob = bob.with_token(&world.fresh("bob", Role::User));
    root = root.with_token(&world.fresh("root", Role::Admin));
    labelled_job(&world, &bob, "red").await;
    let action = json!({"type": "lightweight", "prompt": "Check."});
    let routine = json!({"name": "watch", "trigger": {"type": "manual"}, "action": action});
    let routine = ada.post("/api/routines", &routine).await.expect(201).body["id"].as_str().unwrap().to_owned();
    triggered(&ada, &routine).await;

    let sums = async |who: &User, query: &str| usage(who, query).await.iter().map(shown).collect::<Vec<_>>();
    assert_eq!(sums(&root, "&by=user").await, ["ada 2", "bob 2"]);
    assert_eq!(sums(&ada, "&by=user").await, ["ada 2"]);
    assert_eq!(sums(&root, "&by=label:team").await, ["blue 1", "red 2"]);
    assert_eq!(sums(&root, "&by=label:team,user").await, ["bob blue 1", "ada red 1", "bob red 1"]);
    assert_eq!(sums(&ada, "&by=label:team").await, ["red 1"]);
    assert_eq!(sums(&root, "&by=label:app.kubernetes.io/name,day").await, ["2026-11-23 x 1", "2026-11-22 x 2"]);
    assert_eq!(sums(&root, "&by=label:unknown").await, [""; 0]);
    assert_eq!(
        sums(&root, "&by=day,user").await,
        ["2026-11-23 ada 1", "2026-11-23 bob 1", "2026-11-22 ada 1", "2026-11-22 bob 1"]
    );
    assert_eq!(sums(&root, "&by=user&since=2026-11-23").await, ["ada 1", "bob 1"]);
    assert_eq!(sums(&root, "&by=user&since=2026-11-23&until=2026-11-23").await, [""; 0]);
    assert_eq!(sums(&root, "&by=day&until=2026-11-23").await, ["2026-11-22 2"]);
    assert_eq!(sums(&root, "&by=day&since=2026-11-23").await, ["2026-11-23 2"]);

    // The routine keeps its name when it is deleted.
    let by_routine = usage(&root, "&by=routine").await;
    assert_eq!(by_routine.iter().map(shown).collect::<Vec<_>>(), ["watch 1"]);
    assert_eq!(by_routine[0].routine_id.map(|id| id.to_string()), Some(routine.clone()));
    Reply::of(ada.request(Method::DELETE, &format!("/api/routines/{routine}"))).await.expect(204);
    assert_eq!(sums(&ada, "&by=routine,day").await, ["2026-11-23 watch 1"]);
    assert_eq!(sums(&bob, "&by=routine").await, [""; 0]);
    // So do the sums of a job that is deleted.
    Reply::of(ada.request(Method::DELETE, &format!("/api/jobs/{red}"))).await.expect(204);
    assert_eq!(sums(&ada, "&by=label:team").await, ["red 1"]);
    world.finish().await;
}

#[tokio::test]
async fn the_dearest_come_first() {
    // A model with a price.
    let world = World::builder().set("GANTRY_LLM_MODEL", "gpt-4o").build().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let (one, two) = (job(&world, &ada, 1).await, job(&world, &bob, 3).await);
    for query in ["&by=user&sort=cost", "&by=job&sort=cost"] {
        let lines = usage(&root, query).await;
        assert!(lines.iter().all(|line| line.cost_usd > Some(0.0)), "{lines:?}");
        assert_eq!(
            lines.iter().map(|line| line.user.as_deref().unwrap()).collect::<Vec<_>>(),
            ["bob", "ada"],
            "{query}"
        );
    }
    let jobs = usage(&root, "&by=job&sort=cost").await;
    assert_eq!(jobs.iter().map(|line| line.job_id).collect::<Vec<_>>(), [Some(two), Some(one)]);
    let variables = [("GANTRY_URL", root.base().to_owned()), ("GANTRY_TOKEN", world.fresh("root", Role::Admin))];
    let environment = variables.map(|(name, value)| (name.to_owned(), value));
    let run = async |arguments: &[&str]| program::run(arguments, &environment).await;
    let table =
        run(&["usage", "--by", "user,model", "--sort", "cost", "--since", "2020-01-01", "--until", "2020-12-31"]).await;
    assert_eq!(table.code, Some(0), "{table:?}");
    let json = run(&["--json", "usage", "--by", "user", "--sort", "cost"]).await.json();
    assert_eq!((&json["items"][0]["user"], &json["items"][1]["user"]), (&json!("bob"), &json!("ada")));
    assert_eq!(run(&["usage", "--by", "hour"]).await.code, Some(2));
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
    let page = ada.get("/api/usage?by=user,model&cursor=W10").await.problem(ErrorCode::Invalid);
    assert_eq!(page.fields(), ["cursor"]);
    for (query, field) in [
        ("by=job,model", "by"),
        ("by=routine,label:a", "by"),
        ("by=label:a b", "by"),
        ("by=user&since=2026-13-01", "since"),
        ("by=user&since=2020-01-01&until=2026-01-01", "since"),
        ("by=user&sort=calls", "sort"),
    ] {
        let refused = ada.get(&format!("/api/usage?{query}")).await.problem(ErrorCode::Invalid);
        assert_eq!(refused.fields(), [field], "{query}");
    }
    world.finish().await;
}
