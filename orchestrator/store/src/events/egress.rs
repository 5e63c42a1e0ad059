//! What a job's connections to other hosts add up to, from its events.

use protocol::{EgressCounter, EgressDecision, EgressPhase, JobId};
use sqlx::FromRow;

use super::super::{
    Store, StoreError,
    sqlite::rows::{RowRef, count},
};

/// Maximum number of counters of a job.
pub const MAX_EGRESS_COUNTERS: usize = 1_000;

#[derive(FromRow)]
struct CounterRow {
    phase: String,
    host: String,
    port: i64,
    decision: String,
    rule: String,
    count: i64,
    bytes_up: i64,
    bytes_down: i64,
}

impl Store {
    /// The decisions about a job's connections, summed: the refused ones first, then those with the most bytes. At most one
    /// more than [`MAX_EGRESS_COUNTERS`].
    pub async fn egress_counters(&self, job: JobId) -> Result<Vec<EgressCounter>, StoreError> {
        let rows: Vec<CounterRow> = sqlx::query_as(
            "SELECT ifnull(data ->> 'phase', 'agent') AS phase, data ->> 'host' AS host, data ->> 'port' AS port, \
             data ->> 'decision' AS decision, data ->> 'rule' AS rule, SUM(ifnull(data ->> 'count', 1)) AS count, \
             SUM(ifnull(data ->> 'bytes_up', 0)) AS bytes_up, \
             SUM(coalesce(data ->> 'bytes_down', data ->> 'bytes', 0)) AS bytes_down \
             FROM events WHERE job_id = $1 AND kind = 'egress' GROUP BY 1, 2, 3, 4, 5 \
             ORDER BY decision DESC, bytes_up + bytes_down DESC, host, port LIMIT $2",
        )
        .bind(job)
        .bind(i64::try_from(MAX_EGRESS_COUNTERS + 1).unwrap_or(i64::MAX))
        .fetch_all(&self.read)
        .await?;
        let of = RowRef { table: "events", id: *job.as_uuid() };
        rows.into_iter().map(|row| row.into_counter(of)).collect()
    }

    /// The bytes that a job's connections have sent and received.
    pub async fn egress_bytes(&self, job: JobId) -> Result<(u64, u64), StoreError> {
        let (up, down): (i64, i64) = sqlx::query_as(
            "SELECT ifnull(SUM(data ->> 'bytes_up'), 0), ifnull(SUM(data ->> 'bytes_down'), 0) \
             FROM events WHERE job_id = $1 AND kind = 'egress'",
        )
        .bind(job)
        .fetch_one(&self.read)
        .await?;
        Ok((count(up), count(down)))
    }
}

impl CounterRow {
    fn into_counter(self, of: RowRef) -> Result<EgressCounter, StoreError> {
        Ok(EgressCounter {
            phase: EgressPhase::parse(&self.phase).unwrap_or(EgressPhase::Unknown),
            port: u16::try_from(self.port).map_err(|_| of.invalid("data"))?,
            decision: EgressDecision::parse(&self.decision).unwrap_or(EgressDecision::Unknown),
            host: self.host,
            rule: self.rule,
            count: count(self.count),
            bytes_up: count(self.bytes_up),
            bytes_down: count(self.bytes_down),
        })
    }
}
