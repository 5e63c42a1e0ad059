//! Many containers that end at the same time: a few at once, and none waits for a stubborn one.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use orchestrator::engine::{ContainerStatus, Engine};

use super::ground::{Image, Job, Ring};

async fn started(ring: &Ring, orders: &str, count: usize) -> Vec<Job> {
    let mut jobs = vec![];
    for _ in 0..count {
        let job = ring.job(orders);
        ring.engine.create(&job.spec).await.unwrap();
        job.ready().await;
        jobs.push(job);
    }
    jobs
}

#[tokio::test]
async fn stubborn_ones_hold_up_no_other_end() {
    let ring = Ring::new(Image::Good);
    let stubborn = started(&ring, "stubborn\nready\nsleep", 6).await;
    let polite = started(&ring, "ready\nsleep", 3).await;
    let grace = Duration::from_secs(20);

    let ending_the_stubborn = join_all(stubborn.iter().map(|job| ring.engine.stop(job.name(), grace)));
    let ending_the_polite = async {
        // Behind the others in the queue.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let asked = Instant::now();
        let ended = join_all(polite.iter().map(|job| ring.engine.stop(job.name(), grace))).await;
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        asked.elapsed()
    };
    let (ended, took) = tokio::join!(ending_the_stubborn, ending_the_polite);

    assert!(took < grace / 2, "the polite ones took {took:?}");
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    for job in stubborn.iter().chain(&polite) {
        let seen = ring.engine.observe(job.name()).await.unwrap().unwrap();
        assert!(matches!(seen.status, ContainerStatus::Exited { .. }), "{seen:?}");
    }
    let removed = join_all(stubborn.iter().chain(&polite).map(|job| ring.engine.remove(job.name()))).await;
    assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    ring.finish().await;
}
