//! Request bodies of the public API.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{Effort, JobMode, Limits, Metadata, PromptId, names::wire_enum};

/// Requested limits; absent ones take their defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "as in Limits")]
pub struct LimitsRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tool_calls: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_children: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
}

/// The permissions of an input file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FileMode {
    /// A file that is only read and written.
    #[default]
    #[serde(rename = "0644")]
    Regular,
    /// A program or a script.
    #[serde(rename = "0755")]
    Executable,
}

impl FileMode {
    /// The permission bits.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Regular => 0o644,
            Self::Executable => 0o755,
        }
    }
}

/// A file put into the workspace before the work starts: exactly one of the two contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InputFile {
    /// Relative to the workspace; no `..`, no absolute path.
    pub path: String,
    /// The content as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The content as base64 (standard alphabet, padded).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// The permissions in octal: `0644` by default, or `0755` for a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FileMode>,
}

/// The hosts that a job's tools may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// Entries of the form `host[:port]` or `*.suffix[:port]`, port 443 when left out, or `preset:NAME`; at most 64, also with
    /// the hosts of the presets. The operator's ceiling must allow all that they allow. Commands and the tool `http` reach these hosts; without an entry the tool is not offered.
    pub allow: Vec<String>,
    /// Credentials added outside the container. Not available in this version: refused with `not_available`.
    pub inject: Vec<EgressInjection>,
    /// `allow` with the hosts of its presets, as they were when the job was created; left out without presets. In answers; of a
    /// request it is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
}

/// A credential that is added to requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EgressInjection {
    /// The host whose requests get it.
    pub host: String,
    /// The header that carries it.
    pub header: String,
    /// The name of the owner's secret.
    pub secret: String,
}

/// `POST /api/jobs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateJob {
    /// The task.
    pub prompt: String,
    /// The display title; the prompt's first line by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Which agent runs the job: `worker`. `command` is not available in this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<JobMode>,
    /// The command line, with `mode: command`. Not available in this version: refused with `not_available`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// One of the operator's images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Narrows the tools to these; every built-in tool that the context allows by default. An entry is a name, or `SERVER__*`, which
    /// stands for all tools of an MCP server that are approved when the work starts. With `+` before every entry: the built-in
    /// tools and these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Tools that always require approval and may run without asking in this job. Tools that are denied to all jobs stay denied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approve: Vec<String>,
    /// Files put into the workspace before the work starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<InputFile>,
    /// Limits of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsRequest>,
    /// The hosts that the job may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// Whether the work starts with a plan; the operator's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<bool>,
    /// Whether a person accepts or rejects the result.
    #[serde(default)]
    pub review: bool,
    /// Whether the job waits in `pending` until `POST …/start`.
    #[serde(default)]
    pub hold: bool,
    /// Jobs with a higher priority start first; −100 to 100.
    #[serde(default)]
    pub priority: i32,
    /// Labels for filters: at most 64, with keys of 63 and values of 255 bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Stored as given, at most 64 KiB.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Metadata,
    /// One of the operator's models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much the model thinks; the user's or the operator's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
}

/// `POST …/cancel`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// A human-readable reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST …/reject`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RejectRequest {
    /// A human-readable reason.
    pub reason: String,
}

wire_enum! {
    /// When the agent sees a follow-up prompt.
    #[derive(Default)]
    pub enum PromptMode {
        /// Before the next model call.
        #[default]
        Steer,
        /// When the agent would otherwise finish.
        Queue,
    }
}

/// `POST …/prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PromptRequest {
    /// The text.
    pub content: String,
    /// When the agent sees it.
    #[serde(default)]
    pub mode: PromptMode,
    /// Whether this is the last prompt.
    #[serde(default)]
    pub done: bool,
}

/// The answer to a [`PromptRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PromptReceipt {
    /// The prompt's id.
    pub prompt_id: PromptId,
}

/// A prompt of a job, as `GET …/prompts` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobPrompt {
    /// The prompt's id.
    pub id: PromptId,
    /// The text; its first 1,000 characters.
    pub content: String,
    /// When the agent sees it.
    pub mode: PromptMode,
    /// Whether it is the last prompt.
    pub done: bool,
    /// When it was sent.
    pub created_at: DateTime<Utc>,
    /// When the agent read it; null while it waits.
    pub read_at: Option<DateTime<Utc>>,
}

/// What a new job may ask for, and what it gets if it does not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobOptions {
    /// The models, the default one first.
    pub models: Vec<String>,
    /// The images, the default one first.
    pub images: Vec<String>,
    /// The tools.
    pub tools: Vec<String>,
    /// MCP servers whose tools may be named, `SERVER__*` for all of them.
    pub mcp_servers: Vec<String>,
    /// Whether jobs start with a plan.
    pub plan: bool,
    /// The limits.
    pub limits: Limits,
    /// The highest limits. Zero for `max_tokens` and `max_cost_usd` means none.
    pub max_limits: Limits,
    /// The most tokens that the user may use in a day of UTC, input and output together; null without a limit.
    pub day_max_tokens: Option<u64>,
    /// The highest cost of a day in US dollars; null without a limit.
    pub day_max_cost_usd: Option<f64>,
}

/// `POST …/restart`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RestartRequest {
    /// The new job's prompt; the old job's by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::absent(json!({}), Ok(0o644))]
    #[case::regular(json!({"mode": "0644"}), Ok(0o644))]
    #[case::executable(json!({"mode": "0755"}), Ok(0o755))]
    #[case::writable_by_all(json!({"mode": "0777"}), Err("unknown variant `0777`, expected `0644` or `0755`"))]
    #[case::setuid(json!({"mode": "4755"}), Err("unknown variant `4755`, expected `0644` or `0755`"))]
    #[case::without_zero(json!({"mode": "755"}), Err("unknown variant `755`, expected `0644` or `0755`"))]
    fn the_mode_of_an_input_file_is_one_of_two(#[case] fields: Value, #[case] expected: Result<u32, &str>) {
        let mut file = json!({"path": "run.sh", "content": ""});
        file.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let read = serde_json::from_value::<InputFile>(file).map(|file| file.mode.unwrap_or_default().bits());
        assert_eq!(read.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
    }
}
