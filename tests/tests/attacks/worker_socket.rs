//! A hostile job against its own socket: connections, heads, bodies, requests, with what a command could ever have of the
//! job's identity.

use rstest::rstest;
use serde_json::{Value, json};

use crate::scene::{ATTACK_SECONDS, Attackers, Ends, Scene};

/// Connections that one process holds at once at most: those that are served (64), those that wait to be accepted (64), and
/// what comes and goes meanwhile.
const MAX_HELD: u64 = 300;
/// The same for ten processes, whose most need not be at the same time.
const MAX_HELD_BY_TEN: u64 = 2_000;
const ANY: u64 = u64::MAX;

/// Each attack of `flood.py`, what it must have tried at least for the test to say anything, and what it may have held.
#[rstest]
#[case::idle_connections("connections", 2_000, MAX_HELD_BY_TEN)]
#[case::half_sent_heads("heads", 500, MAX_HELD)]
#[case::half_sent_bodies("bodies", 100, ANY)]
#[case::half_sent_bodies_with_the_token("bodies-token", 100, ANY)]
#[case::health_flood("health", 1_000, ANY)]
#[case::calls_without_a_token("calls", 1_000, ANY)]
#[case::calls_without_a_session("calls-token", 1_000, ANY)]
#[case::calls_with_a_forged_session("calls-forged", 1_000, ANY)]
#[case::long_polls("polls", 500, MAX_HELD)]
#[case::event_flood("events", 100, ANY)]
#[case::json_that_grows("json", 3, ANY)]
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_floods_its_socket_harms_nobody(#[case] flood: &str, #[case] least: u64, #[case] held: u64) {
    let scene = Scene::start().await;
    let watch = scene.watch(flood);
    let job = scene.hostile(&format!("python3 flood.py {flood} {ATTACK_SECONDS}"), json!({})).await;
    let verdict = scene.measure(watch, ATTACK_SECONDS, Attackers::jobs(&[(job, Ends::Completed)])).await;
    verdict.check();
    assert!(told(&verdict.told, "attempted") >= least, "the attack was too weak: {:?}", verdict.told);
    let worked =
        ["status_200", "status_204", "status_422"].map(|status| told(&verdict.told, status)).iter().sum::<u64>();
    // Anybody may ask for its health.
    assert!(worked == 0 || flood == "health", "calls without the worker's session were looked at: {:?}", verdict.told);
    assert!(told(&verdict.told, "held_most") <= held, "more than {held} connections: {:?}", verdict.told);
    scene.stack.finish().await;
}

/// What a script says it did so often.
fn told(lines: &[String], what: &str) -> u64 {
    let objects =
        lines.iter().flat_map(|line| line.lines()).filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.filter_map(|object| object[what].as_u64()).sum()
}
