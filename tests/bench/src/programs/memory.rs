//! `memory`: searches in a memory of 10 000 documents, compared with the full-text index alone.
//!
//! The documents are written over the API. Their words follow Zipf's law, as in natural texts; one in ten is Chinese.
//! The baseline runs the statement that ranks the documents, without the documents themselves, on a connection in this
//! process.

use std::time::Instant;

use reqwest::{Client, header::CONTENT_TYPE};
use serde_json::json;
use sqlx::SqliteConnection;

use super::Bench;
use crate::{
    Failure, database,
    report::{Series, Unit},
};

const DOCUMENTS: u64 = 10_000;
/// So many that each search finds some.
const SMOKE_DOCUMENTS: u64 = 1_000;
/// Words of a document: about 2 KB.
const WORDS: u64 = 300;
/// Different words in the documents.
const VOCABULARY: f64 = 20_000.0;
/// Different Chinese characters in the documents.
const CHARACTERS: f64 = 3_000.0;
const MAX_MS: f64 = 50.0;

const WRITE: &str = "PUT of a document";
const RANKING: &str = "ranking alone: in every document";

/// The searches by name: words by their rank in the vocabulary. No document has all words of the question.
const SEARCHES: [(&str, &[u64]); 4] = [
    ("one rare word", &[5_000]),
    ("three words", &[20, 100, 400]),
    ("a word in most documents", &[1]),
    ("a question of ten words", &[1, 2, 3, 5, 8, 50, 3_000, 7_000, 12_000, 19_000]),
];
const CHINESE: &str = "two Chinese characters";

/// Runs the benchmark.
pub(crate) async fn run(bench: &mut Bench) -> Result<(), Failure> {
    let client = Client::builder().pool_max_idle_per_host(1).build()?;
    let mut writes = Series::new(WRITE, Unit::Ms);
    let mut random = Random(7);
    for number in 0..bench.size(DOCUMENTS, SMOKE_DOCUMENTS) {
        let content = if number % 10 == 0 { chinese(&mut random) } else { text(&mut random) };
        writes.add(write(bench, &client, number, content).await);
    }
    bench.report.side(writes);
    let words = SEARCHES
        .iter()
        .map(|(name, ranks)| (*name, ranks.iter().map(|rank| word(*rank)).collect::<Vec<_>>().join(" ")));
    let searches = words.chain([(CHINESE, format!("{}{}", character(20), character(30)))]);
    for (name, query) in searches {
        let mut times = Series::new(name, Unit::Ms);
        for round in 0..=bench.runs {
            let time = search(bench, &client, &query).await;
            // The first round is a warm-up.
            if round > 0 {
                times.add(time);
            }
        }
        bench.report.side(times);
        bench.report.limit_at(name, 95, MAX_MS);
    }
    let mut index = database::open(&bench.stack.database()).await?;
    let mut ranking = Series::new(RANKING, Unit::Ms);
    for _ in 0..bench.runs {
        ranking.add(rank(&mut index, &format!("\"1x{}\"", word(1))).await);
    }
    bench.report.side(ranking);
    bench.report.ratio(SEARCHES[2].0, RANKING, None);
    Ok(())
}

async fn write(bench: &Bench, client: &Client, number: u64, content: String) -> Result<f64, Failure> {
    let url = bench.stack.url(&format!("/api/memory?path=notes/{}/{number}.md", number % 100));
    let body = serde_json::to_vec(&json!({"content": content}))?;
    let started = Instant::now();
    let request = client.put(url).bearer_auth(bench.stack.token()).header(CONTENT_TYPE, "application/json").body(body);
    request.send().await?.error_for_status()?.bytes().await?;
    Ok(started.elapsed().as_secs_f64() * 1_000.0)
}

async fn search(bench: &Bench, client: &Client, query: &str) -> Result<f64, Failure> {
    let escaped: Vec<String> = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let url = bench.stack.url(&format!("/api/memory/search?q={}", escaped.concat()));
    let started = Instant::now();
    let request = client.get(url).bearer_auth(bench.stack.token());
    let found = request.send().await?.error_for_status()?.bytes().await?;
    let taken = started.elapsed();
    let found: serde_json::Value = serde_json::from_slice(&found)?;
    if found["items"].as_array().is_none_or(Vec::is_empty) {
        return Err(format!("nothing was found for {query}").into());
    }
    Ok(taken.as_secs_f64() * 1_000.0)
}

async fn rank(index: &mut SqliteConnection, expression: &str) -> Result<f64, Failure> {
    let started = Instant::now();
    let found = sqlx::query(
        "SELECT rowid, bm25(memory_index, 4.0, 1.0) AS cost FROM memory_index WHERE memory_index MATCH ? \
         ORDER BY cost LIMIT 50",
    );
    let found = found.bind(expression).fetch_all(index).await?;
    let taken = started.elapsed();
    if found.is_empty() {
        return Err("nothing was found in the index".into());
    }
    Ok(taken.as_secs_f64() * 1_000.0)
}

/// A generator with the same numbers in every run: a linear congruential one (Knuth, MMIX).
struct Random(u64);

impl Random {
    /// A rank from 1, where the rank `n` is about as frequent as `1 / n`.
    fn rank(&mut self, ranks: f64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let high = u32::try_from(self.0 >> 32).unwrap_or(u32::MAX);
        let rank = ranks.powf(f64::from(high) / f64::from(u32::MAX)).floor();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to the number of ranks")]
        let rank = rank as u64;
        rank
    }
}

fn text(random: &mut Random) -> String {
    (0..WORDS).map(|_| word(random.rank(VOCABULARY))).collect::<Vec<_>>().join(" ")
}

fn chinese(random: &mut Random) -> String {
    (0..WORDS * 2).map(|_| character(random.rank(CHARACTERS))).collect()
}

/// A word of syllables, the same for the same rank.
fn word(rank: u64) -> String {
    const CONSONANTS: &[u8] = b"bdfgklmnprtv";
    const VOWELS: &[u8] = b"aiou";
    let syllable = |number: u64| {
        let number = usize::try_from(number % 48).unwrap_or_default();
        [char::from(CONSONANTS[number / 4]), char::from(VOWELS[number % 4])]
    };
    let digits = std::iter::successors(Some(rank), |rest| Some(rest / 48).filter(|rest| *rest > 0));
    digits.flat_map(syllable).chain(['n']).collect()
}

fn character(rank: u64) -> char {
    u32::try_from(rank).ok().and_then(|rank| char::from_u32(0x4e00 + rank)).unwrap_or('一')
}
