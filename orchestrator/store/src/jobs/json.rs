//! Jobs as the public API's JSON, rendered by the database: one statement and one value for each request.
//!
//! A row of a job has some thirty columns; read one by one, each is copied, sent between threads, looked up, parsed and
//! written again. Owns the statements' text of `protocol::Job` and `protocol::JobSummary`; tests compare both with the
//! types. Labels, limits, metadata and similar columns are JSON already and are passed on as they were stored.
//!
//! The caller's token is looked up in the same statement: see [`TokenChecked`].
//!
//! The text of a `format` and its arguments are matched by position only: a member is added at the same place of both,
//! and of `protocol::Job`. `format` escapes nothing and shows NULL as nothing, so an argument with free text, or one
//! that may be NULL, is JSON already (`json_quote`, or a column that has JSON). An item has no raw line break, which
//! separates the items of a page, and begins with the digits of the id, so that a row that makes no sense can still be
//! named. `every_stage_of_a_job_is_rendered_as_its_record_is` fails when a member is missing, misplaced or unquoted,
//! `pages_follow_each_other_without_a_gap` when a page ends wrongly.

use protocol::{JobId, JobMode, JobReason, JobState, Placement, Source};
use serde::Deserialize;
use sqlx::{QueryBuilder, Sqlite};

use super::list;
use crate::{
    JobFilter, Store, StoreError,
    sqlite::{rows::RowRef, search::Search},
};

/// Maximum size of a page's items: a page ends at 1 MiB (docs/api.md), less the rest of the body.
const PAGE_BYTES: usize = 1024 * 1024 - 1024;
/// Separates rendered jobs. JSON text has no raw line break.
const SEPARATOR: char = '\n';
/// Hexadecimal digits of an id, which a rendered job starts with.
const ID_DIGITS: usize = 32;

/// The value read for the bearer of a token, or that the token is revoked. The statement that reads also looks up the
/// token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenChecked<T> {
    /// The token is revoked; nothing may be shown.
    Revoked,
    /// The token is not revoked.
    Valid(T),
}

/// A job as JSON, with its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobJson {
    pub user_id: String,
    /// A `protocol::Job`.
    pub json: String,
}

/// A page of jobs, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobPage {
    /// `protocol::JobSummary` items, separated by commas.
    pub items: String,
    /// The last job of the page, if more follow.
    pub last: Option<JobId>,
}

/// A time column that is never null: stored with the offset `+00:00`, shown with `Z`.
macro_rules! time {
    ($column:literal) => {
        concat!("replace(", $column, ", '+00:00', 'Z')")
    };
}

macro_rules! optional_time {
    ($column:literal) => {
        concat!("ifnull('\"' || replace(", $column, ", '+00:00', 'Z') || '\"', 'null')")
    };
}

/// Not `true` where it is NULL.
macro_rules! boolean {
    ($column:literal) => {
        concat!("iif(", $column, ", 'true', 'false')")
    };
}

macro_rules! optional_id {
    ($column:literal) => {
        concat!(
            "CASE WHEN ",
            $column,
            " IS NULL THEN 'null' ELSE lower(format('\"%s-%s-%s-%s-%s\"', ",
            "substr(hex(",
            $column,
            "), 1, 8), substr(hex(",
            $column,
            "), 9, 4), substr(hex(",
            $column,
            "), 13, 4), ",
            "substr(hex(",
            $column,
            "), 17, 4), substr(hex(",
            $column,
            "), 21))) END"
        )
    };
}

/// An expression over a row of `jobs`: the id's digits, then the object's other members. What a job has and a summary
/// has not (or the other way round) is given as a piece of the format and its arguments.
macro_rules! job_json {
    (($prompt_format:literal, $prompt:literal), ($metadata_format:literal, $metadata:literal), ($tools_format:literal, $tools:literal), ($result_format:literal, $result:literal)) => {
        concat!(
            "format('%s\"user_id\":%s,\"title\":%s,", $prompt_format, ",\"mode\":\"%s\",\"placement\":\"%s\",\"state\":\"%s\",",
            "\"reason\":%s,\"message\":%s,\"priority\":%d,\"labels\":%s,", $metadata_format,
            "\"limits\":%s,\"egress\":%s,", $tools_format, "\"model\":%s,\"effort\":%s,\"held\":%s,\"review\":%s,\"prompts_closed\":%s,\"source\":\"%s\",\"routine_id\":%s,\"run_id\":%s,\"parent_id\":%s,",
            "\"restarted_from\":%s,\"attempt\":%d,\"repair_attempts\":%d,\"created_at\":\"%s\",\"started_at\":%s,",
            "\"last_activity_at\":%s,\"cancel_requested_at\":%s,\"finished_at\":%s,", $result_format,
            "\"usage\":{\"input_tokens\":%d,\"output_tokens\":%d,\"cache_read_tokens\":%d,\"cache_write_tokens\":%d,",
            "\"cost_usd\":%s,\"llm_calls\":%d,\"tool_calls\":%d,\"iterations\":%d},\"container\":%s}', ",
            "hex(jobs.id), json_quote(jobs.user_id), json_quote(title), ", $prompt, ", mode, placement, state, ",
            "json_quote(reason), json_quote(message), priority, labels, ", $metadata,
            "limits, ifnull(egress, 'null'), ", $tools, "json_quote(model), json_quote(effort), ",
            boolean!("held"), ", ", boolean!("review"), ", ", boolean!("prompts_closed"), ", source, ", optional_id!("routine_id"), ", ", optional_id!("run_id"), ", ", optional_id!("parent_id"), ", ", optional_id!("restarted_from"),
            ", attempt, repair_attempts, ", time!("created_at"), ", ", optional_time!("started_at"), ", ",
            optional_time!("last_activity_at"), ", ", optional_time!("cancel_requested_at"), ", ",
            optional_time!("finished_at"), ", ", $result,
            "input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, ",
            "CASE WHEN has_unpriced_calls THEN 'null' ELSE cost_micro_usd / 1000000.0 END, llm_calls, ",
            "tool_calls, iterations, ifnull(container, 'null'))"
        )
    };
}

/// A job with its texts, for the token `$1` and the id `$2`. One row in any case.
const JOB: &str = concat!(
    "SELECT ",
    "COALESCE((SELECT revoked_at IS NOT NULL FROM tokens WHERE jti = $1), FALSE), CASE WHEN job_texts.job_id IS NOT NULL THEN jobs.user_id END, ",
    job_json!(
        ("\"prompt\":%s", "json_quote(prompt || ifnull(note, ''))"),
        ("\"metadata\":%s,", "metadata, "),
        (
            "\"tools\":%s,\"approve\":%s,\"image\":%s,\"plan\":%s,",
            "ifnull(tools, 'null'), ifnull(approve, '[]'), json_quote(image), iif(plan, 'true', 'false'), "
        ),
        (
            "\"result\":%s,",
            "CASE WHEN state = 'submitted' OR result_text IS NOT NULL OR result_partial IS NOT NULL \
             THEN format('{\"text\":%s,\"partial\":%s%s}', json_quote(result_text), ifnull(result_partial, 'null'), \
             CASE WHEN result_cut THEN ',\"cut\":true' ELSE '' END) \
             ELSE 'null' END, "
        )
    ),
    " FROM (SELECT 1) AS one LEFT JOIN jobs ON jobs.id = $2 LEFT JOIN job_texts ON job_texts.job_id = jobs.id"
);

/// A job as a list shows it.
macro_rules! summary_json {
    () => {
        job_json!(
            ("\"prompt_preview\":%s", "json_quote(prompt_preview)"),
            ("", ""),
            ("", ""),
            ("\"activity\":%s,", "json_quote(activity), ")
        )
    };
}

/// Jobs as a list shows them.
const SUMMARIES: &str = concat!("SELECT id, ", summary_json!(), " AS item FROM jobs");

pub(crate) mod events;

impl Store {
    /// A job as JSON, for the bearer of the token `jti`.
    pub async fn job_json(&self, jti: &str, id: JobId) -> Result<TokenChecked<Option<JobJson>>, StoreError> {
        let (is_revoked, user_id, item): (bool, Option<String>, String) =
            sqlx::query_as(JOB).bind(jti).bind(id).fetch_one(&self.read).await?;
        if is_revoked {
            return Ok(TokenChecked::Revoked);
        }
        let Some(user_id) = user_id else { return Ok(TokenChecked::Valid(None)) };
        let mut json = String::with_capacity(item.len() + ID_DIGITS);
        push_item(&mut json, &item).map_err(|error| error.of(id))?;
        Ok(TokenChecked::Valid(Some(JobJson { user_id, json })))
    }

    /// Jobs as JSON, newest first, for the bearer of the token `jti`: at most as many as requested, and as fit into a
    /// page. A page of a search also ends when its time is over.
    pub async fn job_summaries(&self, jti: &str, filter: &JobFilter) -> Result<TokenChecked<JobPage>, StoreError> {
        self.job_summaries_within(jti, filter, Search::of(filter.user.as_deref())).await
    }

    async fn job_summaries_within(
        &self,
        jti: &str,
        filter: &JobFilter,
        mut search: Search,
    ) -> Result<TokenChecked<JobPage>, StoreError> {
        let mut filter = filter.clone();
        // One more, to know whether there is a next page.
        let is_search = filter.is_search();
        let rows = if is_search { search.rows_per_step } else { filter.limit + 1 };
        let (readers, limit) = (if is_search { &self.search } else { &self.read }, filter.limit as usize);
        let (mut rendered, mut found) = (String::new(), 0);
        loop {
            let mut query = summaries(jti, &filter, rows);
            let (is_revoked, items, read, last): (bool, Option<String>, u32, Option<JobId>) =
                query.build_query_as().fetch_one(readers).await?;
            if is_revoked {
                return Ok(TokenChecked::Revoked);
            }
            let items = items.unwrap_or_default();
            if !is_search {
                return Ok(TokenChecked::Valid(JobPage::of(&items, limit)));
            }
            if !items.is_empty() {
                found += items.matches(SEPARATOR).count() + 1;
                rendered.push_str(&items);
                rendered.push(SEPARATOR);
            }
            let is_complete = found > limit || read < rows;
            if is_complete || search.ends(read as usize, found, NARROWER)? {
                let mut page = JobPage::of(&rendered, limit);
                if !is_complete && page.last.is_none() {
                    page.last = last;
                }
                return Ok(TokenChecked::Valid(page));
            }
            filter.before = last;
        }
    }
}

/// What narrows a search.
const NARROWER: &str = "user=, state= or parent=";

/// The statement of a page of jobs, or of a step of a search, which reads `rows`: with how many were read, and the last
/// of them. A page that is no search shows what it reads.
pub(crate) fn summaries(jti: &str, filter: &JobFilter, rows: u32) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("");
    if filter.is_search() {
        query.push("WITH walked (id) AS MATERIALIZED (");
        list::push_walks(&mut query, "SELECT id FROM jobs", filter, rows);
        query.push(") ");
    }
    query.push("SELECT COALESCE((SELECT revoked_at IS NOT NULL FROM tokens WHERE jti = ");
    query.push_bind(jti.to_owned()).push("), FALSE), (SELECT group_concat(item, char(10)) FROM (");
    if filter.is_search() {
        query.push(SUMMARIES).push(" WHERE id IN (SELECT id FROM walked)");
        list::push_search(&mut query, filter);
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit) + 1);
        query.push(")), (SELECT COUNT(*) FROM walked), (SELECT MIN(id) FROM walked)");
    } else {
        list::push_walks(&mut query, SUMMARIES, filter, rows);
        query.push(")), 0, NULL");
    }
    query
}

/// The members of a rendered job that only some values fit. Reading them checks the syntax of the whole object.
#[derive(Deserialize)]
struct CheckedMembers {
    #[serde(rename = "mode")]
    _mode: JobMode,
    #[serde(rename = "placement")]
    _placement: Placement,
    #[serde(rename = "state")]
    _state: JobState,
    #[serde(rename = "reason")]
    _reason: Option<JobReason>,
    #[serde(rename = "source")]
    _source: Source,
}

/// A rendered job that is not valid: its row is inconsistent.
#[derive(Debug, thiserror::Error)]
enum InvalidItem {
    #[error("no id")]
    Id,
    #[error("not a job")]
    Members(#[from] serde_json::Error),
}

impl InvalidItem {
    fn of(&self, id: JobId) -> StoreError {
        let column = match self {
            Self::Id => "id",
            Self::Members(_) => "(rendered)",
        };
        RowRef { table: "jobs", id: *id.as_uuid() }.invalid(column)
    }
}

impl JobPage {
    /// Cuts the rendered jobs where the page ends. An inconsistent row is logged and left out.
    fn of(rendered: &str, limit: usize) -> Self {
        let mut page = Self { items: String::with_capacity(rendered.len() + 2_048), last: None };
        let mut last = None;
        for (index, item) in rendered.split(SEPARATOR).filter(|item| !item.is_empty()).enumerate() {
            // One job always fits, whatever its labels are.
            if index == limit || (index > 0 && page.items.len() + item.len() > PAGE_BYTES) {
                page.last = last;
                break;
            }
            let length = page.items.len();
            if length > 0 {
                page.items.push(',');
            }
            let id = item_id(item);
            if let Err(error) = push_item(&mut page.items, item) {
                page.items.truncate(length);
                tracing::error!(job.id = id.map(tracing::field::display), %error, "a list leaves out an inconsistent job");
            }
            // The next page starts after this row, valid or not.
            last = id.or(last);
        }
        page
    }
}

fn item_id(item: &str) -> Option<JobId> {
    let (digits, _) = item.split_at_checked(ID_DIGITS)?;
    uuid::Uuid::try_parse(digits).ok().map(JobId::from_uuid)
}

/// Appends a rendered job with its id in the usual form. What was appended of an invalid one has to be removed.
fn push_item(json: &mut String, item: &str) -> Result<(), InvalidItem> {
    let id = item_id(item).ok_or(InvalidItem::Id)?;
    let begin = json.len();
    json.push_str("{\"id\":\"");
    json.push_str(id.as_uuid().hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()));
    json.push_str("\",");
    json.push_str(&item[ID_DIGITS..]);
    serde_json::from_str::<CheckedMembers>(&json[begin..])?;
    Ok(())
}

#[cfg(test)]
mod tests;
