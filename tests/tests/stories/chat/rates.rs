//! Rates of tools in a chat, on a clock that stands still: so many calls at once, one more after the time that it says.

use std::time::Duration;

use orchestrator::clock::ManualClock;
use protocol::{JobSummary, Page, ThreadActionRecord, ToolErrorKind};
use serde_json::{Value, json};
use tests::{User, World, script_of};

use super::turn;

/// Tool, calls at once, and the seconds after which there is one more.
const RATES: [(&str, usize, u64); 5] =
    [("echo", 60, 1), ("message", 10, 6), ("memory_write", 20, 3), ("create_job", 5, 12), ("http", 30, 2)];

fn arguments(tool: &str, n: usize) -> Value {
    match tool {
        "message" => json!({"content": format!("{{{{turn}}}} {n}")}),
        "memory_write" => json!({"path": format!("notes/{n}.md"), "content": "{{turn}}"}),
        "create_job" => json!({"prompt": format!("{{{{turn}}}} {n}")}),
        "http" => json!({"method": "GET", "url": format!("https://nowhere.invalid/{{{{turn}}}}/{n}")}),
        _ => json!({"message": format!("{{{{turn}}}} {n}")}),
    }
}

/// A model that makes one call more than the rate allows, and a single one when it is told to.
fn script() -> String {
    let rule = |(tool, at_once, _): (&str, usize, u64)| {
        let calls = |count: usize| -> Vec<Value> {
            (0..count).map(|n| json!({"name": tool, "arguments": arguments(tool, n)})).collect()
        };
        [
            json!({"when": {"last_message": format!("one {tool}")}, "reply": {"tool_calls": calls(1)}}),
            json!({"when": {"last_message": format!("many {tool}")}, "reply": {"tool_calls": calls(at_once + 1)}}),
        ]
    };
    let mut rules = vec![json!({"when": {"tool_name": {"regex": "."}}, "reply": {"text": "done"}})];
    rules.extend(RATES.into_iter().flat_map(rule));
    script_of(&rules)
}

/// The refusals by rate of the last turn, and the number of its calls.
async fn refused(user: &User) -> (Vec<String>, usize) {
    let page: Page<ThreadActionRecord> = user.get("/api/chat/threads/main/actions?limit=200").await.expect(200).json();
    assert_eq!(page.next_cursor, None);
    let turn = page.items.last().map(|call| call.turn);
    let calls: Vec<_> = page.items.into_iter().filter(|call| Some(call.turn) == turn).collect();
    let count = calls.len();
    let refused = calls.into_iter().filter(|call| call.error == Some(ToolErrorKind::RateLimited));
    (refused.map(|call| call.output.unwrap_or_default()).collect(), count)
}

#[tokio::test]
async fn a_call_over_the_rate_says_when_it_may_be_made_again() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world =
        World::builder().clock(&time).set("GANTRY_EGRESS_CEILING", "nowhere.invalid").script(script()).build().await;
    let ada = world.user("ada");
    for (tool, at_once, seconds) in RATES {
        let always = json!({"permission": "always_allow"}).to_string();
        ada.put(&format!("/api/tools/{tool}/permission"), "application/json", always).await.expect(200);
        turn(&ada, &format!("many {tool}")).await;
        let (over, calls) = refused(&ada).await;
        let says = format!("error (rate_limited): too many calls of {tool}; try again in {seconds} s");
        assert_eq!((over, calls), (vec![says], at_once + 1), "{tool}");
        time.advance(Duration::from_secs(seconds - 1));
        turn(&ada, &format!("one {tool}")).await;
        assert_eq!(refused(&ada).await.0.len(), 1, "{tool}: a second too early");
        time.advance(Duration::from_secs(1));
        turn(&ada, &format!("one {tool}")).await;
        assert_eq!(refused(&ada).await, (vec![], 1), "{tool}");
    }
    let jobs: Page<JobSummary> = ada.get("/api/jobs").await.expect(200).json();
    assert_eq!(jobs.items.len(), 6, "as many as were allowed");
    for job in jobs.items {
        ada.cancel(job.id).await;
        ada.wait_for_end(job.id).await;
    }
    world.finish().await;
}
