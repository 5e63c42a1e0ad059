//! Filters of lists of jobs, as conditions of a statement.

use protocol::{JobId, JobState};
use sqlx::{QueryBuilder, Sqlite};

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

/// Appends a filter's conditions, the order and the limit to a statement that ends in a `WHERE` condition. A condition
/// that does not apply is left out, so that SQLite can use its indexes.
pub(crate) fn push_conditions(query: &mut QueryBuilder<Sqlite>, filter: &JobFilter) {
    if let Some(user) = &filter.user {
        query.push(" AND user_id = ").push_bind(user.clone());
    }
    if !filter.states.is_empty() {
        query.push(" AND state IN (");
        let mut list = query.separated(", ");
        for state in &filter.states {
            list.push_bind(state.as_str());
        }
        query.push(")");
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
    if let Some(part) = &filter.id_part {
        query.push(" AND (lower(hex(id)) LIKE ").push_bind(format!("{part}%"));
        query.push(" OR lower(hex(id)) LIKE ").push_bind(format!("%{part}")).push(")");
    }
    if let Some(parent) = filter.parent {
        query.push(" AND parent_id = ").push_bind(parent);
    }
    if let Some(before) = filter.before {
        query.push(" AND id < ").push_bind(before);
    }
    // One more, to know whether there is a next page.
    query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit) + 1);
}
