//! A hostile user, and a client without a token, against the public API.

use attack::{hold_heads, post_metadata, read_pages};
use serde_json::json;

use crate::scenario::{ATTACK_SECONDS, Attackers, Scenario};

/// The timeout of a request head.
const HEAD_SECONDS: u64 = 10;
/// A full page of jobs, some 50 MB with their prompts.
const LARGE_JOBS: usize = 200;
/// Just below the maximum size of a prompt.
const LARGE_PROMPT_BYTES: usize = 256 * 1024 - 64;

#[tokio::test(flavor = "multi_thread")]
async fn three_concurrent_large_bodies_affect_no_other_user() {
    let scenario = Scenario::start().await;
    let watch = scenario.watch("3 x 23 MiB of metadata");
    let flood = post_metadata(scenario.stack.base(), &scenario.mallory_token, 3);
    let verdict = scenario.measure(watch, ATTACK_SECONDS, Attackers::client(flood)).await;
    verdict.check();
    for job in scenario.mallory.jobs().await {
        scenario.mallory.cancel(job.id).await;
    }
    scenario.stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_heads_affect_no_other_user() {
    let scenario = Scenario::start().await;
    let watch = scenario.watch("1,500 half-sent heads");
    let flood = hold_heads(scenario.stack.base(), 1_500);
    let verdict = scenario.measure(watch, HEAD_SECONDS + 4, Attackers::client(flood)).await;
    verdict.check();
    let closed = verdict.reports.iter().any(|reports| reports.contains("closed_by_peer"));
    assert!(closed, "a head may take {HEAD_SECONDS} s: {:?}", verdict.reports);
    scenario.stack.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_the_largest_page_affect_no_other_user() {
    let scenario = Scenario::start().await;
    let prompt = "x".repeat(LARGE_PROMPT_BYTES);
    let mut jobs = vec![];
    for _ in 0..LARGE_JOBS {
        jobs.push(scenario.mallory.create(json!({"prompt": prompt, "hold": true})).await);
    }
    let watch = scenario.watch("20 readers of the largest page");
    let flood = read_pages(scenario.stack.base(), &scenario.mallory_token, 20);
    let verdict = scenario.measure(watch, ATTACK_SECONDS, Attackers::client(flood)).await;
    verdict.check();
    for job in jobs {
        scenario.mallory.cancel(job).await.expect(202);
    }
    scenario.stack.finish().await;
}
