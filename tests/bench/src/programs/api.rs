//! `api`: `GET /api/jobs` and `GET /api/jobs/{id}` with 100 000 stored jobs, from 16 connections, compared with an axum
//! handler in this process that returns the same bytes.
//!
//! The jobs are copies of one real job, inserted in one statement. A round makes the same number of requests to each
//! side, alternating.

use std::time::Instant;

use axum::{Router, http::header::CONTENT_TYPE, routing::get};
use protocol::JobId;
use reqwest::Client;
use sqlx::{Row, SqliteConnection};
use tokio::{net::TcpListener, task::JoinSet};
use uuid::Uuid;

use super::Bench;
use crate::{
    Failure, database,
    report::{Series, Unit},
    stack::is_final,
};

const STORED: i64 = 100_000;
const SMOKE_STORED: i64 = 1_000;
const CONNECTIONS: usize = 16;
/// Requests to each side in a round.
const REQUESTS: usize = 2_000;
const SMOKE_REQUESTS: usize = 160;
/// Number of different jobs requested.
const ASKED: i64 = 1_000;

const PAGE: Names = Names {
    ours: "GET /api/jobs?limit=50",
    other: "axum, the page's bytes",
    our_time: "a request for the page",
    other_time: "a request for the page's bytes",
};
const JOB: Names = Names {
    ours: "GET /api/jobs/{id}",
    other: "axum, the job's bytes",
    our_time: "a request for a job",
    other_time: "a request for the job's bytes",
};
const MIN_RATIO: f64 = 0.5;

/// Names of the results of one comparison.
struct Names {
    ours: &'static str,
    other: &'static str,
    our_time: &'static str,
    other_time: &'static str,
}

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let job = bench.stack.create("bench: end", None).await?;
    bench.stack.events(job).await?.until(is_final).await?;
    let mut store = database::open(&bench.stack.database()).await?;
    fill(&mut store, job, bench.size(STORED, SMOKE_STORED)).await?;
    let asked = some_jobs(&mut store).await?;
    let jobs = asked.iter().map(|id| bench.stack.url(&format!("/api/jobs/{id}"))).collect();
    compare(bench, &PAGE, vec![bench.stack.url("/api/jobs?limit=50")]).await?;
    compare(bench, &JOB, jobs).await
}

/// Inserts copies of the job, each one millisecond older than the previous, until `stored` jobs are there.
async fn fill(store: &mut SqliteConnection, job: JobId, stored: i64) -> Result<(), Failure> {
    let columns =
        sqlx::query("SELECT name FROM pragma_table_info('jobs') WHERE name <> 'id'").fetch_all(&mut *store).await?;
    let columns = columns.iter().map(|row| row.try_get("name")).collect::<Result<Vec<String>, _>>()?.join(", ");
    // The first six bytes of a UUIDv7 are a timestamp in milliseconds.
    let (milliseconds, _) = job.as_uuid().as_u64_pair();
    let fill = format!(
        "WITH RECURSIVE copies (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < $1) \
         INSERT INTO jobs (id, {columns}) SELECT unhex(printf('%012X', $2 - n) || substr(hex(id), 13)), {columns} \
         FROM copies, jobs WHERE id = $3"
    );
    let fill = sqlx::query(sqlx::AssertSqlSafe(fill)).bind(stored - 1).bind(i64::try_from(milliseconds >> 16)?);
    fill.bind(*job.as_uuid()).execute(&mut *store).await?;
    let texts = "INSERT INTO job_texts (job_id, prompt, metadata, result_text, result_partial) \
                 SELECT jobs.id, prompt, metadata, result_text, result_partial FROM jobs, job_texts \
                 WHERE job_texts.job_id = $1 AND jobs.id <> $1";
    sqlx::query(texts).bind(*job.as_uuid()).execute(store).await?;
    Ok(())
}

/// Random ids, the same in each round.
async fn some_jobs(store: &mut SqliteConnection) -> Result<Vec<Uuid>, Failure> {
    let rows = sqlx::query("SELECT id FROM jobs ORDER BY random() LIMIT ?").bind(ASKED).fetch_all(store).await?;
    Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?)
}

async fn compare(bench: &mut Bench, names: &Names, urls: Vec<String>) -> Result<(), Failure> {
    let clients: Vec<Client> =
        (0..CONNECTIONS).map(|_| Client::builder().pool_max_idle_per_host(1).build()).collect::<Result<_, _>>()?;
    let token = bench.stack.token();
    let bytes = clients[0].get(&urls[0]).bearer_auth(token).send().await?.error_for_status()?.bytes().await?;
    let (other_urls, _server) = serve(bytes).await?;
    let mut rates = [names.ours, names.other].map(|name| Series::new(name, Unit::PerSecond));
    let mut times = [names.our_time, names.other_time].map(|name| Series::new(name, Unit::Ms));
    let each = bench.size(REQUESTS, SMOKE_REQUESTS) / CONNECTIONS;
    for round in 0..=bench.runs {
        for (side, urls) in [&urls, &other_urls].into_iter().enumerate() {
            let (rate, answered) = load(&clients, urls, token, each).await?;
            // The first round is a warm-up.
            if round > 0 {
                rates[side].add(Ok(rate));
                for time in answered {
                    times[side].add(time);
                }
            }
        }
    }
    for side in rates.into_iter().chain(times) {
        bench.report.side(side);
    }
    bench.report.ratio_at_least(names.ours, names.other, MIN_RATIO);
    Ok(())
}

/// Starts the handler; it stops when the returned set is dropped.
async fn serve(bytes: axum::body::Bytes) -> Result<(Vec<String>, JoinSet<()>), Failure> {
    let answer = || async move { ([(CONTENT_TYPE, "application/json")], bytes) };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let mut server = JoinSet::new();
    server.spawn(async move {
        // It serves until it is dropped; a failure shows in the requests.
        let _ = axum::serve(listener, Router::new().route("/", get(answer))).await;
    });
    Ok((vec![url], server))
}

/// Runs a round against one side, `each` requests on a connection: requests a second, and the time of each request.
async fn load(
    clients: &[Client],
    urls: &[String],
    token: &str,
    each: usize,
) -> Result<(f64, Vec<Result<f64, Failure>>), Failure> {
    let mut connections = JoinSet::new();
    let started = Instant::now();
    for (client, first) in clients.iter().zip(0..) {
        let some = urls.iter().cycle().skip(first * each % urls.len()).take(each);
        connections.spawn(requests(client.clone(), some.cloned().collect(), token.to_owned()));
    }
    let answered: Vec<_> = connections.join_all().await.into_iter().flatten().collect();
    let rate = f64::from(u32::try_from(answered.len())?) / started.elapsed().as_secs_f64();
    Ok((rate, answered))
}

async fn requests(client: Client, urls: Vec<String>, token: String) -> Vec<Result<f64, Failure>> {
    let mut answered = Vec::with_capacity(urls.len());
    for url in urls {
        answered.push(request(&client, &url, &token).await);
    }
    answered
}

async fn request(client: &Client, url: &str, token: &str) -> Result<f64, Failure> {
    let started = Instant::now();
    client.get(url).bearer_auth(token).send().await?.error_for_status()?.bytes().await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}
