//! The setup of the fault tests: an install with budgets, a model whose tool calls leave a trace, and a client that
//! survives its server.

use std::{os::unix::process::ExitStatusExt, time::Duration};

use protocol::{Job, JobId};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tests::{
    User,
    install::stack::{Builder, Stack},
};

/// A model that returns shell calls, each of which appends its turn number to the file `effects`.
pub(crate) const WORK_SCRIPT: &str = r"
model: faults-1
rules:
  - when: { last_message: { regex: '^say: (.*)$' } }
    reply: { text: 'heard {{match.1}}' }
  - when: { prompt: { regex: '^gate' }, turn: 1 }
    reply: { tool_calls: [{ name: shell, arguments: { command: 'echo {{turn}} >> effects; until [ -e go ]; do sleep 0.05; done' } }] }
  - when: { prompt: { regex: '^think' }, turn: 1 }
    reply: { tool_calls: [{ name: echo, arguments: { message: hm } }] }
  - when: { prompt: { regex: '^think' }, turn: 2 }
    reply: { text: I thought., delay_ms: 2500 }
  - when: { prompt: { regex: '^parent' }, turn: 1 }
    reply: { tool_calls: [{ name: create_job, arguments: { prompt: 'work 1', wait: true } }] }
  - when: { prompt: { regex: '^parent' } }
    reply: { text: '{{tool_result}}' }
  - when: { prompt: { regex: '^work 1' }, turn: 1 }
    reply: &effect { tool_calls: [{ name: shell, arguments: { command: 'echo {{turn}} >> effects' } }] }
  - when: { prompt: { regex: '^work 2' }, turn: { to: 2 } }
    reply: *effect
  - when: { prompt: { regex: '^work 9' }, turn: { to: 9 } }
    reply: { tool_calls: [{ name: shell, arguments: { command: 'echo {{turn}} >> effects; sleep 0.2' } }] }
  - reply: { text: 'done at turn {{turn}}' }
";

/// An install for a fault test. Its budgets are generous but set, so that leaked reservations are detected.
pub(crate) fn install() -> Builder {
    Stack::builder()
        .script(WORK_SCRIPT)
        .set("GANTRY_USER_DAY_MAX_TOKENS", "1000000000")
        .set("GANTRY_MAX_PARALLEL_JOBS", "4")
        .set("GANTRY_MAX_PARALLEL_JOBS_PER_USER", "4")
}

/// Waits until the process has been killed by its failpoint.
pub(crate) async fn wait_for_failpoint(stack: &mut Stack) {
    let status = stack.ended().await;
    assert_eq!(status.signal(), Some(9), "the process was not killed by its failpoint: {status}");
}

/// Restarts it without a failpoint.
pub(crate) async fn restart_without_failpoint(stack: &mut Stack) {
    stack.set("GANTRY_FAILPOINT", None);
    stack.restart().await;
}

/// A response with its status, or `None` if the server died meanwhile.
pub(crate) async fn send(request: RequestBuilder) -> Option<(u16, Value)> {
    let response =
        tokio::time::timeout(tests::WAIT_TIMEOUT, request.send()).await.expect("no response in time").ok()?;
    let status = response.status().as_u16();
    Some((status, response.json().await.ok()?))
}

/// Posts a job with an idempotency key. Returns the job unless the server died before it responded.
pub(crate) async fn post(user: &User, key: &str, body: &Value) -> Option<Job> {
    let request = user.request(Method::POST, "/api/jobs").header("Idempotency-Key", key).json(body);
    let (status, job) = send(request).await?;
    assert_eq!(status, 201, "{job:#}");
    Some(serde_json::from_value(job).expect("a job"))
}

/// A `POST` request with an empty object.
pub(crate) async fn post_action(user: &User, job: JobId, verb: &str) -> Option<(u16, Value)> {
    send(user.request(Method::POST, &format!("/api/jobs/{job}/{verb}")).json(&json!({}))).await
}

/// A reproducible random generator (splitmix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }

    pub(crate) fn choose<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let place = usize::try_from(self.below(all.len() as u64)).unwrap_or(0);
        all.get(place).copied()
    }

    /// Sleeps for a random time, to hit an arbitrary moment. Not used to wait for a condition.
    pub(crate) async fn sleep_up_to(&mut self, at_most: Duration) {
        let millis = u64::try_from(at_most.as_millis()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_millis(self.below(millis))).await;
    }
}
