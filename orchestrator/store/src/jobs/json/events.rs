//! Jobs as the events `job` have them: stored with each transition, and read of those at work for who watches them.
//!
//! Rendered by the database like the items of lists, so that an event and a list never differ.

use chrono::{DateTime, Utc};
use protocol::JobId;
use sqlx::{FromRow, QueryBuilder, Sqlite};

use crate::{
    Store, StoreError,
    sqlite::write_tx::{StatementBatch, WriteTx},
};

/// A row of `jobs` as a `protocol::JobSummary`. What is rendered begins with the digits of the id.
macro_rules! summary_object {
    () => {
        concat!("'{\"id\":' || ", optional_id!("jobs.id"), " || ',' || substr(", summary_json!(), ", 33)")
    };
}

/// Stores the event of the job `$1` as it is now.
const STORE: &str = concat!(
    "INSERT INTO instance_events (cursor, user_id, kind, job_id, at, data) \
     SELECT (SELECT seq FROM sqlite_sequence WHERE name = 'events'), user_id, 'job', id, $2, ",
    summary_object!(),
    " FROM jobs WHERE id = $1"
);

/// The jobs that are at work.
const AT_WORK: &str = concat!(
    "SELECT (SELECT seq FROM sqlite_sequence WHERE name = 'events') AS as_of, id, user_id, last_seq, ",
    summary_object!(),
    " AS json FROM jobs WHERE state IN ('in_progress', 'stuck')"
);

/// A job that is at work.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct JobAtWork {
    /// The newest cursor when it was read. All that are read together have the same.
    pub as_of: i64,
    pub id: JobId,
    pub user_id: String,
    /// The number of its newest event: it has changed when this has.
    pub last_seq: i64,
    /// A `protocol::JobSummary`.
    pub json: String,
}

/// Stores the event `job` of a transition that is written. Its subscribers are notified by the transition.
pub(crate) async fn append(tx: &mut WriteTx, job: JobId, at: DateTime<Utc>) -> Result<(), StoreError> {
    let count = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'events'";
    tx.run(StatementBatch::new(&[count, STORE]).bind(job).bind(at)).await.map(drop)
}

impl Store {
    /// The jobs that are at work, of a user or of all. There are at most as many as run at once.
    pub async fn jobs_at_work(&self, user: Option<&str>) -> Result<Vec<JobAtWork>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(AT_WORK);
        if let Some(user) = user {
            query.push(" AND user_id = ").push_bind(user.to_owned());
        }
        Ok(query.build_query_as().fetch_all(&self.read).await?)
    }
}
