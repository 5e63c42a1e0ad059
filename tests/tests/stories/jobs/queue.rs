//! The queue: jobs start by priority, then age, within the slots, unless a check refuses them.

use orchestrator::{auth::Role, clock::ManualClock, engine::EngineError};
use protocol::{CreateJob, JobId, JobReason, JobState, JobSummary};
use serde_json::json;
use tests::{User, World, script_of};
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

/// The maximum number of jobs that were in progress at the same time.
fn max_concurrent(jobs: &[JobSummary]) -> usize {
    let began = jobs.iter().filter_map(|job| job.started_at);
    let at_work = |at| jobs.iter().filter(|job| job.started_at <= Some(at) && job.finished_at > Some(at)).count();
    began.map(at_work).max().unwrap_or(0)
}

#[tokio::test]
async fn a_job_in_its_backoff_does_not_block_the_next_one_of_its_user() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).set("GANTRY_MAX_PARALLEL_JOBS_PER_USER", 1).build().await;
    let ada = world.user("ada");
    world.engine().fail_start(EngineError::Other("no space".to_owned()));
    let failing = ada.create_job("failing").await;
    world.engine().until_start_requested(1).await;
    let next = ada.create_job("next").await;
    world.manual_worker(next).await.finish("done").await;
    ada.wait_for(next, JobState::Completed).await;
    assert_eq!((ada.job(failing).await.state, ada.job(failing).await.attempt), (JobState::Pending, 1));
    ada.cancel(failing).await.expect(202);
    ada.wait_for(failing, JobState::Cancelled).await;
    world.finish().await;
}

#[tokio::test]
async fn one_slot_runs_jobs_by_priority_then_age() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let ada = world.user("ada");
    let first = ada.create_job("first").await;
    let mut worker = world.manual_worker(first).await;
    let make = async |priority: i32| ada.create(json!({"prompt": "p", "priority": priority})).await;
    let (low, old, young, high) = (make(-5).await, make(0).await, make(0).await, make(7).await);
    for next in [high, old, young, low] {
        worker.finish("done").await;
        worker = world.manual_worker(next).await;
    }
    worker.finish("done").await;
    ada.wait_for(low, JobState::Completed).await;
    let order: Vec<String> = [first, high, old, young, low].iter().map(|id| format!("gantry-job-{id}-1")).collect();
    assert_eq!(world.engine().requested_starts(), order);
    assert_eq!(max_concurrent(&ada.jobs().await), 1);
    world.finish().await;
}

#[tokio::test]
async fn one_user_cannot_take_every_slot() {
    let world =
        World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 3).set("GANTRY_MAX_PARALLEL_JOBS_PER_USER", 2).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let mut adas = vec![];
    for n in 0..3 {
        adas.push(ada.create_job(&format!("task {n}")).await);
    }
    let (one, two) = (world.manual_worker(adas[0]).await, world.manual_worker(adas[1]).await);
    let bobs = bob.create_job("mine").await;
    let his = world.manual_worker(bobs).await;
    assert_eq!(ada.job(adas[2]).await.state, JobState::Pending, "a slot is free, but not for this user");
    his.finish("done").await;
    one.finish("done").await;
    world.manual_worker(adas[2]).await.finish("done").await;
    two.finish("done").await;
    ada.wait_for(adas[2], JobState::Completed).await;
    assert_eq!(max_concurrent(&world.someone("root", Role::Admin).jobs().await), 3);
    world.finish().await;
}

#[tokio::test]
async fn fifty_concurrent_jobs_each_run_once() {
    let world = World::builder().processes().set("GANTRY_MAX_PARALLEL_JOBS", 8).build().await;
    let ada = world.user("ada");
    let prompts: Vec<String> = (0..50).map(|n| format!("task {n}")).collect();
    let created = prompts.iter().map(|prompt| ada.create_job(prompt));
    let ids: Vec<JobId> = futures_util::future::join_all(created).await;
    for (id, prompt) in ids.iter().zip(&prompts) {
        let job = ada.wait_for(*id, JobState::Completed).await;
        assert_eq!(job.result.and_then(|result| result.text), Some(format!("You said: {prompt}")));
    }
    assert_eq!(world.engine().requested_starts().len(), 50);
    assert!(max_concurrent(&ada.jobs().await) <= 8);
    world.finish().await;
}

/// A job without a container: its user's budget is checked before a hook is asked, and its state after the hook's
/// answer.
#[tokio::test]
async fn the_first_check_that_refuses_a_start_decides() {
    let gate = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hooks = format!(
        "[[hooks]]\nname = 'night'\npoint = 'job_start'\nmatch = {{ user = ['ada', 'bob'] }}\naction = 'deny'\n\
         [[hooks]]\nname = 'gate'\npoint = 'job_start'\nurl = 'http://{}/'\n\
         secret = 'whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='\n",
        gate.local_addr().unwrap()
    );
    let spent = json!({"input_tokens": 20_000, "output_tokens": 100});
    let world = World::builder()
        .script(script_of(&[json!({"reply": {"text": "ok", "usage": spent}})]))
        .config_file(hooks)
        .set("GANTRY_SANDBOX", "disabled")
        .set("GANTRY_USER_DAY_MAX_TOKENS", 10_000)
        .build()
        .await;
    crate::chat::turn(&world.user("ada"), "spend it").await;
    let work = || CreateJob { prompt: "work".to_owned(), ..CreateJob::default() };
    for (user, reason) in [("ada", JobReason::TokenBudget), ("bob", JobReason::Rejected)] {
        let id = world.submit(user, work()).await.unwrap();
        let job = world.user(user).wait_for(id, JobState::Failed).await;
        assert_eq!((job.reason, job.attempt, job.usage.llm_calls), (Some(reason), 0, 0), "{job:?}");
    }
    let cleo = world.user("cleo");
    let id = world.submit("cleo", work()).await.unwrap();
    let (mut asked, _) = tests::within("the hook to be asked", gate.accept()).await.unwrap();
    cleo.cancel(id).await;
    let allow =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{\"decision\":\"allow\"}";
    asked.write_all(allow.as_bytes()).await.unwrap();
    let next = world.submit("cleo", work()).await.unwrap();
    let (mut asked, _) = tests::within("the hook to be asked", gate.accept()).await.unwrap();
    asked.write_all(allow.as_bytes()).await.unwrap();
    cleo.wait_for(next, JobState::Completed).await;
    let job = cleo.job(id).await;
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Cancelled, Some(JobReason::CancelledByUser), 0));
    assert_eq!(job.usage.llm_calls, 0);
    world.finish().await;
}

#[tokio::test]
async fn a_pending_job_knows_its_position_in_the_queue() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let position = async |user: &User, id: JobId| {
        let body = user.get(&format!("/api/jobs/{id}")).await.expect(200).body;
        body.get("queue_position").cloned().expect("a member, also when it is null")
    };
    // A text that looks like the state of a pending job.
    let running = ada.create_job(r#""state":"pending""#).await;
    let worker = world.manual_worker(running).await;
    let (first, second) = (ada.create_job("first").await, bob.create_job("second").await);
    let urgent = ada.create(json!({"prompt": "urgent", "priority": 5})).await;
    let held = ada.create(json!({"prompt": "held", "hold": true})).await;
    let positions = async || {
        let mut all = vec![];
        for (user, id) in [(&ada, running), (&ada, urgent), (&ada, first), (&bob, second), (&ada, held)] {
            all.push(position(user, id).await);
        }
        all
    };
    assert_eq!(json!(positions().await), json!([null, 1, 2, 3, null]));
    ada.cancel(urgent).await.expect(202);
    ada.post(&format!("/api/jobs/{held}/start"), &json!({})).await.expect(202);
    assert_eq!(json!(positions().await), json!([null, null, 1, 2, 3]));
    let listed = ada.get("/api/jobs").await.expect(200).body;
    assert_eq!(listed["items"][0].get("queue_position"), None, "only a single job has it");
    worker.finish("done").await;
    for (user, id) in [(&ada, first), (&bob, second), (&ada, held)] {
        world.manual_worker(id).await.finish("done").await;
        user.wait_for(id, JobState::Completed).await;
    }
    world.finish().await;
}
