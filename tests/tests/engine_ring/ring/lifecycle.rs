//! The lifecycle of a container: start, exit notification, adoption, stop and removal.

use std::time::{Duration, Instant};

use orchestrator::engine::{ContainerRole, ContainerStatus, ContainerView, Engine, EngineError};

use super::setup::{Fixture, Image, WAIT_TIMEOUT, must};

#[tokio::test]
async fn a_job_starts_and_its_exit_code_is_reported() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("ready\nprint hello\nexit 7");

    let id = fixture.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    assert_eq!(fixture.wait_for_exit(job.name()).await, ContainerStatus::Exited { code: 7, oom_killed: false });
    assert_eq!(
        fixture.engine.list().await.unwrap(),
        [ContainerView {
            name: job.name().to_owned(),
            id,
            job_id: Some(job.spec.job_id),
            attempt: 1,
            role: Some(ContainerRole::Job),
            status: ContainerStatus::Exited { code: 7, oom_killed: false },
        }]
    );
    assert_eq!(fixture.engine.logs(job.name(), 1000).await.unwrap(), "hello\n");
    assert_eq!(fixture.engine.logs(job.name(), 3).await.unwrap(), "lo\n");

    fixture.engine.remove(job.name()).await.unwrap();
    assert_eq!(fixture.engine.observe(job.name()).await, Ok(None));
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn a_second_create_adopts_the_container() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("ready\nsleep");

    let first = fixture.engine.create(&job.spec).await.unwrap();
    job.ready().await;
    let second = fixture.engine.create(&job.spec).await.unwrap();

    assert_eq!(second, first);
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn concurrent_creates_make_one_container() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("ready\nsleep");

    let (one, other) = tokio::join!(fixture.engine.create(&job.spec), fixture.engine.create(&job.spec));

    assert_eq!(one.unwrap(), other.unwrap());
    job.ready().await;
    assert_eq!(fixture.engine.list().await.unwrap().len(), 1);
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn an_exited_container_is_adopted_and_not_restarted() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("exit 0");
    let id = fixture.engine.create(&job.spec).await.unwrap();
    let ended = fixture.wait_for_exit(job.name()).await;

    assert_eq!(fixture.engine.create(&job.spec).await, Ok(id));

    assert_eq!(fixture.engine.observe(job.name()).await.unwrap().unwrap().status, ended);
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn a_worker_that_handles_sigterm_exits_within_its_grace_period() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("ready\nsleep");
    fixture.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    let asked = Instant::now();
    fixture.engine.stop(job.name(), WAIT_TIMEOUT).await.unwrap();

    assert!(asked.elapsed() < Duration::from_secs(2), "took {:?}", asked.elapsed());
    assert_eq!(fixture.wait_for_exit(job.name()).await, ContainerStatus::Exited { code: 143, oom_killed: false });
    fixture.engine.stop(job.name(), WAIT_TIMEOUT).await.unwrap();
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.engine.stop(job.name(), WAIT_TIMEOUT).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn a_worker_that_ignores_sigterm_is_killed_after_its_grace_period() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("stubborn\nready\nsleep");
    fixture.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    let (asked, grace) = (Instant::now(), Duration::from_millis(700));
    fixture.engine.stop(job.name(), grace).await.unwrap();

    let took = asked.elapsed();
    assert!(took >= grace && took < grace + Duration::from_secs(3), "took {took:?}");
    assert_eq!(fixture.wait_for_exit(job.name()).await, ContainerStatus::Exited { code: 137, oom_killed: false });
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn kill_ends_a_paused_container_without_grace() {
    let fixture = Fixture::new(Image::Good);
    for frozen in [false, true] {
        let job = fixture.job("stubborn\nready\nsleep");
        fixture.engine.create(&job.spec).await.unwrap();
        job.ready().await;
        if frozen {
            must(std::process::Command::new("docker").args(["pause", job.name()]));
        }

        let asked = Instant::now();
        fixture.engine.kill(job.name()).await.unwrap();

        assert!(asked.elapsed() < Duration::from_secs(3), "took {:?}", asked.elapsed());
        assert!(matches!(fixture.wait_for_exit(job.name()).await, ContainerStatus::Exited { code: 137, .. }));
        fixture.engine.remove(job.name()).await.unwrap();
    }
    fixture.finish().await;
}

#[tokio::test]
async fn a_container_with_a_fork_bomb_is_stopped_in_time() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("stubborn\nready\nbomb");
    fixture.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    let asked = Instant::now();
    fixture.engine.stop(job.name(), Duration::from_secs(1)).await.unwrap();

    assert!(asked.elapsed() < Duration::from_secs(8), "took {:?}", asked.elapsed());
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn a_worker_killed_for_memory_is_reported_as_oom() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("hog");
    fixture.engine.create(&job.spec).await.unwrap();

    assert_eq!(fixture.wait_for_exit(job.name()).await, ContainerStatus::Exited { code: 137, oom_killed: true });
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn containers_of_other_instances_are_neither_listed_nor_changed() {
    let (ours, theirs) = (Fixture::new(Image::Good), Fixture::new(Image::Good));
    let job = theirs.job("ready\nsleep");
    theirs.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    assert_eq!(ours.engine.list().await, Ok(Vec::new()));
    let refused =
        |result: Result<(), EngineError>| assert!(matches!(result, Err(EngineError::Refused(_))), "{result:?}");
    refused(ours.engine.observe(job.name()).await.map(drop));
    refused(ours.engine.stop(job.name(), Duration::ZERO).await);
    refused(ours.engine.kill(job.name()).await);
    refused(ours.engine.remove(job.name()).await);
    refused(ours.engine.create(&job.spec).await.map(drop));

    assert_eq!(theirs.engine.observe(job.name()).await.unwrap().unwrap().status, ContainerStatus::Running);
    theirs.engine.remove(job.name()).await.unwrap();
    theirs.finish().await;
    ours.finish().await;
}

#[tokio::test]
async fn an_id_prefix_is_not_a_name() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("ready\nsleep");
    let id = fixture.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    assert_eq!(fixture.engine.observe(&id[..12]).await, Ok(None));
    fixture.engine.remove(&id[..12]).await.unwrap();
    assert!(fixture.engine.observe(job.name()).await.unwrap().is_some());

    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}
