//! Jobs and the jobs below them: who is below whom, how many there are, and what the job tools list.
//!
//! A chain has at most [`MAX_DEPTH`] ancestors, so every walk here is short.

use chrono::{DateTime, Utc};
use protocol::{JobId, JobState, Limits, RoutineId, RunId, TriggerType};
use sqlx::{Executor, FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use crate::{
    JobFilter, Store, StoreError,
    jobs::list,
    sqlite::{
        inconsistent_rows::Row,
        rows::{RowRef, count},
    },
};
use domain::job::{Descendants, MAX_DEPTH};

/// Which jobs a list of the job tools covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobScope {
    /// The jobs below this one, at any depth.
    Below(JobId),
    OfUser(String),
    /// The jobs of the runs of this routine.
    OfRoutine(RoutineId),
}

/// A job as the job tools list it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedJob {
    pub id: JobId,
    pub title: String,
    pub state: JobState,
    /// The job that created it.
    pub parent_id: Option<JobId>,
    pub created_at: DateTime<Utc>,
}

/// A job ($1) and the jobs above it, from the lowest, with the number of jobs below each. The depth is at most
/// [`MAX_DEPTH`].
const TREES: &str = "WITH RECURSIVE above (id, parent_id, level) AS (\
     SELECT id, parent_id, 0 FROM jobs WHERE id = $1 UNION ALL \
     SELECT j.id, j.parent_id, a.level + 1 FROM jobs j JOIN above a ON j.id = a.parent_id WHERE a.level < $2), \
     below (root, id) AS (SELECT id, id FROM above UNION ALL \
     SELECT b.root, j.id FROM jobs j JOIN below b ON j.parent_id = b.id) \
     SELECT j.id, j.limits, (SELECT COUNT(*) - 1 FROM below WHERE root = j.id) AS descendants \
     FROM above a JOIN jobs j ON j.id = a.id ORDER BY a.level";

#[derive(FromRow)]
struct TreeRow {
    id: Uuid,
    limits: String,
    descendants: i64,
}

impl Store {
    /// The jobs below a job and below each job above it, from the lowest.
    pub async fn job_trees(&self, job: JobId) -> Result<Vec<Descendants>, StoreError> {
        trees(&self.read, job).await
    }

    /// The state of a job; `None` if it does not exist. Reads no texts.
    pub async fn job_state(&self, job: JobId) -> Result<Option<JobState>, StoreError> {
        let state: Option<String> =
            sqlx::query_scalar("SELECT state FROM jobs WHERE id = $1").bind(job).fetch_optional(&self.read).await?;
        state.map(|state| state_of(*job.as_uuid(), &state)).transpose()
    }

    /// Whether a job is below another one, at any depth.
    pub async fn is_below(&self, job: JobId, above: JobId) -> Result<bool, StoreError> {
        let found: i64 = sqlx::query_scalar(
            "WITH RECURSIVE above (id, level) AS (\
             SELECT parent_id, 1 FROM jobs WHERE id = $1 AND parent_id IS NOT NULL UNION ALL \
             SELECT j.parent_id, a.level + 1 FROM jobs j JOIN above a ON j.id = a.id \
             WHERE j.parent_id IS NOT NULL AND a.level < $3) SELECT COUNT(*) FROM above WHERE id = $2",
        )
        .bind(job)
        .bind(above)
        .bind(i64::from(MAX_DEPTH))
        .fetch_one(&self.read)
        .await?;
        Ok(found > 0)
    }

    /// Whether a job is one of a routine's runs.
    pub async fn is_of_routine(&self, job: JobId, routine: RoutineId) -> Result<bool, StoreError> {
        let found: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM jobs AS j JOIN routine_runs AS r ON r.id = j.run_id WHERE j.id = $1 AND r.routine_id = $2",
        )
        .bind(job)
        .bind(routine)
        .fetch_one(&self.read)
        .await?;
        Ok(found > 0)
    }

    /// The jobs that a run may read: all of its owner where nothing from outside has fired it, else those of its routine.
    pub async fn jobs_for_run(&self, run: RunId) -> Result<JobScope, StoreError> {
        // Also of the routine's own trigger: the text of its last run, which this one reads, is as old.
        let row: Option<(RoutineId, String, String, bool)> = sqlx::query_as(
            "SELECT q.routine_id, q.user_id, q.trigger_type, q.payload IS NOT NULL OR r.trigger_type IS NULL \
             OR r.trigger_type NOT IN ('cron', 'every', 'at', 'manual') \
             FROM routine_runs AS q LEFT JOIN routines AS r ON r.id = q.routine_id WHERE q.id = $1",
        )
        .bind(run)
        .fetch_optional(&self.read)
        .await?;
        let Some((routine, user, trigger, is_from_outside)) = row else {
            // A run that does not exist any more has no jobs.
            return Ok(JobScope::OfRoutine(RoutineId::nil()));
        };
        let row_ref = RowRef { table: "routine_runs", id: *run.as_uuid() };
        let trigger = row_ref.known("trigger_type", TriggerType::parse(&trigger))?;
        let is_the_owners = !is_from_outside && (trigger.is_schedule() || trigger == TriggerType::Manual);
        Ok(if is_the_owners { JobScope::OfUser(user) } else { JobScope::OfRoutine(routine) })
    }

    /// The jobs of a scope, newest first; of all states, or of one.
    pub async fn scoped_jobs(
        &self,
        scope: &JobScope,
        state: Option<JobState>,
        limit: u32,
    ) -> Result<Vec<ListedJob>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("");
        push_scope(&mut query, scope);
        if let Some(state) = state {
            query.push(" AND state = ").push_bind(state.as_str());
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(limit));
        self.listed(query).await
    }

    /// The jobs of a scope whose id begins or ends with these lower-case hexadecimal digits, newest first.
    pub async fn scoped_jobs_by_id_part(
        &self,
        scope: &JobScope,
        digits: &str,
        limit: u32,
    ) -> Result<Vec<ListedJob>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("");
        if let JobScope::OfUser(user) = scope {
            let (user, id_part) = (Some(user.clone()), Some(digits.to_owned()));
            let filter = JobFilter { user, id_part, ..JobFilter::default() };
            list::push_walks(&mut query, "SELECT id, title, state, parent_id, created_at FROM jobs", &filter, limit);
        } else {
            push_scope(&mut query, scope);
            query.push(" AND (hex(id) LIKE ").push_bind(format!("{digits}%"));
            query.push(" OR hex(id) LIKE ").push_bind(format!("%{digits}"));
            query.push(") ORDER BY id DESC LIMIT ").push_bind(i64::from(limit));
        }
        self.listed(query).await
    }

    async fn listed(&self, mut query: QueryBuilder<Sqlite>) -> Result<Vec<ListedJob>, StoreError> {
        let rows: Vec<Row<ListedRow>> = query.build_query_as().fetch_all(&self.read).await?;
        self.inconsistent.read_each(rows, ListedRow::into_job)
    }
}

/// Appends the statement of the jobs of a scope, to which conditions can be added.
fn push_scope(query: &mut QueryBuilder<Sqlite>, scope: &JobScope) {
    match scope {
        JobScope::Below(job) => {
            query.push("WITH RECURSIVE below (id) AS (SELECT id FROM jobs WHERE parent_id = ");
            query.push_bind(job);
            query.push(" UNION ALL SELECT j.id FROM jobs j JOIN below b ON j.parent_id = b.id) ");
            query.push("SELECT id, title, state, parent_id, created_at FROM jobs WHERE id IN (SELECT id FROM below)");
        }
        JobScope::OfUser(user) => {
            query.push("SELECT id, title, state, parent_id, created_at FROM jobs WHERE user_id = ");
            query.push_bind(user.clone());
        }
        JobScope::OfRoutine(routine) => {
            query.push("SELECT id, title, state, parent_id, created_at FROM jobs WHERE run_id IN ");
            query.push("(SELECT id FROM routine_runs WHERE routine_id = ").push_bind(routine).push(")");
        }
    }
}

/// The jobs below a job and below each job above it, from the lowest.
pub(crate) async fn trees<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    job: JobId,
) -> Result<Vec<Descendants>, StoreError> {
    let rows: Vec<TreeRow> = sqlx::query_as(TREES).bind(job).bind(i64::from(MAX_DEPTH)).fetch_all(db).await?;
    let descendants = |row: TreeRow| {
        let limits: Limits = RowRef { table: "jobs", id: row.id }.json("limits", &row.limits)?;
        let below = u32::try_from(count(row.descendants)).unwrap_or(u32::MAX);
        Ok(Descendants { max_children: limits.max_children, count: below })
    };
    rows.into_iter().map(descendants).collect()
}

#[derive(FromRow)]
struct ListedRow {
    id: Uuid,
    title: String,
    state: String,
    parent_id: Option<JobId>,
    created_at: DateTime<Utc>,
}

impl ListedRow {
    fn into_job(self) -> Result<ListedJob, StoreError> {
        Ok(ListedJob {
            id: JobId::from_uuid(self.id),
            title: self.title,
            state: state_of(self.id, &self.state)?,
            parent_id: self.parent_id,
            created_at: self.created_at,
        })
    }
}

pub(crate) fn state_of(id: Uuid, state: &str) -> Result<JobState, StoreError> {
    JobState::parse(state).ok_or_else(|| RowRef { table: "jobs", id }.invalid("state"))
}
