//! `tool-call`: calls of `echo`, one of the orchestrator's tools, compared with round trips on the same socket.
//!
//! A call passes the whole executor: the checks, the rate, the audit row before and after the run, and the search for
//! the owner's secrets in arguments and result. The tool itself takes about a microsecond, and so does its direct call;
//! the round trips show what the transport takes. The rates are lifted. The calls are measured without and with stored
//! secrets, and with a result of 16 KiB.

use std::time::Instant;

use protocol::LimitsRequest;
use reqwest::Client;
use serde_json::json;

use super::Bench;
use crate::{
    Failure,
    report::{Series, Unit},
    simulated_worker::{PendingWorker, SimulatedWorker},
};

const ROUND_TRIP: &str = "GET /health on the socket";
const CALL: &str = "POST tools/echo";
const LARGE: &str = "the same, 16 KiB";
const WITH_SECRETS: &str = "the same, 20 secrets stored";
const LARGE_WITH_SECRETS: &str = "the same, 16 KiB, 20 secrets stored";
/// Calls of one run of each kind.
const CALLS: u32 = 100;
const SMOKE_CALLS: u32 = 10;
const LARGE_BYTES: usize = 16 * 1024;
const SECRETS: u32 = 20;
const HEALTH_URL: &str = "http://localhost/health";

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let limits = LimitsRequest { max_tool_calls: Some(bench.runs * CALLS * 4), ..LimitsRequest::default() };
    let worker = PendingWorker::create(&bench.stack, limits).await?.attach(&bench.stack).await?;
    let mut calls = Calls { worker, made: 0 };
    let mut round_trips = Series::new(ROUND_TRIP, Unit::Ms);
    let [small, large] = ["hello".to_owned(), "All tests pass. ".repeat(LARGE_BYTES / 16)];
    for (small_name, large_name, has_secrets) in [(CALL, LARGE, false), (WITH_SECRETS, LARGE_WITH_SECRETS, true)] {
        if has_secrets {
            store_secrets(bench).await?;
        }
        let (mut small_calls, mut large_calls) = (Series::new(small_name, Unit::Ms), Series::new(large_name, Unit::Ms));
        for _ in 0..bench.runs {
            for _ in 0..bench.size(CALLS, SMOKE_CALLS) {
                round_trips.add(calls.round_trip().await);
                small_calls.add(calls.echo(&small).await);
                large_calls.add(calls.echo(&large).await);
            }
        }
        bench.report.side(small_calls);
        bench.report.side(large_calls);
    }
    bench.report.side(round_trips);
    bench.report.ratio(CALL, ROUND_TRIP, None);
    Ok(())
}

/// A worker that makes calls.
struct Calls {
    worker: SimulatedWorker,
    made: u32,
}

impl Calls {
    async fn round_trip(&self) -> Result<f64, Failure> {
        let started = Instant::now();
        let response = self.worker.client().get(HEALTH_URL).send().await?;
        response.error_for_status()?.bytes().await?;
        Ok(started.elapsed().as_secs_f64() * 1_000.0)
    }

    async fn echo(&mut self, message: &str) -> Result<f64, Failure> {
        self.made += 1;
        let call = json!({"call_id": format!("call-{}", self.made), "arguments": {"message": message}});
        let started = Instant::now();
        let reply = self.worker.tool("echo", &call).await?;
        let taken = started.elapsed().as_secs_f64() * 1_000.0;
        if reply["success"] != true {
            return Err(format!("the call failed: {reply}").into());
        }
        Ok(taken)
    }
}

async fn store_secrets(bench: &Bench) -> Result<(), Failure> {
    let client = Client::new();
    for number in 0..SECRETS {
        let secret = json!({"name": format!("secret-{number}"), "value": format!("a-stored-value-{number:020}")});
        let request = client.post(bench.stack.url("/api/secrets")).bearer_auth(bench.stack.token()).json(&secret);
        request.send().await?.error_for_status()?.bytes().await?;
    }
    Ok(())
}
