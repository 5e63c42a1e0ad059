//! What a run of a routine does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{CreateJob, Effort, Egress, JobMode, LimitsRequest, Metadata, names::wire_names};

/// What a run of a routine does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, strum::EnumDiscriminants)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), strum_discriminants(derive(utoipa::ToSchema)))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[strum_discriminants(
    name(RoutineActionKind),
    doc = "The type of an action, by itself.",
    derive(Hash, Serialize, Deserialize)
)]
#[strum_discriminants(derive(strum::Display, strum::EnumString, strum::IntoStaticStr, strum::VariantArray))]
#[strum_discriminants(serde(rename_all = "snake_case"), strum(serialize_all = "snake_case"))]
pub enum RoutineAction {
    /// The agent's loop in the orchestrator.
    Lightweight(LightweightAction),
    /// A job.
    FullJob(Box<FullJobAction>),
    /// A line in the owner's main session.
    SystemEventText {
        /// The line.
        text: String,
    },
}

wire_names!(RoutineActionKind);

impl RoutineAction {
    /// Its type.
    pub fn kind(&self) -> RoutineActionKind {
        self.into()
    }
}

/// The agent's loop in the orchestrator, with orchestrator tools only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LightweightAction {
    /// The task; at most 256 KiB.
    pub prompt: String,
    /// Documents of the owner's memory that the model reads with the task; at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_paths: Vec<String>,
    /// Output tokens of each model call.
    #[serde(default = "default_max_tokens")]
    pub max_tokens: u32,
    /// Whether the model may call tools. Without, a run is one model call.
    #[serde(default)]
    pub use_tools: bool,
    /// Rounds of tool calls before the final answer, at least 1.
    #[serde(default = "default_max_tool_rounds")]
    pub max_tool_rounds: u32,
    /// With `use_tools`, narrows the tools to these; every built-in tool that the context allows by default. An entry is a name,
    /// or `SERVER__*`, which stands for all tools of an MCP server that are approved when the run starts. With `+` before every
    /// entry: the built-in tools and these. `nothing_to_report` is always there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Tools that always require approval and may run without asking.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approve: Vec<String>,
    /// One of the operator's models; the user's or the operator's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much the model thinks; the user's or the operator's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
}

const fn default_max_tokens() -> u32 {
    4096
}

const fn default_max_tool_rounds() -> u32 {
    3
}

/// A job. Its fields are those of `POST /api/jobs`, except `prompt`, `title` and `files`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FullJobAction {
    /// The job's title; the routine's name by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The task; at most 256 KiB.
    pub description: String,
    /// Model calls that make progress; `limits.max_iterations` takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
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
    /// Tools that always require approval and may run without asking.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approve: Vec<String>,
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
    /// Labels for filters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Stored as given.
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

impl FullJobAction {
    /// The request for the job of a run, with the prompt of that run.
    pub fn into_request(self, routine_name: &str, prompt: String) -> CreateJob {
        let mut limits = self.limits;
        if let Some(iterations) = self.max_iterations {
            let limits = limits.get_or_insert_default();
            limits.max_iterations = limits.max_iterations.or(Some(iterations));
        }
        CreateJob {
            prompt,
            title: Some(self.title.unwrap_or_else(|| routine_name.to_owned())),
            mode: self.mode,
            command: self.command,
            image: self.image,
            tools: self.tools,
            approve: self.approve,
            files: Vec::new(),
            limits,
            egress: self.egress,
            plan: self.plan,
            review: self.review,
            hold: self.hold,
            priority: self.priority,
            labels: self.labels,
            metadata: self.metadata,
            model: self.model,
            effort: self.effort,
        }
    }
}
