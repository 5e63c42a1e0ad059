//! Many containers that are stopped at once: a few in parallel, and none waits for a stubborn one.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use orchestrator::engine::{ContainerStatus, Engine};

use super::setup::{Fixture, Image, Job};

async fn started(fixture: &Fixture, orders: &str, count: usize) -> Vec<Job> {
    let mut jobs = vec![];
    for _ in 0..count {
        let job = fixture.job(orders);
        fixture.engine.create(&job.spec).await.unwrap();
        job.ready().await;
        jobs.push(job);
    }
    jobs
}

#[tokio::test]
async fn containers_that_ignore_sigterm_delay_no_other_stop() {
    let fixture = Fixture::new(Image::Good);
    let stubborn = started(&fixture, "stubborn\nready\nsleep", 6).await;
    let responsive = started(&fixture, "ready\nsleep", 3).await;
    let grace = Duration::from_secs(20);

    let stop_stubborn = join_all(stubborn.iter().map(|job| fixture.engine.stop(job.name(), grace)));
    let stop_responsive = async {
        // `join!` polls the other stops first.
        let asked = Instant::now();
        let ended = join_all(responsive.iter().map(|job| fixture.engine.stop(job.name(), grace))).await;
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        asked.elapsed()
    };
    let (ended, took) = tokio::join!(stop_stubborn, stop_responsive);

    assert!(took < grace / 2, "the responsive containers took {took:?}");
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    for job in stubborn.iter().chain(&responsive) {
        let seen = fixture.engine.observe(job.name()).await.unwrap().unwrap();
        assert!(matches!(seen.status, ContainerStatus::Exited { .. }), "{seen:?}");
    }
    let removed = join_all(stubborn.iter().chain(&responsive).map(|job| fixture.engine.remove(job.name()))).await;
    assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    fixture.finish().await;
}
