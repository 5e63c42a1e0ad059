//! A job's events: durable, and numbered from 1 without gaps.

pub(crate) mod agent_event;
pub(crate) mod instance_event;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    CallId, EgressPhase, JobId, JobReason, JobState, PartialResult, ReportedOutcome,
    names::{wire_enum, wire_names},
};

/// One event as stored, listed and streamed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Version of this shape: 1.
    pub v: u8,
    /// From 1 without gaps within the job.
    pub seq: i64,
    /// Increases over the whole instance.
    pub cursor: i64,
    /// The job.
    pub job_id: JobId,
    /// The attempt that the event belongs to; 0 before the first.
    pub attempt: u32,
    /// When the orchestrator wrote it.
    pub at: DateTime<Utc>,
    /// Whether texts or lists of it were cut, as the request asked (`max_text`). Left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// `kind` and `data`.
    #[serde(flatten)]
    pub data: EventData,
}

/// The content of an event, by kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, strum::EnumDiscriminants)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), strum_discriminants(derive(utoipa::ToSchema)))]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
#[strum_discriminants(name(EventKind), doc = "The kind of an event, by itself.", derive(Hash, Serialize, Deserialize))]
#[strum_discriminants(derive(strum::Display, strum::EnumString, strum::IntoStaticStr, strum::VariantArray))]
#[strum_discriminants(serde(rename_all = "snake_case"), strum(serialize_all = "snake_case"))]
pub enum EventData {
    /// The job changed state.
    State {
        /// None on the first event.
        from: Option<JobState>,
        /// The new state.
        to: JobState,
        /// Why the job is in a failed, stuck or cancelled state.
        reason: Option<JobReason>,
        /// A human-readable message.
        message: Option<String>,
    },
    /// A message of the model, a person or the system.
    Message {
        /// Who wrote it.
        role: MessageRole,
        /// The text.
        content: String,
    },
    /// The model's reasoning.
    Reasoning {
        /// The text.
        content: String,
    },
    /// The plan in planning mode.
    Plan {
        /// The goal.
        goal: String,
        /// The steps, in order.
        steps: Vec<PlanStep>,
        /// The model's own estimate, 0–1.
        confidence: f64,
    },
    /// A tool call starts.
    ToolUse {
        /// Pairs it with its result.
        call_id: CallId,
        /// The tool.
        tool: String,
        /// The input, without credentials.
        input: Value,
        /// The model's reason, if it gave one: its reasoning, else the text before the call. At most 2000 bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
    },
    /// A tool call's result.
    ToolResult {
        /// Pairs it with its call.
        call_id: CallId,
        /// The tool.
        tool: String,
        /// Whether the call succeeded.
        success: bool,
        /// The text that the model reads.
        output: String,
        /// Whether `output` was cut.
        truncated: bool,
        /// How long it took.
        duration_ms: u64,
    },
    /// A model call; written by the gateway.
    LlmCall {
        /// The model.
        model: String,
        /// Its provider.
        provider: String,
        /// Prompt tokens.
        input_tokens: u64,
        /// Completion tokens.
        output_tokens: u64,
        /// In US dollars; null when the price is unknown.
        cost_usd: Option<f64>,
        /// How long it took.
        duration_ms: u64,
        /// Why the reply ended, or the error's kind.
        finish_reason: String,
    },
    /// A human-readable progress message.
    Status {
        /// The progress message.
        message: String,
        /// The number of model calls made.
        iteration: u32,
    },
    /// Output of the job's own processes.
    Log {
        /// The stream.
        stream: LogStream,
        /// The text.
        text: String,
        /// The tool call whose output it is. Its result, which follows, has the output too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call_id: Option<CallId>,
    },
    /// A decision about a connection that a tool or a command of the job asked for, or what repetitions of it add.
    Egress {
        /// The part of the job.
        #[serde(default)]
        phase: EgressPhase,
        /// The requested host.
        host: String,
        /// The port.
        port: u16,
        /// Whether the connection was allowed.
        decision: EgressDecision,
        /// The entry of the list that allows it, or what refuses it: the list, the kind of its address, a rule of its
        /// protocol or a limit.
        rule: String,
        /// How many decisions; 0 if only bytes are added.
        #[serde(default = "one")]
        count: u64,
        /// Bytes that were sent.
        #[serde(default)]
        bytes_up: u64,
        /// Bytes that were received. In events of earlier versions, whose name for it is `bytes`, in both directions.
        #[serde(default, alias = "bytes")]
        bytes_down: u64,
    },
    /// A limit was reached.
    Limit {
        /// The limit.
        limit: LimitName,
        /// The limit's value.
        value: Value,
    },
    /// How the work ended. Recorded once; only `state` events follow.
    Result {
        /// How it ended.
        outcome: ReportedOutcome,
        /// The result, complete or partial.
        text: String,
        /// The partial result of a job that did not complete.
        partial: Option<PartialResult>,
    },
}

wire_enum! {
    /// A decision about a connection.
    pub enum EgressDecision {
        /// The connection was made.
        Allowed,
        /// The connection was refused.
        Denied,
        /// A name that this version does not know.
        #[serde(other)]
        Unknown,
    }
}

wire_enum! {
    /// The name of a limit in events. Where a job has the limit as a field, it is that field's name.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum LimitName {
        MaxIterations,
        MaxToolCalls,
        MaxTokens,
        MaxCostUsd,
        TimeoutSeconds,
        Pids,
        Memory,
        DiskMb,
        MaxEventsMb,
        SessionRejected,
        EgressDownMb,
        EgressUpMb,
        /// A name that this version does not know.
        #[serde(other)]
        Other,
    }
}

wire_names!(EventKind);

/// An event of an earlier version is one decision.
const fn one() -> u64 {
    1
}

impl EventData {
    /// The event's kind.
    pub fn kind(&self) -> EventKind {
        self.into()
    }
}

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MessageRole {
    /// The model.
    Assistant,
    /// A person.
    User,
    /// The loop or the operator.
    System,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanStep {
    /// The tool that the step calls.
    pub tool: String,
    /// Why the step is needed.
    pub reasoning: String,
}

/// The stream of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_egress_event_of_an_earlier_version_is_one_decision() {
        let stored = json!({"kind": "egress", "data": {
            "host": "a.example", "port": 443, "decision": "allowed", "rule": "a.example", "bytes": 12,
        }});
        let expected = EventData::Egress {
            phase: EgressPhase::Agent,
            host: "a.example".to_owned(),
            port: 443,
            decision: EgressDecision::Allowed,
            rule: "a.example".to_owned(),
            count: 1,
            bytes_up: 0,
            bytes_down: 12,
        };
        assert_eq!(serde_json::from_value::<EventData>(stored).unwrap(), expected);
    }
}
