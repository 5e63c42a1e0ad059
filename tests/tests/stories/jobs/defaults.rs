//! What a job gets where its request does not say it: the user's settings, then the operator's defaults.

use protocol::{CreateJob, Job, JobOptions, Limits};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World, WorldBuilder, routines::trigger, routines::until_run};

fn operator() -> WorldBuilder {
    World::builder()
        .set("GANTRY_LLM_MODELS", "large,small")
        .set("GANTRY_DEFAULTS_TIMEOUT_SECONDS", 120)
        .set("GANTRY_DEFAULTS_MAX_ITERATIONS", 7)
        .set("GANTRY_DEFAULTS_PLAN", true)
        .set("GANTRY_DEFAULTS_MODEL", "large")
}

/// The timeout, the iterations and the model of a job, and whether it plans. Ends it.
async fn taken(world: &World, job: &Job) -> (u64, u32, String, bool) {
    let worker = world.manual_worker(job.id).await;
    let assignment = worker.job().await;
    worker.finish("ROUTINE_OK").await;
    world.user(&job.user_id).wait_for_end(job.id).await;
    let Limits { timeout_seconds, max_iterations, .. } = job.limits;
    (timeout_seconds, max_iterations, assignment.model, assignment.plan)
}

async fn created(world: &World, user: &User, fields: Value) -> (u64, u32, String, bool) {
    let mut body = json!({"prompt": "work"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let job = user.job(user.create(body).await).await;
    taken(world, &job).await
}

fn expected(timeout_seconds: u64, max_iterations: u32, model: &str, plan: bool) -> (u64, u32, String, bool) {
    (timeout_seconds, max_iterations, model.to_owned(), plan)
}

#[tokio::test]
async fn a_request_comes_before_the_users_settings_and_these_before_the_operators_defaults() {
    let world = operator().build().await;
    let ada = world.user("ada");
    assert_eq!(created(&world, &ada, json!({})).await, expected(120, 7, "large", true));
    let asked = json!({"plan": false, "model": "scripted", "limits": {"timeout_seconds": 600, "max_iterations": 9}});
    assert_eq!(created(&world, &ada, asked).await, expected(600, 9, "scripted", false));
    for model in ["small", "scripted"] {
        Reply::of(ada.request(Method::PUT, "/api/settings").json(&json!({"model": model}))).await.expect(200);
        assert_eq!(created(&world, &ada, json!({})).await, expected(120, 7, model, true));
        assert_eq!(created(&world, &ada, json!({"model": "large"})).await, expected(120, 7, "large", true));
    }
    let bob = world.user("bob");
    let id = world.submit("bob", CreateJob { prompt: "work".to_owned(), ..CreateJob::default() }).await.unwrap();
    assert_eq!(taken(&world, &bob.job(id).await).await, expected(120, 7, "large", true));
    world.finish().await;
}

#[tokio::test]
async fn the_jobs_of_routines_have_the_operators_defaults() {
    let world = operator().build().await;
    let ada = world.user("ada");
    for (fields, wanted) in [
        (json!({}), expected(120, 7, "large", true)),
        (json!({"max_iterations": 5, "plan": false, "model": "small"}), expected(120, 5, "small", false)),
    ] {
        let mut action = json!({"type": "full_job", "description": "work"});
        action.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let routine = crate::routines::create(&ada, &format!("routine-{}", wanted.1), action).await;
        let run = until_run(&ada, trigger(&ada, &routine).await.id, protocol::RunStatus::Running).await;
        let job = ada.job(run.job_id.unwrap()).await;
        assert_eq!(taken(&world, &job).await, wanted);
    }
    world.finish().await;
}

#[tokio::test]
async fn a_child_has_its_parents_limits_and_model() {
    let world = operator().build().await;
    let ada = world.user("ada");
    let limits = json!({"timeout_seconds": 600, "max_iterations": 9, "max_children": 1});
    let parent = ada.create(json!({"prompt": "work", "model": "small", "limits": limits})).await;
    let worker = world.manual_worker(parent).await;
    worker.job().await;
    let made = worker.tool("create_job", "t1", json!({"prompt": "a part"})).await.expect(200).body;
    let child =
        ada.jobs().await.into_iter().find(|job| job.parent_id == Some(parent)).unwrap_or_else(|| panic!("{made:#}"));
    let child = ada.job(child.id).await;
    assert_eq!((child.limits.timeout_seconds, child.limits.max_iterations, child.model), (600, 9, "small".to_owned()));
    ada.cancel(parent).await.expect(202);
    ada.wait_for_end(parent).await;
    ada.wait_for_end(child.id).await;
    world.engine().until_empty().await;
    world.finish().await;
}

#[tokio::test]
async fn the_options_of_a_new_job_are_the_operators() {
    let world = operator().set("GANTRY_USER_DAY_MAX_COST_USD", "2.5").build().await;
    let options: JobOptions = world.user("ada").get("/api/options").await.expect(200).json();
    assert_eq!(options.models[0], "large");
    assert!(options.models.contains(&"small".to_owned()), "{:?}", options.models);
    assert_eq!((options.limits.timeout_seconds, options.limits.max_iterations, options.plan), (120, 7, true));
    assert_eq!((options.day_max_tokens, options.day_max_cost_usd), (None, Some(2.5)));
    assert!(options.tools.contains(&"shell".to_owned()), "{:?}", options.tools);
    world.finish().await;
}
