//! The limit on the size of the records.
//!
//! Measures what retention may delete, and not the file: what users keep, such as memory and routines, displaces no
//! record. Never deletes what is younger than a day, nor an audit entry of the last 30 days; if that is too much by
//! itself, it is reported ([`Store::retention_excess`]).

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use super::{
    super::{Store, StoreError, sqlite::rows::count},
    RetentionLimits, Step, Sweep, Trimmed, paced,
};

/// Days for which audit entries are kept whatever the size.
const MIN_AUDIT_DAYS: i64 = 30;
/// Days for which all other records are kept whatever the size.
const MIN_DAYS: i64 = 1;

/// The part of the maximum size that a user's chats may have before they are trimmed first: one sixteenth.
const CHATS_SHARE: u64 = 16;

/// The pages of the records, and the bytes of chats over a user's share ($1), which the tool calls of chats are a part
/// of. The walk over the pages reads no more than the operator allows, and what was added since the last sweep.
const RECORD_BYTES: &str = "SELECT IFNULL((SELECT SUM(d.pgsize) FROM sqlite_schema AS s JOIN dbstat AS d ON d.name = s.name \
     WHERE d.aggregate = TRUE AND s.tbl_name IN ('events', 'model_calls', 'tool_calls', 'prompts', 'audit', 'instance_events')), 0) \
     - IFNULL((SELECT SUM(octet_length(input) + IFNULL(octet_length(reasoning), 0) + IFNULL(octet_length(output), 0) \
     + IFNULL(octet_length(reply), 0)) FROM tool_calls WHERE kind <> 'job'), 0) \
     + IFNULL((SELECT SUM(bytes - $1) FROM user_bytes WHERE kind = 'chats' AND bytes > $1), 0)";

/// The age of the oldest record of each kind, and what deletes the oldest ones. Jobs' records are as old as the end of
/// their job.
const OLDEST: [(&str, &str, Step); 3] = [
    (
        "jobs",
        "SELECT finished_at FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL ORDER BY finished_at LIMIT 1",
        |store, sweep| Box::pin(store.trim_jobs(sweep.records, sweep.now)),
    ),
    ("audit", "SELECT at FROM audit ORDER BY at LIMIT 1", |store, sweep| Box::pin(store.trim_audit(sweep.audit))),
    ("instance_events", "SELECT at FROM instance_events ORDER BY at LIMIT 1", |store, sweep| {
        Box::pin(store.trim_instance_events(sweep.records))
    }),
];

impl Store {
    /// Deletes the oldest rows while the records exceed the limit.
    pub(super) async fn trim_to_size(
        &self,
        limits: &RetentionLimits,
        sweep: &Sweep,
        end: Instant,
        trimmed: &mut Trimmed,
    ) -> Result<(), StoreError> {
        let max_bytes = limits.max_mb.saturating_mul(1024 * 1024);
        let (share, used) = (max_bytes / CHATS_SHARE, self.used_bytes().await?);
        // The records are a part of the database: the walk is not needed if all of it is small enough.
        let excess = if max_bytes == 0 || used <= max_bytes {
            0
        } else {
            self.record_bytes(share).await?.saturating_sub(max_bytes)
        };
        let oldest_kept = Sweep {
            now: sweep.now,
            records: sweep.now - TimeDelta::days(MIN_DAYS),
            audit: sweep.now - TimeDelta::days(MIN_AUDIT_DAYS),
        };
        let target = used - excess.min(used);
        let mut remaining = excess;
        while remaining > 0 && Instant::now() < end {
            // One user's chats must not displace the records of others.
            let chats = paced(Box::pin(self.trim_largest_chats(share, oldest_kept.records))).await?;
            trimmed.add("chats", chats);
            if chats == 0 && self.trim_oldest(&oldest_kept, trimmed).await? == 0 {
                trimmed.excess_bytes = Some(remaining);
                break;
            }
            remaining = self.used_bytes().await?.saturating_sub(target);
        }
        self.set_retention_excess(trimmed.excess_bytes, sweep.now).await
    }

    /// Deletes some of the oldest rows of all kinds, so that a flood of one kind does not displace the others. Returns
    /// how many.
    async fn trim_oldest(&self, oldest_kept: &Sweep, trimmed: &mut Trimmed) -> Result<u64, StoreError> {
        let mut oldest: Option<(DateTime<Utc>, &'static str, Step)> = None;
        for (part, query, step) in OLDEST {
            let at: Option<DateTime<Utc>> = sqlx::query_scalar(query).fetch_optional(&self.read).await?;
            let kept = if part == "audit" { oldest_kept.audit } else { oldest_kept.records };
            if let Some(at) = at.filter(|at| *at < kept)
                && oldest.is_none_or(|(other, ..)| at < other)
            {
                oldest = Some((at, part, step));
            }
        }
        let Some((_, part, step)) = oldest else { return Ok(0) };
        let rows = paced(step(self, oldest_kept)).await?;
        trimmed.add(part, rows);
        Ok(rows)
    }

    /// The size of the database without its free pages.
    pub async fn used_bytes(&self) -> Result<u64, StoreError> {
        let used: i64 = sqlx::query_scalar(
            "SELECT (c.page_count - f.freelist_count) * s.page_size \
             FROM pragma_page_count AS c, pragma_freelist_count AS f, pragma_page_size AS s",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(count(used))
    }

    async fn record_bytes(&self, chats_share: u64) -> Result<u64, StoreError> {
        let bytes: i64 =
            sqlx::query_scalar(RECORD_BYTES).bind(chats_share.cast_signed()).fetch_one(&self.control).await?;
        Ok(count(bytes))
    }

    /// The bytes by which the records exceeded the limit at the last sweep although nothing more could be deleted.
    pub async fn retention_excess(&self) -> Result<Option<u64>, StoreError> {
        let bytes: Option<i64> =
            sqlx::query_scalar("SELECT bytes FROM retention_excess").fetch_optional(&self.read).await?;
        Ok(bytes.map(count))
    }

    async fn set_retention_excess(&self, excess: Option<u64>, now: DateTime<Utc>) -> Result<(), StoreError> {
        if excess.is_none() && self.retention_excess().await?.is_none() {
            return Ok(());
        }
        self.write_one(transaction!(|tx| {
            let set = match excess {
                Some(bytes) => {
                    sqlx::query("INSERT OR REPLACE INTO retention_excess (id, bytes, checked_at) VALUES (1, $1, $2)")
                        .bind(bytes.cast_signed())
                        .bind(now)
                }
                None => sqlx::query("DELETE FROM retention_excess"),
            };
            set.execute(&mut tx.db).await?;
            Ok(())
        }))
        .await
    }
}
