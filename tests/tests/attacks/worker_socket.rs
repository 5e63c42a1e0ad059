//! A hostile job against its own socket: connections, heads, bodies, requests, with what a command could ever have of the
//! job's identity.

use rstest::rstest;
use serde_json::{Value, json};

use crate::scene::{ATTACK_SECONDS, Ends, Scene};

/// Each attack of `flood.py`, and what it must have tried at least for the test to say anything.
#[rstest]
#[case::idle_connections("connections", "attempted", 2_000)]
#[case::half_sent_heads("heads", "attempted", 500)]
#[case::half_sent_bodies("bodies", "attempted", 100)]
#[case::half_sent_bodies_with_the_token("bodies-token", "attempted", 100)]
#[case::health_flood("health", "attempted", 2_000)]
#[case::calls_without_a_token("calls", "attempted", 2_000)]
#[case::calls_without_a_session("calls-token", "attempted", 2_000)]
#[case::calls_with_a_forged_session("calls-forged", "attempted", 2_000)]
#[case::long_polls("polls", "attempted", 500)]
#[case::event_flood("events", "attempted", 100)]
#[case::json_that_grows("json", "attempted", 3)]
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_floods_its_socket_harms_nobody(#[case] flood: &str, #[case] what: &str, #[case] least: u64) {
    let scene = Scene::start().await;
    let watch = scene.watch(flood, ATTACK_SECONDS);
    let job = scene.hostile(&format!("python3 flood.py {flood} {ATTACK_SECONDS}"), json!({})).await;
    let verdict = scene.measure(watch, &[(job, Ends::Completed)], None).await;
    verdict.check();
    assert!(told(&verdict.told, what) >= least, "the attack was too weak: {:?}", verdict.told);
    scene.stack.finish().await;
}

/// What a script says it did so often.
fn told(lines: &[String], what: &str) -> u64 {
    let objects =
        lines.iter().flat_map(|line| line.lines()).filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.filter_map(|object| object[what].as_u64()).sum()
}
