//! `loop`: one tool turn of the agent loop with a model that answers at once, compared with a bare HTTP round trip on a
//! job's socket.
//!
//! A turn is a model call and a call of `echo`, both from the worker to the orchestrator and back, each recorded before
//! its answer is used. A job makes 200 turns and then sleeps until it is cancelled. The round trips are made on the
//! socket of another job, whose worker only sleeps, between the jobs.

use std::time::Instant;

use protocol::{EventData, LimitsRequest};
use reqwest::StatusCode;

use super::Bench;
use crate::{
    Failure, clock,
    report::{Series, Unit},
    simulated_worker::{PendingWorker, SimulatedWorker},
    stack::container_name,
};

const OURS: &str = "one tool turn, mean of a job's 200";
const OTHER: &str = "GET /health on a socket, mean of 200";
const TURNS: u32 = 200;
const SMOKE_TURNS: u32 = 20;
const MAX_ITERATIONS: u32 = 250;
const HEALTH_URL: &str = "http://localhost/health";
const MAX_RATIO: f64 = 5.0;
const MAX_MS: f64 = 1.2;

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let (mut ours, mut other) = (Series::new(OURS, Unit::Ms), Series::new(OTHER, Unit::Ms));
    let idle = PendingWorker::create(&bench.stack, LimitsRequest::default()).await?.attach(&bench.stack).await?;
    let number = bench.size(TURNS, SMOKE_TURNS);
    for _ in 0..bench.runs {
        ours.add(one_job(bench, number).await);
        other.add(round_trips(&idle, number).await);
    }
    bench.report.side(ours);
    bench.report.side(other);
    bench.report.ratio(OURS, OTHER, Some(MAX_RATIO));
    bench.report.limit(OURS, MAX_MS);
    Ok(())
}

async fn one_job(bench: &mut Bench, number: u32) -> Result<f64, Failure> {
    let limits = LimitsRequest { max_iterations: Some(MAX_ITERATIONS), ..LimitsRequest::default() };
    let job = bench.stack.create(&format!("bench: loop {number}"), Some(limits)).await?;
    let turn = turns(bench, job, number).await;
    // A failed job cannot be cancelled; the error of its turns is the one to report.
    let cancelled = bench.stack.cancel(job).await;
    let turn = turn?;
    cancelled?;
    bench.destroyed()?.wait_for(&container_name(job)).await?;
    Ok(turn)
}

/// Time from the first model call to the one after the last turn, by the timestamps of the recorded events.
async fn turns(bench: &Bench, job: protocol::JobId, number: u32) -> Result<f64, Failure> {
    let mut events = bench.stack.events(job).await?;
    let first = events.until(|data| matches!(data, EventData::LlmCall { .. })).await?.at;
    let (mut last, mut calls, mut results) = (first, 0, 0);
    // Results are sent in batches, so they may arrive after later model calls.
    while calls < number || results < number {
        let wanted = |data: &EventData| matches!(data, EventData::LlmCall { .. } | EventData::ToolResult { .. });
        let event = events.until(wanted).await?;
        match event.data {
            EventData::ToolResult { success: true, .. } => results += 1,
            EventData::ToolResult { output, .. } => return Err(format!("echo failed: {output}").into()),
            _ => (last, calls) = (event.at, calls + 1),
        }
    }
    Ok(clock::milliseconds_between(first, last) / f64::from(number))
}

/// Mean of as many round trips as a job makes turns, on one connection of the session.
async fn round_trips(worker: &SimulatedWorker, number: u32) -> Result<f64, Failure> {
    worker.authenticate().await?;
    let client = worker.client();
    let started = Instant::now();
    for _ in 0..number {
        let mut response = client.get(HEALTH_URL).send().await?;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            // The client has opened another connection, which belongs to the session only after a call of it.
            worker.authenticate().await?;
            response = client.get(HEALTH_URL).send().await?;
        }
        response.error_for_status()?.bytes().await?;
    }
    Ok(started.elapsed().as_secs_f64() * 1_000.0 / f64::from(number))
}
