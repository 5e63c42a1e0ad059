//! A container's life: started, noticed, adopted, ended, removed.

use std::time::{Duration, Instant};

use orchestrator::engine::{ContainerRole, ContainerStatus, ContainerView, Engine, EngineError};

use super::ground::{Image, PATIENCE, Ring, must};

#[tokio::test]
async fn a_job_starts_and_its_exit_code_is_noticed() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("ready\nprint hello\nexit 7");

    let id = ring.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    assert_eq!(ring.end_of(job.name()).await, ContainerStatus::Exited { code: 7, oom_killed: false });
    assert_eq!(
        ring.engine.list().await.unwrap(),
        [ContainerView {
            name: job.name().to_owned(),
            id,
            job_id: Some(job.spec.job_id),
            attempt: 1,
            role: Some(ContainerRole::Job),
            status: ContainerStatus::Exited { code: 7, oom_killed: false },
        }]
    );
    assert_eq!(ring.engine.logs(job.name(), 1000).await.unwrap(), "hello\n");
    assert_eq!(ring.engine.logs(job.name(), 3).await.unwrap(), "lo\n");

    ring.engine.remove(job.name()).await.unwrap();
    assert_eq!(ring.engine.observe(job.name()).await, Ok(None));
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn asked_twice_it_is_adopted() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("ready\nsleep");

    let first = ring.engine.create(&job.spec).await.unwrap();
    job.ready().await;
    let second = ring.engine.create(&job.spec).await.unwrap();

    assert_eq!(second, first);
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn asked_twice_at_once_it_is_one_container() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("ready\nsleep");

    let (one, other) = tokio::join!(ring.engine.create(&job.spec), ring.engine.create(&job.spec));

    assert_eq!(one.unwrap(), other.unwrap());
    job.ready().await;
    assert_eq!(ring.engine.list().await.unwrap().len(), 1);
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn an_ended_one_is_adopted_and_not_run_again() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("exit 0");
    let id = ring.engine.create(&job.spec).await.unwrap();
    let ended = ring.end_of(job.name()).await;

    assert_eq!(ring.engine.create(&job.spec).await, Ok(id));

    assert_eq!(ring.engine.observe(job.name()).await.unwrap().unwrap().status, ended);
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn a_polite_worker_ends_within_its_grace() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("ready\nsleep");
    ring.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    let asked = Instant::now();
    ring.engine.stop(job.name(), PATIENCE).await.unwrap();

    assert!(asked.elapsed() < Duration::from_secs(2), "took {:?}", asked.elapsed());
    assert_eq!(ring.end_of(job.name()).await, ContainerStatus::Exited { code: 143, oom_killed: false });
    ring.engine.stop(job.name(), PATIENCE).await.unwrap();
    ring.engine.remove(job.name()).await.unwrap();
    ring.engine.stop(job.name(), PATIENCE).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn a_stubborn_worker_is_killed_after_its_grace() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("stubborn\nready\nsleep");
    ring.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    let (asked, grace) = (Instant::now(), Duration::from_millis(700));
    ring.engine.stop(job.name(), grace).await.unwrap();

    let took = asked.elapsed();
    assert!(took >= grace && took < grace + Duration::from_secs(3), "took {took:?}");
    assert_eq!(ring.end_of(job.name()).await, ContainerStatus::Exited { code: 137, oom_killed: false });
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn kill_leaves_no_grace_even_to_a_frozen_one() {
    let ring = Ring::new(Image::Good);
    for frozen in [false, true] {
        let job = ring.job("stubborn\nready\nsleep");
        ring.engine.create(&job.spec).await.unwrap();
        job.ready().await;
        if frozen {
            must(std::process::Command::new("docker").args(["pause", job.name()]));
        }

        let asked = Instant::now();
        ring.engine.kill(job.name()).await.unwrap();

        assert!(asked.elapsed() < Duration::from_secs(3), "took {:?}", asked.elapsed());
        assert!(matches!(ring.end_of(job.name()).await, ContainerStatus::Exited { code: 137, .. }));
        ring.engine.remove(job.name()).await.unwrap();
    }
    ring.finish().await;
}

#[tokio::test]
async fn a_fork_bomb_ends_in_time() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("stubborn\nready\nbomb");
    ring.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    let asked = Instant::now();
    ring.engine.stop(job.name(), Duration::from_secs(1)).await.unwrap();

    assert!(asked.elapsed() < Duration::from_secs(8), "took {:?}", asked.elapsed());
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn a_worker_killed_for_memory_is_told_apart() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("hog");
    ring.engine.create(&job.spec).await.unwrap();

    assert_eq!(ring.end_of(job.name()).await, ContainerStatus::Exited { code: 137, oom_killed: true });
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn another_installs_container_is_neither_seen_nor_touched() {
    let (ours, theirs) = (Ring::new(Image::Good), Ring::new(Image::Good));
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
async fn the_beginning_of_an_id_is_not_a_name() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("ready\nsleep");
    let id = ring.engine.create(&job.spec).await.unwrap();
    job.ready().await;

    assert_eq!(ring.engine.observe(&id[..12]).await, Ok(None));
    ring.engine.remove(&id[..12]).await.unwrap();
    assert!(ring.engine.observe(job.name()).await.unwrap().is_some());

    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}
