//! The bounds of connections to other hosts: how many there are, how long they last and what they carry.

use protocol::{EventData, JobState, LimitName};
use tests::within;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::egress::{Scene, hello, rest};

/// Connections of one job.
const MAX_TUNNELS: usize = 64;

#[tokio::test]
async fn a_job_has_64_tunnels_and_its_session_is_not_among_them() {
    let scene = Scene::new(&["a.example"]).await;
    let mut tunnels = Vec::new();
    for _ in 0..MAX_TUNNELS {
        tunnels.push(scene.tunnel("a.example:443").await);
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
    scene.world.engine().hold_stops(true);
    scene.ada.cancel(scene.job).await.expect(202);
    rest(&mut tls).await;
    rest(&mut plain).await;
    let (_, head) = scene.connect("a.example:443").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    scene.world.engine().hold_stops(false);
    scene.ada.wait_for(scene.job, JobState::Cancelled).await;
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
