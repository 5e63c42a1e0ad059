//! Filters of lists of jobs, as conditions of a statement.

use chrono::{DateTime, Utc};
use protocol::{JobId, JobReason, JobState, RoutineId, RunId, Source};
use sqlx::{QueryBuilder, Sqlite};

use crate::sqlite::list_walks::{ListWalks, push_created, push_names};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only jobs of this user; `None` for all users.
    pub user: Option<String>,
    /// Only jobs in one of these states; empty for any state.
    pub states: Vec<JobState>,
    /// Only jobs with all of these labels.
    pub labels: Vec<(String, String)>,
    /// Only jobs with this text in the title or the prompt, ignoring ASCII case.
    pub text: Option<String>,
    /// Only jobs whose id begins or ends with these lower-case hexadecimal digits.
    pub id_part: Option<String>,
    /// Only the children of this job.
    pub parent: Option<JobId>,
    /// Only those that runs of this routine created.
    pub routine: Option<RoutineId>,
    /// Only those that this run created.
    pub run: Option<RunId>,
    /// Only those that ended, or are stuck, for this reason.
    pub reason: Option<JobReason>,
    /// Only those with this creator.
    pub source: Option<Source>,
    /// Only those with this model.
    pub model: Option<String>,
    /// Only those that were created at or after this time.
    pub since: Option<DateTime<Utc>>,
    /// Only those that were created before this time.
    pub until: Option<DateTime<Utc>>,
    /// Only jobs older than this one.
    pub before: Option<JobId>,
    /// Maximum number of jobs.
    pub limit: u32,
}

/// What a list is read from, in the order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The jobs of all users or of one, or those in some states.
    States,
    /// The children of a job; few.
    Parent,
    /// The jobs of a run; few.
    Run,
    Routine,
    /// The next three are of one user.
    Reason,
    Source,
    Model,
}

impl Order {
    /// The only index that will do.
    fn index(self) -> Option<&'static str> {
        match self {
            Self::States => None,
            Self::Parent => Some("jobs_by_parent"),
            Self::Run => Some("jobs_by_run"),
            Self::Routine => Some("jobs_by_routine"),
            Self::Reason => Some("jobs_by_user_reason"),
            Self::Source => Some("jobs_by_user_source"),
            Self::Model => Some("jobs_by_user_model"),
        }
    }
}

impl JobFilter {
    /// Whether a page reads rows that it does not show, since no index has all of what they are filtered by.
    pub fn is_search(&self) -> bool {
        let order = self.order();
        let beside = [
            (Order::States, !self.states.is_empty()),
            (Order::Routine, self.routine.is_some()),
            (Order::Reason, self.reason.is_some()),
            (Order::Source, self.source.is_some()),
            (Order::Model, self.model.is_some()),
        ];
        let is_beside = beside.into_iter().any(|(of, is_asked)| is_asked && of != order);
        self.text.is_some() || !self.labels.is_empty() || is_beside
    }

    fn order(&self) -> Order {
        let is_of_user = self.user.is_some();
        if self.parent.is_some() {
            Order::Parent
        } else if self.run.is_some() {
            Order::Run
        } else if self.routine.is_some() {
            Order::Routine
        } else if is_of_user && self.reason.is_some() {
            Order::Reason
        } else if is_of_user && self.source.is_some() {
            Order::Source
        } else if is_of_user && self.model.is_some() {
            Order::Model
        } else {
            Order::States
        }
    }
}

/// Appends `select … FROM jobs` for the next `rows` jobs, newest first. A condition that does not apply is left out.
pub(crate) fn push_walks(query: &mut QueryBuilder<Sqlite>, select: &str, filter: &JobFilter, rows: u32) {
    let order = filter.order();
    let states = filter.states.iter().filter(|_| order == Order::States);
    let walks = ListWalks {
        select,
        index: order.index(),
        by_id_end: "jobs_by_id_end",
        states: states.map(|state| state.as_str()).collect(),
        id_part: filter.id_part.as_deref(),
        before: filter.before.map(|job| *job.as_uuid()),
    };
    walks.push(query, rows, |query| {
        if let Some(user) = &filter.user {
            query.push(" AND user_id = ").push_bind(user.clone());
        } else if let (Order::Routine, Some(routine)) = (order, filter.routine) {
            // All are of one user: with it, the index has them in the order of the list.
            query.push(" AND user_id = (SELECT user_id FROM jobs INDEXED BY jobs_by_routine WHERE routine_id = ");
            query.push_bind(routine).push(" LIMIT 1)");
        }
        if let Some(parent) = filter.parent {
            query.push(" AND parent_id = ").push_bind(parent);
        }
        if let Some(run) = filter.run {
            query.push(" AND run_id = ").push_bind(run);
        }
        push_created(query, filter.since, filter.until);
        push_named(query, filter, |of| of == order);
    });
}

/// Appends the conditions for what has an index, as far as `is_meant`.
fn push_named(query: &mut QueryBuilder<Sqlite>, filter: &JobFilter, is_meant: impl Fn(Order) -> bool) {
    if let Some(routine) = filter.routine.filter(|_| is_meant(Order::Routine)) {
        query.push(" AND routine_id = ").push_bind(routine);
    }
    if let Some(reason) = filter.reason.filter(|_| is_meant(Order::Reason)) {
        query.push(" AND reason = ").push_bind(reason.as_str());
    }
    if let Some(source) = filter.source.filter(|_| is_meant(Order::Source)) {
        query.push(" AND source = ").push_bind(source.as_str());
    }
    if let Some(model) = filter.model.clone().filter(|_| is_meant(Order::Model)) {
        query.push(" AND model = ").push_bind(model);
    }
}

/// Appends the conditions of a search.
pub(crate) fn push_search(query: &mut QueryBuilder<Sqlite>, filter: &JobFilter) {
    let order = filter.order();
    push_named(query, filter, |of| of != order);
    if order != Order::States {
        push_names(query, " AND state IN (", filter.states.iter().map(|state| state.as_str()));
    }
    for (key, value) in &filter.labels {
        // Invalid labels of one job are no error of the statement.
        query.push(" AND CASE WHEN json_valid(labels) THEN labels ->> ").push_bind(key.clone());
        query.push(" END = ").push_bind(value.clone());
    }
    if let Some(words) = &filter.text {
        let escaped = words.to_lowercase().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        let pattern = format!("%{escaped}%");
        query.push(" AND (lower(title) LIKE ").push_bind(pattern.clone()).push(" ESCAPE '\\'");
        query.push(" OR EXISTS (SELECT 1 FROM job_texts AS t WHERE t.job_id = jobs.id AND lower(t.prompt) LIKE ");
        query.push_bind(pattern).push(" ESCAPE '\\'))");
    }
}

#[cfg(test)]
mod tests;
