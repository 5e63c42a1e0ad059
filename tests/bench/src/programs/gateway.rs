//! `gateway`: model calls through the gateway, each recorded and its budget reserved, beside the same calls to the
//! provider directly.
//!
//! The jobs' containers are real and asleep; their model calls are made here, on their sockets, as the worker makes
//! them. The provider is a server in this process that answers at once. First one call at a time on one connection, in
//! turns with the other side; then sixteen jobs at once.

use std::time::Instant;

use protocol::LimitsRequest;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Bench;
use crate::{
    Failure,
    report::{Series, Unit},
    simulated_worker::{PendingWorker, SimulatedWorker},
    upstream::MODEL,
};

/// Jobs at once.
pub(crate) const JOBS: u32 = 16;
const SMOKE_JOBS: u32 = 4;
/// Calls in a round: one after the other, and then of each job.
const CALLS: u32 = 500;
const SMOKE_CALLS: u32 = 20;
/// More than a run makes; a job may not make more model calls than it has iterations.
const MAX_ITERATIONS: u32 = 1_000_000;
/// So large that it is never reached, so that each call reserves its share of it.
const MAX_TOKENS: u64 = 1_000_000_000_000;
/// The prompt of a call, in bytes: a short conversation.
const PROMPT_BYTES: usize = 4_000;

const OURS: &str = "one call at a time, through the gateway";
const DIRECT: &str = "one call at a time, to the provider";
const ADDED: &str = "added by the gateway, medians of a round";
const OUR_RATE: &str = "16 jobs at once, through the gateway";
const DIRECT_RATE: &str = "16 connections at once, to the provider";
const MAX_ADDED_MS: f64 = 0.6;
const MIN_RATE: f64 = 4_000.0;

/// Runs it.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let url = bench.upstream.as_ref().ok_or("the provider is not running")?.completions_url();
    let (jobs, calls) = bench.size((JOBS, CALLS), (SMOKE_JOBS, SMOKE_CALLS));
    let mut workers = Vec::new();
    for _ in 0..jobs {
        let limits = LimitsRequest {
            max_iterations: Some(MAX_ITERATIONS),
            max_tokens: Some(MAX_TOKENS),
            ..LimitsRequest::default()
        };
        workers.push(PendingWorker::create(&bench.stack, limits).await?.attach(&bench.stack).await?);
    }
    let clients: Vec<Client> = (0..jobs).map(|_| Client::builder().build()).collect::<Result<_, _>>()?;
    let (mut ours, mut direct) = (Series::new(OURS, Unit::Ms), Series::new(DIRECT, Unit::Ms));
    let mut added = Series::new(ADDED, Unit::Ms);
    let (mut our_rate, mut direct_rate) =
        (Series::new(OUR_RATE, Unit::PerSecond), Series::new(DIRECT_RATE, Unit::PerSecond));
    for round in 0..=bench.runs {
        let (mut through, mut without) = (Vec::new(), Vec::new());
        for call in 0..calls {
            through.push(timed(call_gateway(&workers[0], &call_id(round, 0, call))).await);
            without.push(timed(call_provider(&clients[0], &url)).await);
        }
        // The first round connects and warms up.
        if round > 0 {
            if let (Some(with), Some(without)) = (median(&through), median(&without)) {
                added.add(Ok(with - without));
            }
            ours.extend(through);
            direct.extend(without);
            our_rate.add(rate_through(&mut workers, round, calls).await);
            direct_rate.add(rate_direct(&clients, &url, calls).await);
        }
    }
    for side in [ours, direct, added, our_rate, direct_rate] {
        bench.report.side(side);
    }
    bench.report.limit(ADDED, MAX_ADDED_MS);
    bench.report.limit_at_least(OUR_RATE, MIN_RATE);
    bench.report.ratio(OUR_RATE, DIRECT_RATE, None);
    Ok(())
}

/// All jobs call at once: calls a second.
async fn rate_through(workers: &mut Vec<SimulatedWorker>, round: u32, calls: u32) -> Result<f64, Failure> {
    let mut jobs = JoinSet::new();
    let started = Instant::now();
    for (index, worker) in (1..).zip(workers.drain(..)) {
        jobs.spawn(async move {
            let mut result = Ok(());
            for call in 0..calls {
                result = call_gateway(&worker, &call_id(round, index, call)).await;
                if result.is_err() {
                    break;
                }
            }
            (worker, result)
        });
    }
    let mut result = Ok(());
    while let Some(done) = jobs.join_next().await {
        let (worker, called) = done?;
        workers.push(worker);
        result = result.and(called);
    }
    result.and_then(|()| rate(workers.len(), calls, started))
}

async fn rate_direct(clients: &[Client], url: &str, calls: u32) -> Result<f64, Failure> {
    let mut callers = JoinSet::new();
    let started = Instant::now();
    for client in clients {
        let (client, url) = (client.clone(), url.to_owned());
        callers.spawn(async move {
            for _ in 0..calls {
                call_provider(&client, &url).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    rate(clients.len(), calls, started)
}

fn rate(callers: usize, calls: u32, started: Instant) -> Result<f64, Failure> {
    Ok(f64::from(u32::try_from(callers)? * calls) / started.elapsed().as_secs_f64())
}

fn call_id(round: u32, job: u32, call: u32) -> String {
    format!("bench-{round}-{job}-{call}")
}

async fn call_gateway(worker: &SimulatedWorker, call_id: &str) -> Result<(), Failure> {
    let answer = worker.complete(&json!({"call_id": call_id, "messages": messages()})).await?;
    match answer["content"].as_str() {
        Some(content) if !content.is_empty() => Ok(()),
        _ => Err(format!("not an answer: {answer}").into()),
    }
}

async fn call_provider(client: &Client, url: &str) -> Result<(), Failure> {
    let options = json!({"include_usage": true});
    let body = json!({"model": MODEL, "messages": messages(), "stream": true, "stream_options": options});
    client.post(url).json(&body).send().await?.error_for_status()?.bytes().await?;
    Ok(())
}

fn messages() -> Value {
    json!([
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "x".repeat(PROMPT_BYTES)},
    ])
}

async fn timed(call: impl Future<Output = Result<(), Failure>>) -> Result<f64, Failure> {
    let started = Instant::now();
    call.await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}

fn median(attempts: &[Result<f64, Failure>]) -> Option<f64> {
    let mut samples: Vec<f64> = attempts.iter().filter_map(|attempt| attempt.as_ref().ok().copied()).collect();
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}
