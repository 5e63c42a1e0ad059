//! Tool calls of the orchestrator's with their result, each recorded before its answer is used; and what they notify.

use chrono::{DateTime, Utc};
use protocol::{CallId, JobId, ToolActionRecord, ToolCallReply};
use sqlx::FromRow;

use super::{
    Store, StoreError,
    rows::{Place, column, count, text},
};

/// One orchestrator-side tool call, over.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionRow<'a> {
    /// Whose.
    pub job: JobId,
    /// In which attempt.
    pub attempt: u32,
    /// Its name.
    pub call_id: &'a CallId,
    /// Of its tool and arguments.
    pub request_digest: &'a str,
    /// When it was over.
    pub at: DateTime<Utc>,
    /// Which tool.
    pub tool: &'a str,
    /// Redacted and cut.
    pub input: &'a serde_json::Value,
    /// For the log of calls.
    pub output: &'a str,
    /// The answer, given again when the call comes again.
    pub reply: &'a ToolCallReply,
}

/// What is known of an orchestrator-side tool call that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownAction {
    /// Which tool.
    pub tool: String,
    /// Of its tool and arguments; none when it is from before digests were kept.
    pub request_digest: Option<String>,
    /// The answer.
    pub reply: ToolCallReply,
}

impl KnownAction {
    /// Whether it was this call; of calls before digests were kept only the tool is known.
    pub fn asked(&self, tool: &str, digest: &str) -> bool {
        self.tool == tool && self.request_digest.as_deref().is_none_or(|asked| asked == digest)
    }
}

impl Store {
    /// What is known before a tool call is made: the one of this name, if it was made already, and how many others were.
    pub async fn tool_calls_made(
        &self,
        job: JobId,
        attempt: u32,
        call: &CallId,
    ) -> Result<(Option<KnownAction>, u64), StoreError> {
        let (others, tool, request_digest, reply): (i64, Option<String>, Option<String>, Option<String>) = sqlx::query_as(
            "SELECT (SELECT COUNT(*) FROM job_actions WHERE job_id = $1 AND NOT (attempt = $2 AND call_id = $3)), tool, \
             request_digest, reply \
             FROM (SELECT 1) AS one LEFT JOIN job_actions ON job_id = $1 AND attempt = $2 AND call_id = $3",
        )
        .bind(*job.as_uuid())
        .bind(i64::from(attempt))
        .bind(&call.0)
        .fetch_one(&self.read)
        .await?;
        let place = Place { table: "job_actions", id: *job.as_uuid() };
        let reply = reply.map(|json| place.json("reply", &json)).transpose()?;
        let known = tool.zip(reply).map(|(tool, reply)| KnownAction { tool, request_digest, reply });
        Ok((known, count(others)))
    }

    /// Whether a tool call of this attempt has begun and not ended.
    pub async fn waits_for_tool(&self, job: JobId, attempt: u32) -> Result<bool, StoreError> {
        let open: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM job_actions WHERE job_id = $1 AND attempt = $2 AND success IS NULL",
        )
        .bind(*job.as_uuid())
        .bind(i64::from(attempt))
        .fetch_one(&self.read)
        .await?;
        Ok(open > 0)
    }

    /// Records an orchestrator-side tool call.
    pub async fn record_tool_call(&self, action: &ActionRow<'_>) -> Result<(), StoreError> {
        let (job, attempt, call_id, at) = (action.job, action.attempt, action.call_id.0.clone(), action.at);
        let (tool, output) = (action.tool.to_owned(), action.output.to_owned());
        let (success, duration_ms) = (action.reply.success, column(action.reply.duration_ms));
        let (input, reply) = (text(action.input)?, text(action.reply)?);
        let request_digest = action.request_digest.to_owned();
        self.write_one(move |tx| Box::pin(async move { sqlx::query(
            "INSERT INTO job_actions (job_id, attempt, call_id, at, tool, input, success, output, duration_ms, reply, \
             request_digest) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (job_id, attempt, call_id) DO UPDATE SET \
             at = excluded.at, tool = excluded.tool, input = excluded.input, success = excluded.success, output = excluded.output, duration_ms = excluded.duration_ms, \
             reply = excluded.reply, request_digest = excluded.request_digest",
        )
        .bind(*job.as_uuid())
        .bind(i64::from(attempt))
        .bind(call_id)
        .bind(at)
        .bind(tool)
        .bind(input)
        .bind(success)
        .bind(output)
        .bind(duration_ms)
        .bind(reply)
        .bind(request_digest)
        .execute(&mut tx.db)
        .await?;
        Ok(()) })).await
    }

    /// A notification for a user, once for each call of an attempt.
    pub async fn notify(
        &self,
        (job, call_id): (JobId, &str),
        channel: Option<&str>,
        content: &str,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let (call_id, channel, content) = (call_id.to_owned(), channel.map(str::to_owned), content.to_owned());
        self.write_one(move |tx| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO notifications (id, user_id, job_id, channel, content, created_at, call) \
                     SELECT $1, user_id, id, $2, $3, $4, attempt || ':' || $6 FROM jobs WHERE id = $5 \
                     ON CONFLICT DO NOTHING",
                )
                .bind(*protocol::PromptId::generate().as_uuid())
                .bind(channel)
                .bind(content)
                .bind(now)
                .bind(*job.as_uuid())
                .bind(call_id)
                .execute(&mut tx.db)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// A job's tool calls, oldest first.
    pub async fn actions(&self, job: JobId, offset: u32, limit: u32) -> Result<Vec<ToolActionRecord>, StoreError> {
        let rows: Vec<ActionListRow> = sqlx::query_as(
            "SELECT attempt, call_id, at, tool, input, success, output, duration_ms FROM job_actions \
             WHERE job_id = $1 ORDER BY attempt, at, call_id LIMIT $2 OFFSET $3",
        )
        .bind(*job.as_uuid())
        .bind(i64::from(limit))
        .bind(i64::from(offset))
        .fetch_all(&self.read)
        .await?;
        let place = Place { table: "job_actions", id: *job.as_uuid() };
        rows.into_iter().map(|row| row.into_record(place)).collect()
    }
}

#[derive(FromRow)]
struct ActionListRow {
    attempt: i64,
    call_id: String,
    at: DateTime<Utc>,
    tool: String,
    input: String,
    success: Option<bool>,
    output: Option<String>,
    duration_ms: Option<i64>,
}

impl ActionListRow {
    fn into_record(self, place: Place) -> Result<ToolActionRecord, StoreError> {
        Ok(ToolActionRecord {
            call_id: self.call_id,
            attempt: place.number("attempt", self.attempt)?,
            tool: self.tool,
            input: place.json("input", &self.input)?,
            success: self.success,
            output: self.output,
            duration_ms: self.duration_ms.map(|ms| place.number("duration_ms", ms)).transpose()?,
            at: self.at,
        })
    }
}
