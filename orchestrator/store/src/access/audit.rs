//! The audit log: changes with their actors, and refused requests.
//!
//! An entry is written in the transaction of the change it describes. Never contains a secret or a prompt.

use chrono::{DateTime, Utc};
use protocol::{ActorRole, AuditOutcome, AuditRecord, JobId};
use sqlx::{FromRow, QueryBuilder, Sqlite};

use crate::{
    Connection, Store, StoreError,
    sqlite::{inconsistent_rows::Keyed, list_walks::ID_TOLERANCE, rows::RowRef},
};

/// An entry of the audit log, before its outcome is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    pub at: DateTime<Utc>,
    /// The actor's user id.
    pub user: String,
    pub role: ActorRole,
    /// The action, for example `job.create`.
    pub action: String,
    /// The job that the action concerns.
    pub job: Option<JobId>,
    pub request_id: Option<String>,
    /// The token's id: the one that authorized the action, or the one that the action is about.
    pub jti: Option<String>,
    /// The client's address, or `cli`.
    pub source: Option<String>,
}

impl AuditEntry {
    /// An entry of a tool call, by which a model acts on behalf of a user. `job` is the job that it concerns.
    pub fn by_agent(action: &str, user: &str, job: Option<JobId>, at: DateTime<Utc>) -> Self {
        Self { job, ..Self::by(ActorRole::Agent, user, action, at) }
    }

    /// An entry of the command line, which acts as the operator: it has write access to the data directory.
    pub fn by_operator(action: &str, at: DateTime<Utc>) -> Self {
        Self { source: Some("cli".to_owned()), ..Self::by(ActorRole::Operator, "operator", action, at) }
    }

    fn by(role: ActorRole, user: &str, action: &str, at: DateTime<Utc>) -> Self {
        let (user, action) = (user.to_owned(), action.to_owned());
        Self { at, user, role, action, job: None, request_id: None, jti: None, source: None }
    }
}

/// Filter and page of audit entries.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only entries of this user.
    pub user: Option<String>,
    /// Only entries with this action.
    pub action: Option<String>,
    /// Only entries about this job.
    pub job: Option<JobId>,
    /// Only entries at or after this time.
    pub since: Option<DateTime<Utc>>,
    /// Only entries before this time.
    pub until: Option<DateTime<Utc>>,
    /// Only entries with a smaller number.
    pub before: Option<i64>,
    /// Maximum number of entries.
    pub limit: u32,
}

impl Store {
    /// Records a change outside the database.
    pub async fn record_done(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        self.record_alone(entry, AuditOutcome::Done, None).await
    }

    /// Records a refused request.
    pub async fn record_refused(&self, entry: &AuditEntry, code: &str) -> Result<(), StoreError> {
        self.record_alone(entry, AuditOutcome::Refused, Some(code.to_owned())).await
    }

    async fn record_alone(
        &self,
        entry: &AuditEntry,
        outcome: AuditOutcome,
        code: Option<String>,
    ) -> Result<(), StoreError> {
        let entry = entry.clone();
        self.write_one(transaction!(|tx| insert(&mut tx.db, &entry, outcome, code.as_deref()).await)).await
    }

    /// Audit entries, newest first, each with its number; `None` for one that cannot be read.
    pub async fn audit(&self, filter: &AuditFilter) -> Result<Vec<(i64, Option<AuditRecord>)>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT id, at, user_id, role, action, job_id, outcome, code, request_id, jti, source FROM audit WHERE 1 = 1",
        );
        if let Some(user) = &filter.user {
            query.push(" AND user_id = ").push_bind(user);
        }
        if let Some(action) = &filter.action {
            query.push(" AND action = ").push_bind(action);
        }
        if let Some(job) = filter.job {
            query.push(" AND job_id = ").push_bind(job);
        }
        // Entries are in the order of their time, but for corrections of the clock and requests that took a while.
        if let Some(since) = filter.since {
            query.push(" AND at >= ").push_bind(since).push(" AND id > COALESCE((SELECT id FROM audit WHERE at < ");
            query
                .push_bind(since.checked_sub_signed(ID_TOLERANCE).unwrap_or(since))
                .push(" ORDER BY at DESC LIMIT 1), 0)");
        }
        if let Some(until) = filter.until {
            query.push(" AND at < ").push_bind(until).push(" AND id < COALESCE((SELECT id FROM audit WHERE at >= ");
            query.push_bind(until.checked_add_signed(ID_TOLERANCE).unwrap_or(until)).push(" ORDER BY at LIMIT 1), ");
            query.push_bind(i64::MAX).push(")");
        }
        if let Some(before) = filter.before {
            query.push(" AND id < ").push_bind(before);
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit));
        let rows: Vec<Keyed<AuditRow, i64>> = query.build_query_as().fetch_all(&self.read).await?;
        self.inconsistent.read_page(rows, AuditRow::into_record)
    }
}

/// Records a change of `job` in its transaction.
pub(crate) async fn record(tx: &mut Connection, entry: Option<&AuditEntry>, job: JobId) -> Result<(), StoreError> {
    match entry {
        Some(entry) if entry.job.is_none() => {
            let entry = AuditEntry { job: Some(job), ..entry.clone() };
            insert(tx, &entry, AuditOutcome::Done, None).await
        }
        Some(entry) => insert(tx, entry, AuditOutcome::Done, None).await,
        // A change by the dispatcher or a worker has no entry.
        None => Ok(()),
    }
}

pub(crate) async fn insert(
    tx: &mut Connection,
    entry: &AuditEntry,
    outcome: AuditOutcome,
    code: Option<&str>,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO audit (at, user_id, role, action, job_id, outcome, code, request_id, jti, source) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(entry.at)
    .bind(&entry.user)
    .bind(entry.role.as_str())
    .bind(&entry.action)
    .bind(entry.job)
    .bind(outcome.as_str())
    .bind(code)
    .bind(&entry.request_id)
    .bind(&entry.jti)
    .bind(&entry.source)
    .execute(tx)
    .await?;
    Ok(())
}

#[derive(FromRow)]
struct AuditRow {
    at: DateTime<Utc>,
    user_id: String,
    role: String,
    action: String,
    job_id: Option<JobId>,
    outcome: String,
    code: Option<String>,
    request_id: Option<String>,
    jti: Option<String>,
    source: Option<String>,
}

impl AuditRow {
    fn into_record(self) -> Result<AuditRecord, StoreError> {
        let row_ref = RowRef { table: "audit", id: *self.job_id.unwrap_or(JobId::nil()).as_uuid() };
        let outcome = AuditOutcome::parse(&self.outcome).ok_or_else(|| row_ref.invalid("outcome"))?;
        Ok(AuditRecord {
            at: self.at,
            user: self.user_id,
            role: ActorRole::parse(&self.role).ok_or_else(|| row_ref.invalid("role"))?,
            action: self.action,
            job_id: self.job_id,
            outcome,
            code: self.code,
            request_id: self.request_id,
            jti: self.jti,
            source: self.source,
        })
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::tests::{fresh, raw};

    /// Entries of a minute each; the clock went back by an hour in their middle.
    const ENTRIES: &str = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 400) \
        INSERT INTO audit (at, user_id, role, action, outcome) \
        SELECT strftime('%Y-%m-%dT%H:%M:%f+00:00', 1790000000 + (n - iif(n > 200, 60, 0)) * 60, 'unixepoch'), \
        iif(n % 3, 'ada', 'bob'), 'user', iif(n % 5, 'job.create', 'job.delete'), 'done' FROM n";

    #[tokio::test]
    async fn each_filter_finds_what_it_says_newest_first() {
        let (directory, store) = fresh().await;
        sqlx::query(ENTRIES).execute(&mut raw(&directory).await).await.unwrap();
        let read = async |filter: &AuditFilter| -> Vec<(i64, AuditRecord)> {
            let entries = store.audit(filter).await.unwrap().into_iter();
            entries.map(|(id, entry)| (id, entry.unwrap())).collect()
        };
        let all = read(&AuditFilter { limit: 1_000, ..AuditFilter::default() }).await;
        assert_eq!(all.len(), 400);
        let (newest, middle) = (all[0].1.at, all[200].1.at - TimeDelta::minutes(30));
        let oldest = all[399].1.at;
        for user in [None, Some("ada"), Some("eve")] {
            for action in [None, Some("job.delete"), Some("secret.delete")] {
                for (since, until) in [
                    (None, None),
                    (Some(middle), None),
                    (None, Some(middle)),
                    (Some(middle), Some(middle + TimeDelta::minutes(20))),
                    (Some(middle + TimeDelta::days(9)), None),
                    (None, Some(newest + TimeDelta::minutes(90))),
                    (Some(oldest), Some(newest)),
                    (None, Some(middle - TimeDelta::days(9))),
                ] {
                    let (user, action) = (user.map(str::to_owned), action.map(str::to_owned));
                    let filter = AuditFilter { user, action, since, until, limit: 1_000, ..AuditFilter::default() };
                    let is_found = |(_, entry): &&(i64, AuditRecord)| {
                        filter.user.as_ref().is_none_or(|user| *user == entry.user)
                            && filter.action.as_ref().is_none_or(|action| *action == entry.action)
                            && since.is_none_or(|since| entry.at >= since)
                            && until.is_none_or(|until| entry.at < until)
                    };
                    let expected: Vec<i64> = all.iter().filter(is_found).map(|(id, _)| *id).collect();
                    let found: Vec<i64> = read(&filter).await.iter().map(|(id, _)| *id).collect();
                    assert_eq!(found, expected, "{filter:?}");
                }
            }
        }
        store.close().await;
    }
}
