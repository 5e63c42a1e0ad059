//! The bounds of connections to other hosts: how many there are, how long they last and what they carry.

use protocol::{EventData, JobState, LimitName};
use serde_json::json;
use sqlx::Executor as _;
use tests::within;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::egress::{Scene, ask, head, hello, rest};

/// Connections of one job.
const MAX_TUNNELS: usize = 64;

#[tokio::test]
async fn a_job_has_64_tunnels_and_its_session_is_not_among_them() {
    let scene = Scene::new(&["a.example"]).await;
    let mut tunnels = Vec::new();
    for _ in 0..MAX_TUNNELS {
        let mut tunnel = scene.tunnel("a.example:443").await;
        // One without a beginning would end by itself.
        tunnel.write_all(&hello("a.example")).await.unwrap();
        tunnels.push(tunnel);
    }
    let (mut refused, head) = scene.connect("a.example:443").await;
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    rest(&mut refused).await;
    // 16 calls at once are the limit of a socket; each is answered.
    for _ in 0..20 {
        scene.worker.status().await;
    }
    // A tunnel that ends makes room.
    drop(tunnels.pop());
    tests::poll("a tunnel to be free", async || {
        scene.connect("a.example:443").await.1.starts_with("HTTP/1.1 200 ").then_some(())
    })
    .await;
    scene.finish().await;
}

#[tokio::test]
async fn tunnels_end_when_the_job_is_cancelled() {
    let scene = Scene::new(&["a.example", "a.example:80"]).await;
    let (mut tls, mut plain) = (scene.tunnel("a.example:443").await, scene.tunnel("a.example:80").await);
    tls.write_all(&hello("a.example")).await.unwrap();
    within("the answer", tls.read_u8()).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: a.example\r\n\r\n").await.unwrap();
    assert!(head(&mut plain).await.starts_with("HTTP/1.1 200 "));
    scene.world.engine().hold_stops(true);
    scene.ada.cancel(scene.job).await.expect(202);
    rest(&mut tls).await;
    rest(&mut plain).await;
    let (_, head) = scene.connect("a.example:443").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    // What they carried is stored while the job still runs.
    for of in [443, 80] {
        let is_sum = |data: &EventData| matches!(data, EventData::Egress { port, count: 0, bytes_up: 1.., bytes_down: 1.., .. } if *port == of);
        scene.ada.wait_for_event(scene.job, "the sum", |event| is_sum(&event.data)).await;
    }
    scene.world.engine().hold_stops(false);
    scene.ada.wait_for(scene.job, JobState::Cancelled).await;
    scene.world.finish().await;
}

#[tokio::test]
async fn a_request_whose_client_has_left_has_its_event() {
    let mut scene = Scene::new(&["slow.example"]).await;
    let leaving = ask(&scene.worker, "slow.example:443").await;
    assert_eq!(within("the look-up", scene.looked_up.recv()).await.unwrap(), "slow.example");
    drop(leaving);
    // By then the server has seen it.
    for _ in 0..3 {
        scene.worker.status().await;
    }
    scene.slow.add_permits(1);
    let of_slow = |data: &EventData| matches!(data, EventData::Egress { host, .. } if host == "slow.example");
    scene.ada.wait_for_event(scene.job, "the decision", |event| of_slow(&event.data)).await;
    scene.finish().await;
}

#[tokio::test]
async fn names_that_are_slow_to_look_up_hold_up_only_the_job_that_asks_for_them() {
    let mut scene = Scene::new(&["slow.example"]).await;
    let other = scene.ada.create(json!({"prompt": "work", "egress": {"allow": ["a.example"]}})).await;
    let other = scene.world.manual_worker(other).await;
    other.job().await;
    let mut waiting = Vec::new();
    for _ in 0..9 {
        waiting.push(ask(&scene.worker, "slow.example:443").await);
    }
    for _ in 0..8 {
        assert_eq!(within("the look-up", scene.looked_up.recv()).await.unwrap(), "slow.example");
    }
    let mut tunnel = ask(&other, "a.example:443").await;
    assert!(head(&mut tunnel).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(scene.looked_up.try_recv().unwrap(), "a.example", "the ninth name waits for its turn");
    scene.slow.add_permits(9);
    for stream in &mut waiting {
        assert!(head(stream).await.starts_with("HTTP/1.1 200 "));
    }
    other.finish("done").await;
    scene.finish().await;
}

#[tokio::test]
async fn nothing_is_carried_before_its_event_is_stored() {
    let mut scene = Scene::new(&["a.example"]).await;
    let mut database = scene.world.database().await;
    let trigger =
        "CREATE TRIGGER fails BEFORE INSERT ON events WHEN NEW.kind = 'egress' BEGIN SELECT RAISE(ABORT, 'no'); END";
    database.execute(trigger).await.unwrap();
    for _ in 0..2 {
        let (_, head) = scene.connect("a.example:443").await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    }
    assert!(scene.received.try_recv().is_err(), "nothing was sent to the host");
    database.execute("DROP TRIGGER fails").await.unwrap();
    // A program that leaves a tunnel before its first byte has done nothing wrong.
    drop(scene.tunnel("a.example:443").await);
    let (ada, job) = (scene.ada.clone(), scene.job);
    scene.worker.clone().finish("done").await;
    ada.wait_for_end(job).await;
    let egress = ada.get(&format!("/api/jobs/{job}/egress")).await.expect(200).body;
    let counters = egress["counters"].as_array().unwrap();
    assert_eq!((counters.len(), &counters[0]["decision"], &counters[0]["count"]), (1, &json!("allowed"), &json!(1)));
    scene.world.finish().await;
}

#[tokio::test]
async fn an_upload_beyond_the_limit_is_cut_off_and_nothing_more_is_carried() {
    let scene = Scene::new(&["a.example", "a.example:80"]).await;
    let tunnel = scene.tunnel("a.example:443").await;
    let (mut read, mut write) = tunnel.into_split();
    write.write_all(&hello("a.example")).await.unwrap();
    let chunk = vec![0; 1024 * 1024];
    let uploading = async {
        let mut sent_mb = 0;
        while sent_mb < 100 && write.write_all(&chunk).await.is_ok() {
            sent_mb += 1;
        }
        sent_mb
    };
    let discarding = async { tokio::io::copy(&mut read, &mut tokio::io::sink()).await };
    let (sent_mb, _) = within("the upload to end", async { tokio::join!(uploading, discarding) }).await;
    assert!((63..=66).contains(&sent_mb), "{sent_mb} MB");
    let is_limit = |data: &EventData| matches!(data, EventData::Limit { limit, .. } if *limit == LimitName::EgressUpMb);
    scene.ada.wait_for_event(scene.job, "the limit", |event| is_limit(&event.data)).await;
    for to in ["a.example:443", "a.example:80"] {
        let (mut stream, head) = scene.connect(to).await;
        assert!(head.starts_with("HTTP/1.1 403 ") && head.contains("rule=limits.egress_up_mb"), "{head}");
        assert!(rest(&mut stream).await.contains("64 MB"));
    }
    let limits = scene.ada.events(scene.job).await.iter().filter(|event| is_limit(&event.data)).count();
    assert_eq!(limits, 1);
    scene.finish().await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_holds_up_only_its_own_tunnel() {
    let scene = Scene::new(&["a.example"]).await;
    let mut slow = scene.tunnel("a.example:443").await;
    slow.write_all(&hello("a.example")).await.unwrap();
    // Until no buffer on the way takes any more, since the echo is not read.
    let chunk = vec![0; 64 * 1024];
    let mut sent = 0_usize;
    while let Ok(written) = tokio::time::timeout(std::time::Duration::from_millis(300), slow.write(&chunk)).await {
        sent += written.unwrap();
        assert!(sent < 32 * 1024 * 1024, "what is not read is kept somewhere");
    }
    let mut other = scene.tunnel("a.example:443").await;
    other.write_all(&hello("a.example")).await.unwrap();
    within("the other tunnel's answer", other.read_u8()).await.unwrap();
    scene.worker.status().await;
    scene.finish().await;
}
