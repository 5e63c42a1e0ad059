//! `events`: a hundred live jobs that each emit twenty events a second, each with a reader: how long an event takes to its
//! reader, and whether each arrives once. Then as many as the orchestrator takes, beside SQLite's own inserts in the same
//! batches.
//!
//! The jobs' containers are real and asleep; their workers are played here, on their sockets, in the way of the real one.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::{Duration, Instant},
};

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::{sleep, sleep_until, timeout},
};

use super::Bench;
use crate::{
    Failure, clock, database,
    hand::{Hand, number, stored_message},
    report::{Attempts, Unit},
    stack::{Events, Stack},
};

/// Live at once.
pub(crate) const JOBS: u32 = 100;
/// Between two events of a job.
const PERIOD: Duration = Duration::from_millis(50);
/// Of each job in a round at that pace: ten seconds.
const PACED_EVENTS: u32 = 200;
/// How long a batch waits for company, as in the real worker.
const LINGER: Duration = Duration::from_millis(5);
/// A reader that is told nothing for so long will not be told.
const SILENCE: Duration = Duration::from_secs(10);

const LATENCY: &str = "emit to client, 20 a second each";
const LOST: &str = "lost, in a round";
const DOUBLED: &str = "doubled, in a round";
const LATENCY_AT_MOST_MS: f64 = 50.0;
const AT_LEAST: f64 = 0.5;
/// As many as are taken, in batches of one and of a second's worth.
const FLAT_OUT: [FlatOut; 2] = [
    FlatOut { batch: 1, batches: 20, ours: "stored and streamed, one a batch", other: "SQLite's inserts, one a batch" },
    FlatOut { batch: 20, batches: 10, ours: "stored and streamed, 20 a batch", other: "SQLite's inserts, 20 a batch" },
];

/// Every job sends as many batches, one after the other.
struct FlatOut {
    batch: u32,
    batches: u32,
    ours: &'static str,
    other: &'static str,
}

/// What a reader was told: by which job, which number, when.
type Told = (u32, u64, Instant);

/// The jobs, their played workers and their readers.
struct Crowd {
    hands: Vec<Hand>,
    told: UnboundedReceiver<Told>,
    seen: HashMap<(u32, u64), Instant>,
    doubled: u32,
    /// Stored, waited for, and not told of.
    given_up: u32,
    /// End with this value.
    _readers: JoinSet<()>,
}

/// Runs it.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let mut crowd = Crowd::gather(&bench.stack).await?;
    let mut raw = database::copy(&bench.stack.database(), &bench.stack.folder().join("raw.db")).await?;
    let mut latency = Attempts::new(LATENCY, Unit::Ms);
    let (mut lost, mut doubled) = (Attempts::new(LOST, Unit::Count), Attempts::new(DOUBLED, Unit::Count));
    let mut rates = FLAT_OUT.map(|kind| [kind.ours, kind.other].map(|name| Attempts::new(name, Unit::PerSecond)));
    for _ in 0..bench.runs {
        let (before, mut missing) = (crowd.doubled, crowd.paced(&mut latency).await?);
        for (kind, [ours, other]) in FLAT_OUT.iter().zip(&mut rates) {
            let (rate, unseen) = crowd.flat_out(kind).await?;
            missing += unseen;
            ours.add(rate);
            other.add(inserts(&mut raw, &crowd.hands, kind).await);
        }
        lost.add(Ok(f64::from(missing)));
        doubled.add(Ok(f64::from(crowd.doubled - before)));
    }
    for side in [latency, lost, doubled].into_iter().chain(rates.into_iter().flatten()) {
        bench.report.side(side);
    }
    bench.report.limit_at(LATENCY, 99, LATENCY_AT_MOST_MS);
    bench.report.limit_at(LOST, 99, 0.0);
    bench.report.limit_at(DOUBLED, 99, 0.0);
    for kind in FLAT_OUT {
        bench.report.ratio_at_least(kind.ours, kind.other, AT_LEAST);
    }
    Ok(())
}

impl Crowd {
    async fn gather(stack: &Stack) -> Result<Self, Failure> {
        let mut candidates = Vec::new();
        for _ in 0..JOBS {
            candidates.push(Hand::create(stack).await?);
        }
        let (tell, told) = unbounded_channel();
        let (mut hands, mut readers) = (Vec::new(), JoinSet::new());
        for (index, candidate) in (0..).zip(candidates) {
            let hand = Hand::take(stack, candidate).await?;
            readers.spawn(read(stack.events(hand.job).await?, index, hand.last(), tell.clone()));
            hands.push(hand);
        }
        Ok(Self { hands, told, seen: HashMap::new(), doubled: 0, given_up: 0, _readers: readers })
    }

    /// A round at the given pace. How many were stored and did not arrive.
    async fn paced(&mut self, latency: &mut Attempts) -> Result<u32, Failure> {
        // They begin one after the other, as workers do that know nothing of each other.
        let (begin, apart) = (Instant::now() + PERIOD, PERIOD / JOBS);
        let firsts: Vec<u64> = self.hands.iter().map(|hand| hand.last() + 1).collect();
        let failures = self.play(|hand, index| emit(hand, begin + apart * index)).await;
        let missing = self.listen().await;
        for (index, (first, hand)) in (0..).zip(firsts.into_iter().zip(&self.hands)) {
            let mut due = begin + apart * index;
            for number in first..=hand.last() {
                let arrived = self.seen.get(&(index, number));
                let taken = arrived.map(|at| at.saturating_duration_since(due).as_secs_f64() * 1_000.0);
                latency.add(taken.ok_or_else(|| "stored, but not streamed".into()));
                due += PERIOD;
            }
        }
        for failure in failures {
            latency.add(Err(failure));
        }
        Ok(missing)
    }

    /// A round as fast as it goes: events a second until the last is with its reader, and how many never were.
    async fn flat_out(&mut self, kind: &FlatOut) -> Result<(Result<f64, Failure>, u32), Failure> {
        let (before, started) = (self.seen.len(), Instant::now());
        let (batch, batches) = (u64::from(kind.batch), kind.batches);
        let mut failures = self.play(|hand, _| pour(hand, batch, batches)).await;
        let missing = self.listen().await;
        if let Some(failure) = failures.pop() {
            return Ok((Err(failure), missing));
        }
        let last = self.seen.values().max().copied().unwrap_or(started);
        let count = u32::try_from(self.seen.len() - before)?;
        Ok((Ok(f64::from(count) / (last - started).as_secs_f64()), missing))
    }

    /// Lets all the workers do something at once; what went wrong.
    async fn play<F>(&mut self, part: impl Fn(Hand, u32) -> F) -> Vec<Failure>
    where
        F: Future<Output = (Hand, Result<(), Failure>)> + Send + 'static,
    {
        let mut playing = JoinSet::new();
        for (index, hand) in (0..).zip(self.hands.drain(..)) {
            let played = part(hand, index);
            playing.spawn(async move { (index, played.await) });
        }
        let mut played = playing.join_all().await;
        played.sort_by_key(|(index, _)| *index);
        let mut failures = Vec::new();
        for (_, (hand, result)) in played {
            self.hands.push(hand);
            failures.extend(result.err());
        }
        failures
    }

    /// Takes what the readers were told until everything that is stored has come; how many have not.
    async fn listen(&mut self) -> u32 {
        let stored: u64 = self.hands.iter().map(|hand| hand.last() - hand.before()).sum();
        let mut missing = stored.saturating_sub(self.seen.len() as u64 + u64::from(self.given_up));
        while missing > 0 || !self.told.is_empty() {
            let Ok(Some((index, number, at))) = timeout(SILENCE, self.told.recv()).await else { break };
            match self.seen.entry((index, number)) {
                Entry::Occupied(_) => self.doubled += 1,
                Entry::Vacant(place) => {
                    place.insert(at);
                    missing = missing.saturating_sub(1);
                }
            }
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        self.given_up = self.given_up.saturating_add(missing);
        missing
    }
}

/// A job's reader, which is there before its first event.
async fn read(mut events: Events, index: u32, after: u64, tell: UnboundedSender<Told>) {
    let fresh = |data: &_| number(data).is_some_and(|number| number > after);
    // What ends it is seen as events that do not arrive.
    while let Ok(event) = events.until(fresh).await {
        let Some(number) = number(&event.data) else { break };
        if tell.send((index, number, Instant::now())).is_err() {
            break;
        }
    }
}

/// A worker that emits at its pace from `begin` on: what is due goes in one batch, one batch at a time.
async fn emit(mut hand: Hand, begin: Instant) -> (Hand, Result<(), Failure>) {
    let mut sent = 0;
    while sent < PACED_EVENTS {
        sleep_until((begin + PERIOD * sent).into()).await;
        sleep(LINGER).await;
        let late = Instant::now().saturating_duration_since(begin + PERIOD * sent);
        let more = u32::try_from(late.as_millis() / PERIOD.as_millis()).unwrap_or(u32::MAX);
        let due = more.saturating_add(1).min(PACED_EVENTS - sent);
        if let Err(failure) = hand.send(u64::from(due)).await {
            return (hand, Err(failure));
        }
        sent += due;
    }
    (hand, Ok(()))
}

/// A worker that emits as fast as it may.
async fn pour(mut hand: Hand, batch: u64, batches: u32) -> (Hand, Result<(), Failure>) {
    for _ in 0..batches {
        if let Err(failure) = hand.send(batch).await {
            return (hand, Err(failure));
        }
    }
    (hand, Ok(()))
}

/// The same rows in the same batches, written by one connection, each batch a statement and so a transaction.
async fn inserts(raw: &mut SqliteConnection, hands: &[Hand], kind: &FlatOut) -> Result<f64, Failure> {
    let mut last: i64 = sqlx::query_scalar("SELECT MAX(seq) FROM events").fetch_one(&mut *raw).await?;
    let started = Instant::now();
    for _ in 0..kind.batches {
        for hand in hands {
            let mut insert = QueryBuilder::<Sqlite>::new("INSERT INTO events (job_id, seq, attempt, at, kind, data) ");
            insert.push_values(last + 1..=last + i64::from(kind.batch), |mut row, seq| {
                row.push_bind(*hand.job.as_uuid()).push_bind(seq).push_bind(1).push_bind(clock::wall());
                row.push_bind("message").push_bind(stored_message(seq.unsigned_abs()));
            });
            insert.build().execute(&mut *raw).await?;
        }
        last += i64::from(kind.batch);
    }
    let count = f64::from(kind.batch * kind.batches) * f64::from(u32::try_from(hands.len())?);
    Ok(count / started.elapsed().as_secs_f64())
}
