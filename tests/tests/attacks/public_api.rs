//! A hostile user, and somebody without any token, against the public API.

use attack::{hold_heads, post_metadata, read_pages};
use serde_json::json;

use crate::scene::{ATTACK_SECONDS, Attackers, Scene};

/// A request's head has so long to arrive.
const HEAD_SECONDS: u64 = 10;
/// A whole page of jobs: with their prompts some 50 MB.
const LARGE_JOBS: usize = 200;
/// Just within what a prompt may be.
const LARGE_PROMPT_BYTES: usize = 256 * 1024 - 64;

#[tokio::test(flavor = "multi_thread")]
async fn three_large_bodies_at_once_harm_nobody() {
    let scene = Scene::start().await;
    let watch = scene.watch("3 x 23 MiB of metadata");
    let flood = post_metadata(scene.stack.base(), &scene.mallory_token, 3);
    let verdict = scene.measure(watch, ATTACK_SECONDS, Attackers::client(flood)).await;
    verdict.check();
    for job in scene.mallory.jobs().await {
        scene.mallory.cancel(job.id).await;
    }
    scene.stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_heads_harm_nobody() {
    let scene = Scene::start().await;
    let watch = scene.watch("1,500 half-sent heads");
    let flood = hold_heads(scene.stack.base(), 1_500);
    let verdict = scene.measure(watch, HEAD_SECONDS + 4, Attackers::client(flood)).await;
    verdict.check();
    let closed = verdict.told.iter().any(|told| told.contains("closed_by_peer"));
    assert!(closed, "a head may take {HEAD_SECONDS} s: {:?}", verdict.told);
    scene.stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_the_largest_page_harm_nobody() {
    let scene = Scene::start().await;
    let prompt = "x".repeat(LARGE_PROMPT_BYTES);
    let mut jobs = vec![];
    for _ in 0..LARGE_JOBS {
        jobs.push(scene.mallory.create(json!({"prompt": prompt, "hold": true})).await);
    }
    let watch = scene.watch("20 readers of the largest page");
    let flood = read_pages(scene.stack.base(), &scene.mallory_token, 20);
    let verdict = scene.measure(watch, ATTACK_SECONDS, Attackers::client(flood)).await;
    verdict.check();
    for job in jobs {
        scene.mallory.cancel(job).await.expect(202);
    }
    scene.stack.finish().await;
}
