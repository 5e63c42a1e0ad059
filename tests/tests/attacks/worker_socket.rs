//! A hostile job against its own socket: connections, heads, bodies and requests, with everything that a command could
//! obtain of the job's identity.

use rstest::rstest;
use serde_json::{Value, json};

use crate::scenario::{ATTACK_SECONDS, Attackers, ExpectedEnd, Scenario};

/// The most connections that one process can hold: served (64), waiting to be accepted (64), and in transition.
const MAX_HELD: u64 = 300;
/// The same for ten processes, whose maxima need not coincide.
const MAX_HELD_BY_TEN: u64 = 2_000;
const ANY: u64 = u64::MAX;

/// Each attack of `flood.py`, the least that it must have attempted for the test to be valid, and the most that it may
/// have held.
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
async fn a_job_that_floods_its_socket_affects_no_other_user(
    #[case] flood: &str,
    #[case] least: u64,
    #[case] held: u64,
) {
    let scenario = Scenario::start().await;
    let watch = scenario.watch(flood);
    let job = scenario.hostile(&format!("python3 flood.py {flood} {ATTACK_SECONDS}"), json!({})).await;
    let verdict = scenario.measure(watch, ATTACK_SECONDS, Attackers::jobs(&[(job, ExpectedEnd::Completed)])).await;
    verdict.check();
    assert!(reports(&verdict.reports, "attempted") >= least, "the attack attempted too little: {:?}", verdict.reports);
    let worked =
        ["status_200", "status_204", "status_422"].map(|status| reports(&verdict.reports, status)).iter().sum::<u64>();
    // `/health` needs no token.
    assert!(
        worked == 0 || flood == "health",
        "calls without the worker's session were looked at: {:?}",
        verdict.reports
    );
    assert!(reports(&verdict.reports, "held_most") <= held, "more than {held} connections: {:?}", verdict.reports);
    scenario.stack.finish().await;
}

/// The count that a script printed under this name.
fn reports(lines: &[String], what: &str) -> u64 {
    let objects =
        lines.iter().flat_map(|line| line.lines()).filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.filter_map(|object| object[what].as_u64()).sum()
}
