//! The audit: who did what, and what they were refused.
//!
//! A deed is written in the transaction of the change it tells. Never holds a secret or what was said to an agent.

use chrono::{DateTime, Utc};
use protocol::{AuditOutcome, AuditRecord, JobId};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{Connection, Store, StoreError, rows::Place};

/// What somebody does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deed {
    /// When.
    pub at: DateTime<Utc>,
    /// Who.
    pub user: String,
    /// As what.
    pub role: String,
    /// `job.create`, `token.revoke`, ….
    pub action: String,
    /// The job that is named.
    pub job: Option<JobId>,
    /// The request's id.
    pub request_id: Option<String>,
    /// The token's id: the one it was done with, or the one it is done to.
    pub jti: Option<String>,
    /// The address it came from, or `cli`.
    pub source: Option<String>,
}

/// Which rows.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only this user's.
    pub user: Option<String>,
    /// Only of this kind.
    pub action: Option<String>,
    /// Only about this job.
    pub job: Option<JobId>,
    /// Not before.
    pub since: Option<DateTime<Utc>>,
    /// Before.
    pub until: Option<DateTime<Utc>>,
    /// Only older than this row.
    pub before: Option<i64>,
    /// At most so many.
    pub limit: u32,
}

/// On whose behalf a handle writes.
#[derive(Debug, Clone, Default)]
pub(super) enum By {
    /// Nobody's: the dispatcher's, a worker's.
    #[default]
    Gantry,
    /// A person's, whose deed is written down with the change.
    Person(Box<Deed>),
}

impl Store {
    /// A handle whose next change is this deed, and is written down as such in its transaction.
    #[must_use]
    pub fn by(&self, deed: Deed) -> Self {
        Self { by: By::Person(Box::new(deed)), ..self.clone() }
    }

    /// Writes down what somebody has done outside the database.
    pub async fn done(&self, deed: &Deed) -> Result<(), StoreError> {
        self.alone(deed, (AuditOutcome::Done, None)).await
    }

    /// Writes down what somebody was refused.
    pub async fn refused(&self, deed: &Deed, code: &str) -> Result<(), StoreError> {
        self.alone(deed, (AuditOutcome::Refused, Some(code))).await
    }

    async fn alone(&self, deed: &Deed, outcome: (AuditOutcome, Option<&str>)) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        insert(&mut tx, deed, deed.job, outcome).await?;
        tx.commit().await?;
        Ok(())
    }

    /// The deed of this handle, if it is somebody's, about to be done to `job`.
    pub(super) async fn note(&self, tx: &mut Connection, job: JobId) -> Result<(), StoreError> {
        match &self.by {
            By::Gantry => Ok(()),
            By::Person(deed) => insert(tx, deed, deed.job.or(Some(job)), (AuditOutcome::Done, None)).await,
        }
    }

    /// The audit's rows, newest first, each with its number.
    pub async fn audit(&self, filter: &AuditFilter) -> Result<Vec<(i64, AuditRecord)>, StoreError> {
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
            query.push(" AND job_id = ").push_bind(*job.as_uuid());
        }
        if let Some(since) = filter.since {
            query.push(" AND at >= ").push_bind(since);
        }
        if let Some(until) = filter.until {
            query.push(" AND at < ").push_bind(until);
        }
        if let Some(before) = filter.before {
            query.push(" AND id < ").push_bind(before);
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit));
        let rows: Vec<AuditRow> = query.build_query_as().fetch_all(&self.read).await?;
        rows.into_iter().map(AuditRow::into_record).collect()
    }
}

pub(super) async fn insert(
    tx: &mut Connection,
    deed: &Deed,
    job: Option<JobId>,
    (outcome, code): (AuditOutcome, Option<&str>),
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO audit (at, user_id, role, action, job_id, outcome, code, request_id, jti, source) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(deed.at)
    .bind(&deed.user)
    .bind(&deed.role)
    .bind(&deed.action)
    .bind(job.map(|id| *id.as_uuid()))
    .bind(outcome.as_str())
    .bind(code)
    .bind(&deed.request_id)
    .bind(&deed.jti)
    .bind(&deed.source)
    .execute(tx)
    .await?;
    Ok(())
}

#[derive(FromRow)]
struct AuditRow {
    id: i64,
    at: DateTime<Utc>,
    user_id: String,
    role: String,
    action: String,
    job_id: Option<Uuid>,
    outcome: String,
    code: Option<String>,
    request_id: Option<String>,
    jti: Option<String>,
    source: Option<String>,
}

impl AuditRow {
    fn into_record(self) -> Result<(i64, AuditRecord), StoreError> {
        let place = Place { table: "audit", id: self.job_id.unwrap_or_default() };
        let outcome = AuditOutcome::parse(&self.outcome).ok_or_else(|| place.wrong("outcome"))?;
        let record = AuditRecord {
            at: self.at,
            user: self.user_id,
            role: self.role,
            action: self.action,
            job_id: self.job_id.map(JobId::from_uuid),
            outcome,
            code: self.code,
            request_id: self.request_id,
            jti: self.jti,
            source: self.source,
        };
        Ok((self.id, record))
    }
}
