//! Turns of chat threads beside the same call to the provider directly, as in `chat`.

use super::super::{
    Bench,
    chat::{User, call_provider, median},
};
use crate::{
    Failure,
    report::{Series, Unit},
};

const OURS: &str = "a chat turn, until its answer is on the stream";
const DIRECT: &str = "the same call to the provider";
const ADDED: &str = "added to a chat turn, medians";
const MAX_ADDED_MS: f64 = 15.0;

/// Times them.
pub(super) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let url = bench.upstream.as_ref().ok_or("the provider is not running")?.completions_url();
    let (user, provider) = (User::of(&bench.stack)?, reqwest::Client::new());
    let mut stream = user.stream(&bench.stack).await?;
    let (mut turns, mut calls) = (Vec::new(), Vec::new());
    for _ in 0..bench.runs {
        let thread = user.new_thread().await?;
        turns.push(user.turn(&thread, &mut stream).await?);
        calls.push(call_provider(&provider, &url).await?);
    }
    let added = median(&turns) - median(&calls);
    for (name, samples) in [(OURS, turns), (DIRECT, calls)] {
        let mut series = Series::new(name, Unit::Ms);
        series.extend(samples.into_iter().map(Ok));
        bench.report.side(series);
    }
    bench.report.figure(ADDED, Unit::Ms, added);
    bench.report.limit(ADDED, MAX_ADDED_MS);
    Ok(())
}
