//! The account of what each user stores: bytes by kind, which triggers count (`user_bytes`), and its limit.
//!
//! When the account is full, a write that a user asks for and that would add to it is refused. What is at work (a job, a
//! run or a turn) still stores its end, so an account may exceed the limit by that.

use protocol::{StorageKind, StoredBytes, UserStorage};

use crate::{
    Store, StoreError,
    sqlite::{data_migrations::DataMigration, rows::count, write_tx::WriteTx},
};

/// Counts the rows that were stored before there was an account. Until then the triggers change nothing when a migration
/// of the data updates or deletes rows, since they update a row of the account that is not there yet; afterwards they
/// count it. So a migration that inserts rows which are counted runs after these, as does one that changes tool calls of
/// runs, since the account has a row for runs before they are counted.
pub(crate) const COUNT_JOBS: DataMigration = DataMigration {
    name: "user_bytes_of_jobs",
    table: "job_texts",
    step: &["INSERT INTO user_bytes (user_id, kind, bytes) SELECT j.user_id, 'jobs', SUM(octet_length(t.prompt) \
         + octet_length(t.metadata) + IFNULL(octet_length(t.result_text), 0) + IFNULL(octet_length(t.result_partial), 0)) \
         FROM job_texts AS t JOIN jobs AS j ON j.id = t.job_id WHERE t.rowid > ?1 AND t.rowid <= ?2 GROUP BY 1 \
         ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes"],
    finish: &[],
};
pub(crate) const COUNT_PROMPTS: DataMigration = DataMigration {
    name: "user_bytes_of_prompts",
    table: "prompts",
    step: &["INSERT INTO user_bytes (user_id, kind, bytes) SELECT j.user_id, 'jobs', SUM(octet_length(p.content)) \
         FROM prompts AS p JOIN jobs AS j ON j.id = p.job_id WHERE p.rowid > ?1 AND p.rowid <= ?2 GROUP BY 1 \
         ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes"],
    finish: &[],
};
pub(crate) const COUNT_ROUTINES: DataMigration = DataMigration {
    name: "user_bytes_of_routines",
    table: "routines",
    step: &["INSERT INTO user_bytes (user_id, kind, bytes) SELECT user_id, 'routines', \
         SUM(IFNULL(octet_length(description), 0) + octet_length(trigger) + octet_length(action) + octet_length(notify) \
         + IFNULL(octet_length(state), 0)) FROM routines WHERE rowid > ?1 AND rowid <= ?2 GROUP BY 1 \
         ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes"],
    finish: &[],
};
pub(crate) const COUNT_RUNS: DataMigration = DataMigration {
    name: "user_bytes_of_runs",
    table: "routine_runs",
    step: &[
        "INSERT INTO user_bytes (user_id, kind, bytes) SELECT user_id, 'runs', SUM(octet_length(trigger_detail) \
         + IFNULL(octet_length(message), 0) + IFNULL(octet_length(result_summary), 0) + IFNULL(octet_length(result), 0)) \
         FROM routine_runs \
         WHERE rowid > ?1 AND rowid <= ?2 GROUP BY 1 ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes",
        "INSERT INTO user_bytes (user_id, kind, bytes) SELECT user_id, 'payloads', SUM(IFNULL(octet_length(payload), 0)) \
         FROM routine_runs WHERE rowid > ?1 AND rowid <= ?2 GROUP BY 1 \
         ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes",
    ],
    finish: &[],
};

pub(crate) const COUNT_CALLS_OF_RUNS: DataMigration = DataMigration {
    name: "user_bytes_of_calls_of_runs",
    table: "tool_calls",
    step: &["INSERT INTO user_bytes (user_id, kind, bytes) SELECT user_id, 'runs', SUM(octet_length(input) \
         + IFNULL(octet_length(reasoning), 0) + IFNULL(octet_length(output), 0) + IFNULL(octet_length(reply), 0)) FROM tool_calls \
         WHERE rowid > ?1 AND rowid <= ?2 AND kind = 'run' AND user_id IS NOT NULL GROUP BY 1 \
         ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes"],
    finish: &[],
};

/// The limit of an account in bytes; 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserStorageLimit(pub u64);

impl UserStorageLimit {
    /// A limit in MiB; 0 is no limit.
    pub const fn from_mb(mb: u64) -> Self {
        Self(mb.saturating_mul(1024 * 1024))
    }

    pub(crate) const fn is_reached(self, bytes: u64) -> bool {
        self.0 > 0 && bytes >= self.0
    }
}

const KINDS: &str = "SELECT kind, bytes FROM user_bytes WHERE user_id = $1 AND bytes > 0 ORDER BY bytes DESC, kind";

impl UserStorageLimit {
    fn account(self, rows: Vec<(String, i64)>) -> UserStorage {
        let kinds: Vec<StoredBytes> = rows
            .into_iter()
            .filter_map(|(kind, bytes)| Some(StoredBytes { kind: StorageKind::parse(&kind)?, bytes: count(bytes) }))
            .collect();
        let bytes = kinds.iter().map(|one| one.bytes).sum();
        UserStorage { bytes, max_bytes: (self.0 > 0).then_some(self.0), kinds }
    }
}

impl Store {
    /// What a user stores.
    pub async fn user_storage(&self, user: &str) -> Result<UserStorage, StoreError> {
        let rows = sqlx::query_as(KINDS).bind(user).fetch_all(&self.read).await?;
        Ok(self.user_storage_limit.account(rows))
    }

    /// Fails if the user's account is full.
    pub async fn ensure_user_storage(&self, user: &str) -> Result<(), StoreError> {
        ensure(self.user_storage(user).await?)
    }
}

/// Fails if the user's account is full, as of this transaction.
pub(crate) async fn ensure_room(tx: &mut WriteTx, user: &str) -> Result<(), StoreError> {
    let rows = sqlx::query_as(KINDS).bind(user).fetch_all(&mut tx.db).await?;
    ensure(tx.user_storage_limit.account(rows))
}

/// Whether the user's account is full, as of this transaction.
pub(crate) async fn is_full(tx: &mut WriteTx, user: &str) -> Result<bool, StoreError> {
    let bytes = bytes(tx, user).await?;
    Ok(tx.user_storage_limit.is_reached(bytes))
}

/// Whether a user's account is half full, from where on nothing is stored that nothing needs.
pub(crate) async fn is_half_full(tx: &mut WriteTx, user: &str) -> Result<bool, StoreError> {
    let bytes = bytes(tx, user).await?;
    Ok(tx.user_storage_limit.is_reached(bytes.saturating_mul(2)))
}

async fn bytes(tx: &mut WriteTx, user: &str) -> Result<u64, StoreError> {
    let sum = sqlx::query_scalar("SELECT IFNULL(SUM(bytes), 0) FROM user_bytes WHERE user_id = $1");
    let bytes: i64 = sum.bind(user).fetch_one(&mut tx.db).await?;
    Ok(count(bytes))
}

fn ensure(storage: UserStorage) -> Result<(), StoreError> {
    if storage.is_full() { Err(StoreError::UserStorageFull(Box::new(storage))) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
