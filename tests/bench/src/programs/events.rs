//! `events`: 100 live jobs emit 20 events a second each, and each has one reader: latency from emit to reader, lost and
//! duplicated events. Then the maximum rate, compared with SQLite's own inserts in the same batches.
//!
//! The containers are real and sleep. The benchmark simulates the workers on the jobs' sockets.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::{Duration, Instant},
};

use protocol::LimitsRequest;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::{sleep, sleep_until, timeout},
};

use super::Bench;
use crate::{
    Failure, clock, database,
    report::{Series, Unit},
    simulated_worker::{PendingWorker, SimulatedWorker, number, stored_message},
    stack::{Events, Stack},
};

/// Live jobs.
pub(crate) const JOBS: u32 = 100;
const SMOKE_JOBS: u32 = 5;
/// Interval between two events of a job.
const PERIOD: Duration = Duration::from_millis(50);
/// Events of each job in a paced round: ten seconds' worth.
const PACED_EVENTS: u32 = 200;
const SMOKE_PACED_EVENTS: u32 = 20;
/// How long a batch is delayed for more events to join it, as in the real worker.
const BATCH_DELAY: Duration = Duration::from_millis(5);
/// An event that has not arrived after this long is counted as lost.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

const LATENCY: &str = "emit to client, 20 a second each";
const LOST: &str = "lost, in a round";
const DOUBLED: &str = "doubled, in a round";
const MAX_LATENCY_MS: f64 = 50.0;
const MIN_RATIO: f64 = 0.5;
/// Maximum rates, in batches of one event and of one second's events.
const THROUGHPUTS: [Throughput; 2] = [
    Throughput {
        batch: 1,
        batches: 20,
        ours: "stored and streamed, one a batch",
        other: "SQLite's inserts, one a batch",
    },
    Throughput {
        batch: 20,
        batches: 10,
        ours: "stored and streamed, 20 a batch",
        other: "SQLite's inserts, 20 a batch",
    },
];

/// A measurement of the maximum rate: each job sends `batches` batches, one after the other.
struct Throughput {
    batch: u32,
    batches: u32,
    ours: &'static str,
    other: &'static str,
}

/// An event received by a reader: index of the job, number of the event, time.
type Delivery = (u32, u64, Instant);

/// The jobs, their simulated workers and their readers.
struct Fleet {
    workers: Vec<SimulatedWorker>,
    deliveries: UnboundedReceiver<Delivery>,
    seen: HashMap<(u32, u64), Instant>,
    doubled: u32,
    /// Events that were stored and never delivered, over all rounds.
    lost: u32,
    /// Aborted on drop.
    _readers: JoinSet<()>,
}

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let mut fleet = Fleet::start(&bench.stack, bench.size(JOBS, SMOKE_JOBS)).await?;
    let mut raw = database::copy(&bench.stack.database(), &bench.stack.directory().join("raw.db")).await?;
    let mut latency = Series::new(LATENCY, Unit::Ms);
    let (mut lost, mut doubled) = (Series::new(LOST, Unit::Count), Series::new(DOUBLED, Unit::Count));
    let paced_events = bench.size(PACED_EVENTS, SMOKE_PACED_EVENTS);
    let mut rates = THROUGHPUTS.map(|kind| [kind.ours, kind.other].map(|name| Series::new(name, Unit::PerSecond)));
    for _ in 0..bench.runs {
        let (before, mut missing) = (fleet.doubled, fleet.paced(paced_events, &mut latency).await?);
        for (kind, [ours, other]) in THROUGHPUTS.iter().zip(&mut rates) {
            let (rate, unseen) = fleet.throughput(kind).await?;
            missing += unseen;
            ours.add(rate);
            other.add(inserts(&mut raw, &fleet.workers, kind).await);
        }
        lost.add(Ok(f64::from(missing)));
        doubled.add(Ok(f64::from(fleet.doubled - before)));
    }
    for side in [latency, lost, doubled].into_iter().chain(rates.into_iter().flatten()) {
        bench.report.side(side);
    }
    bench.report.limit_at(LATENCY, 99, MAX_LATENCY_MS);
    bench.report.limit_at(LOST, 99, 0.0);
    bench.report.limit_at(DOUBLED, 99, 0.0);
    for kind in THROUGHPUTS {
        bench.report.ratio_at_least(kind.ours, kind.other, MIN_RATIO);
    }
    Ok(())
}

impl Fleet {
    async fn start(stack: &Stack, jobs: u32) -> Result<Self, Failure> {
        let mut pending = Vec::new();
        for _ in 0..jobs {
            pending.push(PendingWorker::create(stack, LimitsRequest::default()).await?);
        }
        let (deliveries_sender, deliveries) = unbounded_channel();
        let (mut workers, mut readers) = (Vec::new(), JoinSet::new());
        for (index, pending) in (0..).zip(pending) {
            let worker = pending.attach(stack).await?;
            readers.spawn(read(stack.events(worker.job).await?, index, worker.last(), deliveries_sender.clone()));
            workers.push(worker);
        }
        Ok(Self { workers, deliveries, seen: HashMap::new(), doubled: 0, lost: 0, _readers: readers })
    }

    /// Runs a paced round of so many events of each job and returns how many stored events were not delivered.
    async fn paced(&mut self, events: u32, latency: &mut Series) -> Result<u32, Failure> {
        // Staggered, as independent workers are.
        let (begin, apart) = (Instant::now() + PERIOD, PERIOD / u32::try_from(self.workers.len())?);
        let firsts: Vec<u64> = self.workers.iter().map(|worker| worker.last() + 1).collect();
        let failures = self.run_all(|worker, index| emit_paced(worker, begin + apart * index, events)).await;
        let missing = self.drain_deliveries().await;
        for (index, (first, worker)) in (0..).zip(firsts.into_iter().zip(&self.workers)) {
            let mut due = begin + apart * index;
            for number in first..=worker.last() {
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

    /// Runs a round at full speed: events a second until the last one is delivered, and how many were not delivered.
    async fn throughput(&mut self, kind: &Throughput) -> Result<(Result<f64, Failure>, u32), Failure> {
        let (before, started) = (self.seen.len(), Instant::now());
        let (batch, batches) = (u64::from(kind.batch), kind.batches);
        let mut failures = self.run_all(|worker, _| emit_unpaced(worker, batch, batches)).await;
        let missing = self.drain_deliveries().await;
        if let Some(failure) = failures.pop() {
            return Ok((Err(failure), missing));
        }
        let last = self.seen.values().max().copied().unwrap_or(started);
        let count = u32::try_from(self.seen.len() - before)?;
        Ok((Ok(f64::from(count) / (last - started).as_secs_f64()), missing))
    }

    /// Runs `part` for all workers concurrently and returns the failures.
    async fn run_all<F>(&mut self, part: impl Fn(SimulatedWorker, u32) -> F) -> Vec<Failure>
    where
        F: Future<Output = (SimulatedWorker, Result<(), Failure>)> + Send + 'static,
    {
        let mut playing = JoinSet::new();
        for (index, worker) in (0..).zip(self.workers.drain(..)) {
            let played = part(worker, index);
            playing.spawn(async move { (index, played.await) });
        }
        let mut played = playing.join_all().await;
        played.sort_by_key(|(index, _)| *index);
        let mut failures = Vec::new();
        for (_, (worker, result)) in played {
            self.workers.push(worker);
            failures.extend(result.err());
        }
        failures
    }

    /// Receives deliveries until all stored events have arrived; returns how many have not.
    async fn drain_deliveries(&mut self) -> u32 {
        let stored: u64 = self.workers.iter().map(SimulatedWorker::last).sum();
        let mut missing = stored.saturating_sub(self.seen.len() as u64 + u64::from(self.lost));
        while missing > 0 || !self.deliveries.is_empty() {
            let Ok(Some((index, number, at))) = timeout(DELIVERY_TIMEOUT, self.deliveries.recv()).await else { break };
            match self.seen.entry((index, number)) {
                Entry::Occupied(_) => self.doubled += 1,
                Entry::Vacant(place) => {
                    place.insert(at);
                    missing = missing.saturating_sub(1);
                }
            }
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        self.lost = self.lost.saturating_add(missing);
        missing
    }
}

/// Reads the events of one job; subscribed before its first event.
async fn read(mut events: Events, index: u32, after: u64, deliveries_sender: UnboundedSender<Delivery>) {
    let fresh = |data: &_| number(data).is_some_and(|number| number > after);
    // A broken stream shows as events that are not delivered.
    while let Ok(event) = events.until(fresh).await {
        let Some(number) = number(&event.data) else { break };
        if deliveries_sender.send((index, number, Instant::now())).is_err() {
            break;
        }
    }
}

/// Emits at a fixed pace from `begin` on. Events that are due together go in one batch; one batch is in flight at a
/// time.
async fn emit_paced(
    mut worker: SimulatedWorker,
    begin: Instant,
    events: u32,
) -> (SimulatedWorker, Result<(), Failure>) {
    let mut sent = 0;
    while sent < events {
        sleep_until((begin + PERIOD * sent).into()).await;
        sleep(BATCH_DELAY).await;
        let late = Instant::now().saturating_duration_since(begin + PERIOD * sent);
        let more = u32::try_from(late.as_millis() / PERIOD.as_millis()).unwrap_or(u32::MAX);
        let due = more.saturating_add(1).min(events - sent);
        if let Err(failure) = worker.send(u64::from(due)).await {
            return (worker, Err(failure));
        }
        sent += due;
    }
    (worker, Ok(()))
}

/// Emits as fast as the orchestrator accepts.
async fn emit_unpaced(mut worker: SimulatedWorker, batch: u64, batches: u32) -> (SimulatedWorker, Result<(), Failure>) {
    for _ in 0..batches {
        if let Err(failure) = worker.send(batch).await {
            return (worker, Err(failure));
        }
    }
    (worker, Ok(()))
}

/// Inserts the same rows in the same batches on one connection: one statement, and so one transaction, for each batch.
async fn inserts(raw: &mut SqliteConnection, workers: &[SimulatedWorker], kind: &Throughput) -> Result<f64, Failure> {
    let mut last: i64 = sqlx::query_scalar("SELECT MAX(seq) FROM events").fetch_one(&mut *raw).await?;
    let started = Instant::now();
    for _ in 0..kind.batches {
        for worker in workers {
            let mut insert = QueryBuilder::<Sqlite>::new("INSERT INTO events (job_id, seq, attempt, at, kind, data) ");
            insert.push_values(last + 1..=last + i64::from(kind.batch), |mut row, seq| {
                row.push_bind(*worker.job.as_uuid()).push_bind(seq).push_bind(1).push_bind(clock::wall());
                row.push_bind("message").push_bind(stored_message(seq.unsigned_abs()));
            });
            insert.build().execute(&mut *raw).await?;
        }
        last += i64::from(kind.batch);
    }
    let count = f64::from(kind.batch * kind.batches) * f64::from(u32::try_from(workers.len())?);
    Ok(count / started.elapsed().as_secs_f64())
}
