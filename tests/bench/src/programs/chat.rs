//! `chat`: turns of chat threads, from the message until the answer is on the stream, beside the same call to the
//! provider directly.
//!
//! The provider is a server in this process that answers at once, so what is left is Gantry's own time. Each turn is
//! the first of a new thread. First one turn at a time, in turns with the other side; then ten threads at once.

use std::{pin::Pin, time::Instant};

use futures_util::{Stream, StreamExt as _};
use protocol::MessageReceipt;
use reqwest::Client;
use serde_json::{Value, json};
use sse_stream::{Sse, SseStream};
use tokio::task::JoinSet;

use super::Bench;
use crate::{
    Failure,
    report::{Series, Unit},
    stack::Stack,
    upstream::MODEL,
};

/// Turns one after the other, in a round.
const TURNS: u32 = 100;
const SMOKE_TURNS: u32 = 10;
/// Threads at once.
const THREADS: u32 = 10;
/// Turns of each of these threads.
const TURNS_PER_THREAD: u32 = 10;
const SMOKE_TURNS_PER_THREAD: u32 = 2;

const OURS: &str = "a turn, until its answer is on the stream";
const DIRECT: &str = "the same call to the provider";
const ADDED: &str = "added by Gantry, medians of a round";
const RATE: &str = "turns of 10 threads at once";
const MAX_ADDED_MS: f64 = 10.0;
const PROMPT: &str = "What is the state of the parser's tests?";

pub(super) type Messages = Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>;

/// Runs it.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let url = bench.upstream.as_ref().ok_or("the provider is not running")?.completions_url();
    let user = User::of(&bench.stack)?;
    let provider = Client::builder().build()?;
    let (mut ours, mut direct) = (Series::new(OURS, Unit::Ms), Series::new(DIRECT, Unit::Ms));
    let (mut added, mut rate) = (Series::new(ADDED, Unit::Ms), Series::new(RATE, Unit::PerSecond));
    let mut stream = user.stream(&bench.stack).await?;
    for round in 0..=bench.runs {
        let (mut turns, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..bench.size(TURNS, SMOKE_TURNS) {
            let thread = user.new_thread().await?;
            turns.push(user.turn(&thread, &mut stream).await?);
            calls.push(call_provider(&provider, &url).await?);
        }
        // The first round connects and warms up.
        if round > 0 {
            added.add(Ok(median(&turns) - median(&calls)));
            ours.extend(turns.into_iter().map(Ok));
            direct.extend(calls.into_iter().map(Ok));
            rate.add(at_once(&user, &bench.stack, bench.size(TURNS_PER_THREAD, SMOKE_TURNS_PER_THREAD)).await);
        }
    }
    for side in [ours, direct, added, rate] {
        bench.report.side(side);
    }
    bench.report.limit(ADDED, MAX_ADDED_MS);
    Ok(())
}

/// A user of the API.
#[derive(Clone)]
pub(super) struct User {
    client: Client,
    base: String,
    token: String,
}

impl User {
    /// The owner of what is measured.
    pub(super) fn of(stack: &Stack) -> Result<Self, Failure> {
        let (base, token) = (stack.base().to_owned(), stack.token().to_owned());
        Ok(Self { client: Client::builder().build()?, base, token })
    }

    async fn send(&self, body: Value) -> Result<MessageReceipt, Failure> {
        let request = self.client.post(format!("{}/api/chat/send", self.base)).bearer_auth(&self.token).json(&body);
        let answer = request.send().await?.error_for_status()?.bytes().await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    pub(super) async fn new_thread(&self) -> Result<String, Failure> {
        Ok(self.send(json!({"content": "/new"})).await?.thread_id.to_string())
    }

    /// The stream of all threads.
    pub(super) async fn stream(&self, stack: &Stack) -> Result<Messages, Failure> {
        let request = self.client.get(stack.url("/api/chat/events")).bearer_auth(&self.token);
        let response = request.send().await?.error_for_status()?;
        Ok(Box::pin(SseStream::from_bytes_stream(response.bytes_stream())))
    }

    /// The time of a turn, in milliseconds.
    pub(super) async fn turn(&self, thread: &str, stream: &mut Messages) -> Result<f64, Failure> {
        let started = Instant::now();
        self.send(json!({"thread_id": thread, "content": PROMPT})).await?;
        let mut taken = None;
        while let Some(message) = stream.next().await {
            let Some(data) = message.map_err(|error| error.to_string())?.data else { continue };
            let data: Value = serde_json::from_str(&data)?;
            if data["thread_id"] != thread {
                continue;
            }
            if data["role"] == "assistant" {
                taken = Some(started.elapsed());
            }
            // The next turn must not wait for the end of this one.
            if data["state"] == "idle" {
                return taken.map(|taken| taken.as_secs_f64() * 1_000.0).ok_or_else(|| "a turn had no answer".into());
            }
        }
        Err("the stream ended".into())
    }
}

/// Turns a second of threads that work at the same time.
async fn at_once(user: &User, stack: &Stack, turns: u32) -> Result<f64, Failure> {
    let mut threads = JoinSet::new();
    let started = Instant::now();
    for _ in 0..THREADS {
        let (user, mut stream) = (user.clone(), user.stream(stack).await?);
        threads.spawn(async move {
            let thread = user.new_thread().await?;
            for _ in 0..turns {
                user.turn(&thread, &mut stream).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(done) = threads.join_next().await {
        done??;
    }
    Ok(f64::from(THREADS * turns) / started.elapsed().as_secs_f64())
}

pub(super) async fn call_provider(client: &Client, url: &str) -> Result<f64, Failure> {
    let messages = json!([{"role": "system", "content": "You are an assistant."}, {"role": "user", "content": PROMPT}]);
    let options = json!({"include_usage": true});
    let body = json!({"model": MODEL, "messages": messages, "stream": true, "stream_options": options});
    let started = Instant::now();
    client.post(url).json(&body).send().await?.error_for_status()?.bytes().await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}

pub(super) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
