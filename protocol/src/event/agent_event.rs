//! The events that an agent causes: what a loop records, and all that a worker may send.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallId, EventData, EventKind, LimitName, LogStream, MessageRole, PlanStep};

/// An event that a loop or a worker causes. On the wire each variant is the [`EventData`] variant of the same name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each field is documented on EventData")]
pub enum AgentEvent {
    /// A message of the model, a person or the system.
    Message { role: MessageRole, content: String },
    /// The model's reasoning.
    Reasoning { content: String },
    /// The plan in planning mode.
    Plan { goal: String, steps: Vec<PlanStep>, confidence: f64 },
    /// A tool call starts.
    ToolUse {
        call_id: CallId,
        tool: String,
        input: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
    },
    /// A tool call's result.
    ToolResult { call_id: CallId, tool: String, success: bool, output: String, truncated: bool, duration_ms: u64 },
    /// A human-readable progress message.
    Status { message: String, iteration: u32 },
    /// Output of the job's own processes.
    Log {
        stream: LogStream,
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call_id: Option<CallId>,
    },
    /// A limit was reached.
    Limit { limit: LimitName, value: Value },
}

impl AgentEvent {
    /// The event's kind.
    pub const fn kind(&self) -> EventKind {
        match self {
            Self::Message { .. } => EventKind::Message,
            Self::Reasoning { .. } => EventKind::Reasoning,
            Self::Plan { .. } => EventKind::Plan,
            Self::ToolUse { .. } => EventKind::ToolUse,
            Self::ToolResult { .. } => EventKind::ToolResult,
            Self::Status { .. } => EventKind::Status,
            Self::Log { .. } => EventKind::Log,
            Self::Limit { .. } => EventKind::Limit,
        }
    }
}

impl From<AgentEvent> for EventData {
    fn from(event: AgentEvent) -> Self {
        match event {
            AgentEvent::Message { role, content } => Self::Message { role, content },
            AgentEvent::Reasoning { content } => Self::Reasoning { content },
            AgentEvent::Plan { goal, steps, confidence } => Self::Plan { goal, steps, confidence },
            AgentEvent::ToolUse { call_id, tool, input, reasoning } => {
                Self::ToolUse { call_id, tool, input, reasoning }
            }
            AgentEvent::ToolResult { call_id, tool, success, output, truncated, duration_ms } => {
                Self::ToolResult { call_id, tool, success, output, truncated, duration_ms }
            }
            AgentEvent::Status { message, iteration } => Self::Status { message, iteration },
            AgentEvent::Log { stream, text, call_id } => Self::Log { stream, text, call_id },
            AgentEvent::Limit { limit, value } => Self::Limit { limit, value },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::WorkerEvent;

    fn one_of_each() -> Vec<AgentEvent> {
        let (call_id, tool) = (CallId("c".to_owned()), "shell".to_owned());
        vec![
            AgentEvent::Message { role: MessageRole::Assistant, content: "hi".to_owned() },
            AgentEvent::Reasoning { content: "because".to_owned() },
            AgentEvent::Plan { goal: "g".to_owned(), steps: Vec::new(), confidence: 0.5 },
            AgentEvent::ToolUse {
                call_id: call_id.clone(),
                tool: tool.clone(),
                input: json!({"a": 1}),
                reasoning: None,
            },
            AgentEvent::ToolResult {
                call_id,
                tool,
                success: true,
                output: "out".to_owned(),
                truncated: false,
                duration_ms: 3,
            },
            AgentEvent::Status { message: "busy".to_owned(), iteration: 2 },
            AgentEvent::Log { stream: LogStream::Stderr, text: "line".to_owned(), call_id: None },
            AgentEvent::Log {
                stream: LogStream::Stdout,
                text: "line".to_owned(),
                call_id: Some(CallId("c".to_owned())),
            },
            AgentEvent::Limit { limit: LimitName::MaxCostUsd, value: json!(5.0) },
        ]
    }

    #[test]
    fn each_event_has_the_same_bytes_as_a_jobs_event() {
        for event in one_of_each() {
            let data = EventData::from(event.clone());
            assert_eq!(serde_json::to_string(&event).unwrap(), serde_json::to_string(&data).unwrap());
            assert_eq!(event.kind(), data.kind());
        }
    }

    #[test]
    fn a_workers_event_has_its_kind_and_data_beside_its_number() {
        let sent = WorkerEvent { client_seq: 7, data: one_of_each().remove(8) };
        let text = serde_json::to_string(&sent).unwrap();
        assert_eq!(text, r#"{"client_seq":7,"kind":"limit","data":{"limit":"max_cost_usd","value":5.0}}"#);
        assert_eq!(serde_json::from_str::<WorkerEvent>(&text).unwrap(), sent);
    }

    #[test]
    fn kinds_that_only_the_orchestrator_writes_are_not_read() {
        let allowed: Vec<_> = one_of_each().iter().map(AgentEvent::kind).collect();
        for kind in EventKind::ALL.iter().filter(|kind| !allowed.contains(kind)) {
            let sent =
                json!({"client_seq": 1, "kind": kind, "data": {"outcome": "completed", "text": "", "partial": null}});
            let refused = serde_json::from_value::<WorkerEvent>(sent).unwrap_err().to_string();
            assert!(refused.contains("unknown variant"), "{kind}: {refused}");
        }
    }
}
