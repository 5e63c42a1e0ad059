//! Filters of lists of jobs, as conditions of a statement.

use protocol::{JobId, JobState};
use sqlx::{QueryBuilder, Sqlite};

use crate::sqlite::list_walks::ListWalks;

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
    /// Only jobs older than this one.
    pub before: Option<JobId>,
    /// Maximum number of jobs.
    pub limit: u32,
}

impl JobFilter {
    /// Whether a page reads rows that it does not show, since no index has what they are filtered by.
    pub fn is_search(&self) -> bool {
        self.text.is_some() || !self.labels.is_empty()
    }
}

/// Appends `select … FROM jobs` for the next `rows` jobs, newest first. A condition that does not apply is left out.
pub(crate) fn push_walks(query: &mut QueryBuilder<Sqlite>, select: &str, filter: &JobFilter, rows: u32) {
    let walks = ListWalks {
        select,
        index: filter.parent.map(|_| "jobs_by_parent"),
        by_id_end: "jobs_by_id_end",
        states: filter.states.iter().map(|state| state.as_str()).collect(),
        id_part: filter.id_part.as_deref(),
        before: filter.before.map(|job| *job.as_uuid()),
    };
    walks.push(query, rows, |query| {
        if let Some(user) = &filter.user {
            query.push(" AND user_id = ").push_bind(user.clone());
        }
        if let Some(parent) = filter.parent {
            query.push(" AND parent_id = ").push_bind(parent);
        }
    });
}

/// Appends the conditions of a search.
pub(crate) fn push_search(query: &mut QueryBuilder<Sqlite>, filter: &JobFilter) {
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
